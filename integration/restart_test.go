package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestRestartsLeaveNothingBehind: each life of a task has a producer, a consumer and a plugin process of its own, and after two hundred of them the runner is as it was.
func TestRestartsLeaveNothingBehind(t *testing.T) {
	const warm, restarts = 20, 200
	bed := harness.New(t, "restarts", harness.Kfake(t))
	harness.CreateTopic(t, bed.Bootstrap, "restarts.numbers", 1)
	bed.StartCoordinator()
	runner := bed.StartRunner("runner", nil)
	bed.Create("numbers", endless("restarts.numbers"))
	epoch := uint64(0)
	again := func(n int) usage {
		for range n {
			harness.Wait(t, time.Minute, "the next life delivers", func(ctx context.Context) error {
				c, err := bed.Connector(ctx, "numbers")
				if err != nil {
					return err
				}
				if len(c.GetTasks()) != 1 {
					return errors.New(c.GetMessage())
				}
				if task := c.GetTasks()[0]; task.GetState() != "RUNNING" || task.GetEpoch() <= epoch || task.GetCommits() == 0 {
					return fmt.Errorf("%v", task)
				}
				epoch = c.GetTasks()[0].GetEpoch()
				return nil
			})
			if _, err := bed.Control().RestartConnector(t.Context(), &controlv1.RestartConnectorRequest{Name: "numbers"}); err != nil {
				t.Fatal(err)
			}
		}
		return used(t, runner.PID())
	}
	before := again(warm)
	after := again(restarts)
	t.Logf("before %+v, after %d restarts %+v", before, restarts, after)
	if after.rss-before.rss > 50<<20 {
		t.Errorf("%d MiB more memory", (after.rss-before.rss)>>20)
	}
	if after.files > before.files+5 {
		t.Errorf("%d open files became %d", before.files, after.files)
	}
	if after.threads > before.threads+10 { // those of Go's scheduler come and go
		t.Errorf("%d threads became %d", before.threads, after.threads)
	}
	bed.StopAll()
}

// usage is what a process takes.
type usage struct {
	rss            int64
	files, threads int
}

// used waits for a moment in which nothing starts or ends: the least of some looks counts.
func used(t *testing.T, pid int) usage {
	t.Helper()
	least := usage{rss: 1 << 62, files: 1 << 30, threads: 1 << 30}
	for range 20 {
		rss, err := process.RSS(pid)
		if err != nil {
			t.Fatal(err)
		}
		threads, err := process.Threads(pid)
		if err != nil {
			t.Fatal(err)
		}
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			t.Fatal(err)
		}
		least = usage{min(least.rss, rss), min(least.files, len(files)), min(least.threads, threads)}
		<-time.After(50 * time.Millisecond)
	}
	return least
}
