package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// run is a task under one lease: attempts one after the other, until it is drained, revoked or has failed for good. Its goroutine is loop's; the supervisor only tells it to end.
type run struct {
	s       *Supervisor
	grant   *session.Grant
	cluster string
	ctx     context.Context // The task's own life.
	cancel  context.CancelCauseFunc
	log     hclog.Logger

	drainOnce sync.Once
	draining  chan struct{} // Closed to ask for a drain.
	deadline  *time.Timer   // Set by drainFor, in the supervisor's goroutine.
	reason    string        // Set before draining is closed.

	// What follows belongs to loop's goroutine.
	settings *settings.Settings
	own      map[string]string
	plugin   Plugin
	proc     *shared
	budget   *budget
	status   *status
}

func newRun(work context.Context, s *Supervisor, g *session.Grant) *run {
	r := &run{
		s: s, grant: g, cluster: s.cluster, draining: make(chan struct{}), budget: newBudget(),
		log: s.cfg.Logger.Named("task").With("connector", g.Lease.Connector, "task", g.Lease.Task, "generation", g.Lease.Generation, "epoch", g.Lease.Epoch),
	}
	r.ctx, r.cancel = context.WithCancelCause(work)
	r.status = newStatus(g, s.session)
	return r
}

// drainFor asks for a drain, and ends the task at once where that takes too long.
func (r *run) drainFor(within time.Duration, reason string) {
	r.drainOnce.Do(func() {
		r.reason = reason
		close(r.draining)
		r.deadline = time.AfterFunc(within, func() { r.cancel(errAbandoned) })
	})
}

// end ends the task at once.
func (r *run) end(why error) { r.cancel(why) }

// loop is a task's life. The order of each attempt: a process, then everything in task.Run, then the process is let go where it ended or nobody needs it.
func (r *run) loop() *taskOver {
	defer r.cancel(nil)
	r.log.Info("task granted")
	over := r.attempts()
	<-r.releaseProcess() // The lease is given back when the plugin is gone.
	over.run = r
	r.log.Info("task ended", "clean", over.clean, "reason", over.reason)
	return over
}

// attempts runs one attempt after the other.
func (r *run) attempts() *taskOver {
	for {
		f := r.attempt()
		switch {
		case f != nil && f.Cause == publish.CauseExit:
			return &taskOver{reason: f.Error(), fatal: f.Err}
		case r.ctx.Err() != nil:
			return &taskOver{clean: true, reason: context.Cause(r.ctx).Error()}
		case f == nil, isClosed(r.draining):
			return &taskOver{clean: true, reason: r.drainReason(f)}
		case f.Class == task.Stop:
			return &taskOver{clean: true, reason: f.Error()}
		case f.Class == task.Fail:
			return r.failed(f, f.Err)
		}
		wait, err := r.budget.failed(f)
		switch {
		case err != nil && f.Cause == task.CauseHost:
			return &taskOver{clean: true, reason: err.Error(), host: true}
		case err != nil:
			return r.failed(f, err)
		}
		r.log.Warn("attempt failed", "cause", f.Cause, "error", f.Err, "retry_in", wait)
		r.status.retrying(f, r.budget, wait)
		select {
		case <-r.ctx.Done():
			return &taskOver{clean: true, reason: context.Cause(r.ctx).Error()}
		case <-r.draining:
			return &taskOver{clean: true, reason: r.reason}
		case <-time.After(wait):
		}
	}
}

// prepare finds the plugin and reads the configuration. A plugin that isn't here is the host's affair, and a wrong configuration nobody's but the user's.
func (r *run) prepare() error {
	plugin, typ, err := r.s.cfg.Validator.catalogue.find(r.grant.Plugin)
	if err != nil {
		return err
	}
	st, rest, problems := settings.Parse(r.grant.Config)
	own, more := settings.Split(rest, typ)
	if err := firstProblem(append(problems, more...)); err != nil {
		return &task.Failure{Class: task.Fail, Cause: task.CauseConfig, Err: err}
	}
	r.settings, r.own, r.plugin = st, own, plugin
	r.status.plugin(plugin)
	return nil
}

