//go:build faults

package task

import (
	"os"
	"path/filepath"
	"testing"
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
	for _, text := range []string{"", "X3", "X3:runner", "X3:runner:0", "X3:runner:x"} {
		if parseFault(text).fires("X3") {
			t.Errorf("%q fired", text)
		}
	}
}
