package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
)

// What a host's fault costs. Work that a runner gives back because of its own host goes to another runner at once, and not to this one again for a while, unless no other fits: then it goes back after a pause.
const (
	firstAvoidance   = 5 * time.Minute
	longestAvoidance = 30 * time.Minute
	firstHostPause   = 5 * time.Second
	longestHostPause = 5 * time.Minute
	// relieveWait is how long a task may take to end that is taken from such a host: the plugin has let go of the source by then, and a client without brokers may take longer to end. Fencing makes sure of the rest.
	relieveWait = 3 * time.Second
	// mostFaults bounds what is remembered of the hosts of one piece of work.
	mostFaults = 20
)

// unaskedWait is how long work that was given back unasked waits until it is given away again, so that a runner that can't do it doesn't make a busy loop of it.
const unaskedWait = time.Second

// work is what a runner is given of a connector: a task, or the plan.
type work struct {
	plan bool
	task uint32
}

var planWork = work{plan: true}

func taskWork(task uint32) work { return work{task: task} }

// pause keeps work from being given away for a while.
type pause struct {
	until time.Time
	// host says that a host was at fault: another runner gets the work at once.
	host bool
}

// fault is what is remembered of a runner that gave work back for its host's sake. It belongs to one process of that runner: whoever starts a runner again has seen to the host. Another leader begins without.
type fault struct {
	runner, process string
	reason          string
	times           int
	// until is how long the runner is avoided. The fault is remembered for as long again, so that the next one counts as a further one.
	until time.Time
	lasts time.Duration
}

// givenBack lets work wait that a runner gave back unasked.
func (s *State) givenBack(c *connector, w work, r *runner, host bool, reason string) {
	wait := pause{until: s.now.Add(unaskedWait)}
	if host {
		wait = pause{until: s.now.Add(s.blame(c, w, r, reason)), host: true}
	}
	c.pauses[w] = wait
	s.wakeAt(wait.until)
}

// waits says that work isn't to be given to anybody yet: it pauses, and not for the sake of a host that another runner can do without.
func (s *State) waits(c *connector, w work, takers []assign.Runner) bool {
	p := c.pauses[w]
	return s.now.Before(p.until) && (!p.host || !s.fitsElsewhere(c, w, takers))
}

// relieve takes tasks back that don't get on because of their host, where another runner fits. Where none does they stay: to try on where they are is better than to wander, and there is no pause when the host is well again. One
// that is being taken back anyhow can't drain, and isn't waited for.
func (s *State) relieve(c *connector) {
	for _, task := range sorted(c.statuses) {
		st, l := c.statuses[task], c.leases[task]
		if !st.host || l == nil || st.lease != l.Lease || l.Alter || l.within != 0 {
			continue
		}
		reason := "its host can't go on with it: " + st.Error
		switch {
		case l.State == leaseHeld && s.otherFits(c, l):
			s.blame(c, taskWork(task), s.runners[l.Runner], st.Error)
			l.within = relieveWait
			s.revoke(l, false, reason)
		case l.State == leaseRevoked:
			l.within = relieveWait
			l.deadline = earlierOf(l.deadline, s.now.Add(l.within))
			s.wakeAt(l.deadline)
			s.sendRevoke(s.sessionOf(l), l.Lease, false, reason)
		}
	}
}

// otherFits says that a task fits on another runner than the one that has it, and that it isn't to be kept from that one.
func (s *State) otherFits(c *connector, l *lease) bool {
	if r := s.runners[l.Runner]; r == nil || r.process != l.Process {
		return false
	}
	avoid := map[string]bool{l.Runner: true}
	maps.Copy(avoid, s.avoided(c, taskWork(l.Task)))
	return assign.Fits(c.need(), avoid, s.takers())
}

func earlierOf(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// fitsElsewhere says that work fits on a runner that it isn't to be kept from.
func (s *State) fitsElsewhere(c *connector, w work, takers []assign.Runner) bool {
	return assign.Fits(c.need(), s.avoided(c, w), takers)
}

// blame notes that a runner's host was at fault, and says how long the work waits where no other runner fits.
func (s *State) blame(c *connector, w work, r *runner, reason string) time.Duration {
	s.forgive(c, w)
	faults := c.faults[w]
	at := slices.IndexFunc(faults, func(f *fault) bool { return f.runner == r.name && f.process == r.process })
	if at < 0 {
		at = len(faults)
		faults = append(faults, &fault{runner: r.name, process: r.process, lasts: firstAvoidance / 2})
	}
	f := faults[at]
	f.times++
	f.reason = clip(reason, mostReasonBytes)
	f.lasts = min(2*f.lasts, longestAvoidance)
	f.until = s.now.Add(f.lasts)
	if len(faults) > mostFaults {
		oldest := slices.IndexFunc(faults, func(o *fault) bool { return o == slices.MinFunc(faults, earlier) })
		faults = slices.Delete(faults, oldest, oldest+1)
	}
	c.faults[w] = faults
	return pauseAfter(f.times)
}

func earlier(a, b *fault) int { return a.until.Compare(b.until) }

// pauseAfter doubles with each time.
func pauseAfter(times int) time.Duration {
	pause := firstHostPause
	for range min(times-1, 10) {
		pause = min(2*pause, longestHostPause)
	}
	return pause
}

// forgive forgets faults that are long over, and those of processes that are gone.
func (s *State) forgive(c *connector, w work) {
	kept := slices.DeleteFunc(c.faults[w], func(f *fault) bool {
		r := s.runners[f.runner]
		return r != nil && r.process != f.process || !s.now.Before(f.until.Add(f.lasts))
	})
	if len(kept) == 0 {
		delete(c.faults, w)
	} else {
		c.faults[w] = kept
	}
}

// avoided names the runners that work is to be kept from.
func (s *State) avoided(c *connector, w work) map[string]bool {
	var avoided map[string]bool
	for _, f := range c.faults[w] {
		r := s.runners[f.runner]
		if s.now.Before(f.until) && (r == nil || r.process == f.process) {
			if avoided == nil {
				avoided = map[string]bool{}
			}
			avoided[f.runner] = true
		}
	}
	return avoided
}

// hostTrouble says, for people, why work that nobody has isn't placed: the last fault of a host. Empty where there is none.
func (s *State) hostTrouble(c *connector, w work) string {
	faults := c.faults[w]
	if len(faults) == 0 {
		return ""
	}
	f := slices.MaxFunc(faults, func(a, b *fault) int { return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.runner, b.runner)) })
	text := fmt.Sprintf("runner %s gave it back, %s: %s", f.runner, countTimes(f.times), f.reason)
	if c.pauses[w].host {
		text += "; no other runner can have it, so it is tried there again"
	}
	return text
}

func countTimes(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}