// attempt is one attempt. A panic in it is a failed task and not a dead runner.
func (r *run) attempt() (f *task.Failure) {
	defer func() {
		if p := recover(); p != nil {
			r.log.Error("a task panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
			f = &task.Failure{Class: task.Fail, Cause: task.CauseBug, Err: fmt.Errorf("internal error: %v", p)}
		}
	}()
	r.budget.begin()
	r.status.starting(r.budget)
	if err := r.ensureProcess(); err != nil {
		return notStarted(err)
	}
	stop := r.killWhenLate()
	defer stop()
	attempt := r.status.attempt()
	defer attempt.end(r.budget)
	err := r.s.cfg.RunTask(r.ctx, Attempt{
		Grant: r.grant, Cluster: r.cluster, Settings: r.settings, Own: r.own, Plugin: r.proc.proc.Plugin(), Drain: r.draining,
		Shrink: r.budget.shrink, NameRecords: r.budget.nameRecords, Status: attempt.report, Logger: r.log,
	})
	if err == nil {
		return r.endedByItself()
	}
	failed := asFailure(err)
	if failed.PluginLeft {
		// It would keep the source from whoever reads it next, here or elsewhere. It costs its siblings an attempt.
		r.log.Error("the plugin didn't let go of the task: it is killed")
		r.proc.proc.Kill()
	}
	return r.ofPlugin(failed)
}

// notStarted judges an attempt that has no plugin to run.
func notStarted(err error) *task.Failure {
	var own *task.Failure
	if errors.As(err, &own) {
		return own
	}
	return &task.Failure{Class: task.Again, Cause: causeOfStart(err), Err: err}
}

// causeOfStart tells a host that can't run a plugin from a plugin that doesn't start.
func causeOfStart(err error) string {
	var host interface {
		error
		HostFault()
	}
	if errors.As(err, &host) {
		return task.CauseHost
	}
	return task.CausePlugin
}

// ofPlugin tells a process that ended from an error that the plugin reported: the one is the plugin's fault, the other says something of its source. The end of a process is known by its own error, since a
// plugin that reports an error may end right after.
func (r *run) ofPlugin(f *task.Failure) *task.Failure {
	if f.Cause != task.CauseSource || !r.proc.over() {
		return f
	}
	if exit := r.proc.proc.Err(); exit != nil && errors.Is(f, exit) {
		said := *f
		said.Cause = task.CausePlugin
		return &said
	}
	return f
}

// endedByItself judges an attempt that ended well: only a drain or an end that was asked for is one.
func (r *run) endedByItself() *task.Failure {
	if isClosed(r.draining) || isClosed(r.ctx.Done()) {
		return nil
	}
	return &task.Failure{Class: task.Again, Cause: task.CausePlugin, Err: errors.New("the plugin ended the task by itself")}
}

// ensureProcess has a process that runs.
func (r *run) ensureProcess() error {
	if r.proc != nil && r.proc.over() {
		r.releaseProcess()
	}
	if r.proc != nil {
		return nil
	}
	// Before each process, since what there is may have changed since the last one: a file that was replaced is looked at again.
	if err := r.prepare(); err != nil {
		return err
	}
	r.status.phase("starting the plugin")
	proc, err := r.s.cfg.Validator.processes.acquire(r.ctx, r.grant.Lease.Connector, r.plugin)
	if err != nil {
		return err
	}
	r.proc = proc
	r.status.runs(proc.proc.SHA256())
	return nil
}

// releaseProcess lets the process go. The channel is closed when it is gone, or at once where others use it.
func (r *run) releaseProcess() <-chan struct{} {
	if r.proc == nil {
		return closed
	}
	proc := r.proc
	r.proc = nil
	return proc.release(0)
}

// killWhenLate kills the plugin where the attempt goes on for long after it was told to end at once: a plugin that doesn't let go must not keep the source. It costs its siblings an attempt.
func (r *run) killWhenLate() (stop func()) {
	proc, done := r.proc.proc, make(chan struct{})
	undo := context.AfterFunc(r.ctx, func() {
		timer := time.NewTimer(killAfter)
		defer timer.Stop()
		select {
		case <-done:
		case <-timer.C:
			r.log.Error("the plugin didn't let go of the task: it is killed", "after", killAfter)
			proc.Kill()
		}
	})
	return func() {
		undo()
		close(done)
	}
}

// failed shows why a task can't go on, lets go of the process and waits for the end of the lease: the lease is kept, so that a restart finds the task here.
func (r *run) failed(f *task.Failure, err error) *taskOver {
	r.log.Error("task failed", "cause", f.Cause, "error", err)
	r.status.failed(f, err, r.budget)
	gone := r.releaseProcess()
	select {
	case <-r.ctx.Done():
		<-gone
		return &taskOver{clean: true, reason: context.Cause(r.ctx).Error()}
	case <-r.draining:
		<-gone
		return &taskOver{clean: true, reason: r.reason}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// drainReason says why a task was drained, and what went wrong on the way.
func (r *run) drainReason(f *task.Failure) string {
	switch {
	case f != nil:
		return fmt.Sprintf("%s; while draining: %s", r.reason, f.Error())
	case isClosed(r.draining):
		return r.reason
	}
	return "done"
}
