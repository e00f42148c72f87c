package metrics

import "github.com/prometheus/client_golang/prometheus"

// counted are the figures that are counted as they go past.
type counted struct {
	elections        prometheus.Counter
	transactions     *prometheus.CounterVec
	records          prometheus.Counter
	transactionTime  prometheus.Histogram
	rounds           *prometheus.CounterVec
	roundTime        prometheus.Histogram
	ids              *prometheus.CounterVec
	looks            *prometheus.CounterVec
	hanging          *prometheus.CounterVec
	healed, left     *prometheus.CounterVec
	sessions         *prometheus.CounterVec
	grants, takeback *prometheus.CounterVec
	missed           prometheus.Counter
}

// What labels may say.
const (
	committed, failed              = "committed", "failed"
	done, refused, superseded      = "done", "refused", "superseded"
	forRound, forStart             = "round", "start"
	clean, hanging                 = "clean", "hanging"
	opened, closed                 = "opened", "closed"
	written, dropped               = "written", "dropped"
	labelConnector, labelOutcome   = "connector", "outcome"
	labelState, labelRunner        = "state", "runner"
	labelClass, labelPlugin        = "class", "plugin"
	labelVersion, labelCluster     = "version", "cluster"
	labelFor, labelChange, pluginV = "for", "change", "plugin_version"
)

func newCounted() counted {
	c := counted{
		elections:       counter("coordinator_elections_total", "Times that this coordinator began to lead."),
		transactions:    counters("config_log_transactions_total", "Transactions of the config log, by whether they were committed; one that failed ended the leadership.", labelOutcome),
		records:         counter("config_log_records_total", "Records committed to the config log."),
		transactionTime: seconds("config_log_transaction_duration_seconds", "How long committed transactions of the config log took until every reader could read them.", 0.005, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10),
		rounds: counters("fencing_rounds_total",
			"Fencing rounds that ended: done, refused by the broker for good (a missing right; tried again later), or superseded by a newer one.", labelOutcome),
		roundTime: seconds("fencing_round_duration_seconds", "How long fencing rounds took that were done.", 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10, 60),
		ids:       counters("fencing_ids_total", "Transactional ids fenced: in rounds, and single ones before the start of a task.", labelFor),
		looks:     counters("looks_total", "Looks for hanging transactions, by what they found.", labelOutcome),
		hanging:   counters("hanging_partitions_found_total", "Partitions that looks found hanging by a transaction of the connector's own. One that goes on hanging is found again.", labelConnector),
		healed:    counters("hanging_partitions_healed_total", "Hanging partitions whose transaction was ended in the direction that was decided.", labelConnector),
		left:      counters("hanging_partitions_left_total", "Hanging partitions that an attempt to heal them left to a person: the direction isn't proven, or a right is missing.", labelConnector),
		sessions:  counters("coordinator_session_changes_total", "Sessions of runners that opened and closed while this coordinator led.", labelChange),
		grants:    counters("connector_grants_total", "Tasks granted to runners.", labelConnector),
		takeback:  counters("connector_revokes_total", "Tasks taken back from connected runners.", labelConnector),
		missed:    counter("coordinator_scrapes_incomplete_total", "Scrapes that the leader's loop had no time for, so that what stands was left out."),
	}
	for vec, outcomes := range map[*prometheus.CounterVec][]string{
		c.transactions: {committed, failed}, c.rounds: {done, refused, superseded}, c.ids: {forRound, forStart}, c.looks: {clean, hanging, failed}, c.sessions: {opened, closed},
	} {
		for _, outcome := range outcomes {
			vec.WithLabelValues(outcome) // There from the first scrape on, so that the first one that is counted shows as a rise.
		}
	}
	return c
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help})
}

func counters(name, help, label string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: namespace, Name: name, Help: help}, []string{label})
}

func seconds(name, help string, buckets ...float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Namespace: namespace, Name: name, Help: help, Buckets: buckets})
}

func (c *counted) all() []prometheus.Collector {
	return []prometheus.Collector{
		c.elections, c.transactions, c.records, c.transactionTime, c.rounds, c.roundTime, c.ids, c.looks, c.hanging, c.healed, c.left, c.sessions, c.grants, c.takeback, c.missed,
	}
}

// forget takes a connector's labels away.
func (c *counted) forget(connector string) {
	for _, vec := range []*prometheus.CounterVec{c.hanging, c.healed, c.left, c.grants, c.takeback} {
		vec.DeleteLabelValues(connector)
	}
}
