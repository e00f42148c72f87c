package state

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func (m *sim) joined(name string, labels map[string]string) *simRunner {
	m.t.Helper()
	r := &simRunner{name: name, process: "p", plugins: []string{"file@1.0.0"}, labels: labels, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
	m.runners[name] = r
	m.connect(r)
	return r
}

// created makes a connector of n tasks.
func (m *sim) created(name string, n int, more map[string]string) {
	m.t.Helper()
	config := map[string]string{"connector.class": "file", "tasks.max": fmt.Sprint(n)}
	maps.Copy(config, more)
	m.ask(Create{Name: name, Incarnation: "life-" + name, Config: config})
	if c := m.state.connectors[name]; c.Planner != "" {
		m.planned(m.runners[c.Planner], name, make([]Claim, n)...)
	}
}

func (m *sim) died(r *simRunner) {
	m.t.Helper()
	session := r.session
	r.session = 0
	m.step(SessionClosed{Session: session, Reason: "connection reset"})
	m.pass(2 * time.Second)
}

// Fifty tasks of ten connectors are killed, and those of some can't be placed: whatever runs or doesn't run of these, each of the others is granted in the step in which its own ids are fenced.
func TestWhatCantBePlacedDelaysNothingElse(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := newSim(r, Options{})
		m.replay = 50
		m.step(TookOver{})
		dies := m.joined("dies", map[string]string{"zone": "x"})
		lame := map[string]bool{}
		for i := range 10 {
			name := fmt.Sprint("c", i)
			config := map[string]string{}
			if rapid.IntRange(0, 3).Draw(r, "lame") == 0 {
				lame[name] = true
				config["placement.labels"] = "zone=x" // only the one that dies has it
			}
			m.created(name, 5, config)
		}
		lives := m.joined("lives", nil)
		m.died(dies)
		order := rapid.Permutation(sorted(m.rounds)).Draw(r, "order")
		for _, name := range order {
			switch {
			case rapid.IntRange(0, 9).Draw(r, "refused") == 0:
				seq := m.rounds[name].Seq
				delete(m.rounds, name)
				m.step(RoundFailed{Connector: name, Seq: seq, Task: 0, Reason: "no right"})
				lame[name] = true
				continue
			case rapid.IntRange(0, 9).Draw(r, "no answer") == 0:
				lame[name] = true
				continue
			}
			m.fenced(name, Decision{Outcome: OutcomeNone})
			for task := range uint32(5) {
				if _, granted := lives.held[taskName(name, task)]; granted == lame[name] {
					r.Fatalf("task %d of %s: granted %v; can't be placed: %v", task, name, granted, sorted(lame))
				}
			}
		}
	})
}

// A04: the fencing of a connector depends on nothing but that connector, however many change at once.
func TestFencingOfOneConnectorWaitsForNoOther(t *testing.T) {
	m := newSim(t, Options{})
	m.step(TookOver{})
	r := m.joined("r", nil)
	names := []string{}
	for i := range 20 {
		names = append(names, fmt.Sprintf("c%02d", i))
		m.created(names[i], 2, nil)
	}
	for _, name := range names {
		m.ask(Apply{Name: name, Incarnation: "x", Config: map[string]string{"connector.class": "file", "tasks.max": "2", "topic": "other"}})
	}
	for _, task := range sorted(r.held) {
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: r.held[task].Wire(), Clean: true}}})
	}
	if len(m.rounds) != 20 {
		t.Fatalf("%d rounds run", len(m.rounds))
	}
	slices.Reverse(names)
	for i, name := range names {
		m.planned(r, name, make([]Claim, 2)...)
		m.fenced(name, Decision{Outcome: OutcomeNone})
		if len(r.held) != 2*(i+1) {
			t.Fatalf("after the round of %s %d tasks are granted", name, len(r.held))
		}
	}
}

