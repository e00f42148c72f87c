package supervisor

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
)

// Why a task was told to end at once.
var (
	errRevoked     = errors.New("the lease was taken back")
	errSuperseded  = errors.New("a newer lease of the task was granted")
	errAbandoned   = errors.New("draining took too long")
	errRunnerStops = errors.New("the runner is stopping")
)

// maxSlots bounds what is remembered of tasks that are over.
const maxSlots = 30_000

// slot is a task of a connector's name on this runner: what runs, what waits for its end, and the newest lease that was seen. It belongs to the supervisor's goroutine.
type slot struct {
	newest lease.Lease
	run    *run
	next   *session.Grant // Starts when run has ended: at most one producer per transactional id.
}

// taskOver says that a task's goroutine has ended, and its attempt with everything that it held.
type taskOver struct {
	run    *run
	clean  bool
	reason string
	host   bool  // What went wrong is this host's affair: another runner is to have the task.
	fatal  error // The process has to end.
}

// grant starts a task, after the older one of the same name.
func (s *Supervisor) grant(work context.Context, g *session.Grant) {
	t := s.slot(g.Lease.ID())
	switch {
	case s.stopping:
		s.session.Ended(g.Lease, true, errRunnerStops.Error())
		return
	case t.holds(g.Lease):
		return // Granted again to a runner that holds it: nothing changes.
	case !t.see(g.Lease):
		// I6: an older grant that was on its way for long must never run beside, or instead of, a newer one; and a lease that was given back is over.
		s.cfg.Logger.Warn("refused an older lease", "lease", g.Lease.String(), "newest", t.newest.String())
		s.session.Ended(g.Lease, true, "this runner has had, or given back, "+t.newest.String())
		return
	}
	if t.run == nil {
		s.start(work, t, g)
		return
	}
	if t.next != nil {
		s.session.Ended(t.next.Lease, true, errSuperseded.Error())
	}
	t.next = g
	t.run.end(errSuperseded)
}

// revoke ends a task. What doesn't run any more, or not yet, is given back right away.
func (s *Supervisor) revoke(r *session.Revoke) {
	t := s.slot(r.Lease.ID())
	t.see(r.Lease)
	switch {
	case t.next != nil && t.next.Lease == r.Lease:
		t.next = nil
		s.session.Ended(r.Lease, true, r.Reason)
	case t.run == nil || t.run.grant.Lease != r.Lease:
		s.session.Ended(r.Lease, true, "it doesn't run here")
	case r.Drain:
		t.run.drainFor(r.Deadline, r.Reason)
	default:
		t.run.end(errRevoked)
	}
}

// slot finds a task's slot, or makes it.
func (s *Supervisor) slot(id lease.ID) *slot {
	t := s.tasks[id]
	if t == nil {
		s.forget()
		t = &slot{}
		s.tasks[id] = t
	}
	return t
}

// see notes a lease, and says whether it is newer than every one before.
func (t *slot) see(l lease.Lease) bool {
	if t.newest != (lease.Lease{}) && l.Newer(t.newest) <= 0 {
		return false
	}
	t.newest = l
	return true
}

// holds says whether a lease's task runs, or waits to.
func (t *slot) holds(l lease.Lease) bool {
	return t.run != nil && t.run.grant.Lease == l || t.next != nil && t.next.Lease == l
}

// drain ends a slot's task with a drain; what waits for it isn't started any more.
func (t *slot) drain(within time.Duration, reason string) {
	if t.run != nil {
		t.run.drainFor(within, reason)
	}
}

// start runs a task in a goroutine of its own.
func (s *Supervisor) start(work context.Context, t *slot, g *session.Grant) {
	r := newRun(work, s, g)
	t.run = r
	s.live++
	s.running.Go(func() { s.queue.pushOwn(r.loop()) })
}

// taskOver gives the lease back, and starts what waited.
func (s *Supervisor) taskOver(work context.Context, over *taskOver) error {
	s.live--
	if over.run.deadline != nil {
		over.run.deadline.Stop()
	}
	l := over.run.grant.Lease
	if over.host {
		s.session.HostFailed(l, over.reason)
	} else {
		s.session.Ended(l, over.clean, over.reason)
	}
	t := s.tasks[l.ID()]
	t.run = nil
	if over.fatal != nil {
		return over.fatal
	}
	if g := t.next; g != nil {
		t.next = nil
		if s.stopping {
			s.session.Ended(g.Lease, true, "the runner is stopping")
			return nil
		}
		s.start(work, t, g)
	}
	return nil
}

// forget makes room by dropping slots of tasks that are over. What it drops could be granted with an older lease again; the coordinator's term, which is checked before, makes that harmless.
func (s *Supervisor) forget() {
	if len(s.tasks) < maxSlots {
		return
	}
	for id, t := range s.tasks {
		if t.run == nil {
			delete(s.tasks, id)
		}
	}
}
