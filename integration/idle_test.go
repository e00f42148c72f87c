package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/proxy"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestIsolationFromTheCoordinatorFreesAnIdleSource: a runner that is cut off from the coordinator alone can still publish, so that its idle task would hold on to its source for ever. It asks Kafka whether the task is
// still its own, and lets go when it isn't. The source is a lock that one reader at a time may have.
func TestIsolationFromTheCoordinatorFreesAnIdleSource(t *testing.T) {
	for _, mode := range []string{"lock", "lock-silent"} { // one has stored offsets, the other none
		for _, cut := range []proxy.Mode{proxy.Swallow, proxy.Refuse} {
			t.Run(fmt.Sprintf("%s/%s", mode, cut), func(t *testing.T) { freesAnIdleSource(t, mode, cut) })
		}
	}
}

func freesAnIdleSource(t *testing.T, mode string, cut proxy.Mode) {
	const lease = 3 * time.Second
	bed := harness.New(t, fmt.Sprintf("idle-%s-%s", mode, cut), harness.Kafka(t))
	rogue(bed, mode)
	topic := bed.Cluster
	lock := filepath.Join(t.TempDir(), "lock")
	harness.CreateTopic(t, bed.Bootstrap, topic, 1)
	network := bed.StartCoordinatorBehind("--lease-ttl", lease.String())
	first := bed.StartRunnerThrough(network, "first", nil)
	bed.Create(topic, map[string]string{"connector.class": "rogue-" + mode, "topic": topic, "lock": lock})
	held := awaitLock(t, lock, 1)
	if mode == "lock" {
		awaitRecords(bed, topic, 100)
	}
	bed.StartRunner("second", nil)

	harness.Cut(t, network, cut)
	began := time.Now()
	successor := awaitLock(t, lock, 2)
	took := time.Since(began)
	harness.Wait(t, time.Minute, "the second runner has the task", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, topic)
		if err == nil && (len(c.GetTasks()) != 1 || c.GetTasks()[0].GetRunner() != "second" || c.GetTasks()[0].GetState() != "RUNNING") {
			err = fmt.Errorf("%v", c.GetTasks())
		}
		return err
	})
	t.Logf("the successor had the source %s after the cut, with a lease of %s", took.Round(time.Millisecond), lease)
	if took > 3*(lease+5*time.Second) {
		t.Errorf("that is much more than a lease and 5 s")
	}
	if held == successor {
		t.Errorf("process %s has it still", held)
	}
	if !first.Running() {
		t.Errorf("the runner ended with its task: %v", first.State())
	}

	harness.Cut(t, network, proxy.Pass)
	harness.Wait(t, time.Minute, "the first runner is back", func(ctx context.Context) error { return connected(ctx, bed, "first") })
	processes := 1
	if c, err := bed.Connector(t.Context(), topic); err != nil || c.GetPlanner() == "first" {
		processes = 2 // it may hold the plan
	}
	bed.PluginProcesses(30*time.Second, processes)
	checkLock(t, lock, successor)
	want := 100
	if mode == "lock-silent" {
		want = 0
	}
	checkPrefix(t, bed, topic, want)
	bed.StopAll()
}

// awaitLock waits until a lock was taken for the nth time, and returns by whom.
func awaitLock(t *testing.T, path string, n int) (pid string) {
	t.Helper()
	harness.Wait(t, time.Minute, fmt.Sprintf("the source is taken for time %d", n), func(context.Context) error {
		taken := 0
		for _, line := range lockLines(path) {
			if who, ok := strings.CutPrefix(line, "got "); ok {
				if taken++; taken == n {
					pid = who
					return nil
				}
			}
		}
		return errors.New(strings.Join(lockLines(path), ", "))
	})
	return pid
}

// checkLock checks that nobody took a lock before the one before had left it, and who has it at last.
func checkLock(t *testing.T, path, last string) {
	t.Helper()
	holder := ""
	for _, line := range lockLines(path) {
		what, who, _ := strings.Cut(line, " ")
		switch {
		case what == "got" && holder != "":
			t.Errorf("%s took the source while %s had it", who, holder)
		case what == "got":
			holder = who
		case who == holder:
			holder = ""
		}
	}
	if holder != last {
		t.Errorf("%s has the source at last, want %s: %v", holder, last, lockLines(path))
	}
}

func lockLines(path string) []string {
	b, _ := os.ReadFile(path) // one that isn't there yet is empty
	return strings.Split(strings.TrimSpace(string(b)), "\n")
}

// connected says why a runner isn't connected.
func connected(ctx context.Context, bed *harness.Bed, name string) error {
	runners, err := bed.Control().ListRunners(ctx, &controlv1.ListRunnersRequest{})
	if err != nil {
		return err
	}
	for _, r := range runners.GetRunners() {
		if r.GetName() == name && r.GetState() == "CONNECTED" {
			return nil
		}
	}
	return fmt.Errorf("runners: %v", runners.GetRunners())
}
