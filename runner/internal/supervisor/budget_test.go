package supervisor

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

func failed(cause string) *task.Failure {
	return &task.Failure{Class: task.Again, Cause: cause, Err: errors.New("x")}
}

func TestPausesDoubleUpToTheirLimitForEachCause(t *testing.T) {
	for _, cause := range []string{task.CausePlugin, task.CauseSource, publish.CauseBroker, publish.CauseLogin, task.CauseHost} {
		b, l := newBudget(), limitOf(cause)
		base, last := l.first, l.attempts
		if last == 0 {
			last = 100
		}
		for range last - 1 {
			wait, err := b.failed(failed(cause))
			if err != nil || wait < base/2 || wait > base*3/2 || wait > l.longest {
				t.Fatalf("%s: %s after one of %s: %v", cause, wait, base, err)
			}
			base = min(2*base, l.longest)
		}
		if _, err := b.failed(failed(cause)); (err == nil) != (l.attempts == 0) {
			t.Fatalf("%s: after attempt %d: %v", cause, last, err)
		}
	}
}

// TestBudgetProperties: each cause has its own count since the last success, whatever else happens in between, and the endless ones never run out.
func TestBudgetProperties(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBudget()
		counted := map[string]int{}
		for range rapid.IntRange(1, 100).Draw(t, "steps") {
			f := failed(rapid.SampledFrom([]string{"broker", "coordinator", "unknown", "login", "source", "plugin", "fenced", "expired", "host"}).Draw(t, "cause"))
			if f.Progress = rapid.IntRange(0, 9).Draw(t, "progress") == 0; f.Progress {
				clear(counted)
			}
			counted[f.Cause]++
			l := limitOf(f.Cause)
			b.begin()
			wait, err := b.failed(f)
			if over := l.attempts > 0 && counted[f.Cause] >= l.attempts; (err != nil) != over {
				t.Fatalf("%s %d times in a row: %v", f.Cause, counted[f.Cause], err)
			} else if over {
				return
			}
			if wait <= 0 || wait > l.longest {
				t.Fatalf("a pause of %s for %s", wait, f.Cause)
			}
			left, endless := b.left()
			if endless != (l.attempts == 0) || !endless && b.attempt+left != l.attempts || b.attempt != counted[f.Cause] {
				t.Fatalf("%s: attempt %d and %d left, endless %v", f.Cause, b.attempt, left, endless)
			}
		}
	})
}

// TestTheTableForUsersIsTheBudgets: docs/operate.md says what each cause may cost.
func TestTheTableForUsersIsTheBudgets(t *testing.T) {
	text, err := os.ReadFile("../../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	row := func(names string, l limit) string {
		attempts := "without end"
		if l.attempts > 0 {
			attempts = strconv.Itoa(l.attempts)
		}
		return fmt.Sprintf("| %s | %s | %s | %s |", names, attempts, short(l.first), short(l.longest))
	}
	rows := []string{row("every other", usual)}
	for cause, l := range limits {
		rows = append(rows, row("`"+cause+"`", l))
	}
	for _, r := range rows {
		if !strings.Contains(string(text), r) {
			t.Errorf("docs/operate.md has no row %s", r)
		}
	}
}

// short is a pause as people write it.
func short(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Milliseconds())
	}
	return fmt.Sprintf("%d s", int(d.Seconds()))
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
	if b.shrink != 1 || len(b.tries) != 0 {
		t.Fatal("a commit says nothing about larger transactions")
	}
	b.stable()
	if left, _ := b.left(); b.shrink != 0 || left != usual.attempts-1 {
		t.Fatal("not taken back")
	}
}
