package state

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// What a host's fault costs. A task that a runner gives back because of its own host goes to another runner at once, and not to this one again for a while, unless no other fits: then it goes back after a pause.
const (
	firstAvoidance   = 5 * time.Minute
	longestAvoidance = 30 * time.Minute
	firstHostPause   = 5 * time.Second
	longestHostPause = 5 * time.Minute
	// mostFaults bounds what is remembered of a task's hosts.
	mostFaults = 20
)

// fault is what is remembered of a runner that gave a task back for its host's sake. It belongs to one process of that runner: whoever starts a runner again has seen to the host. Another leader begins without.
type fault struct {
	runner, process string
	reason          string
	times           int
	// until is how long the runner is avoided. The fault is remembered for as long again, so that the next one counts as a further one.
	until time.Time
	lasts time.Duration
}

// blame notes that a runner's host was at fault, and says how long the task waits where no other runner fits.
func (s *State) blame(c *connector, task uint32, r *runner, reason string) time.Duration {
	s.forgive(c, task)
	faults := c.faults[task]
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
	c.faults[task] = faults
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
func (s *State) forgive(c *connector, task uint32) {
	kept := slices.DeleteFunc(c.faults[task], func(f *fault) bool {
		r := s.runners[f.runner]
		return r != nil && r.process != f.process || !s.now.Before(f.until.Add(f.lasts))
	})
	if len(kept) == 0 {
		delete(c.faults, task)
	} else {
		c.faults[task] = kept
	}
}

// avoided names the runners that a task is to be kept from.
func (s *State) avoided(c *connector, task uint32) map[string]bool {
	var avoided map[string]bool
	for _, f := range c.faults[task] {
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

// hostTrouble says, for people, why a task that nobody has isn't placed: the last fault of a host. Empty where there is none.
func (s *State) hostTrouble(c *connector, task uint32) string {
	faults := c.faults[task]
	if len(faults) == 0 {
		return ""
	}
	f := slices.MaxFunc(faults, func(a, b *fault) int { return cmp.Or(a.until.Compare(b.until), cmp.Compare(a.runner, b.runner)) })
	text := fmt.Sprintf("runner %s gave it back, %s: %s", f.runner, countTimes(f.times), f.reason)
	if c.pauses[task].host {
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
