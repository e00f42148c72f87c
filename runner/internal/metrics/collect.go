package metrics

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// described are all descriptions, for Describe.
var described []*prometheus.Desc

func describe(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("fencepost_"+name, help, labels, nil)
	described = append(described, d)
	return d
}

func ofTask(name, help string, more ...string) *prometheus.Desc {
	return describe("task_"+name, help, append([]string{"connector", "task"}, more...)...)
}

var (
	runnerInfo      = describe("runner_info", "The runner; always 1.", "runner", "version")
	runnerTasks     = describe("runner_tasks", "Tasks that this runner holds, by what they are doing.", "state")
	runnerStarts    = describe("runner_task_starts_total", "Attempts of tasks that have ended, by whether they came as far as running.", "result")
	sessionUp       = describe("runner_session_connected", "1 while a leading coordinator has accepted this runner on a stream that is open.")
	sessions        = describe("runner_sessions_total", "Sessions that a leading coordinator has accepted.")
	termSeen        = describe("runner_coordinator_term", "The highest term of a coordinator that was seen.")
	leftBehind      = describe("runner_producers_left_behind", "Producers that did not close in time and still hold their memory; the process ends itself above four.")
	pluginProcesses = describe("plugin_processes", "Plugin processes of this runner.")
	pluginStarts    = describe("plugin_starts_total", "Starts of plugin processes, by whether the plugin answered.", "result")
	pluginExits     = describe("plugin_exits_total", "Ends of plugin processes: asked by this runner, by exit code, by a signal (a crash), by a SIGKILL from elsewhere (most likely for want of memory), or unknown.", "kind")

	taskInfo       = ofTask("info", "The task's connector class and plugin; always 1.", "class", "plugin", "plugin_version")
	taskState      = ofTask("state", "1 for the state that the task is in, 0 for the others.", "state")
	taskStateTime  = ofTask("state_seconds_total", "Time that the task has spent in a state on this runner.", "state")
	polledRecords  = ofTask("polled_records_total", "Records that the plugin has sent, those that it dropped by a rule among them; they may be sent again after a rewind.")
	polledBatches  = ofTask("polled_batches_total", "Batches that the plugin has sent.")
	committed      = ofTask("committed_records_total", "Records that are committed.")
	committedBytes = ofTask("committed_bytes_total", "Bytes of keys, values and headers that are committed.")
	commits        = ofTask("commits_total", "Transactions committed, those that only move offsets among them.")
	aborts         = ofTask("aborts_total", "Transactions dropped: because the connector asked for it, or because the attempt ended while they were open.", "by")
	droppedRecords = ofTask("dropped_records_total", "Records that a rule left out; their offsets are committed.")
	uncommitted    = ofTask("uncommitted_records", "Records that the plugin has sent and that are not committed, as last reported.")
	queued         = ofTask("producer_queue_records", "Records and requests that the Kafka client holds and that no broker has answered.")
	commitSeconds  = ofTask("commit_duration_seconds", "How long commits took, from the last offset handed over to the broker's answer.")
	sizes          = ofTask("transaction_records", "Records in committed transactions.")
	openRecords    = ofTask("open_transaction_records", "Records in the open transaction; 0 where none is open.")
	openBytes      = ofTask("open_transaction_bytes", "Bytes in the open transaction; 0 where none is open.")
	openAge        = ofTask("open_transaction_age_seconds", "Age of the open transaction; 0 where none is open.")
	caughtUp       = ofTask("caught_up", "1 while the source has nothing more and all that it gave is committed.")
	attempts       = ofTask("attempts_total", "Attempts begun: each goes through the whole order of a start.")
	rewinds        = ofTask("rewinds_total", "Attempts that failed and were followed by another from the stored offsets, or used up the budget, by cause.", "cause")
	failures       = ofTask("failures_total", "Times that the task gave up and waits for a person, by cause.", "cause")
	lastErrorAt    = ofTask("last_error_timestamp_seconds", "When something last went wrong, as Unix time; absent where nothing has.")
	leaseAge       = ofTask("lease_age_seconds", "Time since this runner began to work under the task's lease.")
	leaseLeft      = ofTask("lease_left_seconds", "How long the lease may still be trusted without a renewal; negative where it has run out.")
	sourceLevel    = ofTask("source_level", "A gauge that the plugin itself offers, by its own name and labels.", "name", "labels")
	sourceEvents   = ofTask("source_events_total", "A counter that the plugin itself offers, by its own name and labels.", "name", "labels")
)

