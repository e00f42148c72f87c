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
	failures int // Attempts since the last success that failed and count.
	waits    int // Attempts in a row that failed and don't, since the last that counts.
	// attempt is the number that is shown of the attempt that runs, or ran last: of those that count, or, where the last cause is endless, of those that wait.
	attempt  int
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

// begin counts an attempt that begins.
func (b *budget) begin() {
	b.attempt = b.failures + 1
	if b.waits > 0 {
		b.attempt = b.waits + 1
	}
}

// success starts the count anew.
func (b *budget) success() {
	b.failures, b.waits, b.attempt, b.expiries, b.nameRecords = 0, 0, 1, 0, false
	b.pause.Reset()
}

// stable is a success that has lasted.
func (b *budget) stable() {
	b.success()
	b.shrink = 0
}

// left is how many more attempts there may be after the one that is shown: where causes count, attempt and left are maxAttempts together.
func (b *budget) left() int {
	if b.waits > 0 {
		return maxAttempts - b.failures
	}
	return maxAttempts - b.attempt
}

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
		b.waits++
		b.attempt = b.waits
		return min(wait, longestBrokerPause), nil
	}
	b.waits = 0
	b.failures++
	b.attempt = b.failures
	if b.failures >= maxAttempts {
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
