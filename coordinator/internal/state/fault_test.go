package state

import (
	"testing"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// A host that was at fault is avoided for five minutes, and for twice as long each further time, up to half an hour. Once it has been quiet for as long again it counts as new.
func TestAHostIsTrustedAgainAfterAWhileThatDoubles(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	c, held := m.state.connectors["c"], m.state.runners["r"]
	fails := func(want time.Duration) {
		t.Helper()
		m.state.now = m.now
		m.state.blame(c, taskWork(0), held, "the disk is full")
		for _, at := range []struct {
			after time.Duration
			want  bool
		}{{want - time.Second, true}, {want, false}} {
			m.state.now = m.now.Add(at.after)
			if got := m.state.avoided(c, taskWork(0))[r.name]; got != at.want {
				t.Errorf("avoided %s after the fault: %v", at.after, got)
			}
		}
	}
	fails(5 * time.Minute)
	m.now = m.now.Add(6 * time.Minute)
	fails(10 * time.Minute)
	fails(20 * time.Minute)
	fails(30 * time.Minute)
	m.now = m.now.Add(59 * time.Minute)
	fails(30 * time.Minute)
	m.now = m.now.Add(time.Hour)
	fails(5 * time.Minute)
}

// The pause of a task that fits nowhere else doubles, too, and what is remembered has a bound.
func TestFaultsOfHostsAreBounded(t *testing.T) {
	m := newSim(t, Options{})
	m.running(t, 1)
	c := m.state.connectors["c"]
	var last time.Duration
	for times := range 100 {
		last = m.state.blame(c, taskWork(0), m.state.runners["r"], "the disk is full")
		if times == 0 && last != firstHostPause {
			t.Errorf("the first pause is %s", last)
		}
		m.state.blame(c, taskWork(0), &runner{name: string(rune('A' + times)), process: "p"}, "the disk is full")
	}
	if last != longestHostPause || len(c.faults[taskWork(0)]) != mostFaults {
		t.Errorf("the pause is %s, %d hosts are remembered", last, len(c.faults[taskWork(0)]))
	}
}

// A task whose runner gives it back unclean is fenced before another one gets it, however much in a hurry it is.
func TestAHostsFaultDoesNotSkipTheFence(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	other := &simRunner{name: "s", process: "p", plugins: r.plugins, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
	m.runners["s"] = other
	m.connect(other)
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: r.held["c/0"].Wire(), Host: true, Reason: "the disk is full"}}})
	if len(other.held) > 0 {
		t.Fatal("granted before its id is fenced")
	}
	m.fenced("c", Decision{Outcome: OutcomeNone})
	if len(other.held) != 1 {
		t.Errorf("the other runner holds %v", other.held)
	}
}
