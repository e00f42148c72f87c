package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// Versions, as the cluster levels that they can work at. One build pretends to be all of them.
const (
	versionOld    = "1-1"
	versionNew    = "1-2"
	versionNewer  = "2-3" // it has left level 1 behind
	versionFuture = "1-3"
)

// fleet is a cluster whose coordinators and runners are restarted in other versions.
type fleet struct {
	*harness.Bed
	t            *testing.T
	coordinators map[string]*process.Process // by address
	runners      map[string]*process.Process // by name
	load         numbers
}

// newFleet starts a cluster: as many coordinators and runners of one version, and a connector that has something to do for a while.
func newFleet(t *testing.T, name, version string, coordinators, runners int) *fleet {
	t.Helper()
	f := &fleet{
		Bed: harness.New(t, name, harness.Kfake(t)), t: t, coordinators: map[string]*process.Process{}, runners: map[string]*process.Process{},
		load: numbers{topic: name + "-numbers", count: 12_000, partitions: 2, tasks: 2, transaction: 100, rate: 200},
	}
	for range coordinators {
		f.addCoordinator(version)
	}
	f.leader()
	for i := range runners {
		f.runner(fmt.Sprintf("r%d", i+1), version)
	}
	if runners > 0 {
		harness.CreateTopic(t, f.Bootstrap, f.load.topic, 2)
		f.Create("numbers", f.load.config())
		f.AwaitState(time.Minute, "numbers", "RUNNING")
	}
	return f
}

func pretend(version string) []string { return []string{"FENCEPOST_PRETEND_LEVELS=" + version} }

func (f *fleet) addCoordinator(version string) string {
	address := harness.FreeAddress(f.t)
	f.coordinator(address, version)
	f.Coordinator = strings.TrimPrefix(f.Coordinator+","+address, ",")
	return address
}

// coordinator starts a coordinator in a version, in place of the one that is there.
func (f *fleet) coordinator(address, version string) {
	f.t.Helper()
	f.stop(f.coordinators[address])
	f.coordinators[address] = f.Start("coordinator "+version, pretend(version), "coordinator", "--cluster", f.Cluster, "--bootstrap-servers", f.Bootstrap, "--listen", address)
	harness.Wait(f.t, harness.StartTimeout, "the coordinator serves", func(ctx context.Context) error {
		_, err := f.At(address).GetCluster(ctx, &controlv1.GetClusterRequest{})
		return err
	})
}

// runner starts a runner in a version, in place of the one that is there, and waits until the leader knows it.
func (f *fleet) runner(name, version string) {
	f.t.Helper()
	f.stop(f.runners[name])
	f.runners[name] = f.StartRunner(name, pretend(version))
}

func (f *fleet) stop(p *process.Process) {
	f.t.Helper()
	if p == nil {
		return
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Minute)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		f.t.Fatal(err)
	}
}

// leader waits until somebody leads.
func (f *fleet) leader() string {
	f.t.Helper()
	var leader string
	harness.Wait(f.t, 30*time.Second, "somebody leads", func(ctx context.Context) error {
		if leader = f.Leader(ctx); leader == "" {
			return errors.New("nobody")
		}
		return nil
	})
	return leader
}

// level is the cluster's, as its leader says.
func (f *fleet) level() uint32 {
	f.t.Helper()
	cluster, err := f.At(f.leader()).GetCluster(f.t.Context(), &controlv1.GetClusterRequest{})
	if err != nil {
		f.t.Fatal(err)
	}
	return cluster.GetLevel()
}

