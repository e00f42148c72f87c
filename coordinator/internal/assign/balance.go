package assign

import "cmp"

// Group is the tasks of one connector that run.
type Group struct {
	Connector string
	Need      Need
	Tasks     []Holding
}

// Holding is a task that a runner has.
type Holding struct {
	Task   uint32
	Runner string
	// Still says that it isn't to be moved now: it has moved lately, or doesn't run well.
	Still bool
	// Avoid has runners that it isn't moved to.
	Avoid map[string]bool
}

// Move takes a task that runs to another runner.
type Move struct {
	Connector string
	Task      uint32
	From, To  string
	// gain is what it makes better: the spread, then the preferred labels, then the loads.
	gain gain
}

// gain compares a placement with the one after a move. Moves count only where the first part that isn't 0 is above 0, so each lowers, in this order: the unevenness of each connector's spread, what is
// lacking in preferred labels, the unevenness of the loads. None of them can fall without end, so moves come to an end, and no history of them leads back.
type gain struct {
	spread, likes, load int
	// own only chooses among moves that gain the same: the connector's tasks that the one runner has more than the other.
	own int
}

func (g gain) good() bool {
	return cmp.Or(cmp.Compare(g.spread, 0), cmp.Compare(g.likes, 0), cmp.Compare(g.load, 0)) > 0
}

func (g gain) beats(o gain) bool {
	return cmp.Or(cmp.Compare(g.spread, o.spread), cmp.Compare(g.likes, o.likes), cmp.Compare(g.load, o.load), cmp.Compare(g.own, o.own)) > 0
}

// Balance finds the move that makes the placement better by most. Loads differ by two at least where one is moved for their sake: one that only swaps who has more is none. Where every task fits on every runner,
// the moves that it finds one after another are as few as there can be: each goes from the fullest runner to the emptiest. later says that a move would be good which can't be made now. Runners are those that take
// tasks, with all that they have as Load; tasks of other runners aren't moved.
func Balance(groups []Group, runners []Runner) (move Move, found, later bool) {
	for _, g := range groups {
		m, ok, blocked := g.best(runners)
		later = later || blocked
		if ok && (!found || m.gain.beats(move.gain)) {
			move, found = m, true
		}
	}
	return move, found, later
}

// best finds the best move of one connector's tasks.
func (g *Group) best(runners []Runner) (move Move, found, later bool) {
	f := newField(g.Need, runners)
	if len(f.fit) < 2 {
		return Move{}, false, false
	}
	for _, h := range g.Tasks {
		if at, there := f.index[h.Runner]; there {
			f.fit[at].Own++
			f.own[f.value[at]]++
		}
	}
	for _, h := range g.Tasks {
		from, there := f.index[h.Runner]
		if !there {
			continue
		}
		to, gained := f.target(from, h)
		if !gained.good() {
			continue
		}
		if h.Still || f.fit[to].New {
			later = true
			continue
		}
		if m := (Move{Connector: g.Connector, Task: h.Task, From: h.Runner, To: f.fit[to].Name, gain: gained}); !found || m.gain.beats(move.gain) {
			move, found = m, true
		}
	}
	return move, found, later
}

// target is where a task would gain most.
func (f *field) target(from int, h Holding) (to int, most gain) {
	for i := range f.fit {
		if i == from || h.Avoid[f.fit[i].Name] {
			continue
		}
		if g := f.gain(from, i); g.good() && (!most.good() || g.beats(most)) {
			to, most = i, g
		}
	}
	return to, most
}

// gain is what a move of one task gains.
func (f *field) gain(from, to int) gain {
	g := gain{likes: f.likes[to] - f.likes[from], load: f.fit[from].Load - f.fit[to].Load - 1, own: f.fit[from].Own - f.fit[to].Own}
	if f.value[from] != f.value[to] {
		g.spread = f.crowd(from) - f.crowd(to) - 1
	}
	return g
}
