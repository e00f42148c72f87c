package publish

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestATopicIsAbsentOnlyWhenThatLasts is the one rule about a broker that doesn't know a topic.
func TestATopicIsAbsentOnlyWhenThatLasts(t *testing.T) {
	never := func(context.Context) (bool, error) { return false, nil }
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		late := func(context.Context) (bool, error) { return time.Since(began) >= AbsentFor-time.Second, nil }
		if known, err := Known(t.Context(), late, nil); !known || err != nil {
			t.Errorf("one that is known late: %v, %v", known, err)
		}
		began = time.Now()
		if known, err := Known(t.Context(), never, nil); known || err != nil || time.Since(began) < AbsentFor || time.Since(began) > AbsentFor+time.Second {
			t.Errorf("one that isn't known: %v, %v after %v", known, err, time.Since(began))
		}
		began = time.Now()
		asked := 0
		sure := func(is bool) func(context.Context) bool {
			return func(context.Context) bool { asked++; return is }
		}
		if known, err := Known(t.Context(), never, sure(true)); known || err != nil || time.Since(began) != 0 {
			t.Errorf("one that surely isn't there: %v, %v after %v", known, err, time.Since(began))
		}
		if known, err := Known(t.Context(), never, sure(false)); known || err != nil || time.Since(began) < AbsentFor || asked != 2 {
			t.Errorf("one of which that isn't sure: %v, %v after %v, asked %d times", known, err, time.Since(began), asked)
		}
		refused := errors.New("refused")
		if _, err := Known(t.Context(), func(context.Context) (bool, error) { return false, refused }, nil); !errors.Is(err, refused) {
			t.Errorf("an error: %v", err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if known, err := Known(ctx, never, nil); known || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a time that is too short: %v, %v", known, err)
		}
	})
}