// flows waits until more records can be read than could be before.
func (f *fleet) flows(after string) {
	f.t.Helper()
	admin := harness.Admin(f.t, f.Bootstrap)
	readable := func(ctx context.Context) (n int64, err error) {
		ends, err := admin.ListCommittedOffsets(ctx, f.load.topic)
		ends.Each(func(o kadm.ListedOffset) { n += o.Offset })
		return n, err
	}
	before, err := readable(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	if before >= int64(f.load.count) {
		f.t.Fatalf("all had arrived before %s: the load is too short", after)
	}
	harness.Wait(f.t, time.Minute, "records arrive after "+after, func(ctx context.Context) error {
		n, err := readable(ctx)
		if err == nil && n <= before {
			err = fmt.Errorf("%d, as before", n)
		}
		return err
	})
}

// says waits for a text in a process's log.
func says(t *testing.T, p *process.Process, text string) {
	t.Helper()
	harness.Wait(t, time.Minute, fmt.Sprintf("%s says %q", p.Name, text), func(context.Context) error {
		log, err := os.ReadFile(p.Log)
		if err == nil && !strings.Contains(string(log), text) {
			err = fmt.Errorf("its log ends with:\n%s", p.Tail(10))
		}
		return err
	})
}

// TestUpgradeInAnyOrder: coordinators and runners of the old and the new version work together whichever is restarted first; records go on arriving, each once; the level stays until an operator raises it.
func TestUpgradeInAnyOrder(t *testing.T) {
	for name, order := range map[string]string{"coordinators-first": "L C r1 r2", "runners-first": "r1 r2 C L", "mixed": "r1 L r2 C"} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, "upgrade-"+name, versionOld, 2, 2)
			leader := f.leader()
			for _, which := range strings.Fields(order) {
				switch which {
				case "L": // the one that led at first
					f.coordinator(leader, versionNew)
				case "C": // the other one
					for address := range f.coordinators {
						if address != leader {
							f.coordinator(address, versionNew)
							break
						}
					}
				default:
					f.runner(which, versionNew)
				}
				f.leader()
				f.flows(which + " was upgraded")
				if level := f.level(); level != 1 {
					t.Fatalf("level %d after %s was upgraded", level, which)
				}
			}
			harness.Wait(t, time.Minute, "cluster level shows what all can", func(context.Context) error {
				if said := f.MustCLI("cluster", "level"); !strings.Contains(said, "Next level:") || strings.Count(said, "1 to 2") != 4 {
					return errors.New(said)
				}
				return nil
			})
			if said := f.MustCLI("cluster", "level", "2"); !strings.Contains(said, "works at level 2") {
				t.Errorf("cluster level 2 says %s", said)
			}
			f.coordinator(f.leader(), versionNew)
			if level := f.level(); level != 2 {
				t.Errorf("level %d after a restart", level)
			}
			f.load.arrived(t, f.Bootstrap)
			f.AwaitCaughtUp(time.Minute, "numbers")
			f.load.exact(t, f.Bootstrap, offsetsTopic(f.Bed, "numbers"), "numbers")
			f.StopAll()
		})
	}
}

// TestUpgradeCanBeTakenBackBeforeTheLevelIsRaised: old versions may come back, to lead as well.
func TestUpgradeCanBeTakenBackBeforeTheLevelIsRaised(t *testing.T) {
	f := newFleet(t, "upgrade-back", versionOld, 1, 1)
	address := f.leader()
	f.coordinator(address, versionNew)
	f.leader()
	f.runner("r1", versionNew)
	f.flows("the upgrade")
	f.coordinator(address, versionOld)
	f.leader()
	f.flows("the coordinator was taken back")
	f.runner("r1", versionOld)
	f.flows("the runner was taken back")
	f.load.arrived(t, f.Bootstrap)
	f.AwaitCaughtUp(time.Minute, "numbers")
	f.load.exact(t, f.Bootstrap, offsetsTopic(f.Bed, "numbers"), "numbers")
	f.StopAll()
}

// TestUpgradeLevelIsRefusedWhileSomebodyCannot, with the names of all that stand in its way, and nothing is changed by asking.
func TestUpgradeLevelIsRefusedWhileSomebodyCannot(t *testing.T) {
	f := newFleet(t, "upgrade-refused", versionOld, 2, 2)
	leader := f.leader()
	f.coordinator(leader, versionNew) // the other one, which is old, takes over
	old := f.leader()
	if r := f.CLI("cluster", "level", "2"); r.Code != 4 || !strings.Contains(r.Stderr, "can lead at levels 1 to 1") {
		t.Errorf("an old leader: exit code %d, %s", r.Code, r.Stderr)
	}
	f.stop(f.coordinators[old])
	f.leader()
	f.coordinators[old] = nil
	f.coordinator(old, versionOld)
	f.runner("r1", versionNew)
	refused := func(want ...string) {
		t.Helper()
		r := f.CLI("cluster", "level", "2")
		for _, text := range append(want, "stays at level 1") {
			if r.Code != 4 || !strings.Contains(r.Stderr, text) {
				t.Errorf("exit code %d, %q is missing in: %s", r.Code, text, r.Stderr)
			}
		}
		if level := f.level(); level != 1 {
			t.Errorf("level %d", level)
		}
	}
	harness.Wait(t, time.Minute, "the old one waits", func(ctx context.Context) error {
		cluster, err := f.At(leader).GetCluster(ctx, &controlv1.GetClusterRequest{})
		if err == nil && len(cluster.GetCoordinators()) != 2 {
			err = fmt.Errorf("coordinators: %v", cluster.GetCoordinators())
		}
		return err
	})
	refused(old, `runner "r2"`)
	f.coordinator(old, versionNew)
	refused(`runner "r2"`)
	f.runner("r2", versionNew)
	f.MustCLI("cluster", "level", "2")
	f.flows("the level was raised")
	f.StopAll()
}

