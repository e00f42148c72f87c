package source

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// CheckConfig checks a configuration against the keys of t and returns every problem, sorted by key: unknown keys with the nearest known one, keys that are missing, values of the wrong type,
// out of range, or not allowed. Values of passwords aren't repeated.
func CheckConfig(t Type, config map[string]string) []Problem {
	var problems []Problem
	known := make(map[string]bool, len(t.Config))
	names := make([]string, 0, len(t.Config))
	for _, k := range t.Config {
		known[k.Name] = true
		names = append(names, k.Name)
		v, ok := config[k.Name]
		switch {
		case ok:
			if p, bad := k.check(v); bad {
				problems = append(problems, p)
			}
		case k.Required && k.Default == nil:
			problems = append(problems, Problem{Key: k.Name, Message: "is required", Hint: k.Doc})
		}
	}
	for key := range config {
		if known[key] || slices.ContainsFunc(t.OpenPrefixes, func(p string) bool { return strings.HasPrefix(key, p) }) {
			continue
		}
		p := Problem{Key: key, Message: fmt.Sprintf("unknown key of connector type %q", t.Name)}
		if near := Nearest(key, names); near != "" {
			p.Hint = "did you mean " + near + "?"
		}
		problems = append(problems, p)
	}
	slices.SortFunc(problems, func(a, b Problem) int { return strings.Compare(a.Key, b.Key) })
	return problems
}

// check checks one value.
func (k Key) check(v string) (Problem, bool) {
	problem := func(message, hint string) (Problem, bool) {
		return Problem{Key: k.Name, Message: message, Hint: hint}, true
	}
	quoted := k.quote(v)
	number, isNumber, err := k.parse(v)
	if err != nil {
		return problem(quoted+" "+err.Error(), "")
	}
	if k.Required && v == "" {
		return problem("must not be empty", k.Doc)
	}
	if len(k.Allowed) > 0 {
		values := []string{v}
		if k.Type == List {
			values = ParseList(v)
		}
		for _, v := range values {
			if !slices.Contains(k.Allowed, v) {
				return problem(k.quote(v)+" is not allowed", "allowed: "+strings.Join(k.Allowed, ", "))
			}
		}
	}
	if isNumber && k.Min != nil && number < *k.Min {
		return problem(quoted+" is too small", "at least "+k.bound(*k.Min))
	}
	if isNumber && k.Max != nil && number > *k.Max {
		return problem(quoted+" is too large", "at most "+k.bound(*k.Max))
	}
	return Problem{}, false
}

// quote repeats a value in a message, unless it is a secret (I9).
func (k Key) quote(v string) string {
	if k.Type == Password {
		return "the value"
	}
	return fmt.Sprintf("%.200q", v)
}

// parse returns the value as a number where it is one: bytes of a size, milliseconds of a duration. The error goes on after the value.
func (k Key) parse(v string) (number float64, isNumber bool, err error) {
	switch k.Type {
	case Bool:
		if v != "true" && v != "false" {
			return 0, false, fmt.Errorf("is neither true nor false")
		}
	case Int:
		n, err := strconv.ParseInt(v, 10, 32)
		if err != nil {
			return 0, false, fmt.Errorf("is not a whole number of 32 bits")
		}
		return float64(n), true, nil
	case Long:
		n, err := strconv.ParseInt(v, 10, 64)
		if err != nil {
			return 0, false, fmt.Errorf("is not a whole number of 64 bits")
		}
		return float64(n), true, nil
	case Double:
		n, err := strconv.ParseFloat(v, 64)
		if err != nil || n-n != 0 {
			return 0, false, fmt.Errorf("is not a decimal number")
		}
		return n, true, nil
	case Duration:
		d, err := ParseDuration(v)
		if err != nil {
			return 0, false, fmt.Errorf("is not a duration such as 250ms, 10s or 5m")
		}
		return float64(d) / 1e6, true, nil
	case Size:
		n, err := ParseSize(v)
		if err != nil {
			return 0, false, fmt.Errorf("is not a size such as 100B, 16KiB or 1MB")
		}
		return float64(n), true, nil
	}
	return 0, false, nil
}

// bound prints a bound in the unit of the key.
func (k Key) bound(v float64) string {
	s := strconv.FormatFloat(v, 'f', -1, 64)
	switch k.Type {
	case Duration:
		return s + "ms"
	case Size:
		return s + "B"
	}
	return s
}

// Nearest returns the known name that is closest to name, by insertions, deletions, replacements and swaps of neighbours; "" where none is close.
func Nearest(name string, known []string) string {
	best, at := "", max(2, len(name)/3)+1
	for _, k := range known {
		if d := distance(strings.ToLower(name), strings.ToLower(k)); d < at {
			best, at = k, d
		}
	}
	return best
}

// distance is the edit distance of a and b.
func distance(a, b string) int {
	if len(a) > 200 || len(b) > 200 {
		return 200
	}
	before, last, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := 1; i <= len(a); i++ {
		before, last, row = last, row, before
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
	}
	return row[len(b)]
}
