package integration

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"

	"github.com/twmb/franz-go/pkg/kgo"
)

// rogues are the ways in which a plugin goes wrong once it runs, and what a user is told about each. Nothing beyond the first half of the records may be readable.
var rogues = []struct {
	mode string
	// says is in the error, all of it.
	says []string
	// first is how many records may have been committed before the fault.
	first int
}{
	{"disorder", []string{"seq"}, 10},
	{"giant", []string{"MiB"}, 50},
	{"no-offsets", []string{"offset"}, 50},
	{"empty-offset", []string{"offset", "empty"}, 50},
	{"short-arena", []string{"arena"}, 50},
	{"undeclared", []string{"partition", "7"}, 50},
	{"outside", []string{`somebody else's`, "claim"}, 0},
	{"overlap", []string{"overlap"}, 0},
}

// TestRoguePlugin: a plugin that breaks the protocol fails its own connector, with an error that says how, before anything wrong is readable; and disturbs nobody.
func TestRoguePlugin(t *testing.T) {
	bed := harness.New(t, "rogues", harness.Kfake(t))
	for _, r := range rogues {
		rogue(bed, r.mode)
	}
	neighbour := startNeighbour(bed)
	for _, r := range rogues {
		t.Run(r.mode, func(t *testing.T) {
			bed := bed.For(t)
			harness.CreateTopic(t, bed.Bootstrap, r.mode, 1)
			bed.Create(r.mode, map[string]string{"connector.class": "rogue-" + r.mode, "topic": r.mode})
			bed.AwaitState(2*time.Minute, r.mode, "FAILED")
			said := describe(bed, r.mode)
			for _, word := range r.says {
				if !strings.Contains(said, word) {
					t.Errorf("describe doesn't say %q:\n%s", word, said)
				}
			}
			checkPrefix(t, bed, r.mode, r.first)
			neighbour.undisturbed(t)
			bed.MustCLI("delete", r.mode)
		})
	}
	bed.PluginProcesses(10*time.Second, 1)
	bed.StopAll()
}

// checkPrefix reads a rogue's topic: the records from v0 on, at most so many, and the stored offset of the last of them.
func checkPrefix(t *testing.T, bed *harness.Bed, connector string, most int) {
	t.Helper()
	n := 0
	err := reader.Topic(t.Context(), bed.Bootstrap, connector, func(r *kgo.Record) error {
		if want := fmt.Sprintf("v%d", n); string(r.Value) != want {
			t.Errorf("record %d is %q", n, r.Value)
		}
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if n > most {
		t.Errorf("%d records are readable, want %d at most", n, most)
	}
	if n == 0 {
		return
	}
	stored, err := reader.Stored(t.Context(), bed.Bootstrap, offsetsTopic(bed, connector), connector)
	if want := fmt.Sprintf(`{"n":%d}`, n-1); err != nil || len(stored) != 1 || string(stored[0].Offset) != want {
		t.Errorf("stored offsets %s (%v), want %s", stored, err, want)
	}
}

// neighbour is a connector that goes on while others fail.
type neighbour struct {
	bed    *harness.Bed
	before map[uint32]uint64 // task → epoch
	at     uint64            // records when last looked at
}

// startNeighbour starts coordinator and runner, and a connector that never ends.
func startNeighbour(bed *harness.Bed) *neighbour {
	bed.T.Helper()
	harness.CreateTopic(bed.T, bed.Bootstrap, "neighbour", 1)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("neighbour", endless("neighbour"))
	c := bed.AwaitState(time.Minute, "neighbour", "RUNNING")
	n := &neighbour{bed: bed, before: map[uint32]uint64{}}
	for _, task := range c.GetTasks() {
		n.before[task.GetTask()] = task.GetEpoch()
	}
	return n
}

// undisturbed checks that it still has its leases, and that it delivers.
func (n *neighbour) undisturbed(t *testing.T) {
	t.Helper()
	harness.Wait(t, 10*time.Second, "the neighbour delivers", func(ctx context.Context) error {
		c, err := n.bed.For(t).Connector(ctx, "neighbour")
		if err != nil {
			return err
		}
		for _, task := range c.GetTasks() {
			if task.GetEpoch() != n.before[task.GetTask()] || task.GetState() != "RUNNING" || task.GetAborts() != 0 {
				return harness.Final(fmt.Errorf("it was disturbed: %v", task))
			}
		}
		if recordsOf(c) <= n.at {
			return errors.New("no new records")
		}
		n.at = recordsOf(c)
		return nil
	})
}

// rogue puts a misbehaving plugin into a bed's folder.
func rogue(bed *harness.Bed, mode string) string {
	bed.T.Helper()
	path := filepath.Join(bed.Plugins, "rogue-"+mode)
	harness.BuildPackage(bed.T, "./integration/rogue", path)
	return path
}

// TestHangingPlugin: a plugin that never answers costs nobody else anything, shows what it is doing, and is gone in time when its connector is deleted.
func TestHangingPlugin(t *testing.T) {
	bed := harness.New(t, "hanging", harness.Kfake(t))
	modes := []string{"hang-validate", "hang-plan", "hang-run", "hang-shutdown", "immortal"}
	for _, mode := range modes {
		rogue(bed, mode)
	}
	neighbour := startNeighbour(bed)
	for _, mode := range modes {
		t.Run(mode, func(t *testing.T) {
			bed := bed.For(t)
			harness.CreateTopic(t, bed.Bootstrap, mode, 1)
			created := bed.CLI("create", "-f", bed.ConnectorFile(mode, map[string]string{"connector.class": "rogue-" + mode, "topic": mode}))
			if mode == "hang-validate" {
				if created.Code == 0 || !strings.Contains(created.Stderr, "alid") {
					t.Errorf("create: exit code %d: %s", created.Code, created.Stderr)
				}
				neighbour.undisturbed(t)
				return
			}
			if created.Code != 0 {
				t.Fatalf("create: exit code %d: %s", created.Code, created.Stderr)
			}
			bed.PluginProcesses(20*time.Second, 2)
			neighbour.undisturbed(t)
			start := time.Now()
			if r := bed.CLI("delete", mode); r.Code != 0 {
				t.Errorf("delete: exit code %d: %s", r.Code, r.Stderr)
			}
			bed.PluginProcesses(45*time.Second, 1) // every step of the way down has a time-out of its own
			t.Logf("it was gone after %s", time.Since(start))
			neighbour.undisturbed(t)
		})
	}
	bed.StopAll()
}

// TestFloodingPlugin: twenty megabytes on stdout and stderr, and a line of two megabytes, cost no record and no memory.
func TestFloodingPlugin(t *testing.T) {
	bed := harness.New(t, "flooding", harness.Kfake(t))
	rogue(bed, "flood")
	neighbour := startNeighbour(bed)
	harness.CreateTopic(t, bed.Bootstrap, "flood", 1)
	bed.Create("flood", map[string]string{"connector.class": "rogue-flood", "topic": "flood"})
	harness.Wait(t, time.Minute, "all records", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "flood")
		if err == nil && recordsOf(c) != 100 {
			err = fmt.Errorf("%d records: %s", recordsOf(c), c.GetMessage())
		}
		return err
	})
	checkPrefix(t, bed, "flood", 100)
	neighbour.undisturbed(t)
	bed.StopAll()
}

