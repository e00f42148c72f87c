package state

import (
	"cmp"
	"slices"
	"strings"
	"time"
)

// Tally is what metrics show of a State: counts and words, without configurations, texts and claims, so that it is cheap also where there are many connectors. It is a copy.
type Tally struct {
	ClusterView
	Connectors []ConnectorTally
	Runners    []RunnerTally
}

// ConnectorTally is one connector.
type ConnectorTally struct {
	Name, State string
	Plugin      Plugin
	Generation  uint64
	// Tasks counts tasks by their state.
	Tasks map[string]int
}

// RunnerTally is one runner, also one that only leases in the log speak of.
type RunnerTally struct {
	Name, State string
	// Connected says that it has a session.
	Connected bool
	Leases    int
	// LeaseLeft is how long its longest lease still lasts; zero where it holds none.
	LeaseLeft time.Duration
}

// TaskStates and ConnectorStates are all words that a State may use, as users see them. RunnerStates are those of runners.
var (
	TaskStates      = []string{taskStarting, taskRunning, taskRetrying, taskFailed, taskDraining, taskPaused, taskUnassigned}
	ConnectorStates = []string{
		taskRunning, taskStarting, taskPaused, connectorStopped, connectorDegraded, taskFailed, taskUnassigned, connectorFencing, connectorPlanning, connectorDeleting,
	}
	RunnerStates = []string{runnerConnected, runnerLost, runnerDraining, runnerDrained}
)

// Tally counts; now is for how long leases last.
func (s *State) Tally(now time.Time) Tally {
	t := Tally{ClusterView: s.Cluster()}
	for _, name := range sorted(s.connectors) {
		if c := s.connectors[name]; c.exists() {
			t.Connectors = append(t.Connectors, s.tallyOf(c))
		}
	}
	runners := map[string]*RunnerTally{}
	for name, r := range s.runners {
		runners[name] = &RunnerTally{Name: name, State: s.standingOf(r), Connected: r.session != 0}
	}
	for name, leases := range s.held {
		r := runners[name]
		if r == nil {
			r = &RunnerTally{Name: name, State: runnerLost}
			runners[name] = r
		}
		r.Leases = len(leases)
		for l := range leases {
			r.LeaseLeft = max(r.LeaseLeft, l.expires.Sub(now))
		}
	}
	for _, r := range runners {
		t.Runners = append(t.Runners, *r)
	}
	slices.SortFunc(t.Runners, func(a, b RunnerTally) int { return strings.Compare(a.Name, b.Name) })
	return t
}

func (s *State) tallyOf(c *connector) ConnectorTally {
	t := ConnectorTally{Name: c.name, Plugin: c.Plugin, Generation: c.Generation, Tasks: map[string]int{}}
	t.Plugin.Type = cmp.Or(t.Plugin.Type, c.Config["connector.class"])
	tasks := make([]TaskView, 0, c.Tasks)
	for _, task := range c.numbers() {
		v := TaskView{Task: task}
		s.stateOf(c, task, &v)
		t.Tasks[v.State]++
		tasks = append(tasks, v)
	}
	t.State, _ = s.standing(c, tasks)
	return t
}
