package numbers

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/fencepost-io/fencepost/sdk/go/source"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

// TestAForgetfulSourceMakesNothingTwice: it is exact through crashes like every other, since it is told of nothing too early; and what it was told is gone for good.
func TestAForgetfulSourceMakesNothingTwice(t *testing.T) {
	want := []string{"0:1", "0:2", "0:3", "0:4", "0:5", "0:6", "0:7"}
	cfg := config(map[string]string{"count": "7", "batch.records": "2", "forget.dir": t.TempDir()})
	r := sourcetest.New(t, cfg)
	task := r.Start(r.Plan(1)[0])
	sourcetest.CheckExact(t, "forgetful", sourcetest.Values(task.WaitIdle()), want)
	task.Stop()
}

func TestWhatIsForgottenIsNotMadeAgain(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "0"), []byte("5"), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg := config(map[string]string{"count": "7", "forget.dir": dir})
	cfg.Stored = []source.PartitionOffset{{Partition: source.JSON(`{"generator":"0"}`), Offset: source.JSON(`{"n":3}`)}}
	r := sourcetest.New(t, cfg)
	task := r.Start(r.Plan(1)[0])
	sourcetest.CheckExact(t, "forgotten", sourcetest.Values(task.WaitIdle()), []string{"0:6", "0:7"})
	task.Stop()
}

func TestForgettingNeverGoesBack(t *testing.T) {
	f := &forgetful{dir: t.TempDir()}
	const p = `{"generator":"0"}`
	for _, n := range []int64{3, 7, 5} {
		if err := f.forget(p, n); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := f.forgotten(p); err != nil || n != 7 {
		t.Errorf("forgotten up to %d, %v; want 7", n, err)
	}
}
