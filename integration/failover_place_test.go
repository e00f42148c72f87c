package integration

import (
	"os"
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
	dir := t.TempDir()
	mark, gate := filepath.Join(dir, "mark"), filepath.Join(dir, "gate")
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s.Runner("a", []string{"FENCEPOST_FAULT=X4:wait:1", "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + gate}, "--label", "disk=fast")
	shared := s.Cluster + ".shared-offsets"
	ten := s.Numbers("ten", bound, 20, "offsets.storage.topic", shared, "placement.labels", "disk=fast")
	forty := s.Numbers("forty", rest, 20, "offsets.storage.topic", shared)
	// All of them run: now each waits at its next passing, with its transaction open.
	if err := os.Remove(gate); err != nil {
		t.Fatal(err)
	}
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
