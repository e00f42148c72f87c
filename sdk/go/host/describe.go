package host

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Limits of what a plugin may say about itself or a configuration; far above what a person would read.
const (
	maxTypes       = 1_000
	maxKeys        = 10_000
	maxValues      = 10_000
	maxAbilities   = 1_000
	maxProblems    = 10_000
	maxTextBytes   = 64 << 10
	maxSummaryLen  = 1_000
	maxVersionLen  = 128
	maxPrefixBytes = 200
)

// Patterns of plugin.proto.
var (
	namePattern    = regexp.MustCompile(`^[a-z0-9-]{1,64}$`)
	versionPattern = regexp.MustCompile(`^[0-9]+\.[0-9]+\.[0-9]+(-[0-9A-Za-z.-]+)?(\+[0-9A-Za-z.-]+)?$`)
	typePattern    = regexp.MustCompile(`^[A-Za-z0-9._$-]{1,200}$`)
	keyPattern     = regexp.MustCompile(`^[A-Za-z0-9._-]{1,200}$`)
)

// checkDescription refuses a description that breaks plugin.proto: the runner offers it to the coordinator, shows it to users and checks configurations by it.
func checkDescription(d *source.Description) error {
	switch {
	case !namePattern.MatchString(d.Name):
		return fmt.Errorf("the plugin's name %s isn't 1 to 64 of [a-z0-9-]", quote(d.Name))
	case len(d.Version) > maxVersionLen || !versionPattern.MatchString(d.Version):
		return fmt.Errorf("the plugin's version %s is no semantic version such as 1.4.0", quote(d.Version))
	case len(d.Types) == 0:
		return fmt.Errorf("the plugin serves no connector type")
	case len(d.Types) > maxTypes:
		return fmt.Errorf("the plugin serves %d connector types; the limit is %d", len(d.Types), maxTypes)
	case len(d.Abilities) > maxAbilities:
		return fmt.Errorf("the plugin names %d abilities; the limit is %d", len(d.Abilities), maxAbilities)
	}
	seen := map[string]bool{}
	for i := range d.Types {
		t := &d.Types[i]
		if !typePattern.MatchString(t.Name) {
			return fmt.Errorf("the name of connector type %s isn't 1 to 200 of letters, digits, '-', '_', '.', '$'", quote(t.Name))
		}
		if seen[t.Name] {
			return fmt.Errorf("connector type %s is named twice", quote(t.Name))
		}
		seen[t.Name] = true
		if err := checkType(t); err != nil {
			return fmt.Errorf("connector type %s: %w", quote(t.Name), err)
		}
	}
	return nil
}

func checkType(t *source.Type) error {
	switch {
	case !printable(t.Summary, maxSummaryLen):
		return fmt.Errorf("the summary has control characters or is over %d bytes", maxSummaryLen)
	case len(t.Config) > maxKeys:
		return fmt.Errorf("%d configuration keys; the limit is %d", len(t.Config), maxKeys)
	case len(t.OpenPrefixes) > maxValues || len(t.Example) > maxKeys:
		return fmt.Errorf("over %d open prefixes or example keys", maxKeys)
	}
	for _, p := range t.OpenPrefixes {
		if len(p) > maxPrefixBytes || !printable(p, maxPrefixBytes) {
			return fmt.Errorf("open prefix %s has control characters or is over %d bytes", quote(p), maxPrefixBytes)
		}
	}
	seen := map[string]bool{}
	for i := range t.Config {
		k := &t.Config[i]
		if seen[k.Name] {
			return fmt.Errorf("configuration key %s is named twice", quote(k.Name))
		}
		seen[k.Name] = true
		if err := checkKey(k); err != nil {
			return fmt.Errorf("configuration key %s: %w", quote(k.Name), err)
		}
	}
	return nil
}

func checkKey(k *source.Key) error {
	switch {
	case !keyPattern.MatchString(k.Name):
		return fmt.Errorf("the name isn't 1 to 200 of [A-Za-z0-9._-]")
	case k.Type < source.String || k.Type > source.Size:
		return fmt.Errorf("type %d isn't known", k.Type)
	case k.Required && k.Default != nil:
		return fmt.Errorf("it is required and has a default")
	case k.Default != nil && len(*k.Default) > maxTextBytes, !printable(k.Doc, maxTextBytes):
		return fmt.Errorf("the default or documentation is over %d bytes, or has control characters", maxTextBytes)
	case len(k.Allowed) > maxValues || len(k.Recommended) > maxValues:
		return fmt.Errorf("over %d allowed or recommended values", maxValues)
	}
	return nil
}

// printable says whether a text can be shown on a terminal as it is.
func printable(s string, limit int) bool {
	return len(s) <= limit && !strings.ContainsFunc(s, func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t'
	})
}

// quote shows a plugin's text safely and cut short.
func quote(s string) string {
	const limit = 80
	if len(s) > limit {
		return fmt.Sprintf("%q…", s[:limit])
	}
	return fmt.Sprintf("%q", s)
}
