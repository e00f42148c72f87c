package supervisor

import (
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// What an error costs.
const (
	// maxAttempts in a row without success fail a task.
	maxAttempts = 10
	// maxExpiries in a row at one offset fail a task: its limits can't be halved for ever.
	maxExpiries = 3
	// successAfter is how long an attempt has to run to be a success where the source has nothing to commit.
	successAfter = time.Minute

	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
	// longestBrokerPause is short, so that a broker that comes back is used soon.
	longestBrokerPause = 5 * time.Second
)

// causeBroker is publish's word for a broker that can't be reached, causeDelivery for records that the broker didn't take without saying which.
const (
	causeBroker   = "broker"
	causeDelivery = "delivery"
)

// endless are the causes that say nothing about the task: it waits for as long as it takes.
var endless = map[string]bool{causeBroker: true, "unknown": true, task.CauseCoordinator: true}

// budget counts what went wrong since the last success. It is pure but for the pauses' jitter.
type budget struct {
	failures int // Attempts in a row that count.
	attempts int // Attempts since the last success, the current one among them.
	expiries int
	// shrink says how often a transaction's limits are halved. It is taken back only after a minute of success: what expired once may again.
	shrink int
	// nameRecords asks the next attempt to say which record it was.
	nameRecords bool
	rewinds     map[string]uint64
	pause       *backoff.ExponentialBackOff
}

func newBudget() *budget {
	b := &budget{rewinds: map[string]uint64{}, pause: backoff.NewExponentialBackOff()}
	b.pause.InitialInterval, b.pause.Multiplier, b.pause.MaxInterval = firstPause, 2, longestPause
	b.pause.Reset()
	return b
}

// success starts the count anew.
func (b *budget) success() {
	b.failures, b.attempts, b.expiries, b.nameRecords = 0, 1, 0, false
	b.pause.Reset()
}

// stable is a success that has lasted.
func (b *budget) stable() {
	b.success()
	b.shrink = 0
}

// left is how many attempts that fail there may still be.
func (b *budget) left() int { return maxAttempts - b.failures }

// failed counts a failed attempt: how long to wait before the next one, or why there is none.
func (b *budget) failed(f *task.Failure) (time.Duration, error) {
	if f.Progress {
		b.success()
	}
	b.rewinds[f.Cause]++
	b.nameRecords = f.Cause == causeDelivery
	if f.Cause == task.CauseExpired {
		b.shrink++
		if b.expiries++; b.expiries >= maxExpiries {
			return 0, fmt.Errorf("%w (transactions expired %d times in a row at the same offset, although their limits were halved each time)", f.Err, b.expiries)
		}
	} else {
		b.expiries = 0
	}
	wait := b.pause.NextBackOff()
	if endless[f.Cause] {
		return min(wait, longestBrokerPause), nil
	}
	if b.failures++; b.failures >= maxAttempts {
		return 0, fmt.Errorf("%w (gave up after %d attempts in a row)", f.Err, b.failures)
	}
	return wait, nil
}

// asFailure reads an attempt's error. One that isn't a *task.Failure is a fault of our own.
func asFailure(err error) *task.Failure {
	var f *task.Failure
	if errors.As(err, &f) {
		return f
	}
	return &task.Failure{Class: task.Fail, Cause: task.CauseBug, Err: fmt.Errorf("internal error: %w", err)}
}
