// Package assign decides which runner runs what. It is pure: runners and needs go in, names come out, the same for the same input.
//
// A task goes only where its exact plugin (name, version, checksum where one is pinned) is offered and the wanted labels are set. Among those runners a task stays where it was last as long as that runner carries no more
// than its fair share, and goes to the one with the fewest tasks otherwise. Tasks that run are never asked about, so a runner that joins or leaves moves nothing but what must move.
package assign

import (
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
	// Load is how many tasks it has.
	Load int
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

// Place gives each task a runner. Previous has, for each task, the runner that had it last, or "". The result is as long as previous; it is nil where no runner fits, and Why then says why.
func Place(need Need, previous []string, runners []Runner) []string {
	fit := need.fit(runners)
	if len(fit) == 0 {
		return nil
	}
	total := len(previous)
	for _, r := range fit {
		total += r.Load
	}
	fair := (total + len(fit) - 1) / len(fit)
	placed := make([]string, len(previous))
	for i, name := range previous {
		if at := slices.IndexFunc(fit, func(r Runner) bool { return r.Name == name }); at >= 0 && fit[at].Load < fair {
			placed[i] = name
			fit[at].Load++
		}
	}
	for i := range placed {
		if placed[i] == "" {
			at := least(fit)
			placed[i] = fit[at].Name
			fit[at].Load++
		}
	}
	return placed
}

// fit copies the runners that a need fits on, by name.
func (n Need) fit(runners []Runner) []Runner {
	var fit []Runner
	for _, r := range runners {
		if slices.ContainsFunc(r.Plugins, n.takes) && n.lacks(r) == "" {
			fit = append(fit, r)
		}
	}
	slices.SortFunc(fit, func(a, b Runner) int { return strings.Compare(a.Name, b.Name) })
	return fit
}

func least(runners []Runner) int {
	at := 0
	for i, r := range runners {
		if r.Load < runners[at].Load {
			at = i
		}
	}
	return at
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
