package metrics

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fencepost-io/fencepost/integration/exposition"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// quiet is a session that nobody listens to. It has no methods but those that are watched.
type quiet struct{ supervisor.Session }

func (quiet) Status(session.Status)           {}
func (quiet) Ended(lease.Lease, bool, string) {}
func (quiet) HostFailed(lease.Lease, string)  {}

// bed is Metrics and what they are told.
type bed struct {
	*Metrics
	told     supervisor.Session
	standing session.Standing
}

func newBed() *bed {
	b := &bed{standing: session.Standing{Connected: true, Joined: 3, Term: 7, Leases: map[lease.Lease]time.Time{}}}
	b.Metrics = New(Config{
		Runner: "r1", Version: "1.2.3", LeftBehind: func() int { return 1 }, Session: func() session.Standing { return b.standing },
		Plugins: func() pluginhost.Counts {
			return pluginhost.Counts{Running: 2, Started: 5, Failed: 1, Exits: map[pluginhost.ExitClass]uint64{pluginhost.ExitSignal: 2}}
		},
	})
	b.told = b.Watch(quiet{})
	return b
}

// scrape is what Prometheus gets: a value by name and labels, as in its text.
func (b *bed) scrape(t *testing.T) (exposition.Values, string) {
	t.Helper()
	return exposition.Scrape(t, b.Metrics)
}

func leaseOf(epoch uint64) lease.Lease {
	return lease.Lease{Connector: "orders", Incarnation: "life", Generation: 1, Task: 2, Epoch: epoch}
}

func grantOf(l lease.Lease) *session.Grant {
	return &session.Grant{Lease: l, Plugin: session.PluginRef{Name: "file", Version: "1.0.0", Type: "file"}, Config: map[string]string{"password": "s3cret"}}
}

const of = `{connector="orders",task="2"`

// everything has each metric that there is.
func everything(t *testing.T) *bed {
	t.Helper()
	b := newBed()
	l := leaseOf(1)
	b.standing.Leases[l] = time.Now().Add(7 * time.Second)
	a := b.Attempt(grantOf(l))
	b.told.Status(session.Status{Lease: l, State: session.Failed, Cause: "plugin", Error: "s3cret", Rewinds: map[string]uint64{"fenced": 2}})
	b.told.Status(session.Status{Lease: l, State: session.Running, PluginVersion: "1.0.1", Rewinds: map[string]uint64{"fenced": 2}})
	a.Report(task.Status{Phase: task.PhaseRunning, OpenRecords: 3, OpenBytes: 30, OpenSince: time.Now().Add(-time.Minute), Metrics: []source.Metric{
		{Name: "lag", Labels: map[string]string{"b": "2", "a": "1"}, Value: 5},
		{Name: "reads", Value: 6, Counter: true},
		{Name: "lag", Labels: map[string]string{"a": "1", "b": "2"}, Value: 9},
		{Name: "bad\xff" + strings.Repeat("x", 1000), Value: 1},
	}})
	a.Queue(func() int { return 4 })
	return b
}

// The names and labels are what dashboards and alerts are made of: they change on purpose or not at all.
func TestNamesAndLabels(t *testing.T) {
	if n, described := exposition.Holds(t, everything(t), "testdata/metrics.txt", "../../../docs/metrics.md"), len(described); n != described {
		t.Errorf("%d metrics are described, and %d are given", described, n)
	}
}

func TestPrometheusHasNothingToObjectTo(t *testing.T) {
	problems, err := testutil.CollectAndLint(everything(t))
	if err != nil || len(problems) > 0 {
		t.Error(problems, err)
	}
}

// I9.
func TestNoLabelHasATextOfAConfigurationOrAnError(t *testing.T) {
	if _, text := everything(t).scrape(t); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
}

// A plugin may say anything; the scrape goes on, with one of each.
func TestThePluginsOwnMetricsAreCutAndToldApart(t *testing.T) {
	values, text := everything(t).scrape(t)
	if values[`fencepost_task_source_level{connector="orders",labels="a=1,b=2",name="lag",task="2"}`] != 5 {
		t.Error(text)
	}
	if values[`fencepost_task_source_events_total{connector="orders",labels="",name="reads",task="2"}`] != 6 || strings.Contains(text, strings.Repeat("x", maxNameBytes)) {
		t.Error(text)
	}
}

