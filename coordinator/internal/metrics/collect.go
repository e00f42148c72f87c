package metrics

import (
	"context"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const namespace = "fencepost"

// described are the descriptions of what is read at a scrape.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc(namespace+"_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

var (
	coordinatorInfo = describe("coordinator_info", "The coordinator and its cluster; always 1.", labelCluster, labelVersion)
	leads           = describe("coordinator_leader", "1 while this coordinator leads. The sum over a cluster's coordinators is 1, but for the seconds of an election.")
	term            = describe("coordinator_term", "The leader's term; absent on coordinators that don't lead, as is everything of connectors, runners and leases.")
	level           = describe("cluster_level", "The cluster's level.")
	roundsNow       = describe("fencing_rounds_running", "Fencing rounds under way.")
	roundAge        = describe("fencing_oldest_round_age_seconds", "Age of the oldest fencing round under way; 0 where there is none.")

	statusRecords = describe("status_records_total", "Records of the status topic: written, or dropped because the broker was slow or away.", labelOutcome)

	connectorInfo  = describe("connector_info", "The connector's class and plugin; always 1.", labelConnector, labelClass, labelPlugin, pluginV)
	connectorState = describe("connector_state", "1 for the state that the connector is in; other states are absent.", labelConnector, labelState)
	connectorTasks = describe("connector_tasks", "The connector's tasks, by state.", labelConnector, labelState)
	generation     = describe("connector_generation", "The connector's generation.", labelConnector)
	connectors     = describe("connectors", "Connectors, by state.", labelState)
	runners        = describe("runners", "Runners that the leader knows: connected, draining, drained, or lost (their leases still run).", labelState)
	sessionsNow    = describe("coordinator_sessions", "Runners that have a session with this leader.")
	runnerLeases   = describe("runner_leases", "Leases that the runner holds.", labelRunner)
	leaseLeft      = describe("runner_lease_left_seconds", "How long the longest of the runner's leases lasts without a renewal, by the leader's clock; 0 where it holds none.", labelRunner)
)

// Describe lists everything that Collect may give.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range described {
		to <- d
	}
	for _, c := range m.counted.all() {
		c.Describe(to)
	}
}

// Collect is a scrape.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	m.mu.Lock()
	view, now := m.view, time.Now()
	running, oldest := len(m.rounds), time.Duration(0)
	for _, b := range m.rounds {
		oldest = max(oldest, now.Sub(b.at))
	}
	m.mu.Unlock()
	p := page{to: to}
	p.gauge(coordinatorInfo, 1, m.config.Cluster, text(m.config.Version))
	p.gauge(roundsNow, float64(running))
	p.gauge(roundAge, oldest.Seconds())
	records, lost := m.config.History()
	to <- prometheus.MustNewConstMetric(statusRecords, prometheus.CounterValue, float64(records), written)
	to <- prometheus.MustNewConstMetric(statusRecords, prometheus.CounterValue, float64(lost), dropped)
	if tally, leading := m.tally(view, now); leading {
		p.gauge(leads, 1)
		p.standing(tally)
		m.keepOnly(tally)
	} else {
		p.gauge(leads, 0)
	}
	for _, c := range m.counted.all() {
		c.Collect(to)
	}
}

// tally reads the leader's State, where this is the leader. It is nil where the loop had no time.
func (m *Metrics) tally(view View, now time.Time) (tally *state.Tally, leading bool) {
	if view == nil {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(context.Background(), viewTimeout)
	defer cancel()
	taken := make(chan state.Tally, 1) // The loop may come to it after this scrape has gone on.
	if err := view(ctx, func(st *state.State) { taken <- st.Tally(now) }); err != nil {
		if ctx.Err() == nil {
			return nil, false // The loop has ended.
		}
		m.counted.missed.Inc()
		return nil, true
	}
	t := <-taken
	return &t, true
}

// page writes the metrics of one scrape.
type page struct{ to chan<- prometheus.Metric }

func (p *page) gauge(d *prometheus.Desc, value float64, labels ...string) {
	p.to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
}

// standing gives what a leader's State says.
func (p *page) standing(t *state.Tally) {
	if t == nil {
		return
	}
	p.gauge(term, float64(t.Term))
	p.gauge(level, float64(t.Level))
	in := map[string]int{}
	for _, c := range t.Connectors {
		in[c.State]++
		p.gauge(connectorInfo, 1, c.Name, text(c.Plugin.Type), text(c.Plugin.Name), text(c.Plugin.Version))
		p.gauge(connectorState, 1, c.Name, c.State)
		p.gauge(generation, float64(c.Generation), c.Name)
		for _, s := range state.TaskStates {
			p.gauge(connectorTasks, float64(c.Tasks[s]), c.Name, s)
		}
	}
	for _, s := range state.ConnectorStates {
		p.gauge(connectors, float64(in[s]), s)
	}
	known, connected := map[string]int{}, 0
	for _, r := range t.Runners {
		known[r.State]++
		if r.Connected {
			connected++
		}
		p.gauge(runnerLeases, float64(r.Leases), text(r.Name))
		p.gauge(leaseLeft, r.LeaseLeft.Seconds(), text(r.Name))
	}
	for _, s := range state.RunnerStates {
		p.gauge(runners, float64(known[s]), s)
	}
	p.gauge(sessionsNow, float64(connected))
}

// keepOnly forgets the counters of connectors that are gone: two scrapes have missed them, since one that was just created may have been counted after its first.
func (m *Metrics) keepOnly(t *state.Tally) {
	if t == nil {
		return
	}
	there := make(map[string]bool, len(t.Connectors))
	for _, c := range t.Connectors {
		there[c.Name] = true
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for name := range m.labelled {
		switch {
		case there[name]:
		case m.labelled[name]:
			m.labelled[name] = false
		default:
			m.counted.forget(name)
			delete(m.labelled, name)
		}
	}
}

// mostTextBytes bounds what a label may say that others have named.
const mostTextBytes = 200

func text(s string) string {
	return strings.ToValidUTF8(s[:min(len(s), mostTextBytes)], "\ufffd")
}
