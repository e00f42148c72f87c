package state

import (
	"fmt"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// message takes what a runner says after its Hello.
func (s *State) message(e FromRunner) {
	r := s.sessions[e.Session]
	if r == nil {
		return // the session was closed or replaced while the message waited
	}
	switch term := e.Message.GetTerm(); {
	case term > s.term:
		s.overtaken(e.Session, term)
		return
	case term < s.term: // I6: it can't have seen this session's Welcome
		s.emit(CloseSession{Session: e.Session, Why: CloseInvalid, Text: fmt.Sprintf("a message of term %d came in a session of term %d", term, s.term)})
		return
	}
	switch m := e.Message.GetMessage().(type) {
	case *runnerv1.SessionRequest_Heartbeat:
		s.heartbeat(r, m.Heartbeat)
	case *runnerv1.SessionRequest_PrepareStart:
		s.prepareStart(r, m.PrepareStart)
	case *runnerv1.SessionRequest_Confirm:
		s.confirm(r, m.Confirm)
	case *runnerv1.SessionRequest_Look:
		s.look(r, m.Look)
	case *runnerv1.SessionRequest_RecordTopics:
		s.recordTopics(r, m.RecordTopics)
	case *runnerv1.SessionRequest_ClaimPartitions:
		s.claimPartitions(r, m.ClaimPartitions)
	case *runnerv1.SessionRequest_TaskStatus:
		s.taskStatus(r, m.TaskStatus)
	case *runnerv1.SessionRequest_TaskEnded:
		s.taskEnded(r, m.TaskEnded)
	case *runnerv1.SessionRequest_PlanResult:
		s.planResult(r, m.PlanResult)
	case *runnerv1.SessionRequest_Draining:
		s.wantsToGo(r, m.Draining)
	case *runnerv1.SessionRequest_WarmedUp:
		s.warmedUp(r, m.WarmedUp)
	case *runnerv1.SessionRequest_Offer:
		s.offered(r, m.Offer)
	default:
		s.emit(CloseSession{Session: e.Session, Why: CloseInvalid, Text: fmt.Sprintf("a message of kind %T isn't expected here", m)})
	}
}

// holds finds a lease that is a runner's own, also one that was taken back and is ending. Where it isn't, refused says why: an older incarnation, generation or epoch is refused whoever asks (I6).
func (s *State) holds(r *runner, asked Lease) (l *lease, refused string) {
	c := s.connectors[asked.Connector]
	switch {
	case c == nil || !c.exists():
		return nil, fmt.Sprintf("there is no connector %q", asked.Connector)
	case c.Incarnation != asked.Incarnation:
		return nil, fmt.Sprintf("connector %q was created again since", asked.Connector)
	}
	l = c.leases[asked.Task]
	switch {
	case l == nil || l.State == leaseLost:
		return nil, fmt.Sprintf("the lease %s is over; the connector is at generation %d", asked, c.Generation)
	case l.Lease != asked:
		return nil, fmt.Sprintf("the lease %s is over; the task's lease is %s", asked, l.Lease)
	case l.Runner != r.name || l.Process != r.process:
		return nil, fmt.Sprintf("the lease %s belongs to runner %s", asked, l.Runner)
	}
	return l, ""
}

// holdsOn is holds without leases that were taken back: for what only a task that goes on may do.
func (s *State) holdsOn(r *runner, asked Lease) (l *lease, refused string) {
	l, refused = s.holds(r, asked)
	if refused == "" && l.State != leaseHeld {
		return nil, fmt.Sprintf("the lease %s was taken back: %s", asked, l.Reason)
	}
	return l, refused
}

// heartbeat renews leases, to at most one lease time beyond the last transaction of the log (I7). Where that is long ago, this step has one of its own.
func (s *State) heartbeat(r *runner, m *runnerv1.Heartbeat) {
	if s.now.Sub(s.committed) >= s.options.LeaseTTL/4 {
		s.prove()
	}
	until := s.committed
	if len(s.order) > 0 {
		until = s.now // the answer goes out only after this step's transaction, which begins later than now
	}
	answer := &runnerv1.HeartbeatAnswer{Seq: m.GetSeq(), TtlMs: uint64(until.Add(s.options.LeaseTTL).Sub(s.now).Milliseconds())}
	for _, w := range m.GetLeases() {
		l, refused := s.holds(r, LeaseOf(w))
		if refused != "" {
			answer.Lost = append(answer.Lost, w)
			continue
		}
		renewed := until.Add(s.ttlOf(l))
		if renewed.After(l.expires) {
			l.expires = renewed
		}
		if l.PlainMs > 0 {
			answer.AtLeastOnceTtlMs = uint64(renewed.Sub(s.now).Milliseconds())
		}
	}
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_HeartbeatAnswer{HeartbeatAnswer: answer}})
}

