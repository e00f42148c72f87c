package assign

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func in(zone string, r Runner) Runner {
	r.Labels = map[string]string{"zone": zone}
	return r
}

func TestTasksAreSpreadOverTheValuesOfALabel(t *testing.T) {
	need := needFile
	need.Spread = "zone"
	runners := []Runner{in("x", runner("a", 0, file("1.0.0"))), in("x", runner("b", 0, file("1.0.0"))), in("y", runner("c", 5, file("1.0.0")))}
	if diff := cmp.Diff([]string{"a", "c", "b", "c"}, Place(need, make([]Task, 4), runners)); diff != "" {
		t.Error(diff)
	}
	// A task that stays doesn't crowd its zone.
	if diff := cmp.Diff([]string{"a", "c"}, Place(need, wanting("a", "a"), runners)); diff != "" {
		t.Error(diff)
	}
	// Tasks that run already count.
	runners[2].Own = 2
	if diff := cmp.Diff([]string{"a", "b"}, Place(need, make([]Task, 2), runners)); diff != "" {
		t.Error(diff)
	}
}

func TestPreferredLabelsDecideBeforeTheLoad(t *testing.T) {
	need := needFile
	need.Prefer = map[string]string{"zone": "x", "disk": "ssd"}
	runners := []Runner{runner("a", 0, file("1.0.0")), in("x", runner("b", 3, file("1.0.0"))), in("y", runner("c", 0, file("1.0.0")))}
	if diff := cmp.Diff([]string{"b", "b"}, Place(need, wanting("", "a"), runners)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "c"}, Place(need, make([]Task, 2), []Runner{runners[0], runners[2]})); diff != "" {
		t.Error(diff)
	}
	if got := Remark(need, runners); got != "" {
		t.Error(got)
	}
	if got := Remark(need, runners[:1]); got != "placement.prefer: no runner that fits has any of the preferred labels" {
		t.Error(got)
	}
	need.Spread = "rack"
	if got := Remark(need, runners); got != `placement.spread: no runner that fits has a label "rack", so the tasks are not spread` {
		t.Error(got)
	}
}

func TestARunnerToAvoidGetsATaskOnlyWhereNoOtherFits(t *testing.T) {
	runners := []Runner{runner("a", 0, file("1.0.0")), runner("b", 9, file("1.0.0")), runner("c", 0)}
	avoid := []Task{{Previous: "a", Avoid: map[string]bool{"a": true}}}
	if diff := cmp.Diff([]string{"b"}, Place(needFile, avoid, runners)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a"}, Place(needFile, avoid, runners[:1])); diff != "" {
		t.Error(diff)
	}
	if !Fits(needFile, avoid[0].Avoid, runners) || Fits(needFile, avoid[0].Avoid, runners[:1]) {
		t.Error("Fits doesn't agree with Place")
	}
}

func TestTheRunnerThatWasMadeReadyGetsTheTask(t *testing.T) {
	runners := []Runner{runner("a", 0, file("1.0.0")), runner("b", 9, file("1.0.0"))}
	if diff := cmp.Diff([]string{"b", "a"}, Place(needFile, []Task{{Previous: "a", Ready: "b"}, {Ready: "gone"}}, runners)); diff != "" {
		t.Error(diff)
	}
}

// bed is a cluster whose tasks are moved until nothing is to be moved any more.
type bed struct {
	runners []Runner // without loads
	groups  []Group
	others  map[string]int // tasks that nobody asks about
}

func (b *bed) loaded() []Runner {
	loads := maps.Clone(b.others)
	for _, g := range b.groups {
		for _, h := range g.Tasks {
			loads[h.Runner]++
		}
	}
	runners := slices.Clone(b.runners)
	for i := range runners {
		runners[i].Load = loads[runners[i].Name]
	}
	return runners
}

func (b *bed) make(m Move) {
	for _, g := range b.groups {
		for i := range g.Tasks {
			if g.Connector == m.Connector && g.Tasks[i].Task == m.Task {
				g.Tasks[i].Runner = m.To
			}
		}
	}
}

// settle makes every move, and gives up where they come to no end.
func (b *bed) settle(t *rapid.T) (moves []Move) {
	for range 10_000 {
		m, found, _ := Balance(b.groups, b.loaded())
		if !found {
			return moves
		}
		b.make(m)
		moves = append(moves, m)
	}
	t.Fatalf("no end of moves: %v", moves[len(moves)-20:])
	return nil
}

var hosts = []string{"a", "b", "c", "d", "e"}

// drawn makes any state, also one that Place would never make.
func drawn(t *rapid.T, need func(*Need)) *bed {
	b := &bed{others: map[string]int{}}
	for _, name := range hosts[:rapid.IntRange(1, len(hosts)).Draw(t, "runners")] {
		r := runner(name, 0, file("1.0.0"))
		r.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "zone"), "disk": rapid.SampledFrom([]string{"ssd", "hdd"}).Draw(t, "disk")}
		b.runners = append(b.runners, r)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "connectors") {
		g := Group{Connector: fmt.Sprint("c", i), Need: needFile}
		need(&g.Need)
		fit := g.Need.fit(b.runners)
		for task := range rapid.IntRange(0, 8).Draw(t, "tasks") {
			if len(fit) > 0 {
				g.Tasks = append(g.Tasks, Holding{Task: uint32(task), Runner: fit[rapid.IntRange(0, len(fit)-1).Draw(t, "at")].Name})
			}
		}
		b.groups = append(b.groups, g)
	}
	return b
}

