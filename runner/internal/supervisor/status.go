package supervisor

import (
	"maps"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// status is what is said of a task. Counts go on from attempt to attempt; those of an attempt begin at 0.
type status struct {
	session TaskSession

	mu  sync.Mutex
	now session.Status
}

func newStatus(g *session.Grant, to TaskSession) *status {
	return &status{session: to, now: session.Status{Lease: g.Lease, State: session.Starting, BudgetLeft: usual.attempts}}
}

// set changes the status and tells the coordinator.
func (st *status) set(change func(now *session.Status)) {
	st.mu.Lock()
	defer st.mu.Unlock()
	change(&st.now)
	st.session.Status(st.now)
}

func (st *status) plugin(p Plugin) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.now.PluginVersion, st.now.PluginSHA256 = p.Description.Version, p.SHA256
}

// runs says which file the process runs: it may have been replaced since it was looked at.
func (st *status) runs(sha256 string) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.now.PluginSHA256 = sha256
}

func (st *status) phase(phase string) { st.set(func(now *session.Status) { now.Phase = phase }) }

func (st *status) starting(b *budget) {
	st.set(func(now *session.Status) {
		now.State, now.Phase, now.RetryIn, now.CaughtUp, now.OpenRecords, now.OpenAge, now.Host = session.Starting, "", 0, false, 0, 0, false
		now.Attempt = b.attempt
		now.BudgetLeft, now.Endless = b.left()
	})
}

func (st *status) retrying(f *task.Failure, b *budget, wait time.Duration) {
	st.set(func(now *session.Status) {
		st.over(now, session.Retrying, f, f.Err, b)
		now.BudgetLeft, now.Endless = b.left()
		now.RetryIn = wait
	})
}

// failed shows a task that has failed for good: whatever its budget was, nothing is left.
func (st *status) failed(f *task.Failure, err error, b *budget) {
	st.set(func(now *session.Status) { st.over(now, session.Failed, f, err, b) })
}

// over is the end of an attempt.
func (st *status) over(now *session.Status, state session.State, f *task.Failure, err error, b *budget) {
	now.State, now.Phase, now.Error, now.Cause = state, "", err.Error(), f.Cause
	now.Attempt, now.BudgetLeft, now.Endless, now.Rewinds = b.attempt, 0, false, maps.Clone(b.rewinds)
	now.CaughtUp, now.OpenRecords, now.OpenAge, now.RetryIn, now.Host = false, 0, 0, 0, false
}

// calmAfter is how long an attempt has to run until the error of an earlier one isn't shown any more. The budget remembers it for longer.
const calmAfter = 5 * time.Second

// attemptStatus follows one attempt: what it reports, and whether it is a success. The status's lock guards it.
type attemptStatus struct {
	st     *status
	base   session.Status // The counts of the attempts before.
	timers []*time.Timer  // Set when it runs.
	waited bool           // The error shown is what the attempt waits for.
	good   bool           // It has committed something.
	stable bool           // It has run for long enough.
	ended  bool
}

// attempt begins to follow an attempt.
func (st *status) attempt() *attemptStatus {
	st.mu.Lock()
	defer st.mu.Unlock()
	return &attemptStatus{st: st, base: st.now}
}

// report is called by the attempt.
func (a *attemptStatus) report(s task.Status) {
	a.st.set(func(now *session.Status) {
		now.State, now.Phase = stateOf(s.Phase), string(s.Phase)
		now.Records, now.Bytes, now.Commits = a.base.Records+s.Records, a.base.Bytes+s.Bytes, a.base.Commits+s.Commits
		now.Aborts, now.Dropped = a.base.Aborts+s.Aborts, a.base.Dropped+s.Dropped
		now.CaughtUp, now.OpenRecords, now.OpenAge, now.Notices = s.CaughtUp, s.OpenRecords, 0, s.Notices
		if s.DroppedReason != "" {
			now.DroppedReason = s.DroppedReason
		}
		if !s.OpenSince.IsZero() {
			now.OpenAge = time.Since(s.OpenSince)
		}
		a.waiting(now, s.Waiting, s.Host)
		a.progress(now, s)
	})
}

// stateOf is the state that a phase belongs to.
func stateOf(p task.Phase) session.State {
	switch p {
	case task.PhaseRunning:
		return session.Running
	case task.PhaseDraining:
		return session.Draining
	}
	return session.Starting
}

// waiting shows what the attempt waits for as its error for as long as it does.
func (a *attemptStatus) waiting(now *session.Status, what string, host bool) {
	now.Host = host
	switch {
	case host:
		now.Error, now.Cause, a.waited = what, task.CauseHost, true
	case what != "":
		now.Error, now.Cause, a.waited = what, publish.CauseBroker, true
	case a.waited:
		now.Error, now.Cause, a.waited = "", "", false
	}
}

// progress notices a success: a commit, or a minute of running. What went wrong before is shown until a commit too, or for some seconds of running where there is nothing to commit.
func (a *attemptStatus) progress(now *session.Status, s task.Status) {
	if s.Phase == task.PhaseRunning && a.timers == nil && !a.ended {
		a.timers = []*time.Timer{time.AfterFunc(calmAfter, a.calm), time.AfterFunc(successAfter, a.lasted)}
	}
	if s.Commits > 0 {
		a.good = true
		now.Attempt, now.BudgetLeft, now.Endless = 1, usual.attempts-1, false
		a.forget(now)
	}
}

// forget takes an earlier attempt's error from the status; what the attempt waits for now stays.
func (a *attemptStatus) forget(now *session.Status) {
	if !a.waited {
		now.Error, now.Cause = "", ""
	}
}

// calm is called when the attempt has run for some seconds.
func (a *attemptStatus) calm() {
	a.st.set(func(now *session.Status) {
		if !a.ended {
			a.forget(now)
		}
	})
}

// lasted is called when the attempt has run for long enough: what went wrong before is history.
func (a *attemptStatus) lasted() {
	a.st.set(func(now *session.Status) {
		if a.ended {
			return
		}
		a.stable = true
		now.Attempt, now.BudgetLeft, now.Endless = 1, usual.attempts-1, false
		a.forget(now)
	})
}

// end is the end of the attempt; the budget learns of a success.
func (a *attemptStatus) end(b *budget) {
	a.st.mu.Lock()
	defer a.st.mu.Unlock()
	a.ended = true
	for _, t := range a.timers {
		t.Stop()
	}
	switch {
	case a.stable:
		b.stable()
	case a.good:
		b.success()
	}
}
