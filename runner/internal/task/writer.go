package task

import (
	"context"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// writer is the last stage: it alone owns the publisher, puts entries into transactions and ends them. The next transaction begins when the commit of the one before has returned; receiving and
// converting go on meanwhile.
type writer struct {
	cfg      *Config
	pub      Publisher
	watched  func(ctx context.Context, call func() error) error // of the attempt
	store    *store
	in       *inlet
	from     <-chan *entry
	reporter *reporter

	rule   rule
	budget budget
	txn    txn
	topics targets
	prover *prover

	// began is when the last commit began, arrived how many records had been received then.
	began   time.Time
	arrived uint64
	// idle: the last entry was Idle.
	idle bool
	// credit is what has been produced and not yet been given back.
	credit uint64
	// commits counts commits.
	commits uint64
	// unanswered: a commit failed in a way that forbids an abort. unlooked: a broker was lost, and no look has answered since, which forbids it as well.
	unanswered, unlooked bool
}

// txn is the open transaction, with what only waits for one: offsets that moved without records.
type txn struct {
	// open: Begin was called, at begun. since is when the first content came, which may be before.
	open         bool
	begun, since time.Time
	records      int
	bytes        int64
	// owed is how many records the plugin counts as uncommitted here; those of an aborted transaction too.
	owed    int
	dropped uint64
	reason  string
	// offsets are those to store, in the order in which their partitions came; place finds them by number.
	offsets []source.PartitionOffset
	place   map[uint32]int
	seq     uint64
	// continues: the last source event goes on in the next batch. marked: a source transaction is whole here.
	continues, marked bool
	largest           largest
	// dated: a record has a time of its own. The others, and the offsets, have this host's.
	dated bool
}

// pending says whether there is anything to commit.
func (t *txn) pending() bool { return t.open || len(t.offsets) > 0 }

// reset makes it the next transaction.
func (t *txn) reset() {
	clear(t.place)
	*t = txn{offsets: t.offsets[:0], place: t.place, marked: true}
}

// reach notes offsets.
func (t *txn) reach(e *entry) {
	if t.place == nil {
		t.place = map[uint32]int{}
	}
	for _, o := range e.offsets {
		i, ok := t.place[o.Partition]
		if !ok {
			i = len(t.offsets)
			t.place[o.Partition] = i
			t.offsets = append(t.offsets, source.PartitionOffset{Partition: e.names[o.Partition]})
		}
		t.offsets[i].Offset = o.Offset
	}
}

func newWriter(a *attempt, in *inlet, from <-chan *entry) *writer {
	w := &writer{
		cfg: a.cfg, pub: a.pub, watched: a.watched, store: in.store, in: in, from: from, reporter: a.reporter,
		rule: newRule(a.cfg.Settings.Boundary, a.cfg.Shrink), budget: budget{limiter: a.cfg.CommitBudget},
		began: time.Now(),
	}
	w.topics, w.prover = newTargets(a.cfg), newProver()
	w.txn.reset()
	return w
}

// run works until the last entry. It returns why that was the last: nil after a drain.
func (w *writer) run(ctx context.Context) error {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		due, ask, err := w.due(now)
		if err != nil {
			return err
		}
		if due {
			if err := w.commit(ctx); err != nil {
				return err
			}
			continue
		}
		w.caughtUp()
		var alarm <-chan time.Time
		if !ask.IsZero() {
			timer.Reset(ask.Sub(now))
			alarm = timer.C
		}
		select {
		case e := <-w.from:
			w.in.waiting.Add(-1)
			if e.end != nil {
				return w.finish(ctx, e.end)
			}
			if err := w.take(ctx, e); err != nil {
				return err
			}
		case <-alarm:
		case <-w.prover.wanted:
			if w.txn.pending() {
				continue // Its commit is the proof.
			}
			if err := w.prove(ctx); err != nil {
				return unproven(err)
			}
		case <-ctx.Done():
			return abandoned(ctx)
		}
	}
}

