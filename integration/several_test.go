package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// ledBy waits until another coordinator than one that led says that it leads, and returns its address.
func ledBy(t *testing.T, bed *harness.Bed, not string) string {
	t.Helper()
	var leader string
	harness.Wait(t, 30*time.Second, "another one leads", func(ctx context.Context) error {
		if leader = bed.Leader(ctx); leader == "" || leader == not {
			return fmt.Errorf("%q leads", leader)
		}
		return nil
	})
	return leader
}

// allThere waits until each coordinator knows so many.
func allThere(t *testing.T, bed *harness.Bed, n int) {
	t.Helper()
	for _, address := range strings.Split(bed.Coordinator, ",") {
		harness.Wait(t, time.Minute, "the coordinator knows the others", func(ctx context.Context) error {
			cluster, err := bed.At(address).GetCluster(ctx, &controlv1.GetClusterRequest{})
			if err == nil && (len(cluster.GetCoordinators()) != n || cluster.GetLeader() == "") {
				err = fmt.Errorf("%v", cluster)
			}
			return err
		})
	}
}

// TestFailoverHandOverDisturbsNothing: leaders that are told to stop, one after the other; another one leads at once, and no task gets a new epoch or aborts anything. Requests that are under way end well, since the command line
// repeats them.
func TestFailoverHandOverDisturbsNothing(t *testing.T) {
	bed := harness.New(t, "hand-over", harness.Kafka(t))
	neighbour := startNeighbour(bed) // It knows one address.
	coordinators := map[string]*process.Process{bed.Coordinator: bed.Processes()[0]}
	p, address := bed.AddCoordinator()
	coordinators[address] = p
	var took []time.Duration
	for i := range 5 {
		allThere(t, bed, 2)
		leader := bed.Leader(t.Context())
		began := time.Now()
		if err := coordinators[leader].Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		stopped := make(chan harness.Result, 1)
		name := fmt.Sprintf("c%d", i)
		file := bed.ConnectorFile(name, endless("neighbour"))
		go func() { stopped <- bed.CLI("create", "-f", file) }()
		ledBy(t, bed, leader)
		took = append(took, time.Since(began).Round(time.Millisecond))
		if r := <-stopped; r.Code != 0 {
			t.Errorf("a create during the hand-over: exit code %d, %s", r.Code, r.Stderr)
		}
		if r := bed.CLI("delete", name); r.Code != 0 {
			t.Errorf("delete: exit code %d, %s", r.Code, r.Stderr)
		}
		<-coordinators[leader].Exited()
		bed.AwaitState(time.Minute, "neighbour", "RUNNING") // as soon as its runner has come to the new leader
		neighbour.undisturbed(t)
		coordinators[leader] = bed.RestartCoordinator(leader)
	}
	allThere(t, bed, 2)
	slices.Sort(took)
	t.Logf("another one led after %v", took)
	if took[len(took)/2] > 3*time.Second { // Under a second where nothing else runs.
		t.Errorf("hand-overs took %v", took)
	}
	bed.StopAll()
}

// TestFailoverOfTheOnlyAddressARunnerWasGiven: the others were told to it.
func TestFailoverOfTheOnlyAddressARunnerWasGiven(t *testing.T) {
	bed := harness.New(t, "one-address", harness.Kfake(t))
	neighbour := startNeighbour(bed)
	first, address := bed.Processes()[0], bed.Coordinator
	bed.AddCoordinator()
	allThere(t, bed, 2)
	began := time.Now()
	first.Kill()
	next := ledBy(t, bed, address)
	took := time.Since(began)
	t.Logf("another one led after %v", took)
	bed.Coordinator = next
	harness.Wait(t, time.Minute, "the runner is there", func(ctx context.Context) error {
		runners, err := bed.Control().ListRunners(ctx, &controlv1.ListRunnersRequest{})
		if err == nil && (len(runners.GetRunners()) != 1 || runners.GetRunners()[0].GetState() != "CONNECTED") {
			err = fmt.Errorf("%v", runners)
		}
		return err
	})
	bed.AwaitState(time.Minute, "neighbour", "RUNNING")
	neighbour.undisturbed(t)
	bed.StopAll()
}

// TestFailoverOfALeaderThatHangs: what it says when it goes on is no lie. It sends clients to the one that leads by then.
func TestFailoverOfALeaderThatHangs(t *testing.T) {
	bed := harness.New(t, "hangs", harness.Kfake(t))
	neighbour := startNeighbour(bed)
	first, address := bed.Processes()[0], bed.Coordinator
	bed.AddCoordinator()
	allThere(t, bed, 2)
	if err := first.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	next := ledBy(t, bed, address)
	bed.AwaitState(time.Minute, "neighbour", "RUNNING") // as soon as its runner has come to the new leader
	neighbour.undisturbed(t)
	if err := first.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	harness.Wait(t, 30*time.Second, "it sends clients to the next one", func(ctx context.Context) error {
		_, err := bed.At(address).ListConnectors(ctx, &controlv1.ListConnectorsRequest{})
		if err == nil {
			return harness.Final(errors.New("it answers as if it led"))
		}
		if !strings.Contains(err.Error(), next) {
			return err
		}
		return nil
	})
	neighbour.undisturbed(t)
	bed.StopAll()
}

