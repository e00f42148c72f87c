package assign

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func runner(name string, load int, plugins ...Plugin) Runner {
	return Runner{Name: name, Load: load, Plugins: plugins}
}

func file(version string) Plugin {
	return Plugin{Name: "file", Version: version, SHA256: "s" + version, Types: []string{"file"}}
}

// wanting makes tasks of the runners that had them last.
func wanting(previous ...string) []Task {
	tasks := make([]Task, len(previous))
	for i, name := range previous {
		tasks[i].Previous = name
	}
	return tasks
}

var needFile = Need{Type: "file", Plugin: "file", Version: "1.0.0"}

func TestTasksGoToTheLeastLoaded(t *testing.T) {
	runners := []Runner{runner("a", 3, file("1.0.0")), runner("b", 0, file("1.0.0")), runner("c", 1, file("1.0.0"))}
	got := Place(needFile, wanting("", "", "", ""), runners)
	if diff := cmp.Diff([]string{"b", "b", "c", "b"}, got); diff != "" {
		t.Error(diff)
	}
	if runners[1].Load != 0 {
		t.Error("the caller's runners were changed")
	}
}

func TestTasksStayWhereTheyWereUpToAFairShare(t *testing.T) {
	runners := []Runner{runner("a", 0, file("1.0.0")), runner("b", 0, file("1.0.0"))}
	if diff := cmp.Diff([]string{"b", "a", "b", "a"}, Place(needFile, wanting("b", "a", "b", "a"), runners)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"b", "b", "a", "a"}, Place(needFile, wanting("b", "b", "b", "b"), runners)); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b"}, Place(needFile, wanting("gone", "gone"), runners)); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyTheExactPluginWithTheLabelsFits(t *testing.T) {
	runners := []Runner{runner("a", 0, file("1.1.0")), runner("b", 9, file("1.0.0")), runner("c", 0)}
	runners[1].Labels = map[string]string{"zone": "x"}
	for name, test := range map[string]struct {
		need Need
		want []string
		why  string
	}{
		"version": {needFile, []string{"b"}, ""},
		"label":   {Need{Type: "file", Labels: map[string]string{"zone": "x"}}, []string{"b"}, ""},
		"wrong label": {Need{Type: "file", Version: "1.0.0", Labels: map[string]string{"zone": "y", "disk": "ssd"}}, nil,
			`no runner that offers connector type "file" in version 1.0.0 has the wanted labels: b lacks disk=ssd,zone=y`},
		"missing version": {Need{Type: "file", Plugin: "file", Version: "2.0.0"}, nil,
			`no runner offers connector type "file" by plugin file in version 2.0.0; runners offer file@1.0.0 (b), file@1.1.0 (a)`},
		"missing checksum": {Need{Type: "file", SHA256: "feed"}, nil,
			`no runner offers connector type "file" with SHA-256 feed; runners offer file@1.0.0 (b), file@1.1.0 (a)`},
		"missing type": {Need{Type: "mirror"}, nil,
			`no runner offers connector type "mirror"; runners offer file@1.0.0 (b), file@1.1.0 (a)`},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Place(test.need, wanting(""), runners)); diff != "" {
				t.Error(diff)
			}
			if diff := cmp.Diff(test.why, Why(test.need, runners)); diff != "" {
				t.Error(diff)
			}
		})
	}
	if got := Why(needFile, nil); got != "no runner is connected" {
		t.Error(got)
	}
	if got := Why(needFile, []Runner{runner("c", 0)}); got != `no runner offers connector type "file" by plugin file in version 1.0.0; runners offer no plugins at all` {
		t.Error(got)
	}
}

func TestTheNewestVersionIsChosen(t *testing.T) {
	other := Plugin{Name: "afile", Version: "0.1.0", Types: []string{"text"}}
	runners := []Runner{runner("a", 0, file("1.9.0"), other), runner("b", 0, file("1.10.0-rc.1"), file("1.10.0"))}
	got, ok := Choose(Need{Type: "file"}, runners)
	if !ok || got.Version != "1.10.0" {
		t.Error(got, ok)
	}
	if got, ok = Choose(Need{Type: "file", Version: "1.9.0"}, runners); !ok || got.Version != "1.9.0" {
		t.Error(got, ok)
	}
	if _, ok = Choose(Need{Type: "mirror"}, runners); ok {
		t.Error("chose a plugin that doesn't serve the type")
	}
}

func TestVersionsAreOrderedAsSemanticVersioningSays(t *testing.T) {
	order := []string{
		"", "0.1", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11",
		"1.0.0-rc.1", "1.0.0", "1.2.0", "1.10.0", "v2", "2.0.1+build", "10.0", "100000000000000000000000.0",
	}
	for i, a := range order {
		for j, b := range order {
			got, want := CompareVersions(a, b), 0
			if i < j {
				want = -1
			} else if i > j {
				want = 1
			}
			if got != want {
				t.Errorf("%q against %q: %d, want %d", a, b, got, want)
			}
		}
	}
	if CompareVersions("1.0", "1.0.0") != 0 {
		t.Error("a missing part isn't zero")
	}
}

// Whatever comes in, each task gets a runner that fits, nobody exceeds the fair share by more than what it had, and a second call agrees with the first.
func TestPlacementIsFairAndTheSameEachTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := []string{"a", "b", "c", "d"}
		var runners []Runner
		for _, name := range names[:rapid.IntRange(1, 4).Draw(t, "runners")] {
			runners = append(runners, runner(name, rapid.IntRange(0, 9).Draw(t, "load"), file("1.0.0")))
		}
		previous := rapid.SliceOfN(rapid.SampledFrom(append(names, "", "gone")), 1, 30).Draw(t, "previous")
		placed := Place(needFile, wanting(previous...), runners)
		again := Place(needFile, wanting(previous...), runners)
		if !slices.Equal(placed, again) {
			t.Fatal("not the same", placed, again)
		}
		total := len(previous)
		for _, r := range runners {
			total += r.Load
		}
		fair := (total + len(runners) - 1) / len(runners)
		for _, r := range runners {
			got := 0
			for _, name := range placed {
				if name == r.Name {
					got++
				}
			}
			if got > 0 && r.Load+got > fair {
				t.Fatalf("%s has %d and got %d, fair is %d", r.Name, r.Load, got, fair)
			}
		}
	})
}