// states are those of a task, in the words that users see.
var states = []struct {
	state session.State
	word  string
}{{session.Starting, "STARTING"}, {session.Running, "RUNNING"}, {session.Retrying, "RETRYING"}, {session.Failed, "FAILED"}, {session.Draining, "DRAINING"}}

// Bounds of what a plugin's own metrics may say.
const (
	maxNameBytes   = 200
	maxLabelsBytes = 500
)

// Describe lists everything that Collect may give.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range described {
		to <- d
	}
}

// Collect is a scrape.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	standing := m.cfg.Session()
	p := &page{}
	m.runner(p, &standing)
	m.allTasks(p, &standing, time.Now())
	for _, metric := range p.metrics {
		to <- metric
	}
}

// page gathers the metrics of one scrape, so that no lock is held while they are handed over.
type page struct{ metrics []prometheus.Metric }

func (p *page) gauge(d *prometheus.Desc, value float64, labels ...string) {
	p.metrics = append(p.metrics, prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...))
}

func (p *page) count(d *prometheus.Desc, value uint64, labels ...string) {
	p.total(d, float64(value), labels...)
}

func (p *page) total(d *prometheus.Desc, value float64, labels ...string) {
	p.metrics = append(p.metrics, prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...))
}

func (p *page) spread(d *prometheus.Desc, s *task.Spread, bounds []float64, labels ...string) {
	buckets, sum := make(map[float64]uint64, len(bounds)), uint64(0)
	for i, bound := range bounds {
		sum += s.Counts[i]
		buckets[bound] = sum
	}
	p.metrics = append(p.metrics, prometheus.MustNewConstHistogram(d, sum+s.Counts[len(bounds)], s.Sum, buckets, labels...))
}

func truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

// runner gives what isn't of one task.
func (m *Metrics) runner(p *page, standing *session.Standing) {
	p.gauge(runnerInfo, 1, text(m.cfg.Runner), text(m.cfg.Version))
	p.gauge(sessionUp, truth(standing.Connected))
	p.count(sessions, standing.Joined)
	p.gauge(termSeen, float64(standing.Term))
	p.gauge(leftBehind, float64(m.cfg.LeftBehind()))
	plugins := m.cfg.Plugins()
	p.gauge(pluginProcesses, float64(plugins.Running))
	p.count(pluginStarts, plugins.Started, "answered")
	p.count(pluginStarts, plugins.Failed, "failed")
	for _, class := range pluginhost.ExitClasses {
		p.count(pluginExits, plugins.Exits[class], string(class))
	}
}

// allTasks gives every task, those that left a short time ago too.
func (m *Metrics) allTasks(p *page, standing *session.Standing, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forget(now)
	p.count(runnerStarts, m.begun, "running")
	p.count(runnerStarts, m.stillborn, "failed")
	in := map[session.State]int{}
	ids := slices.SortedFunc(maps.Keys(m.tasks), func(a, b lease.ID) int {
		return cmp.Or(strings.Compare(a.Connector, b.Connector), cmp.Compare(a.Task, b.Task))
	})
	for _, id := range ids {
		f := m.tasks[id]
		labels := []string{text(id.Connector), strconv.FormatUint(uint64(id.Task), 10)}
		f.counters(p, now, labels)
		if f.left.IsZero() {
			in[f.status.State]++
			f.gauges(p, standing, now, labels)
		}
	}
	for _, s := range states {
		p.gauge(runnerTasks, float64(in[s.state]), s.word)
	}
}

