package harness

import (
	"context"
	"errors"
	"time"
)

const pollEvery = 50 * time.Millisecond

// Wait asks until the answer is nil, and fails the test at the deadline with the last answer.
func Wait(t T, timeout time.Duration, what string, ask func(ctx context.Context) error) {
	t.Helper()
	if err := Poll(t.Context(), timeout, ask); err != nil {
		t.Fatalf("%s: not within %s: %v", what, timeout, err)
	}
}

// Poll asks until the answer is nil and returns the last answer at the deadline. An answer made by Final ends it at once.
func Poll(ctx context.Context, timeout time.Duration, ask func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	last := errors.New("not asked yet")
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		var final finalError
		if errors.As(err, &final) {
			return final.error
		}
		if ctx.Err() == nil {
			last = err // what a cancelled call says is no answer
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return last
		}
	}
}

type finalError struct{ error }

// Final marks an answer that no waiting will change.
func Final(err error) error { return finalError{err} }
