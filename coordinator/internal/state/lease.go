package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Lease is the right of one runner to run one task. It is comparable: two leases are the same right exactly when they are equal.
type Lease struct {
	Connector   string `json:"connector"`
	Incarnation string `json:"incarnation"`
	Generation  uint64 `json:"generation"`
	Task        uint32 `json:"task"`
	Epoch       uint64 `json:"epoch"`
}

// String is for logs and errors.
func (l Lease) String() string {
	return fmt.Sprintf("%s/%d g%d e%d", l.Connector, l.Task, l.Generation, l.Epoch)
}

// Wire is the lease as runners see it.
func (l Lease) Wire() *runnerv1.Lease {
	return &runnerv1.Lease{Connector: l.Connector, Incarnation: l.Incarnation, Generation: l.Generation, Task: l.Task, Epoch: l.Epoch}
}

// LeaseOf reads a lease from the wire; a missing one is the zero Lease, which nobody ever holds.
func LeaseOf(m *runnerv1.Lease) Lease {
	return Lease{
		Connector: m.GetConnector(), Incarnation: m.GetIncarnation(), Generation: m.GetGeneration(),
		Task: m.GetTask(), Epoch: m.GetEpoch(),
	}
}

// lease is a lease in the log and what this leader knows of it beside.
type lease struct {
	leaseRecord
	// expires is when it runs out unless it is renewed.
	expires time.Time
	// deadline is when a revoked one is taken for lost.
	deadline time.Time
	// within is how long it has from when it was taken back; 0 is Options.Drain.
	within time.Duration
	// refused says that the fencing of a lost one's id met a permanent refusal: its task waits for the next try, and no other does.
	refused bool
	// free frees the partitions that the task has claimed, once the lease has ended: a user restarts it.
	free bool
}

// hold counts a lease among those of its runner.
func (s *State) hold(l *lease) {
	if s.held[l.Runner] == nil {
		s.held[l.Runner] = map[*lease]struct{}{}
	}
	s.held[l.Runner][l] = struct{}{}
}

func (s *State) unhold(l *lease) {
	delete(s.held[l.Runner], l)
	if len(s.held[l.Runner]) == 0 {
		delete(s.held, l.Runner)
	}
}

// leasesOf has the leases of one process of a runner that aren't lost, in order.
func (s *State) leasesOf(name, process string) []*lease {
	var leases []*lease
	for l := range s.held[name] {
		if l.Process == process {
			leases = append(leases, l)
		}
	}
	slices.SortFunc(leases, func(a, b *lease) int {
		return cmp.Or(cmp.Compare(a.Connector, b.Connector), cmp.Compare(a.Task, b.Task))
	})
	return leases
}

// sessionOf is the session of the process that a lease was granted to; 0 where it isn't connected.
func (s *State) sessionOf(l *lease) SessionID {
	if r := s.runners[l.Runner]; r != nil && r.process == l.Process {
		return r.session
	}
	return 0
}

// lease makes the lease of a task, or of task 0's id for a change of offsets, for a runner.
func (s *State) lease(c *connector, task uint32, r *runner) *lease {
	// I2: only a fenced generation, and only an id that the log counts.
	if !c.fenced() || task >= c.IDs || c.leases[task] != nil {
		panic(fmt.Sprintf("grant of task %d of %q: generation %d, fenced %d, ids %d, lost %v, lease %v",
			task, c.name, c.Generation, c.Fenced, c.IDs, c.lost(true), c.leases[task]))
	}
	c.Epoch++ // I6: persisted with this step
	s.putName(c)
	l := &lease{leaseRecord: leaseRecord{
		Lease:  Lease{Connector: c.name, Incarnation: c.Incarnation, Generation: c.Generation, Task: task, Epoch: c.Epoch},
		Runner: r.name, Process: r.process, State: leaseHeld, PlainMs: uint64(c.settings.plain.Milliseconds()),
	}}
	l.expires = s.now.Add(s.ttlOf(l))
	c.leases[task] = l
	delete(c.statuses, task)
	s.shift()
	s.hold(l)
	s.putLease(l)
	s.wakeAt(l.expires)
	return l
}

// grant gives a task to a runner.
func (s *State) grant(c *connector, task uint32, r *runner) {
	l := s.lease(c, task, r)
	c.last[task] = r.name
	s.arrived(c, l)
	spec := c.tasks[task]
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{
		Lease: l.Wire(), Config: c.Config, TaskConfig: spec.Config, Claim: spec.Claim.wire(),
		TtlMs:           uint64(s.ttlOf(l).Milliseconds()),
		TransactionalId: names.TransactionalID(s.options.Cluster, c.name, task),
		OffsetsTopic:    c.offsetsTopic(s.options.Cluster), OffsetsTopicId: c.knownOffsetsTopicID(s.options.Cluster),
		Plugin: c.Plugin.wire(),
	}}})
	s.happen(c, "task %d granted to %s, epoch %d", task, r.name, c.Epoch)
}