// Where everything fits everywhere, the loads differ by one at most in the end, and no way there has fewer moves: each runner with too much gives up just that, or each with too little gets just that.
func TestBalanceTakesTheFewestMoves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawn(t, func(*Need) {})
		for _, r := range b.runners {
			b.others[r.Name] = 0
		}
		total := 0
		for _, r := range b.loaded() {
			total += r.Load
		}
		floor := total / len(b.runners)
		ceiling := (total + len(b.runners) - 1) / len(b.runners)
		over, under := 0, 0
		for _, r := range b.loaded() {
			over += max(0, r.Load-ceiling)
			under += max(0, floor-r.Load)
		}
		fewest := max(over, under)
		moves := b.settle(t)
		for _, r := range b.loaded() {
			if r.Load < floor || r.Load > ceiling {
				t.Fatalf("%s has %d of %d tasks", r.Name, r.Load, total)
			}
		}
		if len(moves) != fewest {
			t.Fatalf("%d moves, %d would do", len(moves), fewest)
		}
	})
}

// From any state and with any needs the moves come to an end; none goes where the task doesn't fit, none moves what fits nowhere else or must stay, and none is left that would make the placement better.
func TestBalanceConvergesFromAnyState(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := drawn(t, func(n *Need) {
			if rapid.Bool().Draw(t, "labels") {
				n.Labels = map[string]string{"zone": rapid.SampledFrom([]string{"x", "y"}).Draw(t, "wanted")}
			}
			if rapid.Bool().Draw(t, "spread") {
				n.Spread = rapid.SampledFrom([]string{"zone", "disk", "none"}).Draw(t, "over")
			}
			if rapid.Bool().Draw(t, "prefer") {
				n.Prefer = map[string]string{"disk": "ssd"}
			}
		})
		for _, r := range b.runners {
			b.others[r.Name] = rapid.IntRange(0, 5).Draw(t, "others")
		}
		still := map[string]string{}
		for _, g := range b.groups {
			for i := range g.Tasks {
				if rapid.IntRange(0, 3).Draw(t, "still") == 0 {
					g.Tasks[i].Still = true
					still[fmt.Sprint(g.Connector, g.Tasks[i].Task)] = g.Tasks[i].Runner
				}
			}
		}
		for _, m := range b.settle(t) {
			if m.From == m.To || still[fmt.Sprint(m.Connector, m.Task)] != "" {
				t.Fatalf("moved %+v", m)
			}
		}
		for _, g := range b.groups {
			fit := g.Need.fit(b.loaded())
			for _, h := range g.Tasks {
				if !slices.ContainsFunc(fit, func(r Runner) bool { return r.Name == h.Runner }) {
					t.Fatalf("task %d of %s is on %s, which doesn't fit", h.Task, g.Connector, h.Runner)
				}
			}
			if g.Need.Spread != "" || g.Need.Prefer != nil {
				continue
			}
			for _, from := range fit {
				movable := slices.ContainsFunc(g.Tasks, func(h Holding) bool { return h.Runner == from.Name && !h.Still })
				for _, to := range fit {
					if movable && from.Load-to.Load > 1 {
						t.Fatalf("%s has %d tasks, %s has %d, and a task of %s fits on both", from.Name, from.Load, to.Name, to.Load, g.Connector)
					}
				}
			}
		}
	})
}

// A runner that has just come gets nothing yet, and somebody looks again later.
func TestNothingIsMovedToARunnerThatHasJustCome(t *testing.T) {
	b := &bed{others: map[string]int{}, runners: []Runner{runner("a", 0, file("1.0.0")), runner("b", 0, file("1.0.0"))}}
	b.runners[1].New = true
	b.groups = []Group{{Connector: "c", Need: needFile, Tasks: []Holding{{Runner: "a"}, {Task: 1, Runner: "a"}, {Task: 2, Runner: "a"}}}}
	if m, found, later := Balance(b.groups, b.loaded()); found || !later {
		t.Error(m, found, later)
	}
	b.runners[1].New = false
	m, found, _ := Balance(b.groups, b.loaded())
	if !found || m.From != "a" || m.To != "b" {
		t.Error(m, found)
	}
	b.make(m)
	if m, found, later := Balance(b.groups, b.loaded()); found || later {
		t.Error("two and one are even", m, found, later)
	}
}

func big(tasks, runners int) ([]Runner, []Task) {
	var on []Runner
	for i := range runners {
		on = append(on, in(fmt.Sprint("z", i%3), runner(fmt.Sprintf("r%02d", i), i, file("1.0.0"))))
	}
	return on, make([]Task, tasks)
}

func BenchmarkPlace(b *testing.B) {
	for _, tasks := range []int{500, 5000} {
		for name, spread := range map[string]string{"plain": "", "spread": "zone"} {
			b.Run(fmt.Sprintf("%s/tasks=%d", name, tasks), func(b *testing.B) {
				runners, wants := big(tasks, 50)
				need := needFile
				need.Spread = spread
				b.ReportAllocs()
				for b.Loop() {
					Place(need, wants, runners)
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(tasks), "ns/task")
			})
		}
	}
}

func BenchmarkBalance(b *testing.B) {
	for _, connectors := range []int{50, 500} {
		b.Run(fmt.Sprintf("tasks=%d", connectors*10), func(b *testing.B) {
			runners, _ := big(0, 50)
			var groups []Group
			for i := range connectors {
				g := Group{Connector: fmt.Sprint("c", i), Need: needFile}
				for task := range 10 {
					g.Tasks = append(g.Tasks, Holding{Task: uint32(task), Runner: runners[(i+task)%50].Name})
				}
				groups = append(groups, g)
			}
			b.ReportAllocs()
			for b.Loop() {
				Balance(groups, runners)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(connectors*10), "ns/task")
		})
	}
}
