package soak

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }

// soakSeed is the seed of TestSoak, unless FENCEPOST_SOAK_SEED names another one.
const soakSeed = 1

// TestSoak lets three minutes of faults loose on a whole cluster of processes and three brokers: nothing is lost, doubled, out of order or stuck.
func TestSoak(t *testing.T) {
	kafka.Need(t)
	seed := uint64(soakSeed)
	if text := os.Getenv("FENCEPOST_SOAK_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("FENCEPOST_SOAK_SEED: %v", err)
		}
	}
	t.Logf("seed %d", seed)
	binaries := harness.Build(t)
	report, err := Run(t.Context(), Config{Fencepost: binaries.Fencepost, Plugins: binaries.Plugins, Length: 3 * time.Minute, Seed: seed, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	report.Print(t.Output())
	if !report.Exact() {
		t.Errorf("%s", report.Verdict())
	}
	// Fewer are left where a slow machine takes long over each; the run of half an hour has the figures.
	if n := sum(report.Counted); n < 8 || len(report.Counted) < 6 {
		t.Errorf("%d faults of %d kinds counted, want 8 of 6 at least", n, len(report.Counted))
	}
}