// A status counts from its grant, and an attempt from its beginning. What is shown only grows.
func TestTotalsOutliveGrantsAndAttempts(t *testing.T) {
	b := newBed()
	first, second := leaseOf(1), leaseOf(2)
	a := b.Attempt(grantOf(first))
	a.Report(task.Status{Phase: task.PhaseRunning, Polled: 10, Batches: 2, CommitTime: task.Spread{Counts: [7]uint64{2}, Sum: 0.5}})
	a.Report(task.Status{Phase: task.PhaseRunning, Polled: 15, Batches: 3, CommitTime: task.Spread{Counts: [7]uint64{3, 1}, Sum: 1}, OpenRecords: 5, OpenSince: time.Now()})
	b.told.Status(session.Status{Lease: first, State: session.Running, Records: 10, Bytes: 100, Commits: 2, Aborts: 1, Dropped: 3})
	a.End()
	b.told.Status(session.Status{Lease: first, State: session.Retrying, Error: "oh", Cause: "fenced", Records: 10, Bytes: 100, Commits: 2, Aborts: 1, Dropped: 3, Rewinds: map[string]uint64{"fenced": 1}})
	a = b.Attempt(grantOf(first))
	a.Report(task.Status{Phase: task.PhaseOffsets, Polled: 0})
	a.End()
	b.told.Status(session.Status{Lease: first, State: session.Retrying, Error: "oh", Cause: "plugin", Records: 10, Bytes: 100, Commits: 2, Rewinds: map[string]uint64{"fenced": 1, "plugin": 1}})
	b.told.Ended(first, true, "moved")
	a = b.Attempt(grantOf(second))
	b.told.Status(session.Status{Lease: second, State: session.Running, Records: 4, Bytes: 40, Commits: 1, Rewinds: map[string]uint64{"fenced": 1}})
	a.Report(task.Status{Phase: task.PhaseRunning, Polled: 4, Batches: 1})
	// A word of the old lease that comes late says nothing.
	b.told.Status(session.Status{Lease: first, State: session.Failed, Records: 1000})
	values, text := b.scrape(t)
	for name, want := range map[string]float64{
		"committed_records_total" + of + "}": 14, "committed_bytes_total" + of + "}": 140, "commits_total" + of + "}": 3, "dropped_records_total" + of + "}": 3,
		"aborts_total{by=\"connector\",connector=\"orders\",task=\"2\"}": 1, "aborts_total{by=\"rewind\",connector=\"orders\",task=\"2\"}": 1,
		"polled_records_total" + of + "}": 19, "polled_batches_total" + of + "}": 4, "attempts_total" + of + "}": 3,
		"rewinds_total{cause=\"fenced\",connector=\"orders\",task=\"2\"}": 2, "rewinds_total{cause=\"plugin\",connector=\"orders\",task=\"2\"}": 1,
		"commit_duration_seconds_count" + of + "}": 4, "commit_duration_seconds_sum" + of + "}": 1, "commit_duration_seconds_bucket" + of + `,le="0.005"}`: 3, "commit_duration_seconds_bucket" + of + `,le="0.02"}`: 4,
	} {
		if got := values["fencepost_task_"+name]; got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}
	if values[`fencepost_runner_task_starts_total{result="running"}`] != 1 || values[`fencepost_runner_task_starts_total{result="failed"}`] != 1 {
		t.Error(text)
	}
}

