package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

const (
	stateRunning  = runnerv1.TaskState_TASK_STATE_RUNNING
	stateRetrying = runnerv1.TaskState_TASK_STATE_RETRYING
)

// What goes round and round takes a line for each thing that it does.
func TestEqualHappeningsAreOne(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 2)
	began := m.now
	for i := range 100 {
		m.now = began.Add(time.Duration(i) * time.Second)
		m.statusOf(r, "c/0", stateRetrying, "boom")
		m.statusOf(r, "c/1", stateRetrying, "bang")
		m.statusOf(r, "c/0", stateRunning, "")
		m.statusOf(r, "c/1", stateRunning, "")
	}
	v, _ := m.state.Connector("c")
	last := v.Happenings[len(v.Happenings)-4:]
	for i, text := range []string{"task 0 on r is RETRYING: boom", "task 1 on r is RETRYING: bang", "task 0 on r is RUNNING", "task 1 on r is RUNNING"} {
		if h := last[i]; h.Text != text || h.Count != 100 || !h.First.Equal(began) || !h.At.Equal(began.Add(99*time.Second)) {
			t.Errorf("%+v", h)
		}
	}
	if v.Happenings[0].Text != "created, generation 1" || v.Happenings[0].Count != 1 {
		t.Errorf("the beginning was pushed out: %+v", v.Happenings[0])
	}
}

func TestATaskKeepsItsLastErrorWhenItHasGotOverIt(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	m.statusOf(r, "c/0", stateRetrying, "boom")
	at := m.now
	m.now = m.now.Add(time.Minute)
	m.statusOf(r, "c/0", stateRunning, "")
	v, _ := m.state.Connector("c")
	if got := v.Tasks[0]; got.Error != "" || got.LastError.Text != "boom" || !got.LastError.At.Equal(at) {
		t.Errorf("%+v", got)
	}
}

// A new leader shows what the one before it saw, and decides nothing by it.
func TestWhatIsRecalledIsShownAndDecidesNothing(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 2)
	m.statusOf(r, "c/0", stateRetrying, "boom")
	kept, there := m.state.LastKnown("c")
	if !there {
		t.Fatal("nothing is kept")
	}
	before, _ := m.state.Connector("c")

	m.lead()
	m.step(TookOver{})
	if effects := m.step(Recalled{Connectors: []LastKnown{kept, {Name: "gone", Incarnation: "x", Happenings: []Happening{{Text: "s"}}}}}); len(effects) > 0 {
		t.Errorf("effects %v", effects)
	}
	after, _ := m.state.Connector("c")
	if diff := cmp.Diff(before.Happenings, after.Happenings); diff != "" {
		t.Error(diff)
	}
	if got := after.Tasks[0]; got.State != "RETRYING" || got.Error != "boom" || got.LastError.Text != "boom" {
		t.Errorf("%+v", got)
	}
	if _, there := m.state.LastKnown("gone"); there {
		t.Error("a connector that is gone came back")
	}
}

// What this leader was told itself counts more, and comes after.
func TestWhatIsRecalledGivesWay(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	m.statusOf(r, "c/0", stateRunning, "")
	m.step(Recalled{Connectors: []LastKnown{{
		Name: "c", Incarnation: "life", Happenings: []Happening{{Text: "long ago"}, {Text: "created, generation 1", Count: 3}},
		Tasks: map[uint32]LastStatus{0: {Lease: r.held["c/0"], State: "FAILED", Status: TaskStatus{Error: "old"}}, 7: {State: "RUNNING"}},
	}}})
	v, _ := m.state.Connector("c")
	if v.Tasks[0].State != "RUNNING" || v.Tasks[0].Error != "" || len(v.Tasks) != 1 {
		t.Errorf("%+v", v.Tasks)
	}
	if v.Happenings[0].Text != "long ago" || v.Happenings[1].Text != "created, generation 1" || v.Happenings[1].Count != 4 {
		t.Errorf("%+v", v.Happenings)
	}
}

// The topic may hold anything: another life of the name, words that there aren't, texts without end.
func TestWhatIsRecalledMayBeAnything(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	lease := r.held["c/0"]
	before, _ := m.state.Connector("c")
	m.step(Recalled{Connectors: []LastKnown{{Name: "c", Incarnation: "another", Happenings: []Happening{{Text: "x"}}}}})
	old := lease
	old.Epoch--
	m.step(Recalled{Connectors: []LastKnown{{Name: "c", Incarnation: "life", Tasks: map[uint32]LastStatus{0: {Lease: old, State: "FAILED"}}}}})
	m.step(Recalled{Connectors: []LastKnown{{Name: "c", Incarnation: "life", Tasks: map[uint32]LastStatus{0: {Lease: lease, State: "HACKED"}}}}})
	after, _ := m.state.Connector("c")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Error(diff)
	}
	var many []Happening
	for i := range 1000 {
		many = append(many, Happening{Text: fmt.Sprint(i, strings.Repeat("x", 1<<20)[:5000], "\xff")})
	}
	m.step(Recalled{Connectors: []LastKnown{{Name: "c", Incarnation: "life", Happenings: many, Tasks: map[uint32]LastStatus{
		0: {Lease: lease, State: "FAILED", Status: TaskStatus{Error: strings.Repeat("x", 1<<20)}, Error: LastError{At: m.now, Text: strings.Repeat("y", 1<<20)}},
	}}}})
	v, _ := m.state.Connector("c")
	if len(v.Happenings) != mostHappenings || len(v.Happenings[0].Text) > mostHappeningBytes+10 || len(v.Tasks[0].Error) > mostErrorBytes+10 || len(v.Tasks[0].LastError.Text) > mostErrorBytes+10 {
		t.Error("something without a bound was taken in")
	}
}
