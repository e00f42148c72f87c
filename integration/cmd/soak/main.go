// Command soak is behind `make soak`: it lets faults loose on real processes and real brokers, and prints the seed first and the verdict last. Its exit code is 1 where something was violated.
//
// docs/proof.md says what it does and what was found by it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/soak"
)

func main() {
	minutes := flag.Float64("minutes", 3, "how long the faults go on")
	seed := flag.Uint64("seed", 0, "what the faults are drawn from; 0 is any")
	schedule := flag.String("schedule", "", "repeat the schedule in this `file`")
	shrink := flag.Bool("shrink", false, "where something is violated, look for a shorter schedule that still fails")
	tries := flag.Int("tries", 24, "how many runs a schedule is made shorter by, at most")
	kinds := flag.String("kinds", "", "only these kinds of faults, `a,b`")
	brokers := flag.Int("brokers", 3, "how many brokers, 1 or 3")
	keep := flag.Bool("keep", false, "keep what the processes wrote")
	saved := flag.String("out", "bin/soak", "the `folder` for schedules of runs that failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	cfg := soak.Config{Length: time.Duration(*minutes * float64(time.Minute)), Seed: *seed, Brokers: *brokers, Keep: *keep, Out: os.Stdout}
	if *kinds != "" {
		cfg.Kinds = strings.Split(*kinds, ",")
	}
	err := prepare(&cfg, *schedule)
	if err == nil {
		err = run(ctx, cfg, *shrink, *tries, *saved)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		stop()
		os.Exit(1)
	}
}

// prepare finds the binaries and the schedule, and says the seed.
func prepare(cfg *soak.Config, schedule string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	cfg.Fencepost, cfg.Plugins = filepath.Join(root, "bin", "fencepost"), filepath.Join(root, "bin", "plugins")
	if schedule != "" {
		if cfg.Schedule, err = soak.LoadSchedule(schedule); err != nil {
			return err
		}
		cfg.Seed = cfg.Schedule.Seed
	}
	for cfg.Seed == 0 {
		cfg.Seed = uint64(rand.Uint32()) //nolint:gosec // any will do
	}
	fmt.Printf("seed %d\n", cfg.Seed)
	return nil
}

// errViolated is why the exit code is 1.
var errViolated = errors.New("something was violated")

func run(ctx context.Context, cfg soak.Config, shrink bool, tries int, folder string) error {
	report, err := soak.Run(ctx, cfg)
	if err != nil {
		return err
	}
	if report.Exact() {
		report.Print(os.Stdout)
		return nil
	}
	path, err := save(report.Schedule, folder, "failed")
	if err != nil {
		return err
	}
	fmt.Printf("repeat it with: make soak SCHEDULE=%s, and make it shorter with SHRINK=1\n", path)
	if shrink {
		shortest, err := soak.ShrinkRun(ctx, cfg, report.Schedule, tries)
		if err != nil {
			fmt.Printf("no shorter schedule was looked for any more: %v\n", err)
		}
		if path, err = save(shortest, folder, "shortest"); err != nil {
			return err
		}
		fmt.Printf("the shortest schedule that was found to fail has %d of %d faults: %s\n", len(shortest.Steps), len(report.Schedule.Steps), path)
		for _, step := range shortest.Steps {
			fmt.Printf("%6.1fs  %s\n", step.At.Seconds(), step)
		}
	}
	report.Print(os.Stdout)
	return errViolated
}

func save(s *soak.Schedule, folder, what string) (string, error) {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(folder, fmt.Sprintf("%s-%d.json", what, s.Seed))
	return path, s.Save(path)
}
