package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestClockOfTheBrokerMayJump: the broker's wall clock is what transactions expire by, and ids that nobody uses. Two hours ahead at once, everything that is open has expired, and the coordinator's own id is forgotten; two hours back, Kafka
// refuses the time of this host. Nothing is lost or doubled, and everything goes on by itself.
func TestClockOfTheBrokerMayJump(t *testing.T) {
	t.Parallel()
	clock, err := kafka.NewClock(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	broker := harness.OwnKafka(t, kafka.Options{Clock: clock, Properties: map[string]string{
		"transactional.id.expiration.ms": "3600000", "transaction.remove.expired.transaction.cleanup.interval.ms": "500",
		"producer.id.expiration.ms": "3600000", "producer.id.expiration.check.interval.ms": "500",
	}})
	s := scene.New(harness.New(t, "clock", broker.Addr), 2)
	s.Runner("a", nil)
	busy := s.Numbers("busy", 2, 50)
	open := s.Numbers("open", 1, 50, "transaction.boundary", "interval", "transaction.boundary.interval.ms", "4000")
	all := []*scene.Watched{busy, open}
	jump := func(ahead time.Duration) time.Time {
		t.Helper()
		if err := clock.Set(ahead); err != nil {
			t.Fatal(err)
		}
		return time.Now()
	}
	flow := func(since time.Time) {
		t.Helper()
		for _, w := range all {
			w.Flows(since)
		}
	}

	term := func() (term uint64) {
		t.Helper()
		harness.Wait(t, scene.Patience, "a coordinator leads", func(ctx context.Context) error {
			cluster, err := s.Control().GetCluster(ctx, &controlv1.GetClusterRequest{})
			if term = cluster.GetTerm(); err == nil && !cluster.GetLeading() {
				err = errors.New("none does")
			}
			return err
		})
		return term
	}

	jump(-2 * time.Hour)
	harness.Wait(t, scene.Patience, "no task has failed, and one says that the clocks differ", func(context.Context) error {
		said := errors.New("none says so")
		for _, w := range all {
			for _, task := range w.State().GetTasks() {
				switch {
				case task.GetState() == "FAILED":
					return harness.Final(fmt.Errorf("%v", task))
				case task.GetCause() == "clock":
					said = nil
				}
			}
		}
		return said
	})
	flow(jump(0))

	before, commits := term(), open.State().GetTasks()[0].GetCommits()
	harness.Wait(t, scene.Patience, "a transaction has just begun", func(context.Context) error {
		if now := open.State().GetTasks()[0].GetCommits(); now == commits {
			return fmt.Errorf("%d commits", now)
		}
		return nil
	})
	rewinds := rewindsOf(open)
	counts := func(context.Context) error {
		if now := term(); now == before || rewindsOf(open) == rewinds {
			return fmt.Errorf("term %d; %d rewinds", now, rewindsOf(open))
		}
		return nil
	}
	// A leader that writes between the jump and the broker's next look at its ids keeps the log's.
	const most = 6
	for n := 1; ; n++ {
		flow(jump(time.Duration(n) * 2 * time.Hour))
		err := harness.Poll(t.Context(), 10*time.Second, counts)
		if err == nil {
			break
		}
		if n == most {
			t.Fatalf("of %d jumps none counts: the log's id is forgotten, and a transaction was aborted: %v", most, err)
		}
	}
	for _, w := range all {
		t.Logf("%s: %d rewinds", w.Name, rewindsOf(w))
		w.Exact()
	}
	s.StopAll()
}

// rewindsOf counts a connector's rewinds.
func rewindsOf(w *scene.Watched) uint64 {
	all := uint64(0)
	for _, task := range w.State().GetTasks() {
		for _, n := range task.GetRewinds() {
			all += n
		}
	}
	return all
}
