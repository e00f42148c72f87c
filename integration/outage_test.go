package integration

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"
)

// TestStoppedRunnerComesBackTooLate: a runner that is stopped in the middle of a transaction loses its tasks to another one; when it goes on it commits nothing, and takes its plugin with it.
func TestStoppedRunnerComesBackTooLate(t *testing.T) {
	bed := harness.New(t, "stopped", harness.Kafka(t))
	load := numbers{topic: "stopped-numbers", count: 20_000, partitions: 4, tasks: 2, transaction: 500, rate: 2000}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 3)
	bed.StartCoordinator("--lease-ttl", "2s", "--balance=false") // nothing goes back
	first := bed.StartRunner("first", nil)
	bed.Create("numbers", load.config())
	awaitRecords(bed, "numbers", 1000)
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	bed.StartRunner("second", nil)
	harness.Wait(t, time.Minute, "the second runner delivers", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err != nil {
			return err
		}
		for _, task := range c.GetTasks() {
			if task.GetRunner() != "second" || task.GetRecords() == 0 {
				return fmt.Errorf("task %d: %v", task.GetTask(), task)
			}
		}
		return nil
	})
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	load.arrived(t, bed.Bootstrap)
	c := bed.AwaitState(time.Minute, "numbers", "RUNNING")
	processes := 1
	if c.GetPlanner() == "first" {
		processes = 2 // it is back, and may hold the plan
	}
	bed.PluginProcesses(30*time.Second, processes)
	for _, task := range c.GetTasks() {
		if task.GetRunner() != "second" {
			t.Errorf("task %d went back to %s", task.GetTask(), task.GetRunner())
		}
	}
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// TestRunnerGoesOnWithoutCoordinator: while no coordinator is up records go on arriving, and the next coordinator finds everything as it was.
func TestRunnerGoesOnWithoutCoordinator(t *testing.T) {
	bed := harness.New(t, "alone", harness.Kafka(t))
	load := numbers{topic: "alone-numbers", count: 20_000, partitions: 2, tasks: 2, transaction: 500, rate: 500}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 3)
	coordinator := bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	awaitRecords(bed, "numbers", 500)
	before, err := bed.Connector(t.Context(), "numbers")
	if err != nil {
		t.Fatal(err)
	}
	var seen atomic.Int64
	follow(t, bed.Bootstrap, load.topic, func(*kgo.Record) { seen.Add(1) })

	coordinator.Kill()
	// More than two lease times' worth of records at this rate would need the coordinator, were it needed.
	want := seen.Load() + 3000
	harness.Wait(t, time.Minute, "records go on arriving", func(context.Context) error {
		if n := seen.Load(); n < want {
			return fmt.Errorf("%d of %d", n, want)
		}
		return nil
	})
	address := bed.Coordinator
	bed.LaunchCoordinator("--listen", address)
	bed.Coordinator = address
	harness.Wait(t, time.Minute, "the next coordinator leads", func(ctx context.Context) error {
		now, err := bed.Connector(ctx, "numbers")
		if err == nil && now.GetState() != "RUNNING" {
			err = errors.New(now.GetState())
		}
		return err
	})
	load.arrived(t, bed.Bootstrap)
	now := bed.AwaitState(time.Minute, "numbers", "RUNNING")
	if now.GetGeneration() != before.GetGeneration() {
		t.Errorf("generation %d became %d", before.GetGeneration(), now.GetGeneration())
	}
	for i, task := range now.GetTasks() {
		if task.GetEpoch() != before.GetTasks()[i].GetEpoch() || task.GetAborts() != 0 {
			t.Errorf("task %d was disturbed: %v, and before %v", i, task, before.GetTasks()[i])
		}
	}
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// TestControlRoundTrip: what users do to a connector in its life, and no record is lost or repeated by any of it.
func TestControlRoundTrip(t *testing.T) {
	bed := harness.New(t, "round-trip", harness.Kafka(t))
	// So slow that its end isn't reached before the last operation, however slow the machine is.
	load := numbers{topic: "round-trip-numbers", count: 40_000, partitions: 4, tasks: 2, transaction: 100, rate: 100}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 3)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	awaitRecords(bed, "numbers", 200)
	bed.MustCLI("pause", "numbers")
	bed.AwaitState(time.Minute, "numbers", "PAUSED")
	bed.MustCLI("resume", "numbers")
	awaitRecords(bed, "numbers", 200)
	bed.MustCLI("restart", "numbers")
	awaitRecords(bed, "numbers", 200)
	bed.MustCLI("stop", "numbers")
	bed.AwaitState(time.Minute, "numbers", "STOPPED")
	bed.NothingRuns()
	bed.MustCLI("resume", "numbers")
	awaitRecords(bed, "numbers", 200)
	generation := bed.AwaitState(time.Minute, "numbers", "RUNNING").GetGeneration()

	// The same configuration changes nothing; another one is a new generation.
	bed.MustCLI("apply", "-f", bed.ConnectorFile("numbers", load.config()))
	if c := bed.AwaitState(time.Minute, "numbers", "RUNNING"); c.GetGeneration() != generation {
		t.Errorf("an equal configuration raised generation %d to %d", generation, c.GetGeneration())
	}
	changed := load
	changed.transaction = 200
	bed.MustCLI("apply", "-f", bed.ConnectorFile("numbers", changed.config()))
	if c := bed.AwaitState(time.Minute, "numbers", "RUNNING"); c.GetGeneration() <= generation {
		t.Errorf("a changed configuration left the generation at %d", c.GetGeneration())
	}
	awaitRecords(bed, "numbers", 200)
	bed.MustCLI("delete", "numbers")
	bed.NothingRuns()
	bed.NoTransactionOpen()
	load.rate = 0
	bed.Create("numbers", load.config()) // offsets outlive a connector: it goes on where it was
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// awaitRecords waits until a connector's tasks have committed so many records since they were granted.
func awaitRecords(bed *harness.Bed, connector string, n uint64) {
	bed.T.Helper()
	harness.Wait(bed.T, time.Minute, fmt.Sprintf("%d records of %s", n, connector), func(ctx context.Context) error {
		c, err := bed.Connector(ctx, connector)
		if err == nil && recordsOf(c) < n {
			err = fmt.Errorf("%d: %s %s", recordsOf(c), c.GetState(), c.GetMessage())
		}
		return err
	})
}

// follow follows a topic until the test ends.
func follow(t *testing.T, bootstrap, topic string, take func(*kgo.Record)) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- reader.Follow(ctx, bootstrap, topic, take) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("follow: %v", err)
		}
	})
}