// prepareStart lets the task's id be fenced before the runner initialises it.
func (s *State) prepareStart(r *runner, m *runnerv1.PrepareStart) {
	lease := LeaseOf(m.GetLease())
	if _, refused := s.holdsOn(r, lease); refused != "" {
		s.answerPrepare(r.session, &runnerv1.PrepareStartAnswer{RequestId: m.GetRequestId(), Refused: refused})
		return
	}
	s.emit(PrepareID{Session: r.session, RequestID: m.GetRequestId(), Lease: lease, ID: names.TransactionalID(s.options.Cluster, lease.Connector, lease.Task)})
}

// prepared answers once the id is fenced and its last decision is in the log.
func (s *State) prepared(e IDPrepared) {
	if c := s.connectors[e.Lease.Connector]; c != nil && e.Failed == "" {
		s.decided(c, map[uint32]Decision{e.Lease.Task: e.Decision})
	}
	r := s.sessions[e.Session]
	if r == nil {
		return // it asks again on its next session
	}
	answer := &runnerv1.PrepareStartAnswer{RequestId: e.RequestID, Error: e.Failed}
	if _, refused := s.holdsOn(r, e.Lease); refused != "" {
		answer.Refused, answer.Error = refused, ""
	}
	s.answerPrepare(r.session, answer)
}

func (s *State) answerPrepare(session SessionID, answer *runnerv1.PrepareStartAnswer) {
	s.send(session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_PrepareStartAnswer{PrepareStartAnswer: answer}})
}

// confirm answers whether a lease still holds. I3: an answer from memory is none: this step has a transaction of the log, and the answer waits for it. A leader that was replaced never gets that far.
func (s *State) confirm(r *runner, m *runnerv1.Confirm) {
	_, refused := s.holdsOn(r, LeaseOf(m.GetLease()))
	if refused == "" {
		s.prove()
	}
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ConfirmAnswer{ConfirmAnswer: &runnerv1.ConfirmAnswer{
		RequestId: m.GetRequestId(), Refused: refused,
	}}})
}

// look asks the Fencer for hanging transactions.
func (s *State) look(r *runner, m *runnerv1.Look) {
	lease := LeaseOf(m.GetLease())
	if _, refused := s.holds(r, lease); refused != "" {
		s.answerLook(r.session, &runnerv1.LookAnswer{RequestId: m.GetRequestId(), Refused: refused})
		return
	}
	s.emit(s.lookFor(s.connectors[lease.Connector], looker{r.session, m.GetRequestId(), lease}))
}

func (s *State) answerLook(session SessionID, answer *runnerv1.LookAnswer) {
	s.send(session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_LookAnswer{LookAnswer: answer}})
}

// taskEnded takes a lease back from whoever gives it.
func (s *State) taskEnded(r *runner, m *runnerv1.TaskEnded) {
	lease := LeaseOf(m.GetLease())
	l, refused := s.holds(r, lease)
	if refused != "" {
		return // it was taken from it before
	}
	c := s.connectors[lease.Connector]
	if l.State == leaseHeld && !l.Alter {
		s.happen(c, "task %d given back by %s: %s", l.Task, r.name, m.GetReason())
		s.givenBack(c, taskWork(l.Task), r, m.GetHost(), m.GetReason())
	}
	if m.GetClean() {
		s.end(c, l)
	} else {
		s.forfeit(l, "its task didn't end cleanly: "+m.GetReason())
	}
}

// taskStatus keeps the last status of a task. One of an older owner says nothing about the task now, and is dropped.
func (s *State) taskStatus(r *runner, m *runnerv1.TaskStatus) {
	lease := LeaseOf(m.GetLease())
	if _, refused := s.holds(r, lease); refused != "" {
		return
	}
	c := s.connectors[lease.Connector]
	old := c.statuses[lease.Task]
	if old != nil && old.lease == lease && m.GetSeq() <= old.seq {
		return
	}
	now := statusOf(m)
	if m.GetRetryInMs() > 0 {
		now.retryAt = s.now.Add(time.Duration(m.GetRetryInMs()) * time.Millisecond)
	}
	c.statuses[lease.Task] = now
	if now.Error != "" && (now.state == taskFailed || now.state == taskRetrying) {
		c.errors[lease.Task] = LastError{At: s.now, Cause: now.Cause, Text: now.Error}
	}
	if old == nil || old.lease != lease || old.state != now.state {
		s.changedTo(c, now)
	}
	if now.host {
		s.touch(c)
	}
}

func (s *State) changedTo(c *connector, now *status) {
	switch now.state {
	case taskFailed, taskRetrying:
		s.happen(c, "task %d on %s is %s: %s", now.lease.Task, c.leases[now.lease.Task].Runner, now.state, now.Error)
	case taskRunning:
		s.happen(c, "task %d on %s is %s", now.lease.Task, c.leases[now.lease.Task].Runner, now.state)
	}
}
