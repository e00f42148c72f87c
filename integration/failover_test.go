package integration

import (
	"context"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// newScene is a scene on the broker that the tests share.
func newScene(t *testing.T, cluster string, coordinators int, args ...string) *scene.Scene {
	t.Helper()
	return scene.New(harness.New(t, cluster, harness.Kafka(t)), coordinators, args...)
}

// spread starts two runners with a connector of so many tasks, and sees to it that each has some: one of them also holds the plan.
func spread(t *testing.T, cluster string, coordinators, tasks int) (*scene.Scene, *scene.Watched) {
	t.Helper()
	s := newScene(t, cluster, coordinators)
	s.Runner("a", nil)
	s.Runner("b", nil)
	w := s.Numbers("numbers", tasks, 50)
	for _, runner := range []string{"a", "b"} {
		if len(w.Tasks(runner)) == 0 {
			t.Fatalf("runner %s has no task", runner)
		}
	}
	return s, w
}

// TestFailoverOfARunner: whichever runner is killed, its tasks commit again on another one, and those of the others don't notice.
func TestFailoverOfARunner(t *testing.T) {
	for name, planner := range map[string]bool{"the one with the plan": true, "the one without": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster := "killed-other"
			if planner {
				cluster = "killed-planner"
			}
			s, w := spread(t, cluster, 1, 4)
			victim, other := w.Holder(planner), w.Holder(!planner)
			lost, kept := w.Tasks(victim), w.Epochs(other)
			since := time.Now()
			s.Runners[victim].Kill()
			took := w.Await(since, lost, reader.MadeAfter(since))
			t.Logf("the tasks of %s were away for %s", victim, took)
			w.Undisturbed(kept, since)
			if planner {
				harness.Wait(t, scene.Patience, "the other runner holds the plan", func(context.Context) error { return mustBe(w.State().GetPlanner(), other) })
			}
			s.Runner(victim, nil)
			w.Exact()
			s.StopAll()
		})
	}
}

// TestFailoverOfARunnerThatIsTold: SIGTERM hands the tasks over one by one; none is lost, no transaction is aborted, and those of the other runner don't notice.
func TestFailoverOfARunnerThatIsTold(t *testing.T) {
	t.Parallel()
	s, w := spread(t, "told", 1, 4)
	victim, other := w.Holder(true), w.Holder(false)
	lost, kept := w.Tasks(victim), w.Epochs(other)
	since := time.Now()
	if err := s.Runners[victim].Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	awaitEnd(t, s.Runners[victim])
	if code := s.Runners[victim].State().ExitCode(); code != 0 {
		t.Errorf("the runner ended with %v", s.Runners[victim].State())
	}
	w.OnEach(scene.Patience, other)
	for _, partition := range lost {
		t.Logf("nothing of task %s became readable for %s", partition, w.Pause(partition, since, time.Now()))
	}
	w.Undisturbed(kept, since)
	w.Exact()
	s.StopAll()
}

// TestFailoverOfTheLeader: another coordinator leads, and no task notices. Told to end, the leader hands over at once.
func TestFailoverOfTheLeader(t *testing.T) {
	for name, signal := range map[string]syscall.Signal{"killed": syscall.SIGKILL, "told": syscall.SIGTERM} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, w := spread(t, "leader-"+name, 2, 4)
			before, generation := w.Epochs(""), w.State().GetGeneration()
			since := time.Now()
			took := s.Depose(func(p *process.Process) { signalTo(t, p, signal) })
			t.Logf("nobody led for %s", took)
			reconnected(t, s, "a", "b")
			w.Flows(time.Now())
			w.Undisturbed(before, since)
			if now := w.State().GetGeneration(); now != generation {
				t.Errorf("generation %d became %d", generation, now)
			}
			w.Exact()
			s.StopAll()
		})
	}
}

// TestFailoverOfLeaderAndRunnerAtOnce: both are killed in the same moment, and what they had goes on elsewhere.
func TestFailoverOfLeaderAndRunnerAtOnce(t *testing.T) {
	t.Parallel()
	s := newScene(t, "both-killed", 2, "--lease-ttl", "3s")
	s.Runner("a", nil)
	s.Runner("b", nil)
	w := s.Numbers("numbers", 4, 50)
	victim, other := w.Holder(true), w.Holder(false)
	lost, kept := w.Tasks(victim), w.Epochs(other)
	since := time.Now()
	s.Depose(func(p *process.Process) {
		s.Runners[victim].Kill()
		p.Kill()
	})
	took := w.Await(since, lost, reader.MadeAfter(since))
	t.Logf("the tasks of %s were away for %s", victim, took)
	w.UndisturbedButHeld(kept, since, took)
	s.Runner(victim, nil)
	w.Exact()
	s.StopAll()
}

func signalTo(t *testing.T, p *process.Process, signal syscall.Signal) {
	t.Helper()
	if err := p.Signal(signal); err != nil {
		t.Fatal(err)
	}
}

// awaitEnd waits for the end of a process.
func awaitEnd(t *testing.T, p *process.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scene.Patience)
	defer cancel()
	if _, err := p.Wait(ctx); err != nil {
		t.Fatal(err)
	}
}