// due says whether to commit now, and otherwise when to look again. A transaction that is open for too long is an error: the broker would end it (I4: and then nothing here may be believed).
func (w *writer) due(now time.Time) (commit bool, ask time.Time, err error) {
	t := &w.txn
	if !t.pending() {
		return false, time.Time{}, nil
	}
	if t.open && !now.Before(w.expiry()) {
		return false, time.Time{}, w.expired(now, w.whyOpen())
	}
	m := moment{
		now: now, since: t.since, began: w.began, records: t.records, bytes: t.bytes, arrived: w.in.arrived.Load() - w.arrived,
		whole: w.whole(), idle: w.idle, waiting: w.in.waiting.Load() > 0,
	}
	v, ask := w.rule.judge(m)
	switch v {
	case full:
		return true, time.Time{}, nil
	case quiet:
		notBefore := w.budget.ask(now)
		if !now.Before(notBefore) {
			return true, time.Time{}, nil
		}
		ask = earlier(notBefore, ask)
	case wait:
		if !m.waiting && (!m.whole || w.rule.Rule == source.ByConnector) {
			w.in.raise()
		}
	}
	if t.open {
		ask = earlier(w.expiry(), ask)
	}
	return false, ask, nil
}

// whole says whether the transaction may end here.
func (w *writer) whole() bool {
	t := &w.txn
	if t.continues || t.seq < w.in.glued.Load() {
		return false
	}
	return w.cfg.Settings.Boundary.Rule != source.PerSource || t.marked
}

// caughtUp tells when the source has given all that it has, and it is all committed.
func (w *writer) caughtUp() {
	if w.idle && !w.txn.pending() && w.in.waiting.Load() == 0 {
		w.reporter.set(func(s *Status) { s.CaughtUp = true })
	}
}

// take puts one entry into the transaction.
func (w *writer) take(ctx context.Context, e *entry) error {
	t := &w.txn
	w.idle = e.idle
	if e.idle {
		t.seq = e.seq
		if !t.pending() {
			w.in.settled(e.seq, 0)
		}
		return nil
	}
	w.reporter.set(func(s *Status) { s.CaughtUp = false })
	if !t.pending() {
		t.since = time.Now()
	}
	if e.batch != nil && e.batch.Count > 0 {
		if err := w.produce(ctx, e); err != nil {
			return err
		}
	}
	t.seq = e.seq
	t.reach(e)
	if e.batch == nil {
		t.dropped += e.dropped
		t.reason = e.reason
		if !t.pending() {
			w.dropWithoutOffsets()
		}
		return nil
	}
	w.returnCredit(e.cost)
	t.continues = e.batch.Continues
	if e.batch.Count > 0 || len(e.offsets) > 0 || e.batch.Boundary == source.MarkSource {
		t.marked = e.batch.Boundary == source.MarkSource
	}
	switch e.batch.Boundary {
	case source.MarkCommit:
		return w.commitMarked(ctx)
	case source.MarkAbort:
		return w.abortMarked(ctx)
	}
	if !t.pending() {
		// Nothing but a number: it is as safe as what came before it.
		w.in.settled(e.seq, 0)
	}
	return nil
}

// dropWithoutOffsets tells of drops that moved nothing: there is nothing to commit.
func (w *writer) dropWithoutOffsets() {
	t := &w.txn
	dropped, reason := t.dropped, t.reason
	t.dropped = 0
	w.reporter.set(func(s *Status) { s.Dropped, s.DroppedReason = s.Dropped+dropped, reason })
	w.in.settled(t.seq, 0)
}

// mayEnd says whether the runner may commit here of its own accord: under connector only a mark ends a transaction.
func (w *writer) mayEnd() bool { return w.whole() && w.rule.Rule != source.ByConnector }

