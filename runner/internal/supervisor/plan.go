package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// firstTaskSet is how long a plugin may take until its first task set.
const firstTaskSet = 5 * time.Minute

// planSlot is a connector's plan on this runner. It belongs to the supervisor's goroutine.
type planSlot struct {
	newest session.PlanRef
	run    *planRun
	next   *session.StartPlan // Starts when run has ended.
}

// planRun holds one plan. Its goroutine is loop's.
type planRun struct {
	s      *Supervisor
	start  *session.StartPlan
	topic  string // Where look-ups read.
	ctx    context.Context
	cancel context.CancelCauseFunc
	log    hclog.Logger

	mu      sync.Mutex
	version uint64
	last    []byte // The task set in force, as bytes to compare.
	bad     bool   // The last result was an error.
	said    string // That error.
	ofHost  bool   // It was the host's, and another runner is to have the plan.
	refused *session.TaskSetRefused
}

// planOver says that a plan's goroutine has ended.
type planOver struct{ run *planRun }

// startPlan holds a plan, after the older one of the same connector.
func (s *Supervisor) startPlan(work context.Context, e *session.StartPlan) {
	p := s.plans[e.Plan.Connector]
	switch {
	case s.stopping:
		s.session.DropPlan(e.Plan)
		return
	case p == nil:
		p = &planSlot{}
		s.plans[e.Plan.Connector] = p
	case p.holds(e.Plan):
		return
	case e.Plan != p.newest && e.Plan.Epoch <= p.newest.Epoch:
		s.session.DropPlan(e.Plan) // I6.
		return
	}
	p.newest = e.Plan
	if p.run == nil {
		s.runPlan(work, p, e)
		return
	}
	if p.next != nil {
		s.session.DropPlan(p.next.Plan)
	}
	p.next = e
	p.run.cancel(errSuperseded)
}

// holds says whether a plan runs, or waits to.
func (p *planSlot) holds(ref session.PlanRef) bool {
	return p.run != nil && p.run.start.Plan == ref || p.next != nil && p.next.Plan == ref
}

// stopPlan lets a plan go.
func (s *Supervisor) stopPlan(ref session.PlanRef) {
	p := s.plans[ref.Connector]
	switch {
	case p != nil && p.next != nil && p.next.Plan == ref:
		p.next = nil
		s.session.DropPlan(ref)
	case p != nil && p.run != nil && p.run.start.Plan == ref:
		p.run.cancel(errRevoked)
	default:
		s.session.DropPlan(ref)
	}
}

// stop ends a slot's plan.
func (p *planSlot) stop() {
	if p.run != nil {
		p.run.cancel(errRunnerStops)
	}
}

// taskSetRefused hands a refusal on; the plugin sees it as the error of its next call.
func (s *Supervisor) taskSetRefused(e *session.TaskSetRefused) {
	if p := s.plans[e.Plan.Connector]; p != nil && p.run != nil && p.run.start.Plan == e.Plan {
		p.run.refuse(e)
	}
}

// runPlan runs a plan in a goroutine of its own.
func (s *Supervisor) runPlan(work context.Context, p *planSlot, e *session.StartPlan) {
	r := &planRun{s: s, start: e, log: s.cfg.Logger.Named("plan").With("connector", e.Plan.Connector, "plan_epoch", e.Plan.Epoch)}
	st, _, _ := settings.Parse(e.Config)
	r.topic = st.OffsetsTopicName(s.cluster, e.Plan.Connector)
	r.ctx, r.cancel = context.WithCancelCause(work)
	p.run = r
	s.live++
	s.running.Go(func() {
		r.loop()
		s.queue.pushOwn(&planOver{r})
	})
}

// planOver lets the plan go, and starts what waited.
func (s *Supervisor) planOver(work context.Context, over *planOver) {
	s.live--
	ref := over.run.start.Plan
	s.session.DropPlan(ref)
	p := s.plans[ref.Connector]
	p.run = nil
	if next := p.next; next != nil && !s.stopping {
		p.next = nil
		s.runPlan(work, p, next)
		return
	}
	delete(s.plans, ref.Connector) // An older plan is refused by its coordinator's term; nothing needs to be remembered.
}

// loop opens the plan again and again until it is stopped: what may go away is retried without end, with pauses, since a plan that is given up needs a person.
func (r *planRun) loop() {
	defer r.cancel(nil)
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.Multiplier, pause.MaxInterval = usual.first, 2, usual.longest
	pause.Reset()
	ofHost := 0 // how often in a row the host was to blame
	for r.ctx.Err() == nil {
		opened := time.Now()
		err := r.open()
		if r.ctx.Err() != nil {
			return
		}
		if err == nil {
			<-r.ctx.Done() // The tasks never change. The plan is held all the same.
			return
		}
		final := isFinal(err)
		r.log.Warn("plan failed", "error", err, "given_up", final)
		if ofHost++; causeOfStart(err) != task.CauseHost {
			ofHost = 0
		}
		r.report(err, final, ofHost >= limitOf(task.CauseHost).attempts)
		if final {
			<-r.ctx.Done() // A changed configuration comes with a new plan.
			return
		}
		if time.Since(opened) > successAfter {
			pause.Reset()
		}
		select {
		case <-r.ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
	}
}

// isFinal says whether trying again is of no use.
func isFinal(err error) bool {
	var said *source.Error
	return errors.As(err, &said) && said.Kind != source.Retriable
}

// open is one stream of the plan. Nil says that the tasks never change.
func (r *planRun) open() error {
	plugin, typ, err := r.s.cfg.Validator.catalogue.find(r.start.Plugin)
	if err != nil {
		return err // Its file may come back.
	}
	_, rest, problems := settings.Parse(r.start.Config)
	own, more := settings.Split(rest, typ)
	if err := firstProblem(append(problems, more...)); err != nil {
		return source.Fatalf("%w", err)
	}
	proc, err := r.s.cfg.Validator.processes.acquire(r.ctx, r.start.Plan.Connector, plugin)
	if err != nil {
		return err
	}
	defer proc.release(0)
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(nil)
	host := &planHost{r: r, first: time.AfterFunc(firstTaskSet, func() { cancel(errNoTaskSet) })}
	defer host.first.Stop()
	err = proc.proc.Plugin().Plan(ctx, &source.PlanOpen{Connector: r.start.Plan.Connector, Type: typ.Name, Config: own, TasksMax: r.start.TasksMax}, host)
	switch {
	case r.ctx.Err() == nil && ctx.Err() != nil:
		return context.Cause(ctx)
	case err == nil && !host.set.Load():
		return errors.New("the plugin ended the plan without a task set")
	case err != nil:
		return fmt.Errorf("plan: %w", err)
	}
	return nil
}

var errNoTaskSet = fmt.Errorf("the plugin gave no task set within %s", firstTaskSet)

// report tells the coordinator that the plan has no valid task set, and where host is set that another runner is to have it. The same again is no news.
func (r *planRun) report(err error, final, host bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.bad && r.said == err.Error() && r.ofHost == host && !final {
		return
	}
	r.bad, r.said, r.ofHost = true, err.Error(), host
	r.s.session.PlanResult(session.PlanResult{Plan: r.start.Plan, Error: err.Error(), Failed: final, Host: host})
}

// refuse notes a refusal. One of an older set is history.
func (r *planRun) refuse(e *session.TaskSetRefused) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log.Warn("the coordinator refused the task set", "version", e.Version, "reason", e.Reason)
	if e.Version == r.version {
		r.refused, r.last = e, nil
	}
}