// TestPluginThatDoesNotStart: what is under the plugin path and can't run is shown with the reason, by `plugins` and by `validate`, and costs the others nothing.
func TestPluginThatDoesNotStart(t *testing.T) {
	bed := harness.New(t, "not-starting", "")
	for _, mode := range []string{"exit", "silent", "banner", "hang-describe"} {
		rogue(bed, mode)
	}
	good, err := os.ReadFile(filepath.Join(bed.Plugins, "file"))
	if err != nil {
		t.Fatal(err)
	}
	foreign := append([]byte(nil), good...)
	binary.LittleEndian.PutUint16(foreign[18:], 0x16) // ELF's e_machine: S/390
	for name, file := range map[string]struct {
		text []byte
		mode os.FileMode
	}{
		"foreign":        {foreign, 0o755},
		"no-run-bit":     {good, 0o644},
		"cut-off":        {good[:len(good)/2], 0o755},
		"no-interpreter": {[]byte("#!/no/such/interpreter\n"), 0o755},
		"text":           {[]byte("this is no program\n"), 0o755},
		"nothing":        {nil, 0o755},
	} {
		if err := os.WriteFile(filepath.Join(bed.Plugins, name), file.text, file.mode); err != nil {
			t.Fatal(err)
		}
	}
	r := bed.CLI("plugins", "--plugin-path", bed.Plugins, "-o", "json")
	var listed []struct{ Name, Path, Error string }
	if err := json.Unmarshal([]byte(r.Stdout), &listed); err != nil {
		t.Fatalf("plugins: %v\n%s%s", err, r.Stdout, r.Stderr)
	}
	said := map[string]string{}
	names := map[string]bool{}
	for _, p := range listed {
		said[filepath.Base(p.Path)] = p.Error
		names[p.Name] = true
	}
	for name, words := range map[string][]string{
		"rogue-exit":          {"3", "the licence has expired"},
		"rogue-silent":        {"handshake"},
		"rogue-banner":        {"Welcome to Rogue 1.0!", "stdout"},
		"rogue-hang-describe": {"Describe"},
		"foreign":             {"another processor", "s390"},
		"no-run-bit":          {"chmod"},
		"no-interpreter":      {"/no/such/interpreter"},
		"text":                {"program"},
	} {
		why := said[name]
		for _, word := range words {
			if !strings.Contains(why, word) {
				t.Errorf("%s: %q doesn't say %q", name, why, word)
			}
		}
	}
	for _, name := range []string{"cut-off", "nothing"} {
		if said[name] == "" {
			t.Errorf("%s: no error in %s", name, r.Stdout)
		}
	}
	for _, name := range []string{"file", "generator"} {
		if !names[name] {
			t.Errorf("the plugin %s is missing beside the broken ones", name)
		}
	}
	bed.NothingRuns()
}

// TestWrongChecksum: an executable that isn't the pinned one is not run.
func TestWrongChecksum(t *testing.T) {
	bed := harness.New(t, "checksum", harness.Kfake(t))
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	harness.CreateTopic(t, bed.Bootstrap, "numbers", 1)
	config := endless("numbers")
	config["plugin.sha256"] = strings.Repeat("0", 64)
	r := bed.CLI("create", "-f", bed.ConnectorFile("numbers", config))
	said := r.Stderr
	if r.Code == 0 {
		bed.AwaitState(time.Minute, "numbers", "FAILED", "UNASSIGNED")
		said = describe(bed, "numbers")
	}
	if !strings.Contains(said, "plugin.sha256") || !strings.Contains(said, "0000") {
		t.Errorf("it doesn't say which checksum is wrong:\n%s", said)
	}
	bed.NothingRuns()
	bed.StopAll()
}
