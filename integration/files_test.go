package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/reader"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestRealInput streams the source of Go's standard library, real text on every machine that can build this, through the file plugin to a real broker, while the runner is killed again and
// again: kill k when the reader has seen k × 9 % of the lines. What was read must be the files, byte by byte.
func TestRealInput(t *testing.T) {
	const (
		topic     = "real-input.lines"
		connector = "go-source"
		kills     = 11
	)
	dir := t.TempDir()
	lines := copyGoSource(t, dir)
	bed := harness.New(t, "real-input", harness.Kafka(t))
	// One file has a line of 1.4 MB.
	limit := "4194304"
	if _, err := harness.Admin(t, bed.Bootstrap).CreateTopic(t.Context(), 6, 1, map[string]*string{"max.message.bytes": &limit}, topic); err != nil {
		t.Fatal(err)
	}
	bed.StartCoordinator()
	runner := bed.StartRunner("runner", nil)
	due := progress(t, bed.Bootstrap, topic, lines, kills)
	bed.Create(connector, map[string]string{
		"connector.class": "file", "tasks.max": "2", "topic": topic,
		"paths":          filepath.Join(dir, "**/*.go"),
		"line.max.bytes": "2MiB",
	})

	var killed []ends
	for k := 1; k <= kills; k++ {
		select {
		case seen := <-due:
			if !runner.Running() {
				t.Fatalf("before kill %d the runner had ended by itself: %v", k, runner.State())
			}
			runner.Kill()
			killed = append(killed, stable(t, bed.Bootstrap, topic))
			t.Logf("kill %d when the reader had seen %d of %d lines", k, seen, lines)
			runner = bed.StartRunner("runner", nil)
		case <-time.After(2 * time.Minute):
			t.Fatalf("the reader didn't come to %d%% of the lines; %s", 9*k, describe(bed, connector))
		}
	}
	bed.AwaitCaughtUp(2*time.Minute, connector)
	inTheMiddle := 0
	for _, n := range readable(t, bed.Bootstrap, topic, killed) {
		if n < lines {
			inTheMiddle++
		}
	}
	if inTheMiddle < 10 {
		t.Errorf("%d kills while lines were still missing, want 10 at least", inTheMiddle)
	}
	checkFiles(t, bed, dir, topic, connector)
	bed.StopAll()
}

// ends are the last stable offsets of a topic: what is below them is readable.
type ends map[int32]int64

func stable(t *testing.T, bootstrap, topic string) ends {
	t.Helper()
	listed, err := harness.Admin(t, bootstrap).ListCommittedOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	at := ends{}
	listed.Each(func(o kadm.ListedOffset) { at[o.Partition] = o.Offset })
	return at
}

