package configlog

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Campaign waits to be elected and takes over. It returns a leadership, or an error: that of ctx, or why this coordinator can't take part just now; it may be called again then. A candidacy outlives a leadership that ended
// for another reason than a lost election: Resign ends it. Campaign and Resign are called by one goroutine.
func (l *Log) Campaign(ctx context.Context) (*Leadership, error) {
	limit, err := l.ensureTopic(ctx)
	if err != nil {
		return nil, err
	}
	l.trouble.Store(nil) // The brokers have answered.
	if l.candidacy == nil {
		if l.candidacy, err = l.runForOffice(); err != nil {
			return nil, err
		}
	}
	leadership, err := l.win(ctx, l.candidacy, limit)
	if err != nil {
		l.Resign() // Another coordinator may be able to.
		return nil, err
	}
	return leadership, nil
}

// Resign leaves the election, so that another coordinator is elected at once, and ends the leadership.
func (l *Log) Resign() {
	if l.candidacy != nil {
		l.candidacy.resign()
		l.candidacy = nil
	}
}

// win waits for the election and takes over within it.
func (l *Log) win(ctx context.Context, e *election, limit int) (*Leadership, error) {
	if err := e.await(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e.onLoss(cancel) // A lost election ends the taking over.
	taking, enough := context.WithTimeoutCause(ctx, takeOverTimeout, fmt.Errorf("taking over the config log took more than %v", takeOverTimeout))
	defer enough()
	leadership, err := l.takeOver(taking, limit)
	if err != nil && ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	if err != nil {
		return nil, err
	}
	e.onLoss(leadership.end)
	return leadership, nil
}

// takeOverTimeout is how long an elected coordinator may take before another one gets its turn.
const takeOverTimeout = 30 * time.Second

// takeOver is I7: elected → id initialised → log settled → read to its end.
func (l *Log) takeOver(ctx context.Context, limit int) (*Leadership, error) {
	began := time.Now()
	taken, err := l.config.Fencer.Take(ctx, l.id)
	if err != nil {
		return nil, fmt.Errorf("take over the config log: %w", err)
	}
	w := &writer{
		direct: l.config.Direct, topic: l.topic, id: l.id, producer: taken.ProducerID, epoch: taken.Epoch, limit: limit - batchOverhead, timeout: l.config.WriteTimeout, leader: noBroker,
	}
	end, err := l.settle(ctx, w, taken)
	if err != nil {
		return nil, fmt.Errorf("settle the config log: %w", err)
	}
	content, err := l.read(ctx, end)
	if err != nil {
		return nil, fmt.Errorf("read the config log: %w", err)
	}
	l.log.Debug("took over the config log", "records", len(content.Records), "end", end, "took", time.Since(began).Round(time.Millisecond), "epoch", taken.Epoch)
	return &Leadership{log: l, writer: w, content: content, done: make(chan struct{})}, nil
}

// settleAfter is how long a take-over waits for markers that are on their way.
const settleAfter = 500 * time.Millisecond

// ErrHeld says that the log can't be read to its end, and that nobody may guess how to go on.
var ErrHeld = errors.New("the config log is held")

// settle makes sure that nothing in the log is undecided, and returns what there is to read. A transaction of an earlier leader that hangs although the id was initialised has lost its marker; it gets the one that was decided, and
// nothing is written before: a transaction of this leader would decide over it.
func (l *Log) settle(ctx context.Context, w *writer, taken fence.Taken) (span, error) {
	if taken.Last.Outcome == state.OutcomeCommitted || taken.Last.Outcome == state.OutcomeAborted {
		l.noted = taken.Last // Each try takes the id anew, and shows no decision then.
	}
	patience, enough := context.WithTimeout(ctx, settleAfter)
	defer enough()
	found, err := w.ends(patience)
	if err == nil || patience.Err() == nil {
		return found, err
	}
	if errors.Is(err, errNotReadable) {
		err := l.config.Fencer.Release(ctx, fence.Single{ID: l.id, Topic: l.topic, Partition: partition, Taken: taken, Noted: l.noted})
		var held *fence.HeldError
		if errors.As(err, &held) {
			return span{}, fmt.Errorf("%w: %w", ErrHeld, err)
		}
		if err != nil {
			return span{}, err
		}
	}
	limited, cancel := context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("no answer within %v: %w", w.timeout, context.DeadlineExceeded))
	defer cancel()
	return w.ends(limited)
}

// Leadership is the right to write the log, until Done.
type Leadership struct {
	log     *Log
	content *Content

	mu        sync.Mutex // one write at a time
	writer    *writer
	announced bool

	over   sync.Once
	done   chan struct{}
	reason error // set before done is closed
}

// Content is what the log held when it was taken over.
func (l *Leadership) Content() *Content { return l.content }

// Done is closed when the leadership is over; Err then says why.
func (l *Leadership) Done() <-chan struct{} { return l.done }

// Err is nil while the leadership lasts.
func (l *Leadership) Err() error {
	select {
	case <-l.done:
		return l.reason
	default:
		return nil
	}
}

// End ends the leadership and stays in the election.
func (l *Leadership) End() { l.end(ErrEnded) }

func (l *Leadership) end(reason error) {
	l.over.Do(func() {
		l.reason = reason
		if kafkaclient.Unreachable(reason) { // Before Done: whoever is told that the leadership is over can ask why.
			l.log.trouble.Store(&reason)
		}
		close(l.done)
	})
}

// Write writes the records in one transaction and returns when every reader can read them. A write that was begun is finished whatever becomes of ctx, within the write time-out. Any error but ErrTooLarge and a ctx that
// had ended before ends the leadership: what was written is then either visible to the next leader or to nobody.
func (l *Leadership) Write(ctx context.Context, records []state.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err := l.Err(); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if !l.announced {
		records = l.first(records)
	}
	err := l.writer.write(context.WithoutCancel(ctx), records)
	switch {
	case errors.Is(err, ErrTooLarge):
		return err
	case err != nil:
		// I7: refused or unknown, nothing is written under this epoch again.
		l.end(fmt.Errorf("write the config log: %w", l.log.explain(err)))
		return l.Err()
	}
	if !l.announced {
		l.announced = true
		l.log.hear(func(h *Heard) { h.Leader, h.LeaderID = l.log.self.Address, l.log.self.ID })
	}
	return nil
}

// first adds to the first write who leads, and what somebody else had written over.
func (l *Leadership) first(records []state.Record) []state.Record {
	records = append(records[:len(records):len(records)], leaderRecord(l.log.self))
	for _, r := range l.content.overwritten {
		if !slices.ContainsFunc(records, func(other state.Record) bool { return other.Key == r.Key }) {
			records = append(records, r)
		}
	}
	return records
}
