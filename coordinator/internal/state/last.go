package state

import (
	"slices"
	"time"
)

// LastKnown is what the status topic keeps of a connector, so that people still see it after a change of leader. It may be lost, and be anything that somebody wrote there by hand: nothing is decided by it.
type LastKnown struct {
	Name, Incarnation string
	// Happenings, oldest first.
	Happenings []Happening
	Tasks      map[uint32]LastStatus
}

// LastStatus is what was last known of a task.
type LastStatus struct {
	// Lease is that of the status; where it isn't the task's any more, only the error says something.
	Lease  Lease
	State  string
	Status TaskStatus
	Error  LastError
}

// LastError is the last thing that went wrong with a task, whether or not it has got over it.
type LastError struct {
	// At is zero where nothing has.
	At          time.Time
	Cause, Text string
}

// Recalled hands over what the status topic has. It may come at any time after TookOver, once.
type Recalled struct{ Connectors []LastKnown }

func (Recalled) event() {}

// LastKnown is what is to be kept of a connector; false where there is none.
func (s *State) LastKnown(name string) (LastKnown, bool) {
	c := s.connectors[name]
	if c == nil || !c.exists() {
		return LastKnown{}, false
	}
	k := LastKnown{Name: name, Incarnation: c.Incarnation, Happenings: slices.Clone(c.happened), Tasks: map[uint32]LastStatus{}}
	for _, task := range c.numbers() {
		last := LastStatus{Error: c.errors[task]}
		if st := c.statuses[task]; st != nil {
			last.Lease, last.State, last.Status = st.lease, st.state, st.TaskStatus
		}
		if last.State != "" || !last.Error.At.IsZero() {
			k.Tasks[task] = last
		}
	}
	return k, true
}

// recall fills in what this leader has not been told itself. What it has counts more.
func (s *State) recall(e Recalled) {
	for _, k := range e.Connectors {
		c := s.connectors[k.Name]
		if c == nil || !c.exists() || c.Incarnation != k.Incarnation {
			continue
		}
		since := c.happened
		c.happened = nil
		for _, h := range append(k.Happenings, since...) {
			h.Connector, h.Text = c.name, clip(h.Text, mostHappeningBytes)
			h.Count = max(h.Count, 1)
			c.fold(h)
		}
		for _, task := range c.numbers() {
			if last, known := k.Tasks[task]; known {
				c.recallTask(task, last)
			}
		}
	}
}

func (c *connector) recallTask(task uint32, last LastStatus) {
	if c.errors[task].At.IsZero() && !last.Error.At.IsZero() {
		last.Error.Text = clip(last.Error.Text, mostErrorBytes)
		c.errors[task] = last.Error
	}
	l := c.leases[task]
	if l == nil || l.State == leaseLost || l.Lease != last.Lease || c.statuses[task] != nil || !slices.Contains(TaskStates, last.State) {
		return
	}
	last.Status.Error, last.Status.DroppedReason = clip(last.Status.Error, mostErrorBytes), clip(last.Status.DroppedReason, mostErrorBytes)
	last.Status.Notices = clipNotices(last.Status.Notices)
	c.statuses[task] = &status{lease: last.Lease, state: last.State, TaskStatus: last.Status} // Its seq is 0: whatever the runner says comes after it.
}

// fold adds a happening. An equal one that is there already becomes one with it: what goes round and round takes a line for each thing that it does, and pushes nothing else out.
func (c *connector) fold(h Happening) {
	for i, old := range c.happened {
		if old.Text == h.Text {
			h.First, h.Count = old.First, h.Count+old.Count
			c.happened = slices.Delete(c.happened, i, i+1)
			break
		}
	}
	if len(c.happened) == mostHappenings {
		c.happened = slices.Delete(c.happened, 0, 1)
	}
	c.happened = append(c.happened, h)
}
