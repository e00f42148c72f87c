package fence

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// noProducer is the producer id and epoch of a bare initialisation, and of an id that never had one.
const noProducer = -1

// Taken is an id that nobody else can commit under.
type Taken struct {
	// Last is the id's last decision before it was taken.
	Last state.Decision
	// ProducerID and Epoch are the new ones. They are in force until the next initialisation.
	ProducerID int64
	Epoch      int16
}

// Take initialises id, again and again until the broker answers `ok`, ctx ends, or the broker refuses for good: then the error is a *Refused.
func (f *Fencer) Take(ctx context.Context, id string) (Taken, error) {
	return f.take(ctx, id, f.timeout)
}

// take is Take with the time-out of the transactions that follow.
func (f *Fencer) take(ctx context.Context, id string, timeout time.Duration) (Taken, error) {
	began, warned := time.Now(), time.Now()
	for attempt := 0; ; attempt++ {
		taken, err := f.attempt(ctx, id, timeout)
		if err == nil {
			return taken, nil
		}
		verdict := classify(err)
		if verdict.final {
			return Taken{}, f.refused(id, err)
		}
		if verdict.moved {
			f.direct.Forget(id)
		}
		if time.Since(warned) >= f.warn {
			warned = time.Now()
			f.log.Warn("fencing takes long", "transactional_id", id, "attempts", attempt+1, "since", time.Since(began).Round(time.Second), "error", err)
		}
		if err := wait(ctx, verdict.delay(attempt)); err != nil {
			return Taken{}, fmt.Errorf("fence %q: %w", id, errors.Join(err, context.Cause(ctx)))
		}
	}
}

// attempt is one note and one initialisation.
func (f *Fencer) attempt(ctx context.Context, id string, timeout time.Duration) (Taken, error) {
	// A slot is held for one attempt: ids that have to be tried for long hold nobody up.
	if err := f.slots.Acquire(ctx, 1); err != nil {
		return Taken{}, err
	}
	defer f.slots.Release(1)
	// I3: the note comes before this very attempt, also where it is a repetition.
	last, err := f.describe(ctx, id)
	if err != nil {
		return Taken{}, err
	}
	resp, err := f.init(ctx, id, timeout)
	if err != nil {
		return Taken{}, err
	}
	return Taken{Last: last, ProducerID: resp.ProducerID, Epoch: resp.ProducerEpoch}, nil
}

// init is one bare InitProducerId.
func (f *Fencer) init(ctx context.Context, id string, timeout time.Duration) (*kmsg.InitProducerIDResponse, error) {
	req := kmsg.NewPtrInitProducerIDRequest()
	req.TransactionalID, req.TransactionTimeoutMillis = &id, int32(timeout.Milliseconds())
	req.ProducerID, req.ProducerEpoch = noProducer, noProducer
	answer, err := f.direct.ToCoordinator(ctx, id, req)
	if err != nil {
		return nil, fmt.Errorf("initialise: %w", err)
	}
	resp, ok := answer.(*kmsg.InitProducerIDResponse)
	if !ok {
		return nil, fmt.Errorf("initialise: the broker answered with %T", answer)
	}
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil {
		return nil, fmt.Errorf("initialise: %w", err)
	}
	return resp, nil
}

// describe notes the last decision of an id.
func (f *Fencer) describe(ctx context.Context, id string) (state.Decision, error) {
	req := kmsg.NewPtrDescribeTransactionsRequest()
	req.TransactionalIDs = []string{id}
	answer, err := f.direct.ToCoordinator(ctx, id, req)
	if err != nil {
		return state.Decision{}, fmt.Errorf("describe: %w", err)
	}
	resp, ok := answer.(*kmsg.DescribeTransactionsResponse)
	if !ok || len(resp.TransactionStates) != 1 {
		return state.Decision{}, fmt.Errorf("describe: the broker answered with %T for %d ids", answer, len(req.TransactionalIDs))
	}
	described := resp.TransactionStates[0]
	if described.ErrorCode == kerr.TransactionalIDNotFound.Code {
		return state.Decision{Outcome: state.OutcomeNone, ProducerID: noProducer, ProducerEpoch: noProducer}, nil
	}
	if err := kerr.ErrorForCode(described.ErrorCode); err != nil {
		return state.Decision{}, fmt.Errorf("describe: %w", err)
	}
	switch described.State {
	case statePrepareCommit, statePrepareAbort, statePrepareFence:
		// An attempt would be answered by CONCURRENT_TRANSACTIONS now, or by `ok` in a moment, and then this note would be no decision.
		return state.Decision{}, errDeciding
	}
	return state.Decision{Outcome: outcome(described.State), ProducerID: described.ProducerID, ProducerEpoch: described.ProducerEpoch}, nil
}

// outcome reads a state of DescribeTransactions. Whatever still moves, or isn't known here, is no decision.
func outcome(described string) state.Outcome {
	switch described {
	case stateEmpty:
		return state.OutcomeNone
	case stateCommitted:
		return state.OutcomeCommitted
	case stateAborted:
		return state.OutcomeAborted
	}
	return state.OutcomeUnknown
}

// States of DescribeTransactions. In Empty and both Complete ones no transaction is open, in the Prepare ones one is being ended.
const (
	stateEmpty         = "Empty"
	stateOngoing       = "Ongoing"
	stateCommitted     = "CompleteCommit"
	stateAborted       = "CompleteAbort"
	statePrepareCommit = "PrepareCommit"
	statePrepareAbort  = "PrepareAbort"
	statePrepareFence  = "PrepareEpochFence"
)

var errDeciding = errors.New("the id's last transaction is being ended")

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
