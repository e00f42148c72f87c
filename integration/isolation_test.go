package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// shortLease is the lease of the tests that wait for it to run out.
const shortLease = "2s"

// island is a runner a whose ways to coordinator and broker can be cut, and a connector that has its tasks there; runner b stands by.
type island struct {
	*scene.Scene
	*scene.Watched
	kafka *proxy.Proxy
}

func newIsland(t *testing.T, broker *harness.Links, i int) *island {
	t.Helper()
	s := scene.NewWithWays(harness.New(t, fmt.Sprintf("island-%d", i), broker.Addr), 1, "--lease-ttl", shortLease)
	s.RunnerAt(s.Way(s.Coordinator), broker.Links[i].Addr(), "a", nil)
	w := s.Numbers("numbers", 3, 50)
	s.Runner("b", nil)
	return &island{s, w, broker.Links[i]}
}

// TestIsolationOfARunner: a runner that is stopped, or cut off from the coordinator, the broker or both, loses its tasks to another one when its lease has run out. When it is back it does no harm, and everything that it and
// its successor wrote is exact.
func TestIsolationOfARunner(t *testing.T) {
	cases := []struct {
		name      string
		cut, heal func(*island)
	}{
		{"stopped",
			func(i *island) { i.signal(syscall.SIGSTOP) },
			func(i *island) { i.signal(syscall.SIGCONT) }},
		{"cut off from the coordinator",
			func(i *island) { i.SetWays(proxy.Swallow) },
			func(i *island) { i.SetWays(proxy.Pass) }},
		{"cut off from both",
			func(i *island) { i.SetWays(proxy.Swallow); harness.Cut(i.T, i.kafka, proxy.Swallow) },
			func(i *island) { i.SetWays(proxy.Pass); harness.Cut(i.T, i.kafka, proxy.Pass) }},
		{"refused by both",
			func(i *island) { i.SetWays(proxy.Refuse); harness.Cut(i.T, i.kafka, proxy.Refuse) },
			func(i *island) { i.SetWays(proxy.Pass); harness.Cut(i.T, i.kafka, proxy.Pass) }},
	}
	broker := harness.LinkedKafka(t, len(cases)+1)
	for n, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			i := newIsland(t, broker, n)
			lost := i.Tasks("a")
			since := time.Now()
			tc.cut(i)
			moved := i.movedTo(t, "b", lost)
			t.Logf("the tasks were elsewhere after %s", moved.Sub(since))
			tc.heal(i)
			reconnected(t, i.Scene, "a", "b")
			i.Flows(time.Now())
			i.Exact()
			i.StopAll()
		})
	}
	t.Run("cut off from the broker", func(t *testing.T) {
		t.Parallel()
		fromTheBroker(t, newIsland(t, broker, len(cases)))
	})
}

// fromTheBroker: a runner that the coordinator hears and the broker doesn't holds its lease for ever. It says itself that its host is to blame, and its tasks go on elsewhere.
func fromTheBroker(t *testing.T, i *island) {
	lost := i.Tasks("a")
	since := time.Now()
	harness.Cut(t, i.kafka, proxy.Swallow)
	moved := i.movedTo(t, "b", lost)
	t.Logf("the tasks were elsewhere after %s", moved.Sub(since))
	if said := describe(i.Bed, i.Name); !strings.Contains(said, "no broker answers this host") {
		t.Errorf("describe doesn't say why:\n%s", said)
	}
	harness.Cut(t, i.kafka, proxy.Pass)
	i.Flows(time.Now())
	i.Exact()
	i.StopAll()
}

// TestIsolationOfTheLeader: a leader that is cut off from Kafka, or from the runners, changes nothing that it has no right to, and data goes on.
func TestIsolationOfTheLeader(t *testing.T) {
	t.Run("from Kafka", func(t *testing.T) {
		t.Parallel()
		broker := harness.LinkedKafka(t, 1)
		bed := harness.New(t, "cut-leader", broker.Links[0].Addr())
		s := scene.New(bed, 1)
		s.Admin, bed.Bootstrap = broker.Addr, broker.Addr
		deposed := s.Coordinator
		s.Coordinate()
		s.Runner("a", nil)
		s.Runner("b", nil)
		w := s.Numbers("numbers", 4, 50)
		generation := w.State().GetGeneration()
		since := time.Now()
		harness.Cut(t, broker.Links[0], proxy.Swallow)
		s.AwaitOther(scene.Patience, deposed)
		t.Logf("another coordinator leads after %s", time.Since(since))
		// What the deposed one is asked it refuses, or doesn't answer; what the new one is asked is done.
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		_, err := s.At(deposed).StopConnector(ctx, &controlv1.StopConnectorRequest{Name: w.Name})
		cancel()
		if err == nil {
			t.Error("the deposed leader stopped the connector")
		}
		reconnected(t, s, "a", "b")
		w.Flows(time.Now())
		harness.Cut(t, broker.Links[0], proxy.Pass)
		harness.Wait(t, scene.Patience, "the deposed leader knows that it doesn't lead", func(ctx context.Context) error {
			c, err := s.At(deposed).GetCluster(ctx, &controlv1.GetClusterRequest{})
			if err == nil && c.GetLeading() {
				err = errors.New("it says that it leads")
			}
			return err
		})
		w.Flows(time.Now())
		if now := w.State(); now.GetGeneration() != generation || now.GetTarget() != controlv1.TargetState_TARGET_STATE_RUNNING {
			t.Errorf("generation %d became %d, the target %v", generation, now.GetGeneration(), now.GetTarget())
		}
		w.Exact()
		s.StopAll()
	})
	t.Run("from the runners", func(t *testing.T) {
		t.Parallel()
		s := scene.NewWithWays(harness.New(t, "cut-runners", harness.Kafka(t)), 1, "--lease-ttl", shortLease)
		for _, name := range []string{"a", "b"} {
			s.RunnerAt(s.Way(s.Coordinator), s.Bootstrap, name, nil)
		}
		w := s.Numbers("numbers", 4, 50)
		s.SetWays(proxy.Swallow)
		harness.Wait(t, scene.Patience, "every lease has run out", func(context.Context) error {
			for _, task := range w.State().GetTasks() {
				if task.GetRunner() != "" {
					return fmt.Errorf("task %d is held by %s", task.GetTask(), task.GetRunner())
				}
			}
			return nil
		})
		s.SetWays(proxy.Pass)
		reconnected(t, s, "a", "b")
		w.Flows(time.Now())
		w.Exact()
		s.StopAll()
	})
}

func (i *island) signal(signal syscall.Signal) {
	i.T.Helper()
	if err := i.Runners["a"].Signal(signal); err != nil {
		i.T.Fatal(err)
	}
}

// movedTo waits until each of the source partitions' tasks is a runner's and delivers there, and says when that was.
func (i *island) movedTo(t *testing.T, runner string, partitions []string) time.Time {
	t.Helper()
	i.OnEach(scene.Patience, runner)
	at := time.Now()
	i.Await(at, partitions, reader.MadeAfter(at))
	return at
}
