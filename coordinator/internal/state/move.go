package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// How a task moves while both runners are well, for a drain or for balance: the runner that is to have it is asked to get ready (WarmUp), the lease is taken back with a drain once it is, and the grant follows the end of the
// lease as ever (I2, I3): what was made ready is a plugin process, and nothing that could write.
const (
	// warmUpWait is how long a runner may take to get ready; the task moves then all the same.
	warmUpWait = 10 * time.Second
	// startWait is how long a task that has moved may take to run before the next one follows it.
	startWait = 10 * time.Second
	// warmUpAhead is how many tasks of a runner that goes are made ready for at once. They are taken back one at a time.
	warmUpAhead = 4
	// restAfterMove is how long a task isn't moved again for the sake of balance.
	restAfterMove = time.Minute
	// newFor is how long a runner must have been there before tasks are moved to it: one that comes and goes gets none.
	newFor = 5 * time.Second
	// balanceAgain is how soon balance is looked at again where something kept a task from moving.
	balanceAgain = 5 * time.Second
)

// taskRef names a task whatever its lease.
type taskRef struct {
	connector string
	task      uint32
}

// moveStage is how far a move has come.
type moveStage int

const (
	stageWarming  moveStage = iota // the other runner gets ready
	stageReady                     // it is, and the lease is to be taken back
	stageDraining                  // the lease was taken back and has not ended
	stageStarting                  // the task is granted to the other runner and doesn't run yet
)

// move is a task on its way to another runner. It is volatile: another leader finds what is to move anew.
type move struct {
	taskRef
	lease       Lease // that is taken back, then that of the grant
	from        string
	to, process string // who gets the task
	stage       moveStage
	until       time.Time // when the stage is over whatever happens; zero while draining, which has a deadline of its own
	reason      string
	forBalance  bool   // and not for a drain
	warmUp      uint64 // the request of WarmUp
}

// beginMove begins a move of a lease to another runner.
func (s *State) beginMove(l *lease, to *runner, reason string, forBalance bool) *move {
	c := s.connectors[l.Connector]
	m := &move{
		taskRef: taskRef{l.Connector, l.Task}, lease: l.Lease, from: l.Runner, to: to.name, process: to.process, stage: stageReady, reason: reason, forBalance: forBalance,
	}
	s.moves[m.taskRef] = m
	if to.warmsUp {
		s.warmUps++
		m.stage, m.until, m.warmUp = stageWarming, s.now.Add(warmUpWait), s.warmUps
		s.wakeAt(m.until)
		s.send(to.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_WarmUp{WarmUp: &runnerv1.WarmUp{
			RequestId: m.warmUp, Connector: c.name, Config: c.Config, Plugin: c.Plugin.wire(),
		}}})
	}
	return m
}

// warmedUp goes on with a move whose runner is ready. One that can't start the plugin isn't given the task.
func (s *State) warmedUp(r *runner, m *runnerv1.WarmedUp) {
	for _, ref := range s.moving() {
		v := s.moves[ref]
		if v.warmUp != m.GetRequestId() || v.stage != stageWarming || v.to != r.name || v.process != r.process {
			continue
		}
		if m.GetError() == "" {
			v.stage, v.until = stageReady, time.Time{}
			s.shift()
			return
		}
		c := s.connectors[ref.connector]
		s.happen(c, "task %d stays on %s: runner %s can't take it: %s", ref.task, v.from, r.name, m.GetError())
		s.blame(c, taskWork(ref.task), r, m.GetError())
		delete(s.moves, ref)
		s.shift()
		return
	}
}

// moving names the moves in order.
func (s *State) moving() []taskRef {
	refs := make([]taskRef, 0, len(s.moves))
	for ref := range s.moves {
		refs = append(refs, ref)
	}
	slices.SortFunc(refs, func(a, b taskRef) int {
		return cmp.Or(cmp.Compare(a.connector, b.connector), cmp.Compare(a.task, b.task))
	})
	return refs
}

// follow sees how far each move has come, and drops those that are over or have lost their sense.
func (s *State) follow() {
	for _, ref := range s.moving() {
		if m := s.moves[ref]; s.over(m) {
			delete(s.moves, ref)
			s.shift()
		}
	}
}

