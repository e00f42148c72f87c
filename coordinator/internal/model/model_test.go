//go:build !race

// The searches have one goroutine, and would take minutes under the race detector: .ci/gotest runs them once more without it.

package model

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
)

// full says that the deep search is to be run: it takes an hour or more and some GiB.
var full = os.Getenv("FENCEPOST_FULL") != ""

var (
	// swap exchanges what two tasks read, so that the id of one doesn't fence who read it before.
	swap  = Change{Kind: Apply, Layout: 1}
	merge = Change{Kind: Replan, Layout: 2}
)

// leastStates is how many distinct states the searches are to reach together.
const leastStates = 1_000_000

// searches are the worlds whose every order of steps is tried. Those with a limit of states end where it is reached.
var searches = []struct {
	name   string
	bounds Bounds
	deep   bool
}{
	{"two changes", Bounds{Changes: []Change{swap, merge}, Records: [partitions]uint8{2, 1}, Walk: 500}, false},
	{"zombie", Bounds{Records: [partitions]uint8{1, 1}, Zombies: 1, Walk: 500}, false},
	{"crash", Bounds{Records: [partitions]uint8{1, 1}, Crashes: 1, Walk: 500}, false},
	{"take-over", Bounds{Layout: 2, Records: [partitions]uint8{1, 1}, Takeovers: 1, Walk: 500}, false},
	{"change and zombie", Bounds{Layout: 2, Changes: []Change{swap}, Records: [partitions]uint8{2, 0}, Zombies: 1, Walk: 500}, false},
	{"stop and zombie", Bounds{Layout: 2, Changes: []Change{{Kind: Stop}}, Records: [partitions]uint8{2, 0}, Zombies: 1, Walk: 500}, false},
	{"delete and zombie", Bounds{Layout: 2, Changes: []Change{{Kind: Delete}}, Records: [partitions]uint8{2, 0}, Zombies: 1, Walk: 500}, false},
	{"broken connection", Bounds{Records: [partitions]uint8{1, 1}, Cuts: 1, Walk: 500}, false},
	{"commit without an answer, and crash", Bounds{Records: [partitions]uint8{1, 1}, Unanswered: 1, Crashes: 1, Walk: 500}, false},
	{"expired transaction, and crash", Bounds{Records: [partitions]uint8{1, 1}, Expiries: 1, Crashes: 1, Walk: 500}, false},
	{"commit without an answer, and zombie", Bounds{Layout: 2, Records: [partitions]uint8{2, 0}, Unanswered: 1, Zombies: 1, Walk: 500}, false},
	{"expired transaction, and zombie", Bounds{Layout: 2, Records: [partitions]uint8{2, 0}, Expiries: 1, Zombies: 1, Walk: 500}, false},
	{"take-over and zombie", Bounds{Layout: 2, Records: [partitions]uint8{1, 0}, Takeovers: 1, Zombies: 1, Walk: 500, States: 3_000_000}, true},
	// Far too many for every order: breadth first, those of the first steps.
	{"two changes, take-over, crash and zombie", Bounds{Changes: []Change{swap, merge}, Records: [partitions]uint8{2, 1}, Takeovers: 1, Crashes: 1, Zombies: 1, Walk: 5000, States: leastStates}, false},
	{"everything", deep(everything), true},
}

// everything is what a day that goes wrong may hold.
var everything = Bounds{Changes: []Change{swap, merge}, Records: [partitions]uint8{2, 1}, Takeovers: 1, Crashes: 1, Zombies: 1, Cuts: 1, Unanswered: 1, Expiries: 1}

func deep(b Bounds) Bounds {
	b.Walk, b.States = 500, 5_000_000 // of 600 bytes, and half as many again while they are found
	return b
}

func TestEveryOrderOfStepsKeepsTheInvariants(t *testing.T) {
	states := 0
	for _, s := range searches {
		if s.deep && !full {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			r := Check(s.bounds, None)
			t.Log(r)
			if r.Wrong != "" {
				t.Fatalf("%s\n%s", r.Wrong, strings.Join(r.Trace, "\n"))
			}
			if r.Walks == 0 || s.bounds.States == 0 && (!r.Complete || r.Beyond > 0) {
				t.Errorf("not every order of steps was tried, or no fair run")
			}
			states += r.States
		})
	}
	if states < leastStates {
		t.Errorf("%d distinct states, want %d at least", states, leastStates)
	}
}