// produce hands a batch's records to the publisher, in a transaction that begins with the first.
func (w *writer) produce(ctx context.Context, e *entry) error {
	t := &w.txn
	if numbers := w.topics.unknown(e); len(numbers) > 0 {
		// This may wait for a broker and for the coordinator. What may end is ended before, so that it doesn't expire meanwhile.
		if t.pending() && w.mayEnd() {
			if err := w.commit(ctx); err != nil {
				return err
			}
			t.since = time.Now()
		}
		if err := w.topics.learn(ctx, w, e, numbers); err != nil {
			return err
		}
	}
	if err := w.topics.check(ctx, w, e); err != nil {
		return err
	}
	if !t.open {
		fault("X0")
		if err := w.begin(ctx); err != nil {
			return err
		}
		fault("X1")
	}
	limited, cancel := context.WithDeadline(ctx, w.expiry())
	defer cancel()
	// I1: all of them or an error, and after an error this transaction is never committed.
	if err := w.pub.Produce(limited, e.batch, e.topics); err != nil {
		if ctx.Err() == nil && limited.Err() != nil {
			return w.expired(time.Now(), ": Kafka took the records too slowly")
		}
		return w.failed(err)
	}
	t.records += e.batch.Count
	t.owed += e.records
	t.bytes += int64(len(e.batch.Arena))
	t.largest.look(e)
	t.dated = t.dated || len(e.batch.TimestampMS) > 0
	if t.bytes > maxOpenBytes && !w.mayEnd() {
		return failure(Fail, CauseConfig, "a transaction that the source doesn't end has grown to %d records and %d bytes, the limit is %d bytes%s", t.records, t.bytes, maxOpenBytes, w.whyOpen())
	}
	fault("X2")
	open, bytes, since := uint64(t.records), uint64(t.bytes), t.begun
	w.reporter.set(func(s *Status) { s.OpenRecords, s.OpenBytes, s.OpenSince = open, bytes, since })
	return nil
}

func (w *writer) begin(ctx context.Context) error {
	if err := w.lookIfLost(ctx); err != nil {
		return err
	}
	if err := w.pub.Begin(); err != nil {
		return fromKafka(err)
	}
	w.txn.open, w.txn.begun = true, time.Now()
	return nil
}

// returnCredit gives back what a batch cost. Little is saved up: each grant is a message, and a plugin that has seven eighths of the window left doesn't wait for it.
func (w *writer) returnCredit(bytes int) {
	w.credit += uint64(bytes)
	if w.credit >= windowBytes/8 {
		w.in.grant(w.credit)
		w.credit = 0
	}
}

// finish ends the last transaction, and with it the stage.
func (w *writer) finish(ctx context.Context, end *ending) error {
	var err error
	switch {
	case !w.txn.pending():
	case w.mayEnd():
		err = w.commit(ctx)
	default:
		// The rest of a source event, or of a transaction that the connector did not end, is read again from the stored offsets. The publisher's end drops it.
		w.cfg.Logger.Info("transaction_dropped_unfinished", "records", w.txn.records)
	}
	if end.err != nil {
		if err != nil {
			w.cfg.Logger.Warn("last_commit_failed", "error", err)
		}
		return end.err
	}
	return err
}

// expiry is when the open transaction is given up: the broker ends it a little later.
func (w *writer) expiry() time.Time {
	timeout := w.cfg.Settings.TransactionTimeout
	return w.txn.begun.Add(timeout - timeout/10)
}

func (w *writer) expired(now time.Time, why string) error {
	t := &w.txn
	return expired(t.records, t.bytes, now.Sub(t.begun), w.cfg.Settings.TransactionTimeout, why)
}

// whyOpen says what the transaction was waiting for, for users.
func (w *writer) whyOpen() string {
	switch {
	case w.txn.continues:
		return ": the plugin said that its last source event goes on, and sent no more of it"
	case w.rule.Rule == source.PerSource && !w.txn.marked:
		return ": the plugin did not mark the end of its source transaction (transaction.boundary=source)"
	case w.rule.Rule == source.ByConnector:
		return ": the plugin asked neither to commit nor to abort (transaction.boundary=connector)"
	}
	return ""
}

// failed maps an error of a call inside the open transaction. What looks like a fence may only be the time-out, and the own clock knows.
func (w *writer) failed(err error) error {
	f := fromKafka(err)
	if now := time.Now(); w.txn.open && f.Cause == CauseFenced && !now.Before(w.expiry()) {
		return w.expired(now, ": "+err.Error())
	}
	if f.Cause == CauseTimestamp && !w.txn.dated {
		return failure(Again, CauseClock, "the clocks of this host and of the broker differ by more than Kafka allows (message.timestamp.after.max.ms of the topic, usually an hour); the task goes on when they are right: %w", err)
	}
	return w.named(f)
}

// named adds to a refused record where it may come from: Kafka names no more than topic and partition.
func (w *writer) named(f *Failure) *Failure {
	if f.Cause == CauseRecord && w.txn.largest.text != "" {
		f.Err = &saidByKafka{text: f.Err.Error() + "; " + w.txn.largest.text, err: f.Err}
	}
	return f
}
