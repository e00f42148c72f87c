package sourcetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Credit of a task: bytes that may be under way, and records that may wait for a commit.
const (
	creditBytes    = 32 << 20
	maxUncommitted = 1_000_000
)

// Task is one running task. Its methods are for one goroutine, the test's.
type Task struct {
	runner  *Runner
	claim   source.Claim
	signals chan source.Signal // with room, so that a test need not wait for the task
	cancel  context.CancelFunc
	done    chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when something below changed
	state   received
	owed    int // bytes of credit that are not given back yet
	ended   bool
	err     error // of the run, once ended
}

// Start starts a task of a plan from the offsets that are committed. The zero TaskSpec has an unknown claim, which takes every partition. The test ends it where it doesn't.
func (r *Runner) Start(spec source.TaskSpec) *Task {
	r.tb.Helper()
	r.mu.Lock()
	r.epoch++
	open := &source.RunOpen{
		Connector: "test", Type: r.cfg.Type, Config: maps.Clone(r.cfg.Config), TaskConfig: spec.Config, Claim: spec.Claim,
		Generation: 1, Epoch: r.epoch, Incarnation: "1", Limits: r.cfg.Limits, Boundary: r.cfg.Boundary,
	}
	for _, k := range slices.Sorted(maps.Keys(r.offsets)) {
		if spec.Claim.Has([]byte(k)) {
			open.Stored = append(open.Stored, r.offsets[k])
		}
	}
	r.mu.Unlock()

	ctx, cancel := context.WithCancel(r.tb.Context())
	t := &Task{
		runner: r, claim: spec.Claim, cancel: cancel, done: make(chan struct{}), changed: make(chan struct{}),
		signals: make(chan source.Signal, 1024),
		state:   newReceived(spec.Claim, r.cfg.Limits),
	}
	t.signals <- source.Signal{Kind: source.SignalCredit, Bytes: creditBytes, MaxUncommitted: maxUncommitted}
	t.state.credit = creditBytes
	go func() {
		err := r.cfg.Plugin.Run(ctx, open, t)
		t.mu.Lock()
		t.ended, t.err = true, err
		t.wake()
		t.mu.Unlock()
		close(t.done)
	}()
	r.tb.Cleanup(func() {
		cancel()
		<-t.done
	})
	return t
}

// Send implements source.RunHost: a message that breaks a rule of the protocol ends the task, and the test finds the error.
func (t *Task) Send(ctx context.Context, m source.Message) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	defer t.wake()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := t.state.take(m); err != nil {
		t.state.broken = err
		return err
	}
	if b, ok := m.(*source.Batch); ok {
		t.owed += b.Size()
		select {
		case t.signals <- source.Signal{Kind: source.SignalCredit, Bytes: uint64(t.owed)}:
			t.state.credit += int64(t.owed)
			t.owed = 0
		default: // with the next batch: a task that doesn't look at its signals is not waited for
		}
	}
	return nil
}

// Lookup implements source.RunHost.
func (t *Task) Lookup(_ context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	return t.runner.lookup(partitions)
}

// Signals implements source.RunHost.
func (t *Task) Signals() <-chan source.Signal { return t.signals }

// signal hands on a signal; it is dropped where the task has ended.
func (t *Task) signal(s source.Signal) {
	select {
	case t.signals <- s:
	case <-t.done:
	}
}

// wake tells waiters that something changed. The caller holds mu.
func (t *Task) wake() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// until waits for a condition, and fails the test where it doesn't come true.
func (t *Task) until(what string, ok func() bool) {
	t.runner.tb.Helper()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		t.mu.Lock()
		met, ended, err, changed := ok(), t.ended, t.err, t.changed
		if t.state.broken != nil {
			err = t.state.broken
		}
		have := fmt.Sprintf("%d uncommitted records, %d messages", len(t.state.records), t.state.seq)
		t.mu.Unlock()
		switch {
		case met:
			return
		case ended:
			t.runner.tb.Fatalf("the task ended before %s (%s): %v", what, have, err)
		}
		select {
		case <-changed:
		case <-timer.C:
			t.runner.tb.Fatalf("waited %s for %s (%s)", patience, what, have)
		}
	}
}

// Wait waits until at least n uncommitted records have come, and returns those that have.
func (t *Task) Wait(n int) []Record {
	t.runner.tb.Helper()
	t.until(fmt.Sprintf("%d records came", n), func() bool { return len(t.state.records) >= n })
	return t.Uncommitted()
}

// WaitIdle waits until the task has said that its source has nothing more for now, and nothing came since; it returns the uncommitted records.
func (t *Task) WaitIdle() []Record {
	t.runner.tb.Helper()
	t.until("the task was idle", func() bool { return t.state.idle })
	return t.Uncommitted()
}

// WaitNotice waits until the task's notice is this.
func (t *Task) WaitNotice(texts ...string) {
	t.runner.tb.Helper()
	t.until(fmt.Sprintf("the notice was %q", texts), func() bool { return slices.Equal(t.state.notice, texts) })
}

// Uncommitted returns the records that came and aren't committed.
func (t *Task) Uncommitted() []Record {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Record, len(t.state.records))
	for i, r := range t.state.records {
		out[i] = r.Record
	}
	return out
}

// Dropped returns how many records the task left out, by reason.
func (t *Task) Dropped() map[string]uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.state.dropped)
}

// Commit commits what has come up to the last batch whose events are whole, and tells the task. It returns how many records that is.
func (t *Task) Commit() int { return t.commit(true) }

func (t *Task) commit(all bool) int {
	t.mu.Lock()
	seq, records, offsets := t.state.commit(all)
	t.mu.Unlock()
	if seq == 0 {
		return 0
	}
	r := t.runner
	r.mu.Lock()
	r.records = append(r.records, records...)
	for _, o := range offsets {
		r.store(o)
	}
	r.mu.Unlock()
	t.signal(source.Signal{Kind: source.SignalCommitted, Seq: seq})
	return len(records)
}

// Kill ends the task as a crash of the runner does: what isn't committed is lost.
func (t *Task) Kill() {
	t.cancel()
	<-t.done
}

// Stop drains the task, commits what it has sent, stops it, and fails the test where it ends with an error.
func (t *Task) Stop() {
	t.runner.tb.Helper()
	t.signal(source.Signal{Kind: source.SignalDrain})
	t.until("it was drained", func() bool { return t.state.drained })
	t.Commit()
	t.signal(source.Signal{Kind: source.SignalStop})
	if err := t.End(); err != nil {
		t.runner.tb.Fatalf("the task ended with %v", err)
	}
}

// End waits until the task has ended, and returns its error: what a test of a failing source looks at. A broken rule of the protocol is an error too.
func (t *Task) End() error {
	t.runner.tb.Helper()
	select {
	case <-t.done:
	case <-time.After(patience):
		t.runner.tb.Fatalf("waited %s for the end of the task", patience)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.state.broken != nil {
		return t.state.broken
	}
	return t.err
}