// TestRunsAtRandomKeepTheInvariants: the searches reach every order of what they hold, and this reaches the end of runs in which everything happens.
func TestRunsAtRandomKeepTheInvariants(t *testing.T) {
	bounds := everything
	bounds.States = 300_000
	if full {
		bounds.States = 10_000_000
	}
	r := Sample(bounds, None, 1)
	t.Log(r)
	if r.Wrong != "" {
		t.Fatalf("%s\n%s", r.Wrong, strings.Join(r.Trace, "\n"))
	}
}

// TestRunsAtRandomCanFindAMistake: the others are too rare for them; searches find those.
func TestRunsAtRandomCanFindAMistake(t *testing.T) {
	bounds := everything
	bounds.States = 100_000
	for _, name := range []string{
		"confirmation-from-memory", "renewal-by-a-deposed-leader", "offsets-before-initialisation", "count-persisted-late", "acknowledge-before-commit", "resume-from-memory", "send-before-persist",
	} {
		if r := Sample(bounds, mistakes[name], 1); r.Wrong == "" {
			t.Errorf("%s: %s", name, r)
		}
	}
}

var mistakes = map[string]Mistake{
	"no-confirmation": NoConfirmation, "confirmation-from-memory": ConfirmFromMemory, "renewal-by-a-deposed-leader": RenewedByDeposed,
	"offsets-before-initialisation": OffsetsBeforeInit, "read-to-the-last-stable-offset": ReadToLastStable, "count-persisted-late": CountLate,
	"round-not-repeated": RoundNotRepeated, "acknowledge-before-commit": AcknowledgeEarly, "resume-from-memory": ResumeFromMemory,
	"send-before-persist": SentBeforePersisted, "stop-answered-early": StopAnsweredEarly,
}

// TestPlantedMistakesAreFound plants one mistake after the other in the smallest world where it shows, and compares the shortest way to a broken property, told in words, with testdata. -rewrite writes them anew.
//
//	find MISTAKE [layout=N] [records=(A,B)] [changes=(apply:N|replan:N|stop|delete …)] [zombies=N] [crashes=N] [takeovers=N] [unanswered=N]
func TestPlantedMistakesAreFound(t *testing.T) {
	found := map[Mistake]bool{}
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			t.Helper()
			name := d.CmdArgs[0].Key
			mistake, known := mistakes[name]
			if !known {
				t.Fatalf("there is no mistake %q", name)
			}
			r := Check(bounds(t, d), mistake)
			t.Log(r)
			if r.Wrong == "" {
				return "nothing is found\n"
			}
			found[mistake] = true
			return strings.Join(r.Trace, "\n") + "\n"
		})
	})
	for name, mistake := range mistakes {
		if !found[mistake] {
			t.Errorf("%s isn't found", name)
		}
	}
}

func bounds(t *testing.T, d *datadriven.TestData) Bounds {
	t.Helper()
	b := Bounds{Records: [partitions]uint8{1, 1}}
	number := func(text string) uint8 {
		n, err := strconv.ParseUint(text, 10, 8)
		if err != nil {
			t.Fatalf("%s: %v", d.Pos, err)
		}
		return uint8(n)
	}
	for _, arg := range d.CmdArgs[1:] {
		switch arg.Key {
		case "layout":
			b.Layout = number(arg.Vals[0])
		case "records":
			b.Records = [partitions]uint8{number(arg.Vals[0]), number(arg.Vals[1])}
		case "changes":
			for _, text := range arg.Vals {
				kind, layout, _ := strings.Cut(text, ":")
				c := Change{Kind: map[string]ChangeKind{"apply": Apply, "replan": Replan, "stop": Stop, "delete": Delete}[kind]}
				if layout != "" {
					c.Layout = number(layout)
				}
				b.Changes = append(b.Changes, c)
			}
		case "zombies":
			b.Zombies = number(arg.Vals[0])
		case "crashes":
			b.Crashes = number(arg.Vals[0])
		case "takeovers":
			b.Takeovers = number(arg.Vals[0])
		case "unanswered":
			b.Unanswered = number(arg.Vals[0])
		default:
			t.Fatalf("%s: %s", d.Pos, arg.Key)
		}
	}
	return b
}
