package settings

import (
	"fmt"
	"slices"
	"strings"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Split divides what Parse left over: into the keys that a connector type takes, and every problem with them, those that nobody knows among them. Keys under the type's open prefixes are taken unchecked.
func Split(own map[string]string, t source.Type) (map[string]string, []source.Problem) {
	taken := make(map[string]string, len(own))
	var problems []source.Problem
	for key, v := range own {
		if takes(t, key) {
			taken[key] = v
			continue
		}
		p := source.Problem{Key: key, Message: fmt.Sprintf("unknown key of connector type %q", t.Name), Hint: "leave it out"}
		if near := source.Nearest(key, names(t)); near != "" {
			p.Hint = fmt.Sprintf("did you mean %s?", near)
		}
		problems = append(problems, p)
	}
	return taken, sorted(append(problems, source.CheckConfig(t, taken)...))
}

// shortestMisspelt is the shortest key that is told to be a misspelt one.
const shortestMisspelt = 6

// Misspelt judges what Parse left over where the connector type isn't known: only keys that look like one of the runtime's can be told then.
func Misspelt(own map[string]string) []source.Problem {
	var problems []source.Problem
	for key := range own {
		// A short word is near to anything.
		if near := source.Nearest(key, names(source.Type{})); near != "" && len(key) >= shortestMisspelt {
			problems = append(problems, source.Problem{Key: key, Message: "isn't a key of the runtime", Hint: fmt.Sprintf("did you mean %s?", near), Warning: true})
		}
	}
	return sorted(problems)
}

// takes says whether a connector type takes a key.
func takes(t source.Type, key string) bool {
	return slices.ContainsFunc(t.Config, func(k source.Key) bool { return k.Name == key }) || underAny(key, t.OpenPrefixes)
}

// names has every key that may be meant.
func names(t source.Type) []string {
	all := make([]string, 0, len(table)+len(t.Config))
	for i := range table {
		all = append(all, table[i].Name)
	}
	for _, k := range t.Config {
		all = append(all, k.Name)
	}
	return all
}

// underAny says whether a key lies under one of the prefixes.
func underAny(key string, prefixes []string) bool {
	for _, p := range prefixes {
		if p != "" && strings.HasPrefix(key, p) {
			return true
		}
	}
	return false
}
