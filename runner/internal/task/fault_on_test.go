//go:build faults

package task

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestAFaultFiresOnceAtItsPassing(t *testing.T) {
	mark := filepath.Join(t.TempDir(), "mark")
	t.Setenv("FENCEPOST_FAULT_MARK", mark)
	f := parseFault("X3:runner:2")
	if f.fires("X2") || f.fires("X3") {
		t.Fatal("it fired too early")
	}
	if !f.fires("X3") || f.fires("X3") {
		t.Fatal("it did not fire at the second passing alone")
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error(err)
	}
	// The next process of the same test finds the mark.
	if parseFault("X3:runner:1").fires("X3") {
		t.Error("it fired again")
	}
}

func TestWhatIsNoFaultDoesNothing(t *testing.T) {
	t.Setenv("FENCEPOST_FAULT_MARK", filepath.Join(t.TempDir(), "mark"))
	for _, text := range []string{"", "X3", "X3:runner", "X3:runner:0", "X3:runner:x", "X3:runner:1:1", "X3:wait:1:0"} {
		if faults := parseFaults(text); faults != nil {
			t.Errorf("%q is a fault: %v", text, faults[0])
		}
	}
}

func TestTasksWaitAtTheirPointsUntilTheGateIsOpen(t *testing.T) {
	dir := t.TempDir()
	mark, gate := filepath.Join(dir, "mark"), filepath.Join(dir, "gate")
	t.Setenv("FENCEPOST_FAULT_MARK", mark)
	t.Setenv("FENCEPOST_FAULT_GATE", gate)
	faults := parseFaults("S2:wait:1:2,X0:wait:2")
	if len(faults) != 2 || faults[0].fires("S2") || faults[0].holds("X0") {
		t.Fatal("what waits kills nobody, and waits only at its point")
	}
	for i, want := range []bool{true, true, false} {
		if got := faults[0].holds("S2"); got != want {
			t.Errorf("passing %d of a point with room for two: %v", i+1, got)
		}
	}
	for i, want := range []bool{false, true, true} {
		if got := faults[1].holds("X0"); got != want {
			t.Errorf("passing %d of a point that holds from the second on: %v", i+1, got)
		}
	}
	held := make(chan struct{})
	go func() {
		defer close(held)
		faults[1].hold()
	}()
	select {
	case <-held:
		t.Fatal("it did not wait")
	case <-time.After(10 * gateEvery):
	}
	if err := os.WriteFile(gate, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	<-held
	if text, err := os.ReadFile(mark); err != nil || string(text) != "X0\n" {
		t.Errorf("the mark is %q, %v", text, err)
	}
	if faults[1].holds("X0") {
		t.Error("it waits after the gate is open")
	}
}