// counters give what only grows.
func (f *figures) counters(p *page, now time.Time, of []string) {
	with := func(label string) []string { return append(of[:2:2], label) }
	for _, s := range states {
		p.total(taskStateTime, f.timeIn(s.state, now).Seconds(), with(s.word)...)
	}
	p.count(polledRecords, f.polled, of...)
	p.count(polledBatches, f.batches, of...)
	p.count(committed, f.records, of...)
	p.count(committedBytes, f.bytes, of...)
	p.count(commits, f.commits, of...)
	p.count(aborts, f.aborts, with("connector")...)
	p.count(aborts, f.dropped, with("rewind")...)
	p.count(droppedRecords, f.skipped, of...)
	p.spread(commitSeconds, &f.commitTime, task.CommitBounds[:], of...)
	p.spread(sizes, &f.sizes, task.SizeBounds[:], of...)
	p.count(attempts, f.attempts, of...)
	for _, cause := range slices.Sorted(maps.Keys(f.rewinds)) {
		p.count(rewinds, f.rewinds[cause], with(cause)...)
	}
	for _, cause := range slices.Sorted(maps.Keys(f.failures)) {
		p.count(failures, f.failures[cause], with(cause)...)
	}
	if !f.lastError.IsZero() {
		p.gauge(lastErrorAt, float64(f.lastError.UnixMilli())/1000, of...)
	}
}

// gauges give how a task that is here stands.
func (f *figures) gauges(p *page, standing *session.Standing, now time.Time, of []string) {
	p.gauge(taskInfo, 1, of[0], of[1], text(f.plugin.Type), text(f.plugin.Name), text(cmp.Or(f.status.PluginVersion, f.plugin.Version)))
	for _, s := range states {
		p.gauge(taskState, truth(f.status.State == s.state), of[0], of[1], s.word)
	}
	p.gauge(caughtUp, truth(f.status.CaughtUp), of...)
	p.gauge(leaseAge, now.Sub(f.granted).Seconds(), of...)
	if until, held := standing.Leases[f.lease]; held {
		p.gauge(leaseLeft, until.Sub(now).Seconds(), of...)
	}
	last, waiting := task.Status{}, 0
	if a := f.attempt; a != nil && !a.over {
		last = a.last
		if a.queued != nil {
			waiting = a.queued()
		}
	}
	age := 0.0
	if !last.OpenSince.IsZero() {
		age = now.Sub(last.OpenSince).Seconds()
	}
	p.gauge(uncommitted, float64(last.Uncommitted), of...)
	p.gauge(queued, float64(waiting), of...)
	p.gauge(openRecords, float64(last.OpenRecords), of...)
	p.gauge(openBytes, float64(last.OpenBytes), of...)
	p.gauge(openAge, age, of...)
	p.ofSource(last.Metrics, of)
}

// ofSource gives the plugin's own metrics, each once. A plugin is hostile: what it says is cut, and can't clash with anything.
func (p *page) ofSource(metrics []source.Metric, of []string) {
	type key struct {
		name, labels string
		counter      bool
	}
	seen := map[key]bool{}
	for _, s := range metrics {
		k := key{clip(s.Name, maxNameBytes), clip(joined(s.Labels), maxLabelsBytes), s.Counter}
		if seen[k] {
			continue
		}
		seen[k] = true
		if s.Counter {
			p.total(sourceEvents, s.Value, of[0], of[1], k.name, k.labels)
		} else {
			p.gauge(sourceLevel, s.Value, of[0], of[1], k.name, k.labels)
		}
	}
}

// joined writes labels as one text, in order.
func joined(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		parts = append(parts, name+"="+labels[name])
	}
	return strings.Join(parts, ",")
}

func text(s string) string { return clip(s, maxNameBytes) }

// clip makes a text fit for a label.
func clip(s string, limit int) string {
	return strings.ToValidUTF8(s[:min(len(s), limit)], "\ufffd")
}
