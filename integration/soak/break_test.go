package soak

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

// breaks are rules that a runner breaks on purpose (runner/internal/task/break_on.go), and a short schedule that finds each.
var breaks = []struct {
	rule string
	// steps are the faults; want is in a violation.
	steps []Step
	want  string
	// full says that it runs with FENCEPOST_FULL=1 only.
	full bool
}{
	{rule: "offsets-apart", steps: kills, want: "twice"},
	{rule: "acknowledge-early", steps: kills, want: "missing"},
	{rule: "from-memory", steps: cuts, want: "missing"},
	{rule: "errors-ignored", steps: cuts, want: "missing", full: true},
}

var (
	kills = []Step{
		{At: 2 * time.Second, Kind: "kill-runner", Target: "r1", For: 500 * time.Millisecond},
		{At: 6 * time.Second, Kind: "kill-runner", Target: "r1", For: 500 * time.Millisecond},
	}
	cuts = []Step{
		{At: time.Second, Kind: "refuse-brokers", Target: "r1", For: 10 * time.Second},
		{At: time.Second, Kind: "refuse-brokers", Target: "r2", For: 10 * time.Second},
	}
)

// TestABrokenRuleIsFound breaks one rule at a time, and each is found by the verdict of a short run.
func TestABrokenRuleIsFound(t *testing.T) {
	kafka.Need(t)
	for _, b := range breaks {
		if b.full && os.Getenv("FENCEPOST_FULL") == "" {
			t.Logf("%s is left to FENCEPOST_FULL=1", b.rule)
			continue
		}
		t.Run(b.rule, func(t *testing.T) {
			report := small(t, b.steps, "FENCEPOST_BREAK="+b.rule)
			if found := strings.Join(report.Violations, "\n"); !strings.Contains(found, b.want) {
				t.Errorf("no violation says %q:\n%s", b.want, found)
			}
		})
	}
}

// TestNoRuleIsBroken is the other half of the proof: the same schedules without a broken rule are exact.
func TestNoRuleIsBroken(t *testing.T) {
	kafka.Need(t)
	if os.Getenv("FENCEPOST_FULL") == "" {
		t.Log("left to FENCEPOST_FULL=1: TestSoak, too, is exact")
		return
	}
	if report := small(t, append([]Step{cuts[1]}, kills...)); !report.Exact() {
		t.Error(report.Verdict())
	}
}

// small is a run on a small world.
func small(t *testing.T, steps []Step, env ...string) *Report {
	t.Helper()
	binaries := harness.Build(t)
	schedule := &Schedule{Brokers: 1, Coordinators: 1, Runners: 2, Steps: steps}
	for _, s := range steps {
		schedule.Length = max(schedule.Length, s.At+s.For+3*time.Second)
	}
	report, err := Run(t.Context(), Config{Fencepost: binaries.Fencepost, Plugins: binaries.Plugins, Schedule: schedule, Env: env, Out: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	report.Print(t.Output())
	return report
}
