package task

import (
	"context"
	"fmt"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// commit ends the transaction: offsets last, then the commit, then the plugin hears of it.
func (w *writer) commit(ctx context.Context) error {
	t := &w.txn
	now := time.Now()
	w.budget.spent(now)
	w.began, w.arrived = now, w.in.arrived.Load()
	offsets, topics, err := w.store.stage(t.offsets)
	if err != nil {
		return fromKafka(err)
	}
	if err := w.conclude(ctx, offsets, topics); err != nil {
		return err
	}
	// Nothing is called safe before that.
	if err := w.lookIfLost(ctx); err != nil {
		return err
	}
	w.committed()
	return nil
}

// conclude produces a transaction's last records and commits it. An offset-only transaction begins here: the source moved and gave no record.
func (w *writer) conclude(ctx context.Context, last *source.Batch, topics []string) error {
	t := &w.txn
	if !t.open {
		if err := w.begin(ctx); err != nil {
			return err
		}
	}
	began := time.Now()
	limited, cancel := context.WithDeadline(ctx, t.begun.Add(w.cfg.Settings.TransactionTimeout))
	defer cancel()
	fault("X3")
	// I1: the offsets are the last thing in the transaction, and cover every record in it.
	if err := w.pub.Produce(limited, last, topics); err != nil {
		return w.failed(err)
	}
	fault("X4")
	if err := w.callCommit(limited); err != nil {
		return w.commitFailed(err)
	}
	fault("X6")
	t.open = false
	w.prover.committed(began)
	return nil
}

// callCommit repeats the call where that is what the error asks for.
func (w *writer) callCommit(ctx context.Context) error {
	for {
		err := faultDuring("X5", func() error { return w.watched(ctx, func() error { return w.pub.Commit(ctx) }) })
		if err == nil || publish.Classify(err).Class != publish.RetryCall || pause(ctx, retryPause) != nil {
			return err
		}
	}
}

// commitFailed notes whether the transaction may still be aborted: only where Kafka refused it for good. A commit without an answer may have been one.
func (w *writer) commitFailed(err error) error {
	w.unanswered = publish.Classify(err).Class != publish.Fail
	return w.failed(err)
}

// lookIfLost has the leader look for hanging transactions where a broker went away: Kafka may have left out a marker that was due there, although the commit succeeded, and an abort of the next
// transaction would then delete what was committed. So nothing is begun, aborted or called safe before the look has answered. (A loss that is noticed only after the commit returned is found by the
// question before the next begin or abort.)
func (w *writer) lookIfLost(ctx context.Context) error {
	if !w.pub.BrokerLost() {
		return nil
	}
	w.cfg.Logger.Info("look_after_lost_broker")
	w.reporter.set(func(s *Status) {
		s.Waiting = "a broker went away: waiting for the coordinator to look for hanging transactions"
	})
	if err := look(ctx, w.cfg); err != nil {
		w.unlooked = true
		return err
	}
	w.reporter.set(func(s *Status) { s.Waiting = "" })
	return nil
}

// mayAbort says whether a transaction is open that may be aborted. After a commit that wasn't refused for good it may not: that commit may have been one, and the abort could delete it. Nor while a
// broker is lost that nobody has looked after: there the commit before may hang. The next start of the id ends the transaction then, after it has noted the last decision.
func (w *writer) mayAbort() bool {
	return w.txn.open && !w.unanswered && !w.unlooked && !w.pub.BrokerLost()
}

// committed takes note of a commit that returned nil.
func (w *writer) committed() {
	t := &w.txn
	w.commits++
	w.store.applied()
	// I5: only now may the source forget.
	w.in.settled(t.seq, t.owed)
	records, bytes, dropped, reason := uint64(t.records), uint64(t.bytes), t.dropped, t.reason
	took := time.Since(w.began)
	w.reporter.set(func(s *Status) {
		s.Records += records
		s.Bytes += bytes
		s.Dropped += dropped
		s.Commits++
		if reason != "" {
			s.DroppedReason = reason
		}
		s.OpenRecords, s.OpenBytes, s.OpenSince = 0, 0, time.Time{}
		s.CommitTime.add(took.Seconds(), &CommitBounds)
		s.Sizes.add(float64(records), &SizeBounds)
	})
	t.reset()
}

// commitMarked commits where the connector says so, at once and without a budget.
func (w *writer) commitMarked(ctx context.Context) error {
	if !w.txn.pending() {
		w.in.settled(w.txn.seq, 0)
		return nil
	}
	return w.commit(ctx)
}

// abortMarked drops the records since the last mark, as the connector asks, and stores their offsets: the source is not asked for them again.
func (w *writer) abortMarked(ctx context.Context) error {
	t := &w.txn
	if !t.open {
		// Nothing was produced, so there is nothing to abort; offsets that moved are still stored.
		w.cfg.Logger.Warn("abort_of_nothing", "seq", t.seq)
		return w.commitMarked(ctx)
	}
	if err := w.lookIfLost(ctx); err != nil {
		return err
	}
	limited, cancel := context.WithDeadline(ctx, w.expiry())
	defer cancel()
	if err := w.pub.Abort(limited); err != nil {
		return w.failed(err)
	}
	t.open, t.records, t.bytes = false, 0, 0
	w.reporter.set(func(s *Status) { s.Aborts++ })
	return w.commit(ctx)
}

// largest is the record with the largest value of a transaction: the one to blame where Kafka says that something is too large.
type largest struct {
	// length is its value's, as the column has it.
	length uint32
	text   string
}

// look looks for a larger one. It costs a nanosecond a record.
func (l *largest) look(e *entry) {
	found := -1
	for i := range e.batch.ValueLen.Len() {
		if n := e.batch.ValueLen.At(i); n > l.length {
			l.length, found = n, i
		}
	}
	if found < 0 {
		return
	}
	number := e.batch.DefaultTopic
	if len(e.batch.Topic) > 0 {
		number = e.batch.Topic.At(found)
	}
	topic, _ := at(e.topics, number)
	l.text = fmt.Sprintf("the largest value of the transaction has %d bytes, for topic %q: %s", l.length-1, topic, origin(e, found))
}

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
