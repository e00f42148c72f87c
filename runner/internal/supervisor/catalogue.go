package supervisor

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Plugin is a plugin that can be started.
type Plugin struct {
	Description *source.Description
	// Path is where it is: a file, or an address to dial.
	Path string
	// SHA256 is the file's when it was looked at; empty for an address.
	SHA256 string
	// Pin, where set, is the checksum that the connector asks for: another file isn't run. Without one a file that was replaced since is run as it is, which is how plugins are upgraded.
	Pin string
}

// catalogue knows which plugins there are.
type catalogue struct {
	mu      sync.Mutex
	plugins []Plugin // Newest version first.
}

func (c *catalogue) set(plugins []Plugin) {
	sorted := slices.Clone(plugins)
	slices.SortStableFunc(sorted, func(a, b Plugin) int { return compareVersions(b.Description.Version, a.Description.Version) })
	c.mu.Lock()
	defer c.mu.Unlock()
	c.plugins = sorted
}

// all are the plugins, newest version first.
func (c *catalogue) all() []Plugin {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.plugins
}

// find is the exact plugin that a grant or a plan names.
func (c *catalogue) find(ref session.PluginRef) (Plugin, source.Type, error) {
	for _, p := range c.all() {
		if p.Description.Name != ref.Name || p.Description.Version != ref.Version || ref.SHA256 != "" && p.SHA256 != ref.SHA256 {
			continue
		}
		if t, ok := typeOf(p, ref.Type); ok {
			p.Pin = ref.SHA256
			return p, t, nil
		}
	}
	return Plugin{}, source.Type{}, &missingError{ref: ref, versions: c.versions(ref.Type)}
}

// versions are those that a connector type is there in, with their plugins.
func (c *catalogue) versions(typ string) (versions []string) {
	for _, p := range c.all() {
		if _, ok := typeOf(p, typ); ok {
			versions = append(versions, p.Description.Name+" "+p.Description.Version)
		}
	}
	return versions
}

// missingError says that a plugin isn't here: its file was taken away or replaced since the coordinator heard of it. Another host may have it.
type missingError struct {
	ref      session.PluginRef
	versions []string
}

// Error names what is wanted, and what there is.
func (e *missingError) Error() string {
	text := fmt.Sprintf("plugin %s %s with type %q isn't on this runner (any more)%s", e.ref.Name, e.ref.Version, e.ref.Type, sum(e.ref.SHA256))
	if len(e.versions) > 0 {
		text += "; there is: " + strings.Join(e.versions, ", ")
	}
	return text
}

// HostFault marks it as this host's affair.
func (e *missingError) HostFault() {}

func sum(sha256 string) string {
	if sha256 == "" {
		return ""
	}
	return ", or its SHA-256 isn't " + sha256
}

// choose is the plugin that a configuration would get, or a problem that says why there is none.
func (c *catalogue) choose(st *settings.Settings) (Plugin, source.Type, *source.Problem) {
	var types, versions []string
	for _, p := range c.all() {
		for _, t := range p.Description.Types {
			types = append(types, t.Name)
		}
		t, ok := typeOf(p, st.Type)
		if !ok {
			continue
		}
		if (st.PluginVersion == "" || p.Description.Version == st.PluginVersion) && (st.PluginSHA256 == "" || p.SHA256 == st.PluginSHA256) {
			p.Pin = st.PluginSHA256
			return p, t, nil
		}
		versions = append(versions, strings.TrimSpace(p.Description.Version+" "+p.SHA256))
	}
	if len(versions) > 0 {
		return Plugin{}, source.Type{}, &source.Problem{Key: settings.KeyPluginVersion, Message: "no plugin of this version and SHA-256 is here", Hint: "there is: " + strings.Join(versions, ", ")}
	}
	problem := &source.Problem{Key: settings.KeyConnectorClass, Message: fmt.Sprintf("no plugin has a connector type %q", st.Type)}
	slices.Sort(types)
	if near := source.Nearest(st.Type, types); near != "" {
		problem.Hint = fmt.Sprintf("did you mean %s?", near)
	} else if len(types) > 0 {
		problem.Hint = "there is: " + strings.Join(slices.Compact(types), ", ")
	} else {
		problem.Hint = "there are no plugins at all: is plugin-path right?"
	}
	return Plugin{}, source.Type{}, problem
}

// typeOf finds a connector type of a plugin.
func typeOf(p Plugin, name string) (source.Type, bool) {
	i := slices.IndexFunc(p.Description.Types, func(t source.Type) bool { return t.Name == name })
	if i < 0 {
		return source.Type{}, false
	}
	return p.Description.Types[i], true
}

// compareVersions orders semantic versions: numbers by their value, and a version with a suffix before the one without.
func compareVersions(a, b string) int {
	a, _, _ = strings.Cut(a, "+")
	b, _, _ = strings.Cut(b, "+")
	coreA, preA, hasA := strings.Cut(a, "-")
	coreB, preB, hasB := strings.Cut(b, "-")
	if c := compareParts(coreA, coreB); c != 0 {
		return c
	}
	switch {
	case hasA != hasB && hasA:
		return -1
	case hasA != hasB:
		return 1
	}
	return compareParts(preA, preB)
}

func compareParts(a, b string) int {
	return slices.CompareFunc(strings.Split(a, "."), strings.Split(b, "."), func(x, y string) int {
		if len(x) != len(y) && isNumber(x) && isNumber(y) {
			return len(x) - len(y)
		}
		return strings.Compare(x, y)
	})
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
