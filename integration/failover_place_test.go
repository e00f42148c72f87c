package integration

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// TestFailoverPlacesTheRest: fifty tasks are killed between their offsets and their commit, and ten of them fit on no other runner. The forty others commit again all the same, although the transactions of the ten are open
// on the offsets topic that all share.
func TestFailoverPlacesTheRest(t *testing.T) {
	t.Parallel()
	const bound, rest = 10, 40
	s := newScene(t, "place-rest", 1)
	mark := filepath.Join(t.TempDir(), "mark")
	s.Runner("a", []string{"FENCEPOST_FAULT=X4:wait:100", "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + mark + ".never"}, "--label", "disk=fast")
	shared := s.Cluster + ".shared-offsets"
	ten := s.Prepare("ten", bound, 20, "offsets.storage.topic", shared, "placement.labels", "disk=fast")
	forty := s.Prepare("forty", rest, 20, "offsets.storage.topic", shared)
	s.Create(ten.Name, ten.Config)
	s.Create(forty.Name, forty.Config)
	awaitLines(t, mark, bound+rest)
	s.Runner("b", nil)
	since := time.Now()
	s.Runners["a"].Kill()
	took := forty.Await(since, scene.Partitions(rest), reader.MadeAfter(since))
	t.Logf("the forty were away for %s", took)
	if c := ten.State(); c.GetState() != "UNASSIGNED" {
		t.Errorf("the ten are %s: %s", c.GetState(), c.GetMessage())
	}
	s.Runner("a", nil, "--label", "disk=fast")
	ten.Flows(time.Now())
	forty.Exact()
	ten.Exact()
	s.StopAll()
}