// A13: a change of keys that only the runtime reads is a change: a new generation, whatever the plan says of it.
func TestAChangeOfARuntimeKeyAloneIsANewGeneration(t *testing.T) {
	for _, key := range []string{"value.converter", "producer.override.linger.ms", "transaction.boundary", "placement.prefer"} {
		m := newSim(t, Options{})
		r := m.running(t, 1)
		value := map[string]string{"placement.prefer": "a=b"}[key]
		m.ask(Apply{Name: "c", Incarnation: "x", Config: map[string]string{"connector.class": "file", "tasks.max": "1", key: value}})
		if c := m.state.connectors["c"]; c.Generation != 2 || c.leases[0].State != leaseRevoked {
			t.Errorf("%s: generation %d, lease %+v", key, c.Generation, c.leases[0].leaseRecord)
		}
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: r.held["c/0"].Wire(), Clean: true}}})
		m.planned(r, "c", Claim{})
		m.fenced("c", Decision{Outcome: OutcomeNone})
		if l := r.held["c/0"]; l.Generation != 2 {
			t.Errorf("%s: the task runs in generation %d", key, l.Generation)
		}
	}
}

// A02: stop and delete are answered when a task that hangs can't write any more, and not before.
func TestStopAndDeleteAnswerOnlyWhenATaskThatHangsIsFenced(t *testing.T) {
	for _, op := range []Op{Stop{Name: "c"}, Delete{Name: "c"}} {
		m := newSim(t, Options{})
		r := m.running(t, 2)
		answered := func(effects []Effect) bool {
			return slices.ContainsFunc(effects, func(e Effect) bool { reply, ok := e.(Reply); return ok && reply.ID == m.asks })
		}
		effects := m.ask(op)
		effects = append(effects, m.say(r, beatOf(r))...) // it is alive, and its tasks don't end
		effects = append(effects, m.pass(9*time.Second)...)
		effects = append(effects, m.say(r, beatOf(r))...)
		effects = append(effects, m.pass(11*time.Second)...)
		if answered(effects) || len(m.rounds["c"].Tasks) != 2 {
			t.Fatalf("%T: answered %v, rounds %v", op, answered(effects), m.rounds)
		}
		if !answered(m.fenced("c", Decision{Outcome: OutcomeNone})) {
			t.Errorf("%T isn't answered", op)
		}
	}
}

// Every way from one number of tasks to another fences exactly the ids that the generations before may have used, and counts those of the next before it grants one (the sim checks that, I2).
func TestEachTransitionOfTheNumberOfTasksFencesTheOldIDs(t *testing.T) {
	for _, counts := range [][]int{{0, 3}, {3, 0, 2}, {1, 1}, {1, 4}, {4, 1}, {3, 3}, {4, 2, 5, 0, 1}} {
		t.Run(fmt.Sprint(counts), func(t *testing.T) {
			m := newSim(t, Options{})
			r := m.running(t, 5)
			m.planned(r, "c", make([]Claim, counts[0])...)
			before := 5
			for i, n := range counts {
				if i > 0 {
					m.planned(r, "c", make([]Claim, n)...)
				}
				if n == before {
					// An equal plan is none: the generation is begun by a change of the configuration.
					m.ask(Apply{Name: "c", Incarnation: "x", Config: map[string]string{"connector.class": "file", "tasks.max": "5", "step": fmt.Sprint(i)}})
					m.planned(r, "c", make([]Claim, n)...)
				}
				m.movesOn(r, before)
				if c := m.state.connectors["c"]; int(c.IDs) != n || len(r.held) != n {
					t.Fatalf("step %d: %d ids, %d tasks run, want %d", i, c.IDs, len(r.held), n)
				}
				before = n
			}
			// Deleted and created again with fewer tasks.
			m.ask(Delete{Name: "c"})
			m.movesOn(r, before)
			m.created("c", 1, nil)
			if len(r.held) != 1 {
				t.Fatalf("%d tasks run", len(r.held))
			}
		})
	}
}

// movesOn ends what was taken back, and lets the round be done that must be for just the ids before.
func (m *sim) movesOn(r *simRunner, ids int) {
	m.t.Helper()
	for _, task := range sorted(r.held) {
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: r.held[task].Wire(), Clean: true}}})
	}
	if got := len(m.rounds["c"].Tasks); got < ids {
		m.t.Fatalf("a round over %d ids, %d may have been used", got, ids)
	}
	if _, runs := m.rounds["c"]; runs {
		m.fenced("c", Decision{Outcome: OutcomeNone})
	}
}
