package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestExpiredTransactionalIDCostsAPause: a task that is idle for longer than the broker keeps its transactional id delivers the next record all the same.
func TestExpiredTransactionalIDCostsAPause(t *testing.T) {
	t.Parallel()
	broker := harness.OwnKafka(t, kafka.Options{Properties: map[string]string{
		"transactional.id.expiration.ms": "3000", "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
		"producer.id.expiration.ms": "3000", "producer.id.expiration.check.interval.ms": "500",
	}})
	dir := t.TempDir()
	bed := harness.New(t, "forgotten", broker.Addr)
	harness.CreateTopic(t, bed.Bootstrap, "forgotten.lines", 1)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	write := func(text string) {
		f, err := os.OpenFile(filepath.Join(dir, "a.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		_, err = f.WriteString(text)
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	write("one\n")
	bed.Create("lines", map[string]string{"connector.class": "file", "paths": filepath.Join(dir, "*.log"), "topic": "forgotten.lines", "scan.interval": "50ms"})
	awaitRecords(bed, "lines", 1)
	admin := harness.Admin(t, broker.Addr)
	for _, line := range []string{"two", "three"} {
		harness.Wait(t, time.Minute, "the broker has forgotten the id", func(ctx context.Context) error {
			described, err := admin.DescribeTransactions(ctx, "fencepost.forgotten.lines.0")
			if err != nil {
				return err
			}
			state := described["fencepost.forgotten.lines.0"]
			if !errors.Is(state.Err, kerr.TransactionalIDNotFound) {
				err = fmt.Errorf("it is %s: %w", state.State, state.Err)
			}
			return err
		})
		write(line + "\n")
		var seen atomic.Bool
		follow(t, bed.Bootstrap, "forgotten.lines", func(r *kgo.Record) {
			if string(r.Value) == line {
				seen.Store(true)
			}
		})
		harness.Wait(t, time.Minute, "the next line arrives", func(context.Context) error {
			if !seen.Load() {
				return errors.New(describe(bed, "lines"))
			}
			return nil
		})
	}
	var lines []string
	follow(t, bed.Bootstrap, "forgotten.lines", func(r *kgo.Record) { lines = append(lines, string(r.Value)) })
	bed.StopAll()
	if !slices.Equal(lines, []string{"one", "two", "three"}) {
		t.Errorf("readable: %v", lines)
	}
}

// TestBrokersAwayCostAPause: three brokers, of which those go one after the other that lead the partitions and coordinate the transactions; then all at once. Leaders move, the coordinator of the transaction moves, and every record
// is there once and in order.
func TestBrokersAwayCostAPause(t *testing.T) {
	t.Parallel()
	cluster := harness.OwnCluster(t, kafka.Options{})
	bed := harness.New(t, "leaders", cluster.Addr())
	load := numbers{topic: "leaders.numbers", count: 12_000, partitions: 2, tasks: 1, transaction: 100, rate: 400}
	admin := harness.Admin(t, bed.Bootstrap)
	if _, err := admin.CreateTopic(t.Context(), 3, 3, nil, load.topic); err != nil {
		t.Fatal(err)
	}
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	awaitRecords(bed, "numbers", 400)
	for range 2 {
		node := coordinatorOf(t, admin, "fencepost.leaders.numbers.0")
		victim := cluster.Brokers[node-1]
		victim.Kill()
		harness.Wait(t, time.Minute, "another broker coordinates the transactions", func(context.Context) error {
			if now := coordinatorOf(t, admin, "fencepost.leaders.numbers.0"); now == node {
				return fmt.Errorf("%d does", now)
			}
			return nil
		})
		var before *controlv1.Connector
		harness.Wait(t, time.Minute, "the coordinator answers", func(ctx context.Context) (err error) {
			before, err = bed.Connector(ctx, "numbers")
			return err
		})
		awaitMore(bed, "numbers", recordsOf(before))
		if err := victim.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// coordinatorOf is the broker that coordinates an id's transactions.
func coordinatorOf(t *testing.T, admin *kadm.Client, id string) int32 {
	t.Helper()
	var node int32
	harness.Wait(t, time.Minute, "the transaction's coordinator is known", func(ctx context.Context) error {
		found := admin.FindTxnCoordinators(ctx, id)[id]
		node = found.NodeID
		return found.Err
	})
	return node
}

// TestTasksResumeByThemselvesWhenTheBrokerIsBack: twenty tasks, and a broker that is away for long enough that every transaction has expired.
func TestTasksResumeByThemselvesWhenTheBrokerIsBack(t *testing.T) {
	t.Parallel()
	const tasks, away = 20, 15 * time.Second
	broker := harness.OwnKafka(t, kafka.Options{})
	bed := harness.New(t, "away", broker.Addr)
	harness.CreateTopic(t, bed.Bootstrap, "away.numbers", 3)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	load := numbers{topic: "away.numbers", partitions: tasks, tasks: tasks, transaction: 100, rate: 20}
	config := load.config()
	config["producer.override.transaction.timeout.ms"] = "6000"
	bed.Create("numbers", config)
	seen := map[uint32]*controlv1.TaskInfo{}
	// delivering counts the tasks that have committed something since they were seen last.
	delivering := func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err != nil {
			return err
		}
		if c.GetState() == "FAILED" {
			return harness.Final(fmt.Errorf("it failed: %v", c.GetTasks()))
		}
		going := 0
		for _, task := range c.GetTasks() {
			last := seen[task.GetTask()]
			if task.GetState() == "RUNNING" && (task.GetRecords() > last.GetRecords() || task.GetRecords() > 0 && task.GetEpoch() > last.GetEpoch()) {
				going++
			}
		}
		if going < tasks {
			return fmt.Errorf("%d of %d tasks deliver; %s", going, tasks, c.GetMessage())
		}
		return nil
	}
	harness.Wait(t, time.Minute, "every task delivers", delivering)
	before, err := bed.Connector(t.Context(), "numbers")
	if err != nil {
		t.Fatal(err)
	}
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, task := range before.GetTasks() {
		seen[task.GetTask()] = task
	}
	<-time.After(away) // an outage has a length
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	back := time.Now()
	harness.Wait(t, 2*time.Minute, "every task delivers again", delivering)
	took := time.Since(back)
	t.Logf("every task delivered %s after the broker was back", took.Round(time.Millisecond))
	if took > 40*time.Second {
		t.Errorf("that is much more than 10 s")
	}
	bed.MustCLI("stop", "numbers")
	if err := load.soFar(t.Context(), bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers"); err != nil {
		t.Errorf("not exact:\n%v", err)
	}
	bed.StopAll()
}

// TestTaskMovesWhereItsHostCanNotRunIt: a runner without open files left can't start a plugin; another one gets the task, and nobody has to do anything.
func TestTaskMovesWhereItsHostCanNotRunIt(t *testing.T) {
	bed := harness.New(t, "host", harness.Kafka(t))
	load := numbers{topic: "host.numbers", count: 1000, partitions: 1, tasks: 1, transaction: 100}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 1)
	bed.StartCoordinator()
	first := bed.StartRunner("first", nil)
	bed.Create("numbers", load.config())
	bed.AwaitState(time.Minute, "numbers", "RUNNING")
	bed.StartRunner("second", nil)
	tidy := withoutOpenFiles(t, first)
	running, err := process.Below(bed.Plugins)
	if err != nil || len(running) == 0 {
		t.Fatalf("plugin processes %v: %v", running, err)
	}
	for _, pid := range running {
		_ = unix.Kill(pid, unix.SIGKILL) // it may be gone
	}
	harness.Wait(t, time.Minute, "the second runner has the task", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err == nil && (len(c.GetTasks()) != 1 || c.GetTasks()[0].GetRunner() != "second" || c.GetTasks()[0].GetState() != "RUNNING") {
			err = fmt.Errorf("%s %v", c.GetMessage(), c.GetTasks())
		}
		return err
	})
	if said := describe(bed, "numbers"); !strings.Contains(said, "open files") {
		t.Errorf("describe doesn't say why:\n%s", said)
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	tidy()
	bed.StopAll()
}

// withoutOpenFiles takes a process the right to open files; what is open stays open. The result gives it back, since it needs some to tidy up.
func withoutOpenFiles(t *testing.T, p *process.Process) (undo func()) {
	t.Helper()
	var usual unix.Rlimit
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, nil, &usual); err != nil {
		t.Fatal(err)
	}
	none := unix.Rlimit{Cur: 8, Max: usual.Max}
	if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &none, nil); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Prlimit(p.PID(), unix.RLIMIT_NOFILE, &usual, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// TestPlanMovesWhereItsHostCanNotRunIt: a connector can be created, planned and run although the runner that comes first can't start its plugin; nobody has to do anything.
func TestPlanMovesWhereItsHostCanNotRunIt(t *testing.T) {
	bed := harness.New(t, "planhost", harness.Kfake(t))
	load := numbers{topic: "planhost.numbers", count: 1000, partitions: 1, tasks: 1, transaction: 100}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 1)
	bed.StartCoordinator()
	first := bed.StartRunner("first", nil)
	bed.StartRunner("second", nil)
	tidy := withoutOpenFiles(t, first)
	bed.Create("numbers", load.config()) // asks a runner whether the configuration is right
	harness.Wait(t, time.Minute, "the second runner has plan and task", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err == nil && (len(c.GetTasks()) != 1 || c.GetTasks()[0].GetRunner() != "second" || c.GetTasks()[0].GetState() != "RUNNING") {
			err = fmt.Errorf("%s %v", c.GetMessage(), c.GetTasks())
		}
		return err
	})
	if said := describe(bed, "numbers"); !strings.Contains(said, "plan given back by first") || !strings.Contains(said, "open files") {
		t.Errorf("describe doesn't say why:\n%s", said)
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	tidy()
	bed.StopAll()
}
