package metrics

import (
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// figures are those of one task on this runner, summed up over the leases and attempts that it has had here.
type figures struct {
	lease  lease.Lease
	plugin session.PluginRef
	// status is the last one under the lease, told at said. The lease was granted at granted, and ended at left: zero while it lasts.
	status              session.Status
	said, granted, left time.Time
	// attempt is the last one.
	attempt *Attempt

	records, bytes, commits, aborts, skipped uint64
	rewinds, failures                        map[string]uint64
	inState                                  map[session.State]time.Duration
	lastError                                time.Time
	attempts                                 uint64
	// dropped counts transactions that were open when their attempt ended.
	dropped           uint64
	polled, batches   uint64
	commitTime, sizes task.Spread
}

func newFigures() *figures {
	return &figures{rewinds: map[string]uint64{}, failures: map[string]uint64{}, inState: map[session.State]time.Duration{}}
}

// begin is a new lease: whoever counts from the grant counts from 0 again.
func (f *figures) begin(l lease.Lease, now time.Time) {
	if f.left.IsZero() {
		f.leave(now)
	}
	f.lease, f.status, f.said, f.granted, f.left, f.attempt = l, session.Status{}, now, now, time.Time{}, nil
}

// leave is the end of the lease.
func (f *figures) leave(now time.Time) {
	f.spend(now)
	f.status.State, f.left = 0, now
}

// spend counts the time in the last state.
func (f *figures) spend(now time.Time) {
	if f.status.State != 0 {
		f.inState[f.status.State] += now.Sub(f.said)
	}
	f.said = now
}

// take counts by how much a status is ahead of the last one.
func (f *figures) take(s session.Status, now time.Time) {
	f.spend(now)
	last := &f.status
	f.records += grown(s.Records, last.Records)
	f.bytes += grown(s.Bytes, last.Bytes)
	f.commits += grown(s.Commits, last.Commits)
	f.aborts += grown(s.Aborts, last.Aborts)
	f.skipped += grown(s.Dropped, last.Dropped)
	for cause, n := range s.Rewinds {
		f.rewinds[cause] += grown(n, last.Rewinds[cause])
	}
	if s.State == session.Failed && last.State != session.Failed {
		f.failures[s.Cause]++
	}
	if s.Error != "" && (s.Error != last.Error || s.State != last.State && (s.State == session.Retrying || s.State == session.Failed)) {
		f.lastError = now
	}
	f.status = s
}

// report counts by how much an attempt's report is ahead of its last one.
func (f *figures) report(now, last *task.Status) {
	f.polled += grown(now.Polled, last.Polled)
	f.batches += grown(now.Batches, last.Batches)
	grow(&f.commitTime, &now.CommitTime, &last.CommitTime)
	grow(&f.sizes, &now.Sizes, &last.Sizes)
}

// grown is by how much a count grew. One that fell began anew.
func grown(now, last uint64) uint64 {
	if now < last {
		return now
	}
	return now - last
}

func grow(total, now, last *task.Spread) {
	for i := range total.Counts {
		total.Counts[i] += grown(now.Counts[i], last.Counts[i])
	}
	total.Sum += max(0, now.Sum-last.Sum)
}

// timeIn is how long the task has been in a state, until now.
func (f *figures) timeIn(state session.State, now time.Time) time.Duration {
	d := f.inState[state]
	if f.status.State == state {
		d += now.Sub(f.said)
	}
	return d
}