// over says that a move needs no more looking after.
func (s *State) over(m *move) bool {
	c := s.connectors[m.connector]
	l := c.leases[m.task]
	to := s.runners[m.to]
	if !c.runs() || to == nil || to.process != m.process || to.session == 0 || to.draining {
		return true // a lease that was taken back already goes where it fits
	}
	switch m.stage {
	case stageWarming, stageReady:
		if s.due(m.until) {
			m.stage, m.until = stageReady, time.Time{}
			s.shift()
		}
		return l == nil || l.Lease != m.lease || l.State != leaseHeld
	case stageDraining:
		return l != nil && l.Lease != m.lease
	}
	status := c.statuses[m.task]
	running := status != nil && status.lease == m.lease && status.state == taskRunning
	return running || l == nil || l.Lease != m.lease || s.due(m.until)
}

// takeBack takes the lease of a move back.
func (s *State) takeBack(m *move) {
	c := s.connectors[m.connector]
	l := c.leases[m.task]
	if l == nil || l.Lease != m.lease || l.State != leaseHeld {
		delete(s.moves, m.taskRef) // it ended for another reason
		return
	}
	m.stage, m.until = stageDraining, time.Time{}
	s.revoke(l, true, m.reason)
	s.touch(c)
}

// shift notes that something has changed that drains and balance depend on.
func (s *State) shift() {
	s.shifts++
	s.shifted = true
}

// arrived notes the grant that a move was for, or one that took its place.
func (s *State) arrived(c *connector, l *lease) {
	m := s.moves[taskRef{c.name, l.Task}]
	if m == nil {
		return
	}
	if l.Runner != m.to {
		delete(s.moves, m.taskRef)
		return
	}
	m.lease, m.stage, m.until = l.Lease, stageStarting, s.now.Add(startWait)
	s.wakeAt(m.until)
	if m.forBalance {
		c.moved[l.Task] = s.now
	}
}

// readyFor names the runner that was made ready for a task; "" where none was.
func (s *State) readyFor(c *connector, task uint32) string {
	if m := s.moves[taskRef{c.name, task}]; m != nil {
		return m.to
	}
	return ""
}

// elsewhere finds who is to have a task that a runner gives up; nil where it fits on no other.
func (s *State) elsewhere(c *connector, task uint32) *runner {
	takers := s.takersFor(c)
	if !s.fitsElsewhere(c, taskWork(task), takers) {
		return nil
	}
	placed := assign.Place(c.need(), []assign.Task{{Avoid: s.avoided(c, taskWork(task))}}, takers)
	return s.runners[placed[0]]
}

// going has the runners that are drained, by name.
func (s *State) going() []*runner {
	var going []*runner
	for _, r := range s.runners {
		if r.draining {
			going = append(going, r)
		}
	}
	slices.SortFunc(going, func(a, b *runner) int { return cmp.Compare(a.name, b.name) })
	return going
}

// wantsToGo takes a runner's word that it is to be drained.
func (s *State) wantsToGo(r *runner, m *runnerv1.Draining) {
	r.draining, r.leaving = true, r.leaving || !m.GetAsked()
	if r.leaving {
		s.sendDrain(r, false)
	}
	s.shift()
	s.touchRunning()
}

func (s *State) sendDrain(r *runner, undo bool) {
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Drain{Drain: &runnerv1.Drain{Undo: undo}}})
}

// drainRunner drains a runner, or ends that, for an operator. The runner is told and keeps it in mind, so that a new leader hears of it.
func (s *State) drainRunner(id uint64, op DrainRunner) {
	r := s.runners[op.Name]
	switch {
	case r == nil && len(s.held[op.Name]) == 0:
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("there is no runner %q", op.Name), Hint: "see runners"})
		return
	case r == nil || r.session == 0:
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("runner %q isn't connected", op.Name), Hint: "its tasks move by themselves when its leases have run out"})
		return
	case op.Undo && r.leaving:
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("runner %q is stopping by itself", op.Name), Hint: "start it again"})
		return
	}
	if r.draining == op.Undo {
		r.draining, r.stuck = !op.Undo, nil
		s.sendDrain(r, op.Undo)
		s.shift()
		s.touchRunning()
	}
	s.reply(id, nil, Result{Change: Changed})
}

