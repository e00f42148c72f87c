package integration

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// runnersOf says how many tasks each runner has.
func runnersOf(ctx context.Context, bed *harness.Bed) (map[string]*controlv1.Runner, error) {
	resp, err := bed.Control().ListRunners(ctx, &controlv1.ListRunnersRequest{})
	runners := map[string]*controlv1.Runner{}
	for _, r := range resp.GetRunners() {
		runners[r.GetName()] = r
	}
	return runners, err
}

// awaitLoads waits until runners have so many tasks each, all of which run.
func awaitLoads(bed *harness.Bed, connector string, want map[string]int) {
	bed.T.Helper()
	harness.Wait(bed.T, 2*time.Minute, fmt.Sprintf("loads are %v", want), func(ctx context.Context) error {
		c, err := bed.Connector(ctx, connector)
		if err != nil {
			return err
		}
		got := map[string]int{}
		for _, task := range c.GetTasks() {
			if task.GetState() != "RUNNING" || task.GetCommits() == 0 {
				return fmt.Errorf("task %d: %v", task.GetTask(), task)
			}
			got[task.GetRunner()]++
		}
		for name, n := range want {
			if got[name] != n {
				return fmt.Errorf("loads are %v", got)
			}
		}
		return nil
	})
}

// pauses are the longest time without a readable record of each source partition.
func pauses(w *reader.Watch, partitions int, from, to time.Time) []time.Duration {
	var longest []time.Duration
	for i := range partitions {
		longest = append(longest, w.Pause(strconv.Itoa(i), from, to).Round(time.Millisecond))
	}
	slices.Sort(longest)
	return longest
}

// mostGap is what a task's readers may have to wait while it moves, on a machine that does other things besides; docs/operate.md has what it takes on one that doesn't.
const mostGap = 2 * time.Second

// TestDrainMovesTasksWithoutAGap: a runner is drained, joins again, and is stopped: every record arrives once and in order, and no partition's readers wait for much longer than for a commit.
func TestDrainMovesTasksWithoutAGap(t *testing.T) {
	bed := harness.New(t, "drain", harness.Kafka(t))
	load := numbers{topic: "drain-numbers", count: 0, partitions: 4, tasks: 4, transaction: 500, rate: 500}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 3)
	bed.StartCoordinator()
	first := bed.StartRunner("first", nil)
	bed.Create("numbers", load.config())
	awaitLoads(bed, "numbers", map[string]int{"first": 4})
	watch := reader.StartWatch(t.Context(), bed.Bootstrap, load.topic, reader.Generated{})
	harness.Wait(t, time.Minute, "records are read", func(context.Context) error {
		if len(watch.Last()) < load.partitions {
			return fmt.Errorf("read %v", watch.Last())
		}
		return nil
	})

	begun := time.Now()
	bed.StartRunner("second", nil)
	awaitLoads(bed, "numbers", map[string]int{"first": 2, "second": 2})
	gap(t, "balance", pauses(watch, load.partitions, begun, time.Now()))

	begun = time.Now()
	bed.MustCLI("runners", "drain", "first")
	took := time.Since(begun)
	awaitLoads(bed, "numbers", map[string]int{"second": 4})
	gap(t, fmt.Sprintf("drain of two tasks, %s", took.Round(time.Millisecond)), pauses(watch, load.partitions, begun, time.Now()))
	runners, err := runnersOf(t.Context(), bed)
	if err != nil || runners["first"].GetState() != "DRAINED" {
		t.Errorf("%v, %v", runners, err)
	}

	begun = time.Now()
	bed.MustCLI("runners", "drain", "first", "--undo")
	awaitLoads(bed, "numbers", map[string]int{"first": 2, "second": 2})
	gap(t, "end of the drain", pauses(watch, load.partitions, begun, time.Now()))

	begun = time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := first.Stop(ctx); err != nil {
		t.Error(err)
	}
	took = time.Since(begun)
	awaitLoads(bed, "numbers", map[string]int{"second": 4})
	gap(t, fmt.Sprintf("SIGTERM with two tasks, %s", took.Round(time.Millisecond)), pauses(watch, load.partitions, begun, time.Now()))

	// Nobody is left who could have them: the drain says so, and everything goes on.
	r := bed.CLI("runners", "drain", "second")
	if r.Code != 4 {
		t.Errorf("exit code %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	awaitLoads(bed, "numbers", map[string]int{"second": 4})
	bed.MustCLI("stop", "numbers")
	if err := watch.Stop(); err != nil {
		t.Error(err)
	}
	want := reader.Expect{Topic: load.topic, OffsetsTopic: offsetsTopic(bed, "numbers"), Connector: "numbers", First: 1, Last: watch.Last()}
	if err := reader.Exact(t.Context(), bed.Bootstrap, reader.Generated{}, want); err != nil {
		t.Errorf("not exact:\n%v", err)
	}
	bed.StopAll()
}

// gap shows what was measured, and fails where it is far more than it should be.
func gap(t *testing.T, what string, longest []time.Duration) {
	t.Helper()
	t.Logf("%s: longest pauses by source partition %v", what, longest)
	if most := longest[len(longest)-1]; most > mostGap {
		t.Errorf("%s: a source partition had no record for %s", what, most)
	}
}
