package supervisor

import (
	"errors"
	"fmt"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// limit is what one cause may cost until a success.
type limit struct {
	// attempts in a row may fail of it; after the last one the task fails, or is given back where the host is to blame. 0 is without end: such a cause says nothing about the task, and goes away by itself.
	attempts int
	// first is the pause after the first of them. Each further one is twice as long, up to longest, and each is varied by half.
	first, longest time.Duration
}

// limits has the causes whose limit isn't the usual one. docs/operate.md shows the same table to users, and a test compares them.
var limits = map[string]limit{
	// What is away comes back, and is to be used soon then.
	publish.CauseBroker:   {0, 100 * time.Millisecond, 5 * time.Second},
	publish.CauseUnknown:  {0, 100 * time.Millisecond, 5 * time.Second},
	task.CauseCoordinator: {0, 100 * time.Millisecond, 5 * time.Second},
	// Whoever puts these right doesn't touch the task.
	publish.CauseLogin:   {0, time.Second, 30 * time.Second},
	publish.CauseOffsets: {0, time.Second, 30 * time.Second},
	task.CauseClock:      {0, time.Second, 10 * time.Second},
	// The plugin itself says that its source may come back: about half an hour.
	task.CauseSource: {60, 100 * time.Millisecond, 30 * time.Second},
	// The limits of a transaction can't be halved for ever.
	task.CauseExpired: {3, 100 * time.Millisecond, 30 * time.Second},
	// Another host can do better, and shouldn't wait.
	task.CauseHost: {3, 100 * time.Millisecond, time.Second},
}

// usual is the limit of every other cause.
var usual = limit{10, 100 * time.Millisecond, 30 * time.Second}

func limitOf(cause string) limit {
	if l, ok := limits[cause]; ok {
		return l
	}
	return usual
}

// successAfter is how long an attempt has to run to be a success where the source has nothing to commit.
const successAfter = time.Minute

// tries are the failed attempts of one cause since the last success.
type tries struct {
	failed int
	pause  *backoff.ExponentialBackOff
}

// budget counts what went wrong since the last success, cause by cause. It is pure but for the pauses' jitter.
type budget struct {
	tries map[string]*tries
	// last is the cause of the last failure since the last success; empty for none.
	last string
	// attempt is the number that is shown of the attempt that runs, or ran last: of those that its cause has had.
	attempt int
	// shrink says how often a transaction's limits are halved. It is taken back only after a minute of success: what expired once may again.
	shrink int
	// nameRecords asks the next attempt to say which record it was.
	nameRecords bool
	rewinds     map[string]uint64
}

func newBudget() *budget { return &budget{tries: map[string]*tries{}, rewinds: map[string]uint64{}} }

// begin counts an attempt that begins.
func (b *budget) begin() {
	b.attempt = 1
	if t := b.tries[b.last]; t != nil {
		b.attempt = t.failed + 1
	}
}

// success starts every count anew: a commit, or a minute of running.
func (b *budget) success() {
	clear(b.tries)
	b.last, b.attempt, b.nameRecords = "", 1, false
}

// stable is a success that has lasted.
func (b *budget) stable() {
	b.success()
	b.shrink = 0
}

// left is how many more attempts there may be after the one that is shown, and whether there is no end to them.
func (b *budget) left() (n int, endless bool) {
	l := limitOf(b.last)
	if l.attempts == 0 {
		return 0, true
	}
	return l.attempts - b.attempt, false
}

// failed counts a failed attempt: how long to wait before the next one, or why there is none.
func (b *budget) failed(f *task.Failure) (time.Duration, error) {
	if f.Progress {
		b.success()
	}
	b.rewinds[f.Cause]++
	b.nameRecords = f.Cause == publish.CauseDelivery
	if f.Cause == task.CauseExpired {
		b.shrink++
	}
	l, t := limitOf(f.Cause), b.of(f.Cause)
	t.failed++
	b.last, b.attempt = f.Cause, t.failed
	if l.attempts > 0 && t.failed >= l.attempts {
		return 0, outOfBudget(f, t.failed)
	}
	return min(t.pause.NextBackOff(), l.longest), nil
}

func (b *budget) of(cause string) *tries {
	t := b.tries[cause]
	if t == nil {
		l := limitOf(cause)
		t = &tries{pause: backoff.NewExponentialBackOff()}
		t.pause.InitialInterval, t.pause.Multiplier, t.pause.MaxInterval = l.first, 2, l.longest
		t.pause.Reset()
		b.tries[cause] = t
	}
	return t
}

// outOfBudget says why there is no further attempt.
func outOfBudget(f *task.Failure, attempts int) error {
	if f.Cause == task.CauseExpired {
		return fmt.Errorf("%w (transactions expired %d times in a row at the same offset, although their limits were halved each time)", f.Err, attempts)
	}
	return fmt.Errorf("%w (gave up after %d attempts in a row)", f.Err, attempts)
}

// asFailure reads an attempt's error. One that isn't a *task.Failure is a fault of our own.
func asFailure(err error) *task.Failure {
	var f *task.Failure
	if errors.As(err, &f) {
		return f
	}
	return &task.Failure{Class: task.Fail, Cause: task.CauseBug, Err: fmt.Errorf("internal error: %w", err)}
}
