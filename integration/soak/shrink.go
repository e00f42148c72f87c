package soak

import (
	"context"
	"slices"
	"time"
)

// afterwards is how long a shortened schedule goes on after its last fault.
const afterwards = 8 * time.Second

// Shrink looks for a shorter schedule that still fails, in at most so many tries: it leaves out halves of the steps, then quarters and so on, as long as what is left fails (delta debugging). What is
// left keeps its times. A failure that depends on luck may be missed; then the answer is longer than it need be.
func Shrink(failing *Schedule, tries int, fails func(*Schedule) (bool, error)) (*Schedule, error) {
	best := failing
	for parts := 2; tries > 0 && len(best.Steps) > 1; {
		shorter := false
		size := (len(best.Steps) + parts - 1) / parts
		for from := 0; from < len(best.Steps) && tries > 0; from += size {
			tries--
			candidate := best.without(from, min(from+size, len(best.Steps)))
			failed, err := fails(candidate)
			if err != nil {
				return best, err
			}
			if failed {
				best, shorter = candidate, true
				break
			}
		}
		switch {
		case shorter:
			parts = max(2, parts-1)
		case size == 1:
			return best, nil
		default:
			parts = min(2*parts, len(best.Steps))
		}
	}
	return best, nil
}

// without leaves out steps. The rest begins earlier by what was left out before it.
func (s *Schedule) without(from, to int) *Schedule {
	out := *s
	out.Steps = slices.Delete(slices.Clone(s.Steps), from, to)
	if from == 0 && len(out.Steps) > 0 {
		early := out.Steps[0].At - time.Second
		for i := range out.Steps {
			out.Steps[i].At -= early
		}
	}
	out.Length = afterwards
	for _, step := range out.Steps {
		out.Length = max(out.Length, step.At+step.For+afterwards)
	}
	return &out
}

// ShrinkRun is Shrink over real runs.
func ShrinkRun(ctx context.Context, cfg Config, failing *Schedule, tries int) (*Schedule, error) {
	return Shrink(failing, tries, func(candidate *Schedule) (bool, error) {
		cfg.Schedule = candidate
		report, err := Run(ctx, cfg)
		if err != nil {
			return false, err
		}
		return !report.Exact(), nil
	})
}
