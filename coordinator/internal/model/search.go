package model

import (
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"time"
)

// Result is what a search found.
type Result struct {
	// States are distinct, Transitions are steps taken, Depth is the longest of the shortest ways to a state. Cores are the distinct states of the decision core among them, and Steps how often it was asked.
	States, Transitions, Depth, Cores, Steps int
	// Complete says that every state within the bounds was reached; otherwise Bounds.States was, or runs at random were made.
	Complete bool
	// Beyond are steps that weren't followed, for want of room in a queue.
	Beyond int
	// Walks are how many states were led to the end by a fair run without more faults.
	Walks   int
	Elapsed time.Duration
	// Wrong is the property that doesn't hold; empty where all do. Trace is one of the shortest ways there, for people.
	Wrong string
	Trace []string
}

// String is the line that is printed.
func (r Result) String() string {
	extent := "all within the bounds"
	if !r.Complete {
		extent = "not all within the bounds"
	}
	if r.Beyond > 0 {
		extent += fmt.Sprintf(", %d steps needed more room in a queue", r.Beyond)
	}
	return fmt.Sprintf("%d distinct states, %d transitions, depth %d, %s; %d states of the decision core, %d steps of it; %d fair runs to the end; %s",
		r.States, r.Transitions, r.Depth, extent, r.Cores, r.Steps, r.Walks, r.Elapsed.Round(100*time.Millisecond))
}

// search is breadth first, so that the first trace is one of the shortest.
type search struct {
	machine
	seed maphash.Seed
	seen map[uint64]struct{}
	// parents and steps say how each state was reached; states are numbered in the order in which they were found.
	parents []uint32
	steps   []action
	rand    *rand.Rand
	began   time.Time
	result  Result
}

// Check tries every order of steps.
func Check(bounds Bounds, mistake Mistake) Result {
	s := newSearch(bounds, mistake, 1)
	s.run(s.first())
	return s.end()
}

// Sample makes runs from the beginning to the end, with steps and faults at random from a seed, until it has met as many distinct states as Bounds.States says. It reaches far where Check can only reach wide: a run holds everything that the bounds allow.
func Sample(bounds Bounds, mistake Mistake, seed uint64) Result {
	s := newSearch(bounds, mistake, seed)
	for first := s.first(); s.result.Wrong == "" && len(s.seen) < bounds.States; {
		s.sample(first)
	}
	s.result.States = len(s.seen)
	return s.end()
}

func newSearch(bounds Bounds, mistake Mistake, seed uint64) *search {
	return &search{
		machine: machine{bounds: bounds, mistake: mistake, cores: newCores()},
		seed:    maphash.MakeSeed(), seen: map[uint64]struct{}{}, rand: rand.New(rand.NewPCG(seed, 2)), began: time.Now(),
	}
}

func (s *search) end() Result {
	s.result.Elapsed = time.Since(s.began)
	s.result.Cores, s.result.Steps = len(s.cores.nodes)-1, s.cores.made
	return s.result
}

// first is the world at the beginning: coordinator 1 leads, both runners are connected, the connector was created, its first generation has been planned, and its tasks are being granted.
func (s *search) first() world {
	var w world
	for r := range w.runner {
		w.runner[r].process = 1
	}
	s.takeOver(&w, 0)
	for r := range w.runner {
		s.hello(&w, r, 0)
	}
	w.layout = s.bounds.Layout
	s.take(&w, 0, event{kind: evCreate, layout: w.layout})
	for r := range w.runner {
		if w.runner[r].planDue {
			s.plan(&w, r)
		}
	}
	w.left = s.bounds.faults()
	return w
}

// add takes in a state, and says whether it is new.
func (s *search) add(w *world, parent uint32, a action) bool {
	// Two states with one hash would be taken for the same: with ten million states, one chance in 370,000 that this ever happens.
	h := maphash.Comparable(s.seed, *w)
	if _, known := s.seen[h]; known {
		return false
	}
	s.seen[h] = struct{}{}
	s.parents = append(s.parents, parent)
	s.steps = append(s.steps, a)
	return true
}

