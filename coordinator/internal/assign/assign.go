// Package assign decides which runner runs what. It is pure: runners and needs go in, names come out, the same for the same input.
//
// A task goes only where its exact plugin (name, version, checksum where one is pinned) is offered and the wanted labels are set. Among those runners, in this order: one that it isn't to be kept from, one whose value of
// the spreading label has the fewest of the connector's tasks, one with the most preferred labels, one with the fewest tasks. A task stays where it was last as long as that costs nothing of the first three and that runner
// carries no more than its fair share. Place is asked about tasks that nobody has; what runs is moved by Balance alone, one task at a time, and only where that makes the placement better.
//
// Read next: balance.go.
package assign

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Plugin is a plugin that a runner offers.
type Plugin struct {
	Name, Version, SHA256 string
	// Types are the connector types that it serves.
	Types []string
}

// Runner is a runner that takes tasks.
type Runner struct {
	Name    string
	Labels  map[string]string
	Plugins []Plugin
	// Load is how many tasks it has, and Own how many of those are of the connector that is being placed.
	Load, Own int
	// New says that it has come so lately that nothing is moved to it yet. It gets tasks that nobody has all the same.
	New bool
}

// Task is a task that nobody has.
type Task struct {
	// Previous is the runner that had it last, or "".
	Previous string
	// Ready is the runner that was made ready for it, or "": it gets the task where it still fits.
	Ready string
	// Avoid has runners that get it only where no other fits.
	Avoid map[string]bool
}

// Need is what a connector's tasks need of a runner.
type Need struct {
	// Type is the connector type.
	Type string
	// Plugin is the plugin's name; empty is any that serves Type.
	Plugin string
	// Version and SHA256; empty is any.
	Version, SHA256 string
	// Labels that the runner must have, with these values.
	Labels map[string]string
	// Prefer has labels that the runner should have: those with the most of them get the tasks, the others where none of those is there.
	Prefer map[string]string
	// Spread is the label over whose values the connector's tasks are spread evenly; empty is none. Runners without it count as one value more.
	Spread string
}

// Choose picks the plugin for a need: the newest version that a runner with the wanted labels offers. Of two plugins that serve the type under different names it takes the first by name.
func Choose(need Need, runners []Runner) (Plugin, bool) {
	var best Plugin
	found := false
	for _, r := range runners {
		if need.lacks(r) != "" {
			continue
		}
		for _, p := range r.Plugins {
			if need.takes(p) && (!found || better(p, best)) {
				best, found = p, true
			}
		}
	}
	return best, found
}

func better(a, b Plugin) bool {
	if a.Name != b.Name {
		return a.Name < b.Name
	}
	if c := CompareVersions(a.Version, b.Version); c != 0 {
		return c > 0
	}
	return a.SHA256 < b.SHA256
}

// Place gives each task a runner. The result is as long as tasks; it is nil where no runner fits, and Why then says why.
func Place(need Need, tasks []Task, runners []Runner) []string {
	f := newField(need, runners)
	if len(f.fit) == 0 {
		return nil
	}
	f.share(len(tasks))
	placed := make([]string, len(tasks))
	for i, t := range tasks {
		if at, there := f.index[t.Ready]; there {
			placed[i] = f.take(at)
		} else if at, there := f.index[t.Previous]; there && f.stays(at, t) {
			placed[i] = f.take(at)
		}
	}
	for i, t := range tasks {
		if placed[i] == "" {
			placed[i] = f.take(f.best(t))
		}
	}
	return placed
}

// field is the runners that a need fits on, by name, with what is placed on them so far.
type field struct {
	need  Need
	fit   []Runner
	index map[string]int
	likes []int // how many preferred labels each has
	most  int   // the most of them that any has
	value []int // the value of the spreading label that each has, by number; all 0 where tasks aren't spread
	own   []int // tasks of the connector by value
	fair  int   // what each carries at most if all carry the same
	even  int   // what each value has at most if all have the same
}

func newField(need Need, runners []Runner) *field {
	f := &field{need: need, fit: need.fit(runners), index: map[string]int{}}
	numbers := map[string]int{}
	for i, r := range f.fit {
		f.index[r.Name] = i
		likes := need.likes(r)
		f.likes, f.most = append(f.likes, likes), max(f.most, likes)
		value := ""
		if need.Spread != "" {
			value = r.Labels[need.Spread]
		}
		number, known := numbers[value]
		if !known {
			number = len(numbers)
			numbers[value] = number
			f.own = append(f.own, 0)
		}
		f.value = append(f.value, number)
		f.own[number] += r.Own
	}
	return f
}

// share finds the fair shares for so many more tasks.
func (f *field) share(more int) {
	total, among, own := more, 0, more
	for i, r := range f.fit {
		own += r.Own
		if f.need.Spread != "" || f.likes[i] == f.most {
			total += r.Load
			among++
		}
	}
	f.fair, f.even = (total+among-1)/among, (own+len(f.own)-1)/len(f.own)
}

func (f *field) take(at int) string {
	r := &f.fit[at]
	r.Load++
	r.Own++
	f.own[f.value[at]]++
	return r.Name
}

// crowd is how many tasks of the connector a runner's value has; the same for all where tasks aren't spread.
func (f *field) crowd(at int) int { return f.own[f.value[at]] }

// stays says that a task may stay where it was.
func (f *field) stays(at int, t Task) bool {
	r := f.fit[at]
	return !t.Avoid[r.Name] && r.Load < f.fair && f.likes[at] == f.most && (f.need.Spread == "" || f.crowd(at) < f.even)
}