// readable counts the records that were readable at each of some moments.
func readable(t *testing.T, bootstrap, topic string, moments []ends) []int {
	t.Helper()
	counts := make([]int, len(moments))
	err := reader.Topic(t.Context(), bootstrap, topic, func(r *kgo.Record) error {
		for i, at := range moments {
			if r.Offset < at[r.Partition] {
				counts[i]++
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return counts
}

// copyGoSource copies Go's sources that end in a newline and hold no carriage return, and counts their lines.
func copyGoSource(t *testing.T, to string) (lines int) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	from := filepath.Join(strings.TrimSpace(string(root)), "src")
	files, size := 0, 0
	err = filepath.WalkDir(from, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || filepath.Ext(path) != ".go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil || !bytes.HasSuffix(text, []byte("\n")) || bytes.ContainsRune(text, '\r') {
			return err
		}
		relative, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		copied := filepath.Join(to, relative)
		if err := os.MkdirAll(filepath.Dir(copied), 0o755); err != nil {
			return err
		}
		files, size, lines = files+1, size+len(text), lines+bytes.Count(text, []byte("\n"))
		return os.WriteFile(copied, text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d files, %d lines, %d bytes", files, lines, size)
	if files < 1000 {
		t.Fatalf("%s has %d Go files: it is not the source of the standard library", from, files)
	}
	return lines
}

// progress follows the topic and tells when the reader has seen each further 9 % of the lines.
func progress(t *testing.T, bootstrap, topic string, lines, steps int) <-chan int {
	t.Helper()
	due := make(chan int, steps) // one for each step: the reader never waits
	seen, step := 0, 1
	follow(t, bootstrap, topic, func(*kgo.Record) {
		seen++
		if step <= steps && seen >= lines*9*step/100 {
			due <- seen
			step++
		}
	})
	return due
}

// checkFiles writes out again what a read_committed reader sees, by key, and compares it with the files; and each stored position with its file's size.
func checkFiles(t *testing.T, bed *harness.Bed, dir, topic, connector string) {
	t.Helper()
	texts := map[string]*bytes.Buffer{}
	err := reader.Topic(t.Context(), bed.Bootstrap, topic, func(r *kgo.Record) error {
		text := texts[string(r.Key)]
		if text == nil {
			text = &bytes.Buffer{}
			texts[string(r.Key)] = text
		}
		text.Write(r.Value)
		text.WriteByte('\n')
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	positions := storedPositions(t, bed, connector)
	wrong := 0
	complain := func(format string, args ...any) {
		if wrong++; wrong <= 10 {
			t.Errorf(format, args...)
		}
	}
	files := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		files++
		want, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		got := texts[path]
		switch {
		case got == nil:
			complain("%s: nothing of it arrived", path)
		case !bytes.Equal(got.Bytes(), want):
			complain("%s: %s", path, difference(got.Bytes(), want))
		}
		if position, ok := positions[inode(t, path)]; !ok || position != int64(len(want)) {
			complain("%s: stored position %d, want %d", path, position, len(want))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(texts) != files {
		complain("records of %d files, want %d", len(texts), files)
	}
}

func difference(got, want []byte) string {
	gotLines, wantLines := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range min(len(gotLines), len(wantLines)) {
		if !bytes.Equal(gotLines[i], wantLines[i]) {
			return fmt.Sprintf("line %d of %d is %q, want %q (of %d)", i+1, len(gotLines), gotLines[i], wantLines[i], len(wantLines))
		}
	}
	return fmt.Sprintf("%d lines, want %d", len(gotLines), len(wantLines))
}

// storedPositions are the file plugin's stored offsets, by inode.
func storedPositions(t *testing.T, bed *harness.Bed, connector string) map[uint64]int64 {
	t.Helper()
	stored, err := reader.Stored(t.Context(), bed.Bootstrap, offsetsTopic(bed, connector), connector)
	if err != nil {
		t.Fatal(err)
	}
	positions := map[uint64]int64{}
	for _, s := range stored {
		var partition struct{ Inode uint64 }
		var offset struct{ Position int64 }
		if err := json.Unmarshal(s.Partition, &partition); err != nil {
			t.Fatalf("stored partition %s: %v", s.Partition, err)
		}
		if err := json.Unmarshal(s.Offset, &offset); err != nil {
			t.Fatalf("stored offset %s: %v", s.Offset, err)
		}
		positions[partition.Inode] = offset.Position
	}
	return positions
}

func inode(t *testing.T, path string) uint64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		t.Fatalf("%s: no inode", path)
	}
	return stat.Ino
}

// offsetsTopic is where a connector's offsets are unless it says otherwise, by contract.
func offsetsTopic(bed *harness.Bed, connector string) string {
	return bed.Cluster + ".offsets." + connector
}

func recordsOf(c *controlv1.Connector) (n uint64) {
	for _, task := range c.GetTasks() {
		n += task.GetRecords()
	}
	return n
}

func describe(bed *harness.Bed, connector string) string {
	r := bed.CLI("describe", connector)
	return r.Stdout + r.Stderr
}

// TestManyFiles: new files inside a rule need no new plan. A thousand files more, and neither the generation nor a lease changes, and no task stops running.
func TestManyFiles(t *testing.T) {
	const (
		topic     = "many-files.lines"
		connector = "many"
		tasks     = 3
	)
	dir := t.TempDir()
	bed := harness.New(t, "many-files", harness.Kfake(t))
	harness.CreateTopic(t, bed.Bootstrap, topic, 3)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	writeLines(t, dir, 0, 10)
	bed.Create(connector, map[string]string{
		"connector.class": "file", "tasks.max": fmt.Sprint(tasks), "paths": filepath.Join(dir, "*.log"), "topic": topic, "scan.interval": "50ms",
	})
	before := bed.AwaitCaughtUp(time.Minute, connector)

	seen := make(chan struct{})
	go func() {
		defer close(seen)
		writeLines(t, dir, 10, 1010)
	}()
	harness.Wait(t, 2*time.Minute, "1,010 files have arrived", func(ctx context.Context) error {
		now, err := bed.Connector(ctx, connector)
		if err != nil {
			return err
		}
		if err := undisturbed(before, now); err != nil {
			return harness.Final(err)
		}
		if n := recordsOf(now); n != 3*1010 {
			return fmt.Errorf("%d records", n)
		}
		return nil
	})
	<-seen
	checkFiles(t, bed, dir, topic, connector)
	bed.StopAll()
}

// undisturbed says what changed about a connector that should go on as it is.
func undisturbed(before, now *controlv1.Connector) error {
	if before.GetGeneration() != now.GetGeneration() {
		return fmt.Errorf("generation %d became %d", before.GetGeneration(), now.GetGeneration())
	}
	for i, task := range now.GetTasks() {
		was := before.GetTasks()[i]
		if task.GetEpoch() != was.GetEpoch() || task.GetState() != "RUNNING" || task.GetAborts() != was.GetAborts() {
			return fmt.Errorf("task %d was %v and is %v", i, was, task)
		}
	}
	return nil
}

func writeLines(t *testing.T, dir string, from, until int) {
	t.Helper()
	for n := from; n < until; n++ {
		text := fmt.Sprintf("first of %d\nsecond\nthird of %d\n", n, n)
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d.log", n)), []byte(text), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// TestQuickStart is README's first command: it shows every record of the quick start and ends by itself.
func TestQuickStart(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	binaries := harness.Build(t)
	log := filepath.Join(t.TempDir(), "dev.log")
	p, err := process.Start(process.Spec{
		Name: "dev", Path: binaries.Fencepost, Dir: root, Log: log, Env: []string{"TMPDIR=" + harness.ShortDir(t)},
		Args: []string{"dev", "-f", "docs/examples/quickstart.yaml", "--plugin-path", binaries.Plugins, "--once"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Kill()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	code, err := p.Wait(ctx)
	if err != nil || code != 0 {
		t.Fatalf("dev --once: exit code %d, %v\n%s", code, err, p.Tail(60))
	}
	shown, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(root, "docs/examples/quickstart/*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("the quick start's folder: %v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			line = strings.TrimRight(line, "\r\n")
			if n := strings.Count(string(shown), line); n != strings.Count(string(text), line) && line != "" {
				t.Errorf("%s: the line %q is shown %d times", filepath.Base(file), line, n)
			}
		}
	}
	if t.Failed() {
		t.Logf("dev showed:\n%s", shown)
	}
}