func TestAScrapeSaysHowOldThingsAreThen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed()
		l := leaseOf(1)
		b.standing.Leases[l] = time.Now().Add(10 * time.Second)
		a := b.Attempt(grantOf(l))
		b.told.Status(session.Status{Lease: l, State: session.Starting})
		<-time.After(2 * time.Second)
		b.told.Status(session.Status{Lease: l, State: session.Running})
		a.Report(task.Status{Phase: task.PhaseRunning, OpenRecords: 1, OpenBytes: 9, OpenSince: time.Now(), Uncommitted: 5})
		a.Queue(func() int { return 3 })
		<-time.After(3 * time.Second)
		values, text := b.scrape(t)
		for name, want := range map[string]float64{
			"open_transaction_age_seconds" + of + "}": 3, "open_transaction_records" + of + "}": 1, "open_transaction_bytes" + of + "}": 9, "uncommitted_records" + of + "}": 5, "producer_queue_records" + of + "}": 3,
			"lease_age_seconds" + of + "}": 5, "lease_left_seconds" + of + "}": 5, "state_seconds_total{connector=\"orders\",state=\"STARTING\",task=\"2\"}": 2,
			"state_seconds_total{connector=\"orders\",state=\"RUNNING\",task=\"2\"}": 3, "state{connector=\"orders\",state=\"RUNNING\",task=\"2\"}": 1, "state{connector=\"orders\",state=\"STARTING\",task=\"2\"}": 0,
		} {
			if got, ok := values["fencepost_task_"+name]; got != want || !ok {
				t.Errorf("%s is %v, want %v\n%s", name, got, want, text)
			}
		}
		// The end of the attempt is the end of its transaction and of its producer.
		a.End()
		if values, _ = b.scrape(t); values["fencepost_task_open_transaction_age_seconds"+of+"}"] != 0 || values["fencepost_task_producer_queue_records"+of+"}"] != 0 {
			t.Error("a transaction outlives its attempt")
		}
	})
}

// What a task counted last must be seen once it has left; after that it takes no room.
func TestATaskThatLeftIsShownForAWhile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed()
		l := leaseOf(1)
		b.told.Status(session.Status{Lease: l, State: session.Running, Records: 5})
		b.told.Ended(l, true, "moved")
		values, _ := b.scrape(t)
		if values["fencepost_task_committed_records_total"+of+"}"] != 5 || values[`fencepost_runner_tasks{state="RUNNING"}`] != 0 {
			t.Error(values)
		}
		if _, there := values["fencepost_task_caught_up"+of+"}"]; there {
			t.Error("a task that left says how it is")
		}
		<-time.After(keepFor + time.Second)
		if values, _ = b.scrape(t); len(b.tasks) != 0 {
			t.Error(values)
		}
	})
}

func TestTheNumberOfTasksIsBounded(t *testing.T) {
	b := newBed()
	b.most = 50
	for i := range 1000 {
		l := lease.Lease{Connector: "c", Task: uint32(i), Epoch: uint64(i + 1)}
		b.told.Status(session.Status{Lease: l, State: session.Running})
		b.told.Ended(l, true, "")
	}
	if len(b.tasks) != b.most {
		t.Error(len(b.tasks))
	}
	if b.tasks[lease.ID{Connector: "c", Task: 999}] == nil || b.tasks[lease.ID{Connector: "c", Task: 1}] != nil {
		t.Error("not the one that left first was forgotten")
	}
}

// Without an endpoint there are no Metrics, and everything goes its way.
func TestNoMetricsCostNothing(t *testing.T) {
	var none *Metrics
	to := quiet{}
	if none.Watch(to) != supervisor.Session(to) {
		t.Error("a session is watched for nobody")
	}
	a := none.Attempt(grantOf(leaseOf(1)))
	a.Report(task.Status{})
	a.Queue(nil)
	a.End()
}

// BenchmarkReport is what a report costs beside the supervisor's own part: at most ten a second come of a task.
func BenchmarkReport(b *testing.B) {
	bed := newBed()
	l := leaseOf(1)
	a := bed.Attempt(grantOf(l))
	b.ReportAllocs()
	for n := uint64(0); b.Loop(); n++ {
		a.Report(task.Status{Phase: task.PhaseRunning, Polled: n, Batches: n})
		bed.told.Status(session.Status{Lease: l, State: session.Running, Records: n})
	}
}

// BenchmarkScrape is a runner of a thousand tasks.
func BenchmarkScrape(b *testing.B) {
	bed := newBed()
	for i := range uint32(1000) {
		l := lease.Lease{Connector: "c", Task: i, Epoch: 1}
		bed.Attempt(grantOf(l)).Report(task.Status{Phase: task.PhaseRunning})
		bed.told.Status(session.Status{Lease: l, State: session.Running})
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(bed.Metrics)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := registry.Gather(); err != nil {
			b.Fatal(err)
		}
	}
}
