package task

import (
	"math"
	"time"

	"golang.org/x/time/rate"

	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// How busy streams get large transactions, and quiet ones none that wait.
//
// Under adaptive and source a transaction that may end is committed as soon as nothing more waits. With nothing else to it a fast stream would get a commit every few milliseconds, whenever the queue
// is empty for a moment, and a commit costs the client as much as a thousand records do. So a commit is held back for a while after the one before it began, and the while grows with what has arrived
// since then: for n records √(n / 500,000) seconds, nothing below 5 ms, 100 ms at most. A steady stream of r records a second is then committed each r / 500,000 seconds:
//
//	below 2,500 records/s   at once, as fast as commits go
//	    5,000 records/s     each  10 ms,     50 records
//	   20,000 records/s     each  40 ms,    800 records
//	   50,000 records/s     each 100 ms,  5,000 records
//	  300,000 records/s     each 100 ms, 30,000 records
//
// The rule needs no state beside two counters, so it has nothing to unlearn: a record after a quiet time is committed at once, whatever came before. The queue of a stream that is faster than the
// producer is never empty; there the limits alone count. Idle says that nothing is coming, and ends the wait.
const (
	holdRate = 500_000 // records a second, by a second
	minHold  = 5 * time.Millisecond
	maxHold  = 100 * time.Millisecond
	// maxBudgetWait is the longest that a commit waits for the runner's budget of commits.
	maxBudgetWait = 50 * time.Millisecond
	// An interval's transaction is committed early where it holds so much that the plugin would have to stop.
	maxIntervalBytes = 64 << 20
)

// verdict is what a rule says about the open transaction.
type verdict uint8

const (
	// wait: not yet.
	wait verdict = iota
	// quiet: commit, because nothing more is coming. The budget may make it wait.
	quiet
	// full: commit now.
	full
)

// moment is what a rule looks at.
type moment struct {
	now time.Time
	// since is when the transaction got its first content, began when the commit before it began.
	since, began time.Time
	records      int
	bytes        int64
	// arrived is how many records were received since began.
	arrived uint64
	// whole: the transaction may end here. It is the caller's to know about source events and marks.
	whole bool
	// idle: the plugin said that it has nothing more. waiting: something is received and not yet produced.
	idle, waiting bool
}

// rule is a boundary with its limits. Its methods are pure.
type rule struct {
	settings.Boundary
}

// newRule halves the limits shrink times.
func newRule(b settings.Boundary, shrink int) rule {
	shrink = max(0, min(shrink, 30))
	b.MaxRecords = max(b.MaxRecords>>shrink, 1)
	b.MaxBytes = max(b.MaxBytes>>shrink, 1)
	b.MaxTime = max(b.MaxTime>>shrink, time.Millisecond)
	b.Interval = max(b.Interval>>shrink, time.Millisecond)
	return rule{b}
}

// judge says whether to commit, and when to ask again if nothing happens; the zero time is never.
func (r rule) judge(m moment) (verdict, time.Time) {
	switch r.Rule {
	case source.ByConnector:
		// The marks alone count, and they are obeyed where they are met.
		return wait, time.Time{}
	case source.PerPoll:
		if m.whole {
			return full, time.Time{}
		}
		return wait, time.Time{}
	case source.Interval:
		return r.judgeInterval(m)
	}
	return r.judgeAdaptive(m)
}

func (r rule) judgeInterval(m moment) (verdict, time.Time) {
	due := m.since.Add(r.Interval)
	over := m.records >= maxUncommittedRecords || m.bytes >= maxIntervalBytes
	if !m.whole {
		return wait, time.Time{}
	}
	if over || !m.now.Before(due) {
		return full, time.Time{}
	}
	return wait, due
}

// judgeAdaptive is also the rule source: there a transaction is whole only after a mark.
func (r rule) judgeAdaptive(m moment) (verdict, time.Time) {
	if !m.whole {
		return wait, time.Time{}
	}
	limit := m.since.Add(r.MaxTime)
	if m.records >= r.MaxRecords || m.bytes >= r.MaxBytes || !m.now.Before(limit) {
		return full, time.Time{}
	}
	if m.waiting {
		return wait, limit
	}
	if m.idle {
		return quiet, limit
	}
	if until := m.began.Add(hold(m.arrived)); m.now.Before(until) {
		return wait, earlier(until, limit)
	}
	return quiet, limit
}

// hold is how long after the commit before the next may begin, when n records have arrived since.
func hold(n uint64) time.Duration {
	d := min(time.Duration(math.Sqrt(float64(n)/holdRate)*float64(time.Second)), maxHold)
	if d < minHold {
		return 0
	}
	return d
}

func earlier(a, b time.Time) time.Time {
	if b.IsZero() || !a.IsZero() && a.Before(b) {
		return a
	}
	return b
}

// budget is the runner's budget of commits, as one task sees it.
type budget struct {
	limiter *rate.Limiter
	// asked: the next commit has been counted; it may begin at notBefore.
	asked     bool
	notBefore time.Time
}

// ask counts the next commit, once, and says when it may begin.
func (b *budget) ask(now time.Time) time.Time {
	if !b.asked {
		b.asked, b.notBefore = true, now
		if b.limiter != nil {
			b.notBefore = now.Add(b.reserve(now))
		}
	}
	return b.notBefore
}

// reserve never waits for longer than maxBudgetWait, however far the budget is overdrawn.
func (b *budget) reserve(now time.Time) time.Duration {
	r := b.limiter.ReserveN(now, 1)
	if !r.OK() {
		return maxBudgetWait
	}
	delay := r.DelayFrom(now)
	if delay > maxBudgetWait {
		r.CancelAt(now)
		return maxBudgetWait
	}
	return delay
}

// spent says that the commit begins. One that did not ask is counted now.
func (b *budget) spent(now time.Time) {
	b.ask(now)
	b.asked = false
}
