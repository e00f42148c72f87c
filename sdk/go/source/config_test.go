package source

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func ptr[T any](v T) *T { return &v }

var configType = Type{
	Name:         "sample",
	OpenPrefixes: []string{"debezium."},
	Config: []Key{
		{Name: "path", Type: String, Required: true, Doc: "where"},
		{Name: "follow", Type: Bool, Default: Default("true")},
		{Name: "count", Type: Int, Min: ptr(1.0), Max: ptr(10.0)},
		{Name: "long", Type: Long},
		{Name: "ratio", Type: Double},
		{Name: "list", Type: List, Allowed: []string{"a", "b"}},
		{Name: "mode", Type: String, Allowed: []string{"fast", "slow"}, Default: Default("fast")},
		{Name: "password", Type: Password},
		{Name: "poll", Type: Duration, Default: Default("250ms"), Min: ptr(1.0), Max: ptr(60_000.0)},
		{Name: "size", Type: Size, Default: Default("1KiB"), Max: ptr(1024.0)},
	},
}

func TestEveryMistakeIsNamedByItsKey(t *testing.T) {
	for config, want := range map[string]string{
		"path=x":                           "",
		"path=x debezium.anything=1":       "",
		"path=x list=a,b password=s3":      "",
		"":                                 "path: is required (where)",
		"path=":                            "path: must not be empty (where)",
		"path=x folow=true":                "folow: unknown key of connector type \"sample\" (did you mean follow?)",
		"pth=x":                            "path: is required (where); pth: unknown key of connector type \"sample\" (did you mean path?)",
		"path=x zzzzzzzz=1":                "zzzzzzzz: unknown key of connector type \"sample\" ()",
		"path=x follow=yes":                "follow: \"yes\" is neither true nor false ()",
		"path=x count=1.5":                 "count: \"1.5\" is not a whole number of 32 bits ()",
		"path=x count=0":                   "count: \"0\" is too small (at least 1)",
		"path=x count=11":                  "count: \"11\" is too large (at most 10)",
		"path=x long=99999999999999999999": "long: \"99999999999999999999\" is not a whole number of 64 bits ()",
		"path=x ratio=NaN":                 "ratio: \"NaN\" is not a decimal number ()",
		"path=x list=a,c":                  "list: \"c\" is not allowed (allowed: a, b)",
		"path=x mode=Fast":                 "mode: \"Fast\" is not allowed (allowed: fast, slow)",
		"path=x poll=-1s":                  "poll: \"-1s\" is not a duration such as 250ms, 10s or 5m ()",
		"path=x poll=2h":                   "poll: \"2h\" is too large (at most 60000ms)",
		"path=x poll=0":                    "poll: \"0\" is too small (at least 1ms)",
		"path=x size=1MB":                  "size: \"1MB\" is too large (at most 1024B)",
		"path=x size=ten":                  "size: \"ten\" is not a size such as 100B, 16KiB or 1MB ()",
	} {
		m := map[string]string{}
		for _, kv := range strings.Fields(config) {
			k, v, _ := strings.Cut(kv, "=")
			m[k] = v
		}
		var got []string
		for _, p := range CheckConfig(configType, m) {
			got = append(got, fmt.Sprintf("%s: %s (%s)", p.Key, p.Message, p.Hint))
		}
		if s := strings.Join(got, "; "); s != want {
			t.Errorf("%s:\n got %s\nwant %s", config, s, want)
		}
	}
}

func TestConfigGivesTypedValuesWithDefaults(t *testing.T) {
	c := WithDefaults(configType, map[string]string{"path": "x", "count": "7", "list": " a , b,,", "password": "hunter2", "ratio": "1.5", "long": "-9"})
	got := []any{c.String("path"), c.Bool("follow"), c.Int("count"), c.List("list"), c.Duration("poll"), c.Size("size"), c.Float64("ratio"), c.Int64("long"), c.Has("mode"), c.Has("nothing"), c.Int("nothing")}
	want := []any{"x", true, 7, []string{"a", "b"}, 250 * time.Millisecond, int64(1024), 1.5, int64(-9), true, false, 0}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	c := WithDefaults(configType, map[string]string{"path": "x", "password": "hunter2"})
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q", "%d", "%x"} {
		if s := fmt.Sprintf(format+format, c, c.Secret("password")); strings.Contains(s, "hunter2") || strings.Contains(s, "68756e") {
			t.Errorf("%s prints %s", format, s)
		}
	}
	if p := CheckConfig(Type{Config: []Key{{Name: "password", Type: Password, Allowed: []string{"a"}}}}, map[string]string{"password": "hunter2"}); len(p) != 1 || strings.Contains(fmt.Sprint(p), "hunter2") {
		t.Errorf("got %v", p)
	}
	if string(c.Secret("password")) != "hunter2" {
		t.Error("the secret is lost")
	}
}

func TestDurationsAndSizes(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "250": 250 * time.Millisecond, "10s": 10 * time.Second, "1h5m": 65 * time.Minute} {
		if got, err := ParseDuration(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "-1", "1 s", "9223372036854775807", "10" + "d"} {
		if got, err := ParseDuration(in); err == nil {
			t.Errorf("%s: %v", in, got)
		}
	}
	for in, want := range map[string]int64{"0": 0, "100": 100, "100B": 100, "16KiB": 16384, "1MB": 1e6, "2GiB": 2 << 30} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "B", "-1", "1.5MB", "1 MB", "9999999999GiB", "1XB"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%s: %v", in, got)
		}
	}
}

func TestClaimsHaveWhatTheirRuleSays(t *testing.T) {
	a, _ := Canonical(JSON(`{"f":"a"}`))
	b, _ := Canonical(JSON(`{"f":"b"}`))
	for name, c := range map[string]struct {
		claim      Claim
		hasA, hasB bool
	}{
		"unknown":  {Claim{}, true, true},
		"set":      {Claim{Set: []JSON{JSON(` {"f": "a"}`)}}, true, false},
		"empty":    {Claim{Set: []JSON{}}, false, false},
		"prefix":   {Claim{Prefix: []byte(`{"f":"b`)}, false, true},
		"range":    {Claim{Range: &Range{From: a, Until: b}}, true, false},
		"open end": {Claim{Range: &Range{From: b}}, false, true},
		"slot":     {Claim{Slot: &Slot{Slot: uint32(Hash(a) % 2), Of: 2}}, true, Hash(a)%2 == Hash(b)%2},
		"no slots": {Claim{Slot: &Slot{}}, false, false},
	} {
		if c.claim.Has(a) != c.hasA || c.claim.Has(b) != c.hasB {
			t.Errorf("%s: has a %v, b %v", name, c.claim.Has(a), c.claim.Has(b))
		}
	}
	// The protocol's rule, in numbers: the first eight bytes of the SHA-256.
	if Hash([]byte("abc")) != 0xba7816bf8f01cfea {
		t.Errorf("the hash of abc is %x", Hash([]byte("abc")))
	}
}
