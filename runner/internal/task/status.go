package task

import (
	"slices"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Phase is what an attempt is doing.
type Phase string

// The phases, in the order in which an attempt goes through them.
const (
	PhaseFencing      Phase = "fencing the transactional id"
	PhaseInitialising Phase = "initialising the producer"
	PhaseConfirming   Phase = "confirming the lease"
	PhaseLooking      Phase = "looking for hanging transactions"
	PhaseOffsets      Phase = "reading offsets"
	PhaseOpening      Phase = "opening the source"
	PhaseRunning      Phase = "running"
	PhaseDraining     Phase = "draining"
)

// Status is how an attempt is doing. Counters begin at 0 with each attempt.
type Status struct {
	Phase Phase
	// Waiting is what the phase waits for, where it is something that should not be: a broker that doesn't answer. Text for users.
	Waiting string
	// Host: what is waited for is this host's affair, and another one may do better.
	Host bool
	// Records, Bytes and Commits count what is committed; Aborts counts aborts that the plugin asked for; Dropped counts records that a rule left out.
	Records, Bytes, Commits, Aborts, Dropped uint64
	// DroppedReason is the last rule that did.
	DroppedReason string
	// CaughtUp: the source had nothing more to give, and all that it gave is committed.
	CaughtUp bool
	// OpenRecords are in the open transaction, with OpenBytes, which began at OpenSince; the zero time is none.
	OpenRecords, OpenBytes uint64
	OpenSince              time.Time
	// Polled and Batches count what the plugin has sent, records that it dropped by a rule among them. Uncommitted are those of its records that aren't committed now.
	Polled, Batches, Uncommitted uint64
	// CommitTime is how long commits took, Sizes how many records transactions had.
	CommitTime, Sizes Spread
	// Notices are the plugin's words to people, Metrics its figures. Not changed after the call.
	Notices []string
	Metrics []source.Metric
}

// How often a status is reported.
const (
	reportEvery       = time.Second
	reportUrgentEvery = 100 * time.Millisecond
)

// reporter hands the newest status on, without ever holding up who changes it.
type reporter struct {
	report func(Status)
	wake   chan struct{} // room for one wake-up: the newest status is all there is to say

	mu     sync.Mutex
	status Status
	// said is what was reported last.
	said  Status
	dirty bool
	// sample, where set, adds figures that are counted elsewhere to what is reported.
	sample func(*Status)
}

func newReporter(report func(Status)) *reporter {
	return &reporter{report: report, wake: make(chan struct{}, 1)}
}

// set changes the status.
func (r *reporter) set(change func(*Status)) {
	r.mu.Lock()
	change(&r.status)
	wake := !r.dirty || urgent(&r.status, &r.said)
	r.dirty = true
	r.mu.Unlock()
	if wake {
		select {
		case r.wake <- struct{}{}:
		default:
		}
	}
}

// follow has sample add its figures to every report from here on.
func (r *reporter) follow(sample func(*Status)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.sample = sample
}

func (r *reporter) phase(p Phase) {
	r.set(func(s *Status) { s.Phase, s.Waiting, s.Host = p, "", false })
}

// blame says that the host is to blame for what is waited for, or no longer.
func (r *reporter) blame(host bool) {
	r.set(func(s *Status) {
		switch {
		case host:
			s.Waiting, s.Host = noBroker, true
		case s.Host:
			s.Waiting, s.Host = "", false
		}
	})
}

// urgent says whether people wait for the difference.
func urgent(now, said *Status) bool {
	return now.Phase != said.Phase || now.Waiting != said.Waiting || now.Host != said.Host || now.CaughtUp != said.CaughtUp || !slices.Equal(now.Notices, said.Notices)
}

// run reports until done is closed, and then what is left.
func (r *reporter) run(done <-chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	// last is the last report, hurried the last one that people waited for.
	var last, hurried time.Time
	for {
		switch pending, hurry := r.pending(); {
		case hurry && time.Since(hurried) >= reportUrgentEvery:
			hurried, last = time.Now(), time.Now()
			r.flush()
		case hurry:
			timer.Reset(reportUrgentEvery - time.Since(hurried))
		case pending && time.Since(last) >= reportEvery:
			last = time.Now()
			r.flush()
		case pending:
			timer.Reset(reportEvery - time.Since(last))
		}
		select {
		case <-r.wake:
		case <-timer.C:
		case <-done:
			r.flush()
			return
		}
	}
}

// pending says whether there is anything to report, and whether people wait for it.
func (r *reporter) pending() (pending, hurry bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.dirty, r.dirty && urgent(&r.status, &r.said)
}

func (r *reporter) flush() {
	r.mu.Lock()
	if r.sample != nil {
		r.sample(&r.status)
	}
	s, dirty := r.status, r.dirty
	r.said, r.dirty = s, false
	r.mu.Unlock()
	if dirty {
		r.report(s)
	}
}
