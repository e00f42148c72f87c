package integration

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// TestFailoverOfTheBroker: every task waits for as long as the broker is away, and goes on by itself when it is back.
func TestFailoverOfTheBroker(t *testing.T) {
	t.Parallel()
	broker := harness.OwnKafka(t, kafka.Options{})
	s := scene.New(harness.New(t, "broker-away", broker.Addr), 2)
	s.Runner("a", nil)
	s.Runner("b", nil)
	w := s.Numbers("numbers", 6, 20)
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	gone := time.Now()
	// The time itself is what is tried: a minute in full, the sixth of it otherwise.
	away := 10 * time.Second
	if full() {
		away = time.Minute
	}
	harness.Wait(t, 2*away, fmt.Sprintf("the broker is away for %s", away), func(context.Context) error {
		if left := away - time.Since(gone); left > 0 {
			return fmt.Errorf("%s are left", left)
		}
		return nil
	})
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	since := time.Now()
	took := w.Await(since, scene.Partitions(6), reader.MadeAfter(since))
	t.Logf("every task delivers %s after the broker's return", took)
	w.Flows(time.Now())
	w.Exact()
	s.StopAll()
}

// TestFailoverAfterManyCommits: a task that has committed often starts again as soon as another one. Its offsets topic has grown by a record and a marker for each commit: 10,000 of its own, and in full 90,000 more that are
// written for it in parallel.
func TestFailoverAfterManyCommits(t *testing.T) {
	t.Parallel()
	const tasks, commits = 10, 10_000
	s := newScene(t, "many-commits", 1)
	s.Runner("a", nil)
	s.Runner("b", nil)
	w := s.Prepare("numbers", tasks, 0, "transaction.boundary", "poll", "batch.records", "1", "count", strconv.Itoa(commits/tasks))
	s.Create(w.Name, w.Config)
	harness.Wait(t, 10*time.Minute, fmt.Sprintf("%d commits", commits), func(context.Context) error {
		if n := w.Count(); n < commits {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	if full() {
		s.MustCLI("stop", w.Name)
		w.Fill(9 * commits)
		s.MustCLI("resume", w.Name)
	}
	w.Config["count"], w.Config["rate"] = "0", "10"
	w.Apply()
	w.Flows(time.Now())
	victim := w.Holder(true)
	lost := w.Tasks(victim)
	since := time.Now()
	s.Runners[victim].Kill()
	took := w.Await(since, lost, reader.MadeAfter(since))
	t.Logf("the tasks of a killed runner were away for %s", took)
	s.Runner(victim, nil)
	w.Exact()
	s.StopAll()
}
