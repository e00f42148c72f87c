package state

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// quiet lets everything go well for a while.
func (m *chaos) quiet(seconds int) {
	for range seconds {
		m.pass(time.Second)
		m.beat()
		for _, name := range sorted(m.rounds) {
			m.fenced(name, Decision{Outcome: OutcomeNone})
		}
		for _, r := range m.connected() {
			m.obey(r)
		}
	}
}

// takenBack counts the leases that are taken back, by reason.
func takenBack(effects []Effect) int {
	n := 0
	for _, e := range effects {
		if s, ok := e.(Send); ok && s.Message.GetRevoke() != nil {
			n++
		}
	}
	return n
}

// However many tasks there are and however many runners join or are drained and come back: in the end loads differ by one at most, each task that had to move has moved once, and no other task was touched.
func TestRunnersThatJoinGetTheirShareByTheFewestMoves(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &chaos{sim: newSim(r, Options{}), r: r}
		m.replay = 20
		m.step(TookOver{})
		first := m.fresh("r0", 1)
		m.runners["r0"] = first
		m.connect(first)
		total := 0
		for i := range rapid.IntRange(1, 4).Draw(r, "connectors") {
			name := fmt.Sprint("c", i)
			n := rapid.IntRange(1, 5).Draw(r, "tasks")
			m.ask(Create{Name: name, Incarnation: name, Config: map[string]string{"connector.class": "file", "tasks.max": fmt.Sprint(n)}})
			m.planned(first, name, make([]Claim, n)...)
			total += n
		}
		m.quiet(12) // what a new leader waits for
		joining := rapid.IntRange(1, 4).Draw(r, "join")
		for i := range joining {
			name := fmt.Sprint("r", i+1)
			m.runners[name] = m.fresh(name, 1)
			m.connect(m.runners[name])
		}
		before := map[string]uint64{}
		for _, c := range m.state.connectors {
			before[c.name] = c.Epoch
		}
		m.quiet(5 + 4*total)
		if wrong := m.even(); wrong != "" {
			r.Fatal(wrong)
		}
		moved := uint64(0)
		for _, c := range m.state.connectors {
			moved += c.Epoch - before[c.name]
			if c.Generation != 1 {
				r.Fatalf("%s is at generation %d", c.name, c.Generation)
			}
		}
		// Whoever had everything keeps the larger share.
		keeps := (total + joining) / (joining + 1)
		if want := total - keeps; int(moved) != want {
			r.Fatalf("%d of %d tasks moved to %d runners, %d would do", moved, total, joining, want)
		}
	})
}

// A drain moves every task exactly once, whoever else is drained.
func TestADrainMovesEachTaskOnce(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &chaos{sim: newSim(r, Options{NoBalance: true}), r: r}
		m.step(TookOver{})
		for _, name := range []string{"r0", "r1", "r2"} {
			m.runners[name] = m.fresh(name, 1)
			m.connect(m.runners[name])
		}
		n := rapid.IntRange(1, 9).Draw(r, "tasks")
		m.ask(Create{Name: "c", Incarnation: "life", Config: map[string]string{"connector.class": "file", "tasks.max": fmt.Sprint(n)}})
		c := m.state.connectors["c"]
		m.planned(m.runners[c.Planner], "c", make([]Claim, n)...)
		m.quiet(2)
		had := len(m.runners["r1"].held)
		m.ask(DrainRunner{Name: "r1"})
		m.quiet(2 + 2*n)
		if got := c.Epoch - uint64(n); got != uint64(had) {
			r.Fatalf("%d tasks moved, %d had to", got, had)
		}
		if state := m.runnerState("r1"); state != "DRAINED" {
			r.Fatalf("r1 is %s", state)
		}
	})
}

func (m *sim) runnerState(name string) string {
	for _, r := range m.state.Runners(m.now) {
		if r.Name == name {
			return r.State
		}
	}
	return ""
}

// Without balance a runner that joins gets what is new, and nothing else.
func TestNothingMovesWhereBalanceIsOff(t *testing.T) {
	m := newSim(t, Options{NoBalance: true})
	r := m.running(t, 4)
	for _, task := range sorted(r.held) {
		m.statusOf(r, task, runnerv1.TaskState_TASK_STATE_RUNNING, "")
	}
	m.runners["s"] = &simRunner{name: "s", process: "p", plugins: r.plugins, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
	effects := m.connect(m.runners["s"])
	for range 20 {
		effects = append(effects, m.pass(5*time.Second)...)
		effects = append(effects, m.say(r, beatOf(r))...)
	}
	if n := takenBack(effects); n > 0 {
		t.Errorf("%d tasks were taken back", n)
	}
}