func (s *search) run(first world) {
	s.add(&first, 0, action{})
	level, number := []world{first}, uint32(0)
	var actions []action
	for len(level) > 0 {
		var next []world
		for i := range level {
			at := number + uint32(i)
			actions = s.enabled(&level[i], actions[:0])
			moved := false
			for _, a := range actions {
				w := level[i]
				s.result.Transitions++
				if !s.try(&w, a) {
					s.result.Beyond++
					moved = true
					continue
				}
				if s.wrong != "" {
					s.found(s.wrong, append(s.way(at), a))
					return
				}
				moved = moved || !a.kind.optional() && w != level[i]
				if s.add(&w, at, a) {
					next = append(next, w)
				}
			}
			if s.bounds.States > 0 && len(s.parents) >= s.bounds.States {
				s.result.States = len(s.parents)
				return
			}
			if !moved && !s.done(&level[i]) {
				s.found("nothing can happen any more, and not all is done", s.way(at))
				return
			}
			if s.bounds.Walk > 0 && int(at)%s.bounds.Walk == 0 && !s.walk(level[i], at) {
				return
			}
		}
		s.result.States = len(s.parents)
		number += uint32(len(level))
		level = next
		if len(next) > 0 {
			s.result.Depth++
		}
	}
	s.result.Complete = true
}

// try takes a step, unless a queue has no room for what comes of it.
func (s *search) try(w *world, a action) (fits bool) {
	defer func() {
		if r := recover(); r != nil {
			if _, full := r.(noRoom); !full {
				panic(r)
			}
		}
	}()
	s.apply(w, a)
	return true
}

// longest is how many steps a fair run may take.
const longest = 20_000

// walk lets a state run on without faults, each step chosen at random, which is fair: it must come to an end.
func (s *search) walk(w world, from uint32) bool {
	s.result.Walks++
	way := s.way(from)
	var actions []action
	for range longest {
		if s.done(&w) {
			return true
		}
		actions = s.enabled(&w, actions[:0])
		steps, _ := split(actions)
		if len(steps) == 0 {
			s.found("nothing can happen any more, and not all is done", way)
			return false
		}
		a := steps[s.rand.IntN(len(steps))]
		way = append(way, a)
		if !s.try(&w, a) {
			s.result.Beyond++
			return true
		}
		if s.wrong != "" {
			s.found(s.wrong, way)
			return false
		}
	}
	s.found("a fair run without faults doesn't come to an end", way)
	return false
}

// sample makes one run at random. How likely a fault is at each step differs from run to run, so that in some all strike at once, and in others one long after the other.
func (s *search) sample(w world) {
	s.result.Walks++
	odds := 1 << (2 + s.rand.IntN(6)) // one step in 4 to 128
	var way, actions []action
	for range longest {
		if s.done(&w) && s.rand.IntN(odds) == 0 {
			return // what may still happen afterwards was given its chance
		}
		actions = s.enabled(&w, actions[:0])
		from, faults := split(actions)
		if len(faults) > 0 && s.rand.IntN(odds) == 0 {
			from = faults
		}
		if len(from) == 0 {
			if !s.done(&w) {
				s.found("nothing can happen any more, and not all is done", way)
			}
			return
		}
		a := from[s.rand.IntN(len(from))]
		way = append(way, a)
		s.result.Transitions++
		if !s.try(&w, a) {
			s.result.Beyond++
			return
		}
		if s.wrong != "" {
			s.found(s.wrong, way)
			return
		}
		s.seen[maphash.Comparable(s.seed, w)] = struct{}{}
		s.result.Depth = max(s.result.Depth, len(way))
	}
	s.found("a run doesn't come to an end", way)
}

// split puts faults behind the other steps.
func split(actions []action) (steps, faults []action) {
	n := 0
	for i, a := range actions {
		if !a.kind.fault() {
			actions[n], actions[i] = a, actions[n]
			n++
		}
	}
	return actions[:n], actions[n:]
}

// way are the steps to a state.
func (s *search) way(to uint32) []action {
	var way []action
	for ; to != 0; to = s.parents[to] {
		way = append(way, s.steps[to])
	}
	for i, j := 0, len(way)-1; i < j; i, j = i+1, j-1 {
		way[i], way[j] = way[j], way[i]
	}
	return way
}

// found tells what is wrong, with the way there in words.
func (s *search) found(wrong string, way []action) {
	s.result.States, s.result.Wrong = len(s.parents), wrong
	w := s.first()
	for i, a := range way {
		if len(way) > 300 && i < len(way)-300 {
			s.apply(&w, a)
			continue
		}
		n := 0
		s.say = func(text string) {
			prefix := fmt.Sprintf("%3d  ", i+1)
			if n > 0 {
				prefix = "     "
			}
			n++
			s.result.Trace = append(s.result.Trace, prefix+text)
		}
		s.apply(&w, a)
		s.say = nil
	}
	s.result.Trace = append(s.result.Trace, "=>   "+wrong)
}