// TestRightsTakenAwayWhileRunning from the leader, one after the other: it says which is missing and on what, damages nothing, and leads again when it is back.
func TestRightsTakenAwayWhileRunning(t *testing.T) {
	t.Parallel()
	broker := securedBroker(t)
	s := newSecured(t, broker, "taken")
	load := numbers{topic: "taken-numbers", count: 20_000, partitions: 1, tasks: 1, transaction: 100, rate: 500}
	harness.CreateTopic(t, broker.AdminAddr, load.topic, 1)
	s.change(true, rights(s.Cluster, load.topic)...)
	coordinator := s.StartCoordinator("--config", s.config("coordinator", "SCRAM-SHA-256"))
	s.StartRunner("runner", nil, "--config", s.config("runner", "PLAIN"))
	s.Create("numbers", load.config())
	s.AwaitState(time.Minute, "numbers", "RUNNING")
	for _, missing := range []struct {
		acl
		says []string
	}{
		{acl{"coordinator", topicACL, s.Cluster + ".", []kmsg.ACLOperation{write}}, []string{s.Cluster + ".config", "Write"}},
		{acl{"coordinator", topicACL, s.Cluster + ".", []kmsg.ACLOperation{read}}, []string{s.Cluster + ".config", "Read"}},
		{acl{"coordinator", groupACL, s.Cluster + ".", []kmsg.ACLOperation{read}}, []string{s.Cluster + ".coordinator", "Read"}},
		{acl{"coordinator", txnACL, "fencepost." + s.Cluster, []kmsg.ACLOperation{write}}, []string{"fencepost." + s.Cluster, "Write"}},
	} {
		s.change(false, missing.acl)
		if missing.resource == topicACL && missing.ops[0] == read { // missed only by whoever reads the log, and that is the next leader
			if err := coordinator.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			coordinator = s.RestartCoordinator(s.Coordinator, "--config", s.config("coordinator", "SCRAM-SHA-256"))
		}
		harness.Wait(t, time.Minute, "it says what is missing", func(ctx context.Context) error {
			_, err := s.Control().DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "none"}) // what needs a write
			said := warnings(coordinator)
			if err != nil {
				said += strings.ReplaceAll(err.Error(), "\n", " ")
			}
			for line := range strings.Lines(said) { // in one of them, since what was missing before stands there, too
				if !slices.ContainsFunc(missing.says, func(word string) bool { return !strings.Contains(line, word) }) {
					return nil
				}
			}
			return fmt.Errorf("no line has %q: %s", missing.says, said)
		})
		s.change(true, missing.acl)
		harness.Wait(t, time.Minute, "it leads again", func(ctx context.Context) error {
			_, err := s.Control().DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "none"})
			if err != nil && !strings.Contains(err.Error(), "there is no connector") {
				return err
			}
			return nil
		})
	}
	load.arrived(t, broker.AdminAddr)
	s.AwaitCaughtUp(time.Minute, "numbers")
	load.exact(t, broker.AdminAddr, offsetsTopic(s.Bed, "numbers"), "numbers")
	s.StopAll()
}

// TestALeaseOfASecondWorks, and a shorter one is refused at the start: a heartbeat is a fifth of it.
func TestALeaseOfASecondWorks(t *testing.T) {
	bed := harness.New(t, "short-lease", harness.Kfake(t))
	if r := bed.CLI("coordinator", "--bootstrap-servers", bed.Bootstrap, "--listen", "127.0.0.1:0", "--lease-ttl", "900ms"); r.Code != 2 || !strings.Contains(r.Stderr, "lease-ttl") || !strings.Contains(r.Stderr, "1s to 5m") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
	load := numbers{topic: "short-lease-numbers", count: 3000, partitions: 1, tasks: 1, transaction: 100, rate: 500}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 1)
	bed.StartCoordinator("--lease-ttl", "1s")
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	load.arrived(t, bed.Bootstrap)
	c := bed.AwaitCaughtUp(time.Minute, "numbers")
	if epoch := c.GetTasks()[0].GetEpoch(); epoch > 3 { // A machine that stops for a second may cost it a lease.
		t.Errorf("epoch %d: leases were lost", epoch)
	}
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// TestARunnersNameAndClusterAreItsOwn: a second runner of a name, and one of another cluster, are told so, disturb nothing, and join once that is put right.
func TestARunnersNameAndClusterAreItsOwn(t *testing.T) {
	bed := harness.New(t, "own-name", harness.Kfake(t))
	neighbour := startNeighbour(bed)
	runner := bed.Processes()[1]
	second := bed.LaunchRunner("runner", nil)
	says(t, second, "the coordinator refuses this runner")
	says(t, second, `a runner named \"runner\" is connected already`)
	other := bed.LaunchRunner("other", nil, "--cluster", "elsewhere")
	says(t, other, "the coordinator refuses this runner")
	says(t, other, `this is cluster \"own-name\", and the runner belongs to cluster \"elsewhere\"`)
	neighbour.undisturbed(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := runner.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	bed.AwaitState(time.Minute, "neighbour", "RUNNING")
	if err := other.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	bed.StopAll()
}
