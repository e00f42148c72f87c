package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// planned lets a runner answer with one task a claim.
func (m *sim) planned(r *simRunner, connector string, claims ...Claim) []Effect {
	m.t.Helper()
	set := &pluginv1.TaskSet{Version: 1}
	for _, c := range claims {
		set.Tasks = append(set.Tasks, &pluginv1.Task{Claim: c.wire()})
	}
	return m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{Plan: r.plans[connector], TaskSet: set}}})
}

// running makes a connector c of n tasks on one runner.
func (m *sim) running(t *testing.T, n int) *simRunner {
	t.Helper()
	m.step(TookOver{})
	r := &simRunner{name: "r", process: "p", plugins: []string{"file@1.0.0"}, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
	m.runners["r"] = r
	m.connect(r)
	m.ask(Create{Name: "c", Incarnation: "life", Config: map[string]string{"connector.class": "file", "tasks.max": fmt.Sprint(n)}})
	m.planned(r, "c", make([]Claim, n)...)
	return r
}

func beatOf(r *simRunner) *runnerv1.SessionRequest {
	r.seq++
	beat := &runnerv1.Heartbeat{Seq: r.seq}
	for _, task := range sorted(r.held) {
		beat.Leases = append(beat.Leases, r.held[task].Wire())
	}
	return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: beat}}
}

func (m *sim) statusOf(r *simRunner, task string, state runnerv1.TaskState, text string) {
	m.t.Helper()
	r.seq++
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: &runnerv1.TaskStatus{
		Lease: r.held[task].Wire(), Seq: r.seq, State: state, Error: text, RetryInMs: 1500,
	}}})
}

// One word says how a connector is; it is the worst that a user has to know of.
func TestTheStateOfAConnectorSumsUpItsTasks(t *testing.T) {
	const (
		starting = runnerv1.TaskState_TASK_STATE_STARTING
		running  = runnerv1.TaskState_TASK_STATE_RUNNING
		retrying = runnerv1.TaskState_TASK_STATE_RETRYING
		failed   = runnerv1.TaskState_TASK_STATE_FAILED
		draining = runnerv1.TaskState_TASK_STATE_DRAINING
	)
	for _, test := range []struct {
		tasks   []runnerv1.TaskState
		state   string
		message string
	}{
		{nil, "RUNNING", "the source has nothing to do for now: the plan has no tasks"},
		{[]runnerv1.TaskState{running, running}, "RUNNING", ""},
		{[]runnerv1.TaskState{running, starting}, "STARTING", ""},
		{[]runnerv1.TaskState{running, draining}, "STARTING", ""},
		{[]runnerv1.TaskState{running, retrying}, "DEGRADED", "task 1: oh"},
		{[]runnerv1.TaskState{failed, running}, "DEGRADED", "task 0: oh"},
		{[]runnerv1.TaskState{failed, failed}, "FAILED", "task 0: oh"},
	} {
		m := newSim(t, Options{})
		r := m.running(t, max(1, len(test.tasks)))
		if test.tasks == nil {
			m.planned(r, "c")
			m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: r.held["c/0"].Wire(), Clean: true}}})
			m.fenced("c", Decision{Outcome: OutcomeNone})
		}
		for i, state := range test.tasks {
			m.statusOf(r, taskName("c", uint32(i)), state, map[bool]string{true: "oh"}[state == retrying || state == failed])
		}
		if v, _ := m.state.Connector("c"); v.State != test.state || v.Message != test.message {
			t.Errorf("%v: %s %q, want %s %q", test.tasks, v.State, v.Message, test.state, test.message)
		}
	}
}

func TestATaskShowsWhatItsOwnerSaidLast(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	m.statusOf(r, "c/0", runnerv1.TaskState_TASK_STATE_RETRYING, strings.Repeat("x", 20_000))
	v, _ := m.state.Connector("c")
	got := v.Tasks[0]
	if got.State != "RETRYING" || got.Runner != "r" || !got.RetryAt.Equal(m.now.Add(1500*time.Millisecond)) || got.TransactionalID != "fencepost.t.c.0" {
		t.Errorf("%+v", got)
	}
	if len(got.Error) > mostErrorBytes+10 {
		t.Errorf("an error of %d bytes was kept", len(got.Error))
	}
	// An older one comes late.
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: &runnerv1.TaskStatus{Lease: r.held["c/0"].Wire(), Seq: 1, State: runnerv1.TaskState_TASK_STATE_FAILED}}})
	if v, _ = m.state.Connector("c"); v.Tasks[0].State != "RETRYING" {
		t.Error("an older status replaced a newer one")
	}
}

func TestHappeningsAreBounded(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	for i := range 60 {
		m.statusOf(r, "c/0", stateRetrying, fmt.Sprint("error ", i))
		m.statusOf(r, "c/0", stateRunning, "")
	}
	v, _ := m.state.Connector("c")
	if len(v.Happenings) != mostHappenings || v.Happenings[mostHappenings-2].Text != "task 0 on r is RETRYING: error 59" {
		t.Errorf("%d happenings, the last %+v", len(v.Happenings), v.Happenings[len(v.Happenings)-2:])
	}
}