// revokeNow takes a lease back without a drain, also one that is draining.
func (s *State) revokeNow(l *lease, reason string) {
	if l.State == leaseRevoked {
		s.sendRevoke(s.sessionOf(l), l.Lease, false, reason)
	}
	s.revoke(l, false, reason)
}

// revoke takes a lease back. It stays the runner's, to end its task with, until the runner says that it has, or the deadline passes.
func (s *State) revoke(l *lease, drain bool, reason string) {
	if l.State != leaseHeld {
		return
	}
	reason = clip(reason, mostReasonBytes)
	l.State, l.Reason = leaseRevoked, reason
	l.deadline = s.now.Add(cmp.Or(l.within, s.options.Drain))
	s.putLease(l)
	s.wakeAt(l.deadline)
	s.sendRevoke(s.sessionOf(l), l.Lease, drain, reason)
	s.happen(s.connectors[l.Connector], "task %d taken back from %s: %s", l.Task, l.Runner, reason)
}

func (s *State) sendRevoke(session SessionID, l Lease, drain bool, reason string) {
	if session == 0 {
		return // its Hello is answered by another one
	}
	m := &runnerv1.Revoke{Lease: l.Wire(), Drain: drain, Reason: reason}
	if drain {
		m.DeadlineMs = uint64(s.options.Drain.Milliseconds())
	}
	s.send(session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Revoke{Revoke: m}})
}

// revokeStale takes back what isn't wanted any more.
func (s *State) revokeStale(c *connector) {
	for _, task := range sorted(c.leases) {
		l := c.leases[task]
		switch {
		case l.Alter && c.Target == TargetStopped && !c.Deleting && l.Generation == c.Generation:
		case c.Deleting:
			s.revoke(l, true, "the connector is being deleted")
		case c.Target == TargetStopped:
			s.revoke(l, true, "the connector is stopped")
		case c.Target == TargetPaused:
			s.revoke(l, true, "the connector is paused")
		case l.Generation != c.Generation:
			s.revoke(l, true, fmt.Sprintf("generation %d has begun", c.Generation))
		case l.Alter:
			s.revoke(l, true, "the connector is to run again")
		}
	}
}

// end removes a lease whose task can't write any more: it ended cleanly, or its id is fenced.
func (s *State) end(c *connector, l *lease) {
	s.unhold(l)
	delete(c.leases, l.Task)
	delete(c.statuses, l.Task)
	s.put(taskKey(keyLease, c.name, l.Task), nil)
	s.shift()
	if l.free {
		s.freeClaims(c, l.Task)
	}
	s.touch(c)
}

// forfeit takes a lease from its runner, whatever that does: its id is fenced before the task is granted again.
func (s *State) forfeit(l *lease, reason string) {
	if l.State == leaseLost {
		return
	}
	c := s.connectors[l.Connector]
	s.noise(c, l)
	l.State, l.Reason = leaseLost, clip(reason, mostReasonBytes)
	s.unhold(l)
	s.putLease(l)
	delete(c.statuses, l.Task)
	s.happen(c, "task %d lost by %s: %s", l.Task, l.Runner, reason)
	s.touch(c)
}

// lose takes all leases of one process of a runner, and its plans.
func (s *State) lose(name, process, reason string) {
	for _, l := range s.leasesOf(name, process) {
		if l.PlainMs == 0 { // a plain producer can't be fenced: its lease has to run out
			s.forfeit(l, reason)
		}
	}
	for _, of := range sorted(s.connectors) {
		if c := s.connectors[of]; c.Planner == name && c.PlannerProcess == process {
			s.dropPlanner(c)
		}
	}
}

// overdue takes back a lease that has run out, or whose task didn't end in time.
func (s *State) overdue(l *lease) {
	var reason string
	switch {
	case l.State == leaseHeld && l.Alter && s.due(l.deadline):
		s.revoke(l, true, fmt.Sprintf("the offsets weren't changed within %s", alterTime))
		return
	case l.State != leaseLost && s.due(l.expires):
		reason = "its lease ran out"
	case l.State == leaseRevoked && s.due(l.deadline):
		reason = fmt.Sprintf("it didn't end within %s (%s)", cmp.Or(l.within, s.options.Drain), l.Reason)
	default:
		return
	}
	s.forfeit(l, reason)
	s.sendRevoke(s.sessionOf(l), l.Lease, false, reason)
}
