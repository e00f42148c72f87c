package assign

import (
	"cmp"
	"strings"
)

// CompareVersions orders versions as Semantic Versioning does, and whatever else people write in the same spirit: numbers by value, text by bytes, a pre-release below its release, build metadata ignored.
func CompareVersions(a, b string) int {
	a, preA := split(a)
	b, preB := split(b)
	if c := compareDotted(a, b, "0"); c != 0 {
		return c
	}
	switch {
	case preA == preB:
		return 0
	case preA == "":
		return 1
	case preB == "":
		return -1
	}
	return compareDotted(preA, preB, "")
}

// split parts a version into its numbers and its pre-release.
func split(v string) (numbers, pre string) {
	v = strings.TrimPrefix(v, "v")
	v, _, _ = strings.Cut(v, "+")
	numbers, pre, _ = strings.Cut(v, "-")
	return numbers, pre
}

// compareDotted compares part by part; missing stands for a part that isn't there.
func compareDotted(a, b, missing string) int {
	for a != "" || b != "" {
		var x, y string
		x, a = part(a, missing)
		y, b = part(b, missing)
		if c := comparePart(x, y); c != 0 {
			return c
		}
	}
	return 0
}

func part(s, missing string) (first, rest string) {
	if s == "" {
		return missing, ""
	}
	first, rest, _ = strings.Cut(s, ".")
	return first, rest
}

// comparePart: numbers of any length by value and below text; nothing is below everything.
func comparePart(x, y string) int {
	dx, dy := digits(x), digits(y)
	switch {
	case dx && dy:
		x, y = strings.TrimLeft(x, "0"), strings.TrimLeft(y, "0")
		if c := cmp.Compare(len(x), len(y)); c != 0 {
			return c
		}
	case x == "" || y == "":
		return cmp.Compare(len(x), len(y))
	case dx:
		return -1
	case dy:
		return 1
	}
	return strings.Compare(x, y)
}

func digits(s string) bool {
	return s != "" && strings.Trim(s, "0123456789") == ""
}
