package soak

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// Report is what came of a run.
type Report struct {
	// Violations are everything that must not be; none is a run that was exact.
	Violations []string
	// Schedule is what was done.
	Schedule *Schedule
	// Records is how many were readable in the end, in so many source partitions.
	Records, Sources int
	// Injected and Counted are the faults that were done and those of them that count, by kind.
	Injected, Counted map[string]int
	// LeftOut are the faults that could not be done.
	LeftOut int

	outcomes []*outcome
	rewinds  map[string]int
	growths  []*growth
}

func (r *run) report(f *findings) *Report {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := &Report{
		Violations: r.violations, Schedule: r.schedule, Injected: map[string]int{}, Counted: map[string]int{}, outcomes: r.outcomes,
		rewinds: r.evidence.rewinds, growths: r.usage.growths(), Sources: len(f.sources),
	}
	for _, s := range f.sources {
		out.Records += int(s.count) //nolint:gosec // far below
	}
	for _, o := range r.outcomes {
		switch {
		case o.left != "":
			out.LeftOut++
		case o.counts():
			out.Counted[o.Kind]++
			fallthrough
		default:
			out.Injected[o.Kind]++
		}
	}
	return out
}

// Exact says whether nothing was violated.
func (r *Report) Exact() bool { return len(r.Violations) == 0 }

// Print writes a table of the faults, what else was seen, and the verdict in the last line.
func (r *Report) Print(w io.Writer) {
	fmt.Fprintf(w, "\n%-20s %8s %8s  %s\n", "fault", "injected", "counted", "flowed again after (median, most)")
	for _, name := range slices.Sorted(maps.Keys(r.Injected)) {
		median, most := r.flowed(name)
		fmt.Fprintf(w, "%-20s %8d %8d  %s, %s\n", name, r.Injected[name], r.Counted[name], median.Round(10*time.Millisecond), most.Round(10*time.Millisecond))
	}
	fmt.Fprintf(w, "\nwhat showed that they counted: %s\n", list(r.shown()))
	fmt.Fprintf(w, "attempts that ended, by cause: %s\n", list(r.rewinds))
	for _, g := range r.growths {
		fmt.Fprintf(w, "%s\n", g)
	}
	for _, v := range r.Violations {
		fmt.Fprintf(w, "violation: %s\n", v)
	}
	fmt.Fprintln(w, r.Verdict())
}

// Verdict is the one line that says it all.
func (r *Report) Verdict() string {
	word := "EXACT"
	if !r.Exact() {
		word = fmt.Sprintf("VIOLATED (%d)", len(r.Violations))
	}
	return fmt.Sprintf("verdict: %s; seed %d; %d records of %d connectors and %d source partitions; %d faults of %d kinds, %d of %d kinds counted, %d left out",
		word, r.Schedule.Seed, r.Records, len(loads), r.Sources, sum(r.Injected), len(r.Injected), sum(r.Counted), len(r.Counted), r.LeftOut)
}

func (r *Report) flowed(kind string) (median, most time.Duration) {
	var all []time.Duration
	for _, o := range r.outcomes {
		if o.Kind == kind && o.left == "" {
			all = append(all, o.flowed)
		}
	}
	slices.Sort(all)
	return all[len(all)/2], all[len(all)-1]
}

func (r *Report) shown() map[string]int {
	all := map[string]int{}
	for _, o := range r.outcomes {
		if o.evidence != nil {
			all[string(o.evidence.what)]++
		}
	}
	return all
}

func sum(of map[string]int) int {
	n := 0
	for _, v := range of {
		n += v
	}
	return n
}

// list is for people: the most first.
func list(of map[string]int) string {
	if len(of) == 0 {
		return "none"
	}
	names := slices.SortedFunc(maps.Keys(of), func(a, b string) int { return cmp.Or(cmp.Compare(of[b], of[a]), cmp.Compare(a, b)) })
	var parts []string
	for _, name := range names {
		parts = append(parts, fmt.Sprintf("%s %d", name, of[name]))
	}
	return strings.Join(parts, ", ")
}