// TestUpgradeDowngradeIsRefusedAfterTheRaise: an old coordinator leaves the election to others and says why, an old runner isn't let in; nothing is damaged, and the new version goes on.
func TestUpgradeDowngradeIsRefusedAfterTheRaise(t *testing.T) {
	f := newFleet(t, "upgrade-down", versionNew, 1, 1) // A new cluster begins at the highest level of its leader.
	if level := f.level(); level != 2 {
		t.Fatalf("level %d", level)
	}
	if r := f.CLI("cluster", "level", "1"); r.Code != 4 || !strings.Contains(r.Stderr, "can't go back") {
		t.Errorf("exit code %d, %s", r.Code, r.Stderr)
	}
	second := f.addCoordinator(versionOld)
	says(t, f.coordinators[second], "can't lead; another coordinator may")
	says(t, f.coordinators[second], "works at level 2, this version knows 1 to 1")
	if cluster, err := f.At(second).GetCluster(t.Context(), &controlv1.GetClusterRequest{}); err != nil || !strings.Contains(cluster.GetTrouble(), "level 2") || cluster.GetLeading() || cluster.GetLeader() == "" {
		t.Errorf("%v, %v", cluster, err)
	}
	old := f.LaunchRunner("old", pretend(versionOld))
	says(t, old, "the coordinator refuses this runner")
	says(t, old, "works at level 2, and the runner")
	f.stop(old)
	f.flows("old versions came")

	first := slices.DeleteFunc(strings.Split(f.Coordinator, ","), func(a string) bool { return a == second })[0]
	f.stop(f.coordinators[first])
	f.coordinators[first] = nil
	if r := f.CLI("get", "--timeout", "3s"); r.Code != 5 || !strings.Contains(r.Stderr, "level 2") {
		t.Errorf("only an old one is left: exit code %d, %s", r.Code, r.Stderr)
	}
	if said := f.MustCLI("cluster", "--coordinator", second); !strings.Contains(said, "Trouble:") || !strings.Contains(said, "level 2") {
		t.Errorf("cluster says:\n%s", said)
	}
	f.flows("nobody leads") // Tasks need no leader.
	f.coordinator(first, versionNew)
	f.leader()
	f.load.arrived(t, f.Bootstrap)
	f.AwaitCaughtUp(time.Minute, "numbers")
	f.load.exact(t, f.Bootstrap, offsetsTopic(f.Bed, "numbers"), "numbers")
	f.StopAll()
}

// TestUpgradeALogOfAFutureVersionIsLeftAlone: not a record is written by a coordinator that can't understand it, and one that needs a higher level than the log's says how to get there.
func TestUpgradeALogOfAFutureVersionIsLeftAlone(t *testing.T) {
	f := newFleet(t, "upgrade-future", versionFuture, 1, 0)
	address := f.leader()
	f.stop(f.coordinators[address])
	end := func() int64 {
		t.Helper()
		ends, err := harness.Admin(t, f.Bootstrap).ListEndOffsets(t.Context(), f.Cluster+".config")
		if err != nil {
			t.Fatal(err)
		}
		o, _ := ends.Lookup(f.Cluster+".config", 0)
		return o.Offset
	}
	before := end()
	f.coordinators[address] = nil
	f.coordinator(address, versionNew)
	says(t, f.coordinators[address], "works at level 3, this version knows 1 to 2")
	if after := end(); after != before {
		t.Errorf("the log has grown from %d to %d", before, after)
	}
	f.coordinator(address, versionNewer)
	if f.leader() != address || f.level() != 3 {
		t.Error("a version that knows the level doesn't lead")
	}
	f.StopAll()

	g := newFleet(t, "upgrade-skipped", versionOld, 1, 0)
	address = g.leader()
	g.coordinator(address, versionNewer)
	says(t, g.coordinators[address], "this version needs at least 2: raise the level with the version before this one, by `fencepost cluster level 2`")
	g.coordinator(address, versionNew)
	g.leader()
	g.MustCLI("cluster", "level", "2")
	g.coordinator(address, versionNewer)
	if g.leader() != address || g.level() != 2 {
		t.Error("it doesn't lead at level 2")
	}
	g.MustCLI("cluster", "level", "3")
	g.StopAll()
}