func TestPluginsAreListedOnceEach(t *testing.T) {
	m := newSim(t, Options{})
	m.step(TookOver{})
	for _, name := range []string{"r1", "r2"} {
		r := &simRunner{name: name, process: "p", plugins: []string{"file@1.10.0", "file@1.9.0"}}
		m.runners[name] = r
		m.connect(r)
		o := offer(r.plugins)
		o.Broken = []*runnerv1.BrokenPlugin{{Path: "/plugins/x", Error: "not for this machine"}}
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Offer{Offer: o}})
	}
	want := []PluginView{
		{Name: "file", Version: "1.9.0", SHA256: "sha-file@1.9.0", Path: "/plugins/file", Types: []string{"file"}, Runners: []string{"r1", "r2"}},
		{Name: "file", Version: "1.10.0", SHA256: "sha-file@1.10.0", Path: "/plugins/file", Types: []string{"file"}, Runners: []string{"r1", "r2"}},
		{Path: "/plugins/x", Error: "not for this machine", Runners: []string{"r1", "r2"}},
	}
	if diff := cmp.Diff(want, m.state.Plugins()); diff != "" {
		t.Error(diff)
	}
}

func TestARunnerIsChosenForQuestions(t *testing.T) {
	m := newSim(t, Options{})
	m.running(t, 1)
	plugin, session, err := m.state.Choose(map[string]string{"connector.class": "file"})
	if err != nil || plugin.Version != "1.0.0" || session != 1 {
		t.Error(plugin, session, err)
	}
	for name, test := range map[string]struct {
		config map[string]string
		code   Code
		want   string
	}{
		"no class":     {map[string]string{}, CodeInvalid, "connector.class is missing: it names the connector type"},
		"no plugin":    {map[string]string{"connector.class": "mirror"}, CodeRefused, `no runner offers connector type "mirror"; runners offer file@1.0.0 (r)`},
		"labels":       {map[string]string{"connector.class": "file", "placement.labels": "a=b"}, CodeRefused, `no runner that offers connector type "file" has the wanted labels: r lacks a=b`},
		"wrong prefer": {map[string]string{"connector.class": "file", "placement.prefer": "a=b,"}, CodeInvalid, `placement.prefer is "a=b,"; it is label=value, several separated by commas`},
		"wrong spread": {map[string]string{"connector.class": "file", "placement.spread": "a=b"}, CodeInvalid, `placement.spread is "a=b"; it is the name of one label, without a value`},
		"wrong labels": {map[string]string{"connector.class": "file", "placement.labels": "a"}, CodeInvalid, `placement.labels is "a"; it is label=value, several separated by commas`},
		"tasks":        {map[string]string{"connector.class": "file", "tasks.max": "10001"}, CodeInvalid, `tasks.max is "10001"; it is a whole number from 1 to 10000`},
		"large":        {map[string]string{"connector.class": "file", "x": strings.Repeat("x", 300_000)}, CodeInvalid, "the configuration takes 300045 bytes as JSON, the limit is 262144"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, _, err := m.state.Choose(test.config); err == nil || err.Code != test.code || err.Error() != test.want {
				t.Error(err)
			}
		})
	}
}

func TestAHelloThatBreaksTheProtocolIsSentAway(t *testing.T) {
	m := newSim(t, Options{})
	m.step(TookOver{})
	many := map[string]string{}
	for i := range 1001 {
		many[fmt.Sprint(i)] = ""
	}
	good := func(change func(*runnerv1.Hello)) SessionOpened {
		h := &runnerv1.Hello{Name: "r", ProcessId: "p", LevelMin: 1, LevelMax: 3}
		change(h)
		return SessionOpened{Session: 1, Hello: h}
	}
	for name, e := range map[string]SessionOpened{
		"no name":    good(func(h *runnerv1.Hello) { h.Name = "" }),
		"long name":  good(func(h *runnerv1.Hello) { h.Name = strings.Repeat("r", 101) }),
		"no process": good(func(h *runnerv1.Hello) { h.ProcessId = "" }),
		"labels":     good(func(h *runnerv1.Hello) { h.Labels = many }),
		"held":       good(func(h *runnerv1.Hello) { h.Held = make([]*runnerv1.Lease, 10_001) }),
		"plugins":    good(func(h *runnerv1.Hello) { h.Offer = &runnerv1.Offer{Broken: make([]*runnerv1.BrokenPlugin, 1001)} }),
		"too new":    good(func(h *runnerv1.Hello) { h.LevelMin = 2 }),
		"too old":    good(func(h *runnerv1.Hello) { h.LevelMin, h.LevelMax = 0, 0 }),
		"cluster":    good(func(h *runnerv1.Hello) { h.Cluster = "another" }),
		"term":       {Session: 1, Term: 1 << 40, Hello: good(func(*runnerv1.Hello) {}).Hello},
	} {
		t.Run(name, func(t *testing.T) {
			effects := m.step(e)
			if len(effects) != 1 || effects[0].(CloseSession).Why != CloseInvalid {
				t.Error(effects)
			}
		})
	}
	if effects := m.step(SessionOpened{Session: 1, Term: 9, Hello: good(func(*runnerv1.Hello) {}).Hello}); len(effects) != 2 || effects[1].(CloseSession).Why != CloseStale || m.state.Term() != 10 {
		t.Error(effects)
	}
}

// A leader that has just taken over may not have heard of any runner yet: that is no reason to say that there is none.
func TestAYoungLeaderAwaitsItsFirstRunner(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &chaos{sim: newSim(r, Options{}), r: r}
		m.step(TookOver{})
		if !m.state.Awaited() {
			r.Fatal("nobody is awaited")
		}
		if rapid.Bool().Draw(r, "one comes") {
			m.runners["r0"] = m.fresh("r0", 1)
			m.connect(m.runners["r0"])
		} else {
			m.quiet(12)
		}
		if m.state.Awaited() {
			r.Fatal("somebody is still awaited")
		}
	})
}
