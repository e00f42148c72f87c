package sourcetest

import (
	"fmt"
	"slices"
	"testing"
)

// maxLives bounds Exact: a connector that never says that it is idle would run for ever.
const maxLives = 10_000

// Exact is the test that every connector should have. It runs one task of the connector over a source that doesn't change, up to the point where the connector says that it is idle, and does so with
// a crash after no commit, after one, after two and so on, a commit being as small as the connector's batches allow. Each crash loses what isn't committed, and the connector goes on from what is.
// The committed records must then be exactly want, as texts of the values: each once, in this order.
//
// Small limits (a Config.Limits.MaxBatchRecords of 2 or 3) make it thorough. The connector must call Records.Idle.
func Exact(tb testing.TB, cfg Config, want []string) {
	tb.Helper()
	for n := 0; ; n++ {
		r := New(tb, cfg)
		tasks := r.Plan(1)
		if len(tasks) != 1 {
			tb.Fatalf("a plan for one task has %d", len(tasks))
		}
		lives := 1
		// Every life but the first commits at least once, so that the work comes to an end.
		for finished := r.Start(tasks[0]).live(n); !finished; lives++ {
			if lives > maxLives {
				tb.Fatalf("no end after %d lives of a task", maxLives)
			}
			finished = r.Start(tasks[0]).live(max(n, 1))
		}
		CheckExact(tb, fmt.Sprintf("%d lives of a task with %d commits each", lives, n), Values(r.Committed()), want)
		if lives == 1 || tb.Failed() {
			return
		}
	}
}

// live runs a task for n commits and kills it while more waits; true where nothing more came, and the task was stopped properly.
func (t *Task) live(n int) (finished bool) {
	t.runner.tb.Helper()
	for commits := 0; ; commits++ {
		var idle, waiting bool
		t.until("something can be committed, or the task is idle", func() bool {
			idle, waiting = t.state.idle, len(t.state.wholes) > 0
			return waiting || idle
		})
		switch {
		case !waiting && len(t.Uncommitted()) > 0:
			t.runner.tb.Fatalf("the task is idle, but %d records have no offset that covers them", len(t.Uncommitted()))
		case !waiting:
			t.Stop()
			return true
		case commits == n:
			t.Kill()
			return false
		}
		t.commit(false)
	}
}

// CheckExact compares records with what is expected, and says what is missing, there twice, unknown, or out of order.
func CheckExact(tb testing.TB, when string, got, want []string) {
	tb.Helper()
	if slices.Equal(got, want) {
		return
	}
	count := make(map[string]int, len(want))
	for _, w := range want {
		count[w]++
	}
	var unknown, twice, missing []string
	for _, g := range got {
		n, known := count[g]
		switch {
		case !known:
			unknown = append(unknown, g)
		case n == 0:
			twice = append(twice, g)
		default:
			count[g]--
		}
	}
	for _, w := range want {
		if count[w] > 0 {
			count[w]--
			missing = append(missing, w)
		}
	}
	if len(unknown)+len(twice)+len(missing) == 0 {
		tb.Errorf("%s: the records are there once each, but out of order: %.20q", when, got)
		return
	}
	tb.Errorf("%s: missing %.20q, too often %.20q, unknown %.20q", when, missing, twice, unknown)
}
