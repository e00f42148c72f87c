package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

// points are the steps of one cycle of a task, in order.
var points = []string{
	"X0", // records received, before begin
	"X1", // after begin, before the first record is produced
	"X2", // some records produced
	"X3", // all records produced, the offsets not yet
	"X4", // the offsets produced, before commit
	"X5", // commit sent, its answer lost
	"X6", // commit returned, before the plugin is told
	"X7", // the plugin told
}

// crashAt is how often a point is passed before it strikes: by then transactions have been committed.
const crashAt = 4

// fault is the environment that makes a runner kill itself, or its plugin, at a point. The mark is made right before; where it is there already nothing strikes.
func fault(point, victim, mark string) []string {
	return []string{fmt.Sprintf("FENCEPOST_FAULT=%s:%s:%d", point, victim, crashAt), "FENCEPOST_FAULT_MARK=" + mark}
}

// TestCrash kills a runner, and a plugin, with kill -9 at each point of a cycle, on kfake and on a real broker. A read_committed reader sees every record once and in order, and the stored
// offset is the last readable one's.
func TestCrash(t *testing.T) {
	for _, broker := range []struct {
		name  string
		start func(harness.T) string
	}{{"kfake", harness.Kfake}, {"kafka", harness.Kafka}} {
		t.Run(broker.name, func(t *testing.T) {
			bootstrap := broker.start(t)
			for _, victim := range []string{"runner", "plugin"} {
				for _, point := range points {
					t.Run(victim+"/"+point, func(t *testing.T) { crash(t, bootstrap, victim, point) })
				}
			}
		})
	}
}

func crash(t *testing.T, bootstrap, victim, point string) {
	name := fmt.Sprintf("crash-%s-%s", victim, point[1:])
	bed := harness.New(t, name, bootstrap)
	load := numbers{topic: name + ".numbers", count: 20_000, partitions: 4, tasks: 2, transaction: 500}
	harness.CreateTopic(t, bootstrap, load.topic, 3)
	bed.StartCoordinator()
	mark := filepath.Join(t.TempDir(), "mark")
	first := bed.StartRunner("runner", fault(point, victim, mark))
	bed.Create("numbers", load.config())

	harness.Wait(t, time.Minute, "the fault strikes", func(context.Context) error {
		if !harness.Exists(mark) {
			return errors.New(describe(bed, "numbers"))
		}
		return nil
	})
	if victim == "runner" {
		awaitKilled(t, first)
		bed.StartRunner("runner", nil)
	}
	bed.AwaitCaughtUp(time.Minute, "numbers")
	if victim == "plugin" && !first.Running() {
		t.Errorf("the runner ended with its plugin: %v", first.State())
	}
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

func awaitKilled(t *testing.T, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if p.KilledBy() != syscall.SIGKILL {
		t.Fatalf("%s ended with %v, and not by kill -9", p.Name, p.State())
	}
}

// TestCrashDev kills `dev --data-dir`, with everything in it but the plugins, at each point, and starts it again on the same folder.
func TestCrashDev(t *testing.T) {
	for _, point := range points {
		t.Run(point, func(t *testing.T) {
			bed := harness.New(t, "crash-dev-"+point[1:], "")
			load := numbers{topic: "numbers", count: 20_000, partitions: 4, tasks: 2, transaction: 500}
			data, mark := filepath.Join(t.TempDir(), "data"), filepath.Join(t.TempDir(), "mark")
			bed.Bootstrap, bed.Coordinator = harness.FreeAddress(t), harness.FreeAddress(t)
			args := []string{
				"dev", "-f", bed.ConnectorFile("numbers", load.config()), "--plugin-path", bed.Plugins, "--cluster", bed.Cluster,
				"--data-dir", data, "--kafka-listen", bed.Bootstrap, "--listen", bed.Coordinator, "--log-level", "info",
			}
			first := bed.Start("dev", fault(point, "runner", mark), args...)
			harness.Wait(t, time.Minute, "the fault strikes", func(context.Context) error {
				if !first.Running() && !harness.Exists(mark) {
					return harness.Final(fmt.Errorf("dev ended: %v", first.State()))
				}
				_, err := os.Stat(mark)
				return err
			})
			awaitKilled(t, first)
			bed.Start("dev again", nil, args...)
			bed.AwaitCaughtUp(time.Minute, "numbers")
			load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
			bed.StopDev()
		})
	}
}
