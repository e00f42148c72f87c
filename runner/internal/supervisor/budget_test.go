package supervisor

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

func TestPausesDoubleUpToTheirLimit(t *testing.T) {
	b := newBudget()
	base := firstPause
	for range maxAttempts - 1 {
		wait, err := b.failed(&task.Failure{Class: task.Again, Cause: task.CauseSource, Err: errors.New("x")})
		if err != nil || wait < base/2 || wait > base*3/2 {
			t.Fatalf("%s after one of %s: %v", wait, base, err)
		}
		base = min(2*base, longestPause)
	}
	if _, err := b.failed(&task.Failure{Class: task.Again, Cause: task.CauseSource, Err: errors.New("x")}); err == nil {
		t.Fatal("no end")
	}
}

// TestABudgetNeverRunsOutForABroker and gives in after ten attempts in a row for anything else, whatever happens in between.
func TestBudgetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBudget()
		counted, expired := 0, 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			f := &task.Failure{
				Class: task.Again, Err: errors.New("x"), Progress: rapid.Bool().Draw(t, "progress"),
				Cause: rapid.SampledFrom([]string{"broker", "coordinator", "unknown", "source", "plugin", "fenced", "expired"}).Draw(t, "cause"),
			}
			if f.Progress {
				counted, expired = 0, 0
			}
			if f.Cause == "expired" {
				expired++
			} else {
				expired = 0
			}
			if !endless[f.Cause] {
				counted++
			}
			b.begin()
			wait, err := b.failed(f)
			if over := counted >= maxAttempts || expired >= maxExpiries; (err != nil) != over {
				t.Fatalf("%d in a row, %d expired: %v", counted, expired, err)
			} else if over {
				return
			}
			if wait <= 0 || wait > longestPause*3/2 || endless[f.Cause] && wait > longestBrokerPause {
				t.Fatalf("a pause of %s for %s", wait, f.Cause)
			}
			if b.left() != maxAttempts-counted {
				t.Fatalf("%d left after %d", b.left(), counted)
			}
			if !endless[f.Cause] && b.attempt+b.left() != maxAttempts {
				t.Fatalf("attempt %d and %d left", b.attempt, b.left())
			}
		}
	})
}

func TestAnErrorOfOurOwnFailsTheTask(t *testing.T) {
	if f := asFailure(errors.New("what")); f.Class != task.Fail || f.Cause != task.CauseBug {
		t.Fatal(f)
	}
}

func TestAFloodOfEventsIsRefused(t *testing.T) {
	var q queue
	q.init()
	for range maxEvents {
		if err := q.push(&session.StopPlan{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := q.push(&session.StopPlan{}); err == nil {
		t.Fatal("no limit")
	}
	q.pushOwn(&planOver{}) // Its own are bounded by what runs.
	for range maxEvents + 1 {
		if _, ok := q.pop(); !ok {
			t.Fatal("lost one")
		}
	}
}

func TestVersionsAreOrdered(t *testing.T) {
	sorted := []string{"0.9.9", "1.0.0-alpha", "1.0.0-alpha.2", "1.0.0-alpha.10", "1.0.0-beta", "1.0.0", "1.2.0", "1.10.0", "10.0.0"}
	for i := range sorted {
		for j := range sorted {
			if got := compareVersions(sorted[i], sorted[j]); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%s and %s: %d", sorted[i], sorted[j], got)
			}
		}
	}
	if compareVersions("1.0.0+build1", "1.0.0+build2") != 0 {
		t.Error("a build is no version")
	}
}

func TestSuccessAfterAMinuteTakesBackTheShrinking(t *testing.T) {
	b := newBudget()
	if _, err := b.failed(&task.Failure{Class: task.Again, Cause: task.CauseExpired, Err: errors.New("x")}); err != nil || b.shrink != 1 {
		t.Fatal(err, b.shrink)
	}
	b.success()
	if b.shrink != 1 || b.expiries != 0 {
		t.Fatal("a commit says nothing about larger transactions")
	}
	b.stable()
	if b.shrink != 0 || b.left() != maxAttempts-1 {
		t.Fatal("not taken back")
	}
}