// best finds the runner for a task that doesn't stay.
func (f *field) best(t Task) int {
	at := 0
	for i := 1; i < len(f.fit); i++ {
		if f.better(i, at, t) {
			at = i
		}
	}
	return at
}

func (f *field) better(i, at int, t Task) bool {
	if a, b := t.Avoid[f.fit[i].Name], t.Avoid[f.fit[at].Name]; a != b {
		return b
	}
	return cmp.Or(cmp.Compare(f.crowd(i), f.crowd(at)), cmp.Compare(f.likes[at], f.likes[i]), cmp.Compare(f.fit[i].Load, f.fit[at].Load)) < 0
}

// Fits says that a runner among those given fits a need and isn't one to avoid.
func Fits(need Need, avoid map[string]bool, runners []Runner) bool {
	return slices.ContainsFunc(runners, func(r Runner) bool { return !avoid[r.Name] && need.fits(r) })
}

// fit copies the runners that a need fits on, by name.
func (n Need) fit(runners []Runner) []Runner {
	var fit []Runner
	for _, r := range runners {
		if n.fits(r) {
			fit = append(fit, r)
		}
	}
	slices.SortFunc(fit, func(a, b Runner) int { return strings.Compare(a.Name, b.Name) })
	return fit
}

// fits says that a runner may have tasks of this need.
func (n Need) fits(r Runner) bool { return slices.ContainsFunc(r.Plugins, n.takes) && n.lacks(r) == "" }

// likes counts the preferred labels that a runner has.
func (n Need) likes(r Runner) int {
	likes := 0
	for name, value := range n.Prefer {
		if has, set := r.Labels[name]; set && has == value {
			likes++
		}
	}
	return likes
}

// takes says whether a plugin serves a need.
func (n Need) takes(p Plugin) bool {
	return (n.Plugin == "" || n.Plugin == p.Name) &&
		(n.Version == "" || n.Version == p.Version) &&
		(n.SHA256 == "" || n.SHA256 == p.SHA256) &&
		slices.Contains(p.Types, n.Type)
}

// lacks names the labels that a runner lacks.
func (n Need) lacks(r Runner) string {
	var missing []string
	for name, value := range n.Labels {
		if r.Labels[name] != value {
			missing = append(missing, name+"="+value)
		}
	}
	slices.Sort(missing)
	return strings.Join(missing, ",")
}

// Why says, for users, why no runner fits: what is missing, and what runners offer instead. Empty where one fits.
func Why(need Need, runners []Runner) string {
	switch {
	case len(need.fit(runners)) > 0:
		return ""
	case len(runners) == 0:
		return "no runner is connected"
	}
	var without []string
	for _, r := range runners {
		if slices.ContainsFunc(r.Plugins, need.takes) {
			without = append(without, r.Name+" lacks "+need.lacks(r))
		}
	}
	if len(without) > 0 {
		slices.Sort(without)
		return fmt.Sprintf("no runner that offers %s has the wanted labels: %s", need.what(), listed(without))
	}
	return fmt.Sprintf("no runner offers %s; runners offer %s", need.what(), offered(need.Type, runners))
}

// Remark says, for users, what a need wishes and no runner gives, where that keeps nothing from running. Empty where all is as wished.
func Remark(need Need, runners []Runner) string {
	fit := need.fit(runners)
	if len(fit) == 0 {
		return ""
	}
	if need.Spread != "" && !slices.ContainsFunc(fit, func(r Runner) bool { _, set := r.Labels[need.Spread]; return set }) {
		return fmt.Sprintf("placement.spread: no runner that fits has a label %q, so the tasks are not spread", need.Spread)
	}
	if len(need.Prefer) > 0 && !slices.ContainsFunc(fit, func(r Runner) bool { return need.likes(r) > 0 }) {
		return "placement.prefer: no runner that fits has any of the preferred labels"
	}
	return ""
}

// what names the missing plugin.
func (n Need) what() string {
	what := fmt.Sprintf("connector type %q", n.Type)
	if n.Plugin != "" {
		what += " by plugin " + n.Plugin
	}
	if n.Version != "" {
		what += " in version " + n.Version
	}
	if n.SHA256 != "" {
		what += " with SHA-256 " + n.SHA256
	}
	return what
}

// offered lists what there is: plugins of the same type where there are any, all others otherwise.
func offered(kind string, runners []Runner) string {
	same, other := map[string][]string{}, map[string][]string{}
	for _, r := range runners {
		for _, p := range r.Plugins {
			at := other
			if slices.Contains(p.Types, kind) {
				at = same
			}
			id := p.Name + "@" + p.Version
			if !slices.Contains(at[id], r.Name) {
				at[id] = append(at[id], r.Name)
			}
		}
	}
	if len(same) > 0 {
		other = same
	}
	if len(other) == 0 {
		return "no plugins at all"
	}
	var lines []string
	for id, names := range other {
		slices.Sort(names)
		lines = append(lines, fmt.Sprintf("%s (%s)", id, listed(names)))
	}
	slices.Sort(lines)
	return listed(lines)
}

// mostListed bounds what a message for people lists.
const mostListed = 10

func listed(items []string) string {
	if more := len(items) - mostListed; more > 0 {
		return strings.Join(items[:mostListed], ", ") + fmt.Sprintf(" and %d more", more)
	}
	return strings.Join(items, ", ")
}