// drainNext moves the tasks of a runner that is drained, one at a time, each once another runner is ready for it. A task that fits nowhere else stays where the runner itself stays; where the runner goes, it is told at once.
func (s *State) drainNext(r *runner) {
	if r.session == 0 || r.drainSeen == s.shifts {
		return // it is waited for, or its leases run out; or nothing has changed
	}
	busy, ahead := s.movesFrom(r)
	r.stuck = nil
	for _, l := range s.leasesOf(r.name, r.process) {
		if ahead >= warmUpAhead {
			break
		}
		if l.State != leaseHeld || s.moves[taskRef{l.Connector, l.Task}] != nil {
			continue
		}
		c := s.connectors[l.Connector]
		switch to := s.elsewhere(c, l.Task); {
		case to != nil:
			s.beginMove(l, to, drainReason(r), false)
			ahead++
		case r.leaving:
			s.revoke(l, true, "the runner is going, and no other fits")
			s.touch(c)
		default:
			r.stuck = append(r.stuck, l.Lease)
		}
	}
	if !busy {
		s.takeBackNext(r)
	}
	r.drainSeen = s.shifts
}

// movesFrom says how many of a runner's tasks are being made ready for, and whether one is on its way. A runner that stays sees each task run elsewhere before the next one follows; one that goes has no time for that.
func (s *State) movesFrom(r *runner) (busy bool, ahead int) {
	for _, m := range s.moves {
		switch {
		case m.from != r.name:
		case m.stage == stageDraining, m.stage == stageStarting && !r.leaving:
			busy = true
		case m.stage != stageStarting:
			ahead++
		}
	}
	return busy, ahead
}

// takeBackNext takes back the first task of a runner that another one is ready for.
func (s *State) takeBackNext(r *runner) {
	for _, ref := range s.moving() {
		if m := s.moves[ref]; m.from == r.name && m.stage == stageReady {
			s.takeBack(m)
			return
		}
	}
}

func drainReason(r *runner) string {
	if r.leaving {
		return "the runner is going"
	}
	return "the runner is drained"
}

// balance moves one task towards an even placement, and begins the next move when that one is over. It looks only when something has changed, and while no other task is on its way in the whole cluster, which is also why no two tasks of a
// connector ever move at once.
func (s *State) balance() {
	if s.options.NoBalance || !s.settled.IsZero() {
		return
	}
	if s.due(s.balanceAt) {
		s.balanceAt = time.Time{}
		s.shift()
	}
	for _, ref := range s.moving() {
		if m := s.moves[ref]; m.forBalance && m.stage == stageReady {
			s.takeBack(m)
		}
	}
	if len(s.moves) > 0 || !s.shifted {
		return
	}
	s.shifted = false
	found, ok, later := assign.Balance(s.groups(), s.takers())
	if later {
		s.balanceAt = s.now.Add(balanceAgain)
		s.wakeAt(s.balanceAt)
	}
	if !ok {
		return
	}
	c := s.connectors[found.Connector]
	m := s.beginMove(c.leases[found.Task], s.runners[found.To], fmt.Sprintf("it moves to %s for balance", found.To), true)
	if m.stage == stageReady {
		s.takeBack(m)
	}
}

// groups has every connector's tasks for Balance, by name.
func (s *State) groups() []assign.Group {
	var groups []assign.Group
	for _, name := range sorted(s.connectors) {
		c := s.connectors[name]
		if !c.runs() || !c.Filled || c.Plugin.Name == "" || len(c.leases) == 0 {
			continue
		}
		g := assign.Group{Connector: name, Need: c.need()}
		for _, task := range sorted(c.leases) {
			l := c.leases[task]
			if l.State == leaseLost {
				continue
			}
			g.Tasks = append(g.Tasks, assign.Holding{Task: task, Runner: l.Runner, Still: !s.mayMove(c, l), Avoid: s.avoided(c, taskWork(task))})
		}
		groups = append(groups, g)
	}
	return groups
}

// mayMove says that a task may be moved for the sake of balance: it runs well, its connector is whole, and it hasn't moved lately.
func (s *State) mayMove(c *connector, l *lease) bool {
	status := c.statuses[l.Task]
	moved, has := c.moved[l.Task]
	return l.State == leaseHeld && l.Generation == c.Generation && c.fenced() && c.round == nil && s.sessionOf(l) != 0 &&
		status != nil && status.lease == l.Lease && status.state == taskRunning && (!has || s.now.Sub(moved) >= restAfterMove)
}
