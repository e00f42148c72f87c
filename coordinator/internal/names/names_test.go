package names_test

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
)

// anyName draws names that are likely to collide where escaping is careless: the escape's own characters, dots, digits, and names around the length limit.
func anyName(t *rapid.T, label string) string {
	tail := rapid.StringOfN(rapid.RuneFrom([]rune("ab_x.-0123é \u00ff")), 1, 60, names.MaxConnectorBytes).Draw(t, label)
	pad := rapid.SampledFrom([]string{"", strings.Repeat("a", 78), strings.Repeat("a", 118), strings.Repeat("_", 30)}).Draw(t, label+" pad")
	name := pad + tail
	if len(name) > names.MaxConnectorBytes {
		name = strings.ToValidUTF8(name[:names.MaxConnectorBytes], "")
	}
	return name
}

func TestDifferentNamesNeverGiveOneID(t *testing.T) {
	legal := regexp.MustCompile(`^[A-Za-z0-9._-]{1,249}$`)
	rapid.Check(t, func(t *rapid.T) {
		a, b := anyName(t, "a"), anyName(t, "b")
		clusters := rapid.SampledFrom([]string{"fencepost", "a", "a-b", "b"})
		ca, cb := clusters.Draw(t, "ca"), clusters.Draw(t, "cb")
		na, nb := rapid.Uint32Range(0, 120).Draw(t, "na"), rapid.Uint32Range(0, 120).Draw(t, "nb")
		if names.CheckConnector(a) != "" || names.CheckConnector(b) != "" {
			t.Fatalf("drew a bad name: %q %q", a, b)
		}
		ida, idb := names.TransactionalID(ca, a, na), names.TransactionalID(cb, b, nb)
		if same := a == b && ca == cb && na == nb; same != (ida == idb) {
			t.Fatalf("%q %q %d and %q %q %d give %q and %q", ca, a, na, cb, b, nb, ida, idb)
		}
		if (a == b && ca == cb) != strings.HasPrefix(ida, names.TransactionalIDPrefix(cb, b)) {
			t.Fatalf("prefix of %q fits %q", b, ida)
		}
		ta, tb := names.OffsetsTopic(ca, a), names.OffsetsTopic(cb, b)
		if (a == b && ca == cb) != (ta == tb) || !legal.MatchString(ta) {
			t.Fatalf("%q and %q give topics %q and %q", a, b, ta, tb)
		}
		// Kafka takes a dot and an underscore for the same in topic names.
		if ta != tb && strings.ReplaceAll(ta, ".", "_") == strings.ReplaceAll(tb, ".", "_") {
			t.Fatalf("topics %q and %q collide for Kafka", ta, tb)
		}
	})
}

func TestEscape(t *testing.T) {
	for _, c := range []struct{ name, want string }{
		{"orders-1", "orders-1"},
		{"a.b_c", "a_2eb_5fc"},
		{"é", "_c3_a9"},
		{strings.Repeat("a", 120), strings.Repeat("a", 120)},
		{strings.Repeat("a", 121), strings.Repeat("a", 80) + "_xe9615320128cc7a3d6078e9af0560318"},
	} {
		if got := names.Escape(c.name); got != c.want {
			t.Errorf("Escape(%q) = %q, want %q", c.name, got, c.want)
		}
	}
}

func TestBadNamesAreRefused(t *testing.T) {
	for _, bad := range []string{"", "a\x00b", "tab\t", "del\x7f", "c1\u0085", "\xff", strings.Repeat("é", 101)} {
		if names.CheckConnector(bad) == "" {
			t.Errorf("connector name %q was taken", bad)
		}
	}
	for _, good := range []string{"a", "ein Name mit Ümlaut/und: allem", strings.Repeat("é", 100)} {
		if problem := names.CheckConnector(good); problem != "" {
			t.Errorf("connector name %q: %s", good, problem)
		}
	}
	for _, bad := range []string{"", "A", "a_b", "a.b", strings.Repeat("a", 41)} {
		if names.CheckCluster(bad) == "" {
			t.Errorf("cluster name %q was taken", bad)
		}
	}
	if problem := names.CheckCluster("fence-post-1"); problem != "" {
		t.Error(problem)
	}
}
