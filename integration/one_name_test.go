package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// TestTwoClustersOfOneNameAreOne: two teams put coordinators on one Kafka under one name, and neither knows of the other's address. The second coordinator finds the first one's log, and waits: there is one cluster, whose connectors both
// see. Whoever knows the second address alone is led to the first one; a connector of the second team's whose name is taken is refused and changes nothing, another one runs, and the first team's tasks are not disturbed, also when the lead
// changes hands.
func TestTwoClustersOfOneNameAreOne(t *testing.T) {
	t.Parallel()
	s := scene.New(harness.New(t, "one-name", harness.Kfake(t)), 1)
	first := s.Coordinator
	s.Runner("first", nil, "--label", "team=first")
	ours := s.Numbers("orders", 2, 50, "placement.labels", "team=first")
	epochs, since := ours.Epochs(""), time.Now()

	second := s.Coordinate()
	s.RunnerAt(second, s.Bootstrap, "second", nil, "--label", "team=second")
	at := func(args ...string) harness.Result { return s.CLI(append(args, "--coordinator", second)...) }

	// Their tools see our connectors, and who leads.
	allThere(t, s.Bed, 2)
	if r := at("cluster"); r.Code != 0 || !strings.Contains(r.Stdout, first) || !strings.Contains(r.Stdout, second) {
		t.Errorf("cluster names %s and %s nowhere: %+v", first, second, r)
	}
	theirs := s.Prepare("invoices", 1, 50, "placement.labels", "team=second")
	taken := map[string]string{"connector.class": "generator", "topic": theirs.Config["topic"], "rate": "1"}
	if r := at("create", "-f", s.ConnectorFile("orders", taken)); r.Code != 4 || !strings.Contains(r.Stderr, "orders") {
		t.Errorf("a name that is taken: exit code %d: %s", r.Code, r.Stderr)
	}
	if c := ours.State(); c.GetConfig()["topic"] != ours.Config["topic"] || c.GetGeneration() != 1 {
		t.Errorf("the refused connector changed ours: %v", c)
	}
	if r := at("create", "-f", theirs.File()); r.Code != 0 {
		t.Fatalf("create: %s", r.Stderr)
	}
	theirs.OnEach(scene.Patience, "second")
	ours.Undisturbed(epochs, since)

	// The second team takes over, and then is alone: still one cluster, with one log.
	since = time.Now()
	s.Coordinators[first].Kill()
	s.AwaitOther(scene.Patience, first)
	for _, w := range []*scene.Watched{ours, theirs} {
		w.Flows(time.Now())
	}
	ours.Undisturbed(epochs, since)

	// What they delete and create again under our name is another life of it: our runner's tasks belong to none, and stored offsets go on.
	before := ours.State().GetIncarnation()
	for _, args := range [][]string{{"delete", "orders"}, {"create", "-f", ours.File()}} {
		if r := at(args...); r.Code != 0 {
			t.Fatalf("%v: %s", args, r.Stderr)
		}
	}
	if now := ours.State().GetIncarnation(); now == before {
		t.Errorf("incarnation %s is used again", now)
	}
	ours.Flows(time.Now())
	ours.Exact()
	theirs.Exact()
	s.StopAll()
}
