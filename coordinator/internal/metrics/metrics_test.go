package metrics

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	"github.com/fencepost-io/fencepost/integration/exposition"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// shell does nothing but fail where it is told to.
type shell struct{ failure error }

func (s *shell) Write(context.Context, []state.Record) error { return s.failure }
func (s *shell) StartRound(state.StartRound)                 {}
func (s *shell) CancelRound(state.CancelRound)               {}
func (s *shell) PrepareID(state.PrepareID)                   {}
func (s *shell) Look(state.Look)                             {}
func (s *shell) Heal(state.Heal)                             {}
func (s *shell) HealOn(state.HealOn)                         {}
func (s *shell) Send(state.Send)                             {}
func (s *shell) CloseSession(state.CloseSession)             {}
func (s *shell) Submit(context.Context, state.Event) error   { return nil }

// bed is Metrics and what goes past them.
type bed struct {
	*Metrics
	under  *shell
	shell  loop.Shell
	events Core
}

func newBed() *bed {
	b := &bed{Metrics: New(Config{Cluster: "c", Version: "1.2.3", History: func() (uint64, uint64) { return 5, 1 }}), under: &shell{}}
	b.shell = b.Shell(loop.Shell{Log: b.under, Fencer: b.under, Sender: b.under})
	b.events = b.Events(b.under)
	return b
}

func (b *bed) submit(t *testing.T, events ...state.Event) {
	t.Helper()
	for _, e := range events {
		if err := b.events.Submit(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
}

// leading is a State with a connector of two tasks, one of them granted.
func leading(t *testing.T) *state.State {
	t.Helper()
	st := state.New(state.Options{Cluster: "c"})
	now := time.Now()
	st.Step(now, state.TookOver{})
	st.Step(now, state.SessionOpened{Session: 1, Hello: &runnerv1.Hello{Name: "r1", ProcessId: "p", LevelMin: 1, LevelMax: 1, Offer: &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{
		{Description: &pluginv1.DescribeResponse{Name: "file", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: "file"}}}},
	}}}})
	st.Step(now, state.Asked{ID: 1, Op: state.Create{Name: "orders", Incarnation: "life", Config: map[string]string{"connector.class": "file", "tasks.max": "2", "password": "s3cret"}}})
	st.Step(now, state.FromRunner{Session: 1, Message: &runnerv1.SessionRequest{Term: 1, Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{
		Plan: &runnerv1.PlanRef{Connector: "orders", Incarnation: "life", PlanEpoch: 1}, TaskSet: &pluginv1.TaskSet{Tasks: []*pluginv1.Task{{}, {}}},
	}}}})
	return st
}

func viewOf(st *state.State) View {
	return func(_ context.Context, look func(*state.State)) error {
		look(st)
		return nil
	}
}

func (b *bed) scrape(t *testing.T) (exposition.Values, string) {
	t.Helper()
	return exposition.Scrape(t, b.Metrics)
}

func grant(connector string) state.Send {
	return state.Send{Message: &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{Lease: &runnerv1.Lease{Connector: connector}}}}}
}

// everything has each metric that there is.
func everything(t *testing.T) *bed {
	t.Helper()
	b := newBed()
	b.Lead(viewOf(leading(t)))
	b.shell.Sender.Send(grant("orders"))
	b.shell.Sender.Send(state.Send{Message: &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Revoke{Revoke: &runnerv1.Revoke{Lease: &runnerv1.Lease{Connector: "orders"}, Reason: "s3cret"}}}})
	b.submit(t, state.Looked{Lease: state.Lease{Connector: "orders"}, Hanging: []state.Hang{{}}}, state.Healed{Connector: "orders"})
	return b
}

// The names and labels are what dashboards and alerts are made of: they change on purpose or not at all.
func TestNamesAndLabels(t *testing.T) {
	if n, described := exposition.Holds(t, everything(t), "testdata/metrics.txt", "../../../docs/metrics.md"), len(described)+len((&counted{}).all()); n != described {
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
func TestNoLabelHasATextOfAConfigurationOrAReason(t *testing.T) {
	if _, text := everything(t).scrape(t); strings.Contains(text, "s3cret") {
		t.Error(text)
	}
}

func want(t *testing.T, b *bed, want map[string]float64) {
	t.Helper()
	values, text := b.scrape(t)
	for name, v := range want {
		if got, there := values["fencepost_"+name]; got != v || !there {
			t.Errorf("%s is %v, want %v\n%s", name, got, v, text)
		}
	}
}

func TestALeaderShowsWhatStands(t *testing.T) {
	b := newBed()
	b.Lead(viewOf(leading(t)))
	want(t, b, map[string]float64{
		"coordinator_leader": 1, "coordinator_term": 1, "cluster_level": 1, `connector_state{connector="orders",state="STARTING"}`: 1, `connectors{state="STARTING"}`: 1, `connectors{state="RUNNING"}`: 0,
		`connector_info{class="file",connector="orders",plugin="file",plugin_version="1.0.0"}`: 1, `connector_generation{connector="orders"}`: 1,
		`connector_tasks{connector="orders",state="STARTING"}`: 2, `connector_tasks{connector="orders",state="FAILED"}`: 0, `runners{state="CONNECTED"}`: 1, "coordinator_sessions": 1, `runner_leases{runner="r1"}`: 2,
	})
}

// Whoever waits shows that it does, and nothing that only a leader knows.
func TestWhoDoesNotLeadShowsNothingThatStands(t *testing.T) {
	b := newBed()
	b.Lead(viewOf(leading(t)))
	b.Lead(nil)
	values, text := b.scrape(t)
	if values["fencepost_coordinator_leader"] != 0 || strings.Contains(text, "fencepost_coordinator_term") || strings.Contains(text, "fencepost_connector_tasks") {
		t.Error(text)
	}
	b.Lead(func(context.Context, func(*state.State)) error { return loop.ErrEnded })
	want(t, b, map[string]float64{"coordinator_leader": 0, "coordinator_elections_total": 2})
}

// A loop that waits for Kafka doesn't hold a scrape up for long.
func TestAScrapeDoesNotWaitForABusyLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed()
		b.Lead(func(ctx context.Context, _ func(*state.State)) error {
			<-ctx.Done()
			return ctx.Err()
		})
		began := time.Now()
		want(t, b, map[string]float64{"coordinator_leader": 1, "coordinator_scrapes_incomplete_total": 1})
		if took := time.Since(began); took > viewTimeout {
			t.Error(took)
		}
	})
}

func TestRoundsAreCountedByHowTheyEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed()
		begin := func(seq uint64) {
			b.shell.Fencer.StartRound(state.StartRound{Connector: "orders", Seq: seq, IDs: []string{"a", "b"}})
		}
		begin(1)
		<-time.After(200 * time.Millisecond)
		want(t, b, map[string]float64{"fencing_rounds_running": 1, "fencing_oldest_round_age_seconds": 0.2})
		b.submit(t, state.RoundDone{Connector: "orders", Seq: 1})
		begin(2)
		b.shell.Fencer.CancelRound(state.CancelRound{Connector: "orders", Seq: 2})
		b.submit(t, state.RoundDone{Connector: "orders", Seq: 2}) // Too late.
		begin(3)
		b.submit(t, state.RoundFailed{Connector: "orders", Seq: 3, Decisions: map[uint32]state.Decision{0: {}}})
		b.submit(t, state.IDPrepared{}, state.IDPrepared{Failed: "no right"})
		want(t, b, map[string]float64{
			`fencing_rounds_total{outcome="done"}`: 1, `fencing_rounds_total{outcome="superseded"}`: 1, `fencing_rounds_total{outcome="refused"}`: 1, "fencing_rounds_running": 0,
			`fencing_ids_total{for="round"}`: 3, `fencing_ids_total{for="start"}`: 1, "fencing_round_duration_seconds_sum": 0.2, "fencing_round_duration_seconds_count": 1,
		})
	})
}

func TestTransactionsLooksAndSessionsAreCounted(t *testing.T) {
	b := newBed()
	records := []state.Record{{Key: "a"}, {Key: "b"}}
	if err := b.shell.Log.Write(t.Context(), records); err != nil {
		t.Fatal(err)
	}
	b.under.failure = errors.New("fenced")
	if err := b.shell.Log.Write(t.Context(), records); !errors.Is(err, b.under.failure) {
		t.Fatal(err)
	}
	of := state.Lease{Connector: "orders"}
	b.submit(t, state.Looked{Lease: of}, state.Looked{Lease: of, Failed: "no broker"}, state.Looked{Lease: of, Hanging: []state.Hang{{}, {}}})
	b.submit(t, state.Found{Connector: "orders", Hanging: []state.Hang{{}}}, state.Healed{Connector: "orders", Mended: []state.Mended{{}, {}}, Left: []*runnerv1.HangingPartition{{}}})
	b.submit(t, state.SessionOpened{}, state.SessionOpened{}, state.SessionClosed{})
	want(t, b, map[string]float64{
		`config_log_transactions_total{outcome="committed"}`: 1, `config_log_transactions_total{outcome="failed"}`: 1, "config_log_records_total": 2, "config_log_transaction_duration_seconds_count": 1,
		`looks_total{outcome="clean"}`: 1, `looks_total{outcome="failed"}`: 1, `looks_total{outcome="hanging"}`: 1, `hanging_partitions_found_total{connector="orders"}`: 3,
		`hanging_partitions_healed_total{connector="orders"}`: 2, `hanging_partitions_left_total{connector="orders"}`: 1,
		`coordinator_session_changes_total{change="opened"}`: 2, `coordinator_session_changes_total{change="closed"}`: 1,
	})
}

// I10: names come and go, and their labels with them.
func TestLabelsGoWithTheirConnector(t *testing.T) {
	b := newBed()
	b.Lead(viewOf(leading(t)))
	b.shell.Sender.Send(grant("orders"))
	b.shell.Sender.Send(grant("gone"))
	want(t, b, map[string]float64{`connector_grants_total{connector="orders"}`: 1, `connector_grants_total{connector="gone"}`: 1})
	b.scrape(t)
	if values, text := b.scrape(t); strings.Contains(text, `connector="gone"`) || values[`fencepost_connector_grants_total{connector="orders"}`] != 1 {
		t.Error(text)
	}
}

// Without an endpoint there are no Metrics, and everything goes its way.
func TestNoMetricsCostNothing(t *testing.T) {
	var none *Metrics
	under := &shell{}
	none.Lead(nil)
	if sh := none.Shell(loop.Shell{Log: under}); sh.Log != loop.Log(under) || none.Events(under) != Core(under) {
		t.Error("something is watched for nobody")
	}
}

// BenchmarkTally is how long a scrape holds a loop of a thousand connectors up.
func BenchmarkTally(b *testing.B) {
	st, now := state.New(state.Options{Cluster: "c"}), time.Now()
	st.Step(now, state.TookOver{})
	for i := range 1000 {
		st.Step(now, state.Asked{ID: uint64(i), Op: state.Create{Name: "c" + strconv.Itoa(i), Incarnation: "life", Config: map[string]string{"connector.class": "file"}}})
	}
	b.ReportAllocs()
	for b.Loop() {
		st.Tally(now)
	}
}
