package filesource

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/sdk/go/source"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// folder is a folder of files with one connector over it.
type folder struct {
	testing.TB
	dir    string
	runner *sourcetest.Runner
	spec   source.TaskSpec
}

func newFolder(t testing.TB, glob string, more map[string]string) *folder {
	t.Helper()
	dir := t.TempDir()
	config := map[string]string{keyPaths: filepath.Join(dir, glob), keyTopic: "lines", keyScan: "10ms"}
	for key, value := range more {
		config[key] = value
	}
	runner := sourcetest.New(t, sourcetest.Config{Plugin: source.New("file", "0.0.1", Connector{}), Config: config})
	return &folder{TB: t, dir: dir, runner: runner, spec: runner.Plan(1)[0]}
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

func (f *folder) write(name, content string) {
	f.Helper()
	if err := os.WriteFile(f.path(name), []byte(content), 0o600); err != nil {
		f.Fatal(err)
	}
}

// add appends to a file, through a handle of its own.
func (f *folder) add(name, content string) {
	f.Helper()
	h := f.hold(name)
	defer h.Close()
	f.addTo(h, content)
}

func (f *folder) hold(name string) *os.File {
	f.Helper()
	h, err := os.OpenFile(f.path(name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		f.Fatal(err)
	}
	return h
}

func (f *folder) addTo(h *os.File, content string) {
	f.Helper()
	if _, err := h.WriteString(content); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) rename(from, to string) {
	f.Helper()
	if err := os.Rename(f.path(from), f.path(to)); err != nil {
		f.Fatal(err)
	}
}

func (f *folder) link(target, name string) {
	f.Helper()
	_ = os.Remove(f.path(name))
	if err := os.Symlink(f.path(target), f.path(name)); err != nil {
		f.Fatal(err)
	}
}

// want waits for n records, commits them, and compares everything that is committed.
func (f *folder) want(task *sourcetest.Task, n int, all ...string) {
	f.Helper()
	task.Wait(n)
	task.Commit()
	sourcetest.CheckExact(f, "committed", sourcetest.Values(f.runner.Committed()), all)
}

func numbers(from, to int) (lines []string) {
	for i := from; i <= to; i++ {
		lines = append(lines, fmt.Sprint(i))
	}
	return lines
}

func text1(lines []string) string { return strings.Join(lines, "\n") + "\n" }

func TestEveryLineOnceThroughEveryCrash(t *testing.T) {
	dir := t.TempDir()
	want := numbers(1, 9)
	if err := os.WriteFile(filepath.Join(dir, "a.log"), []byte(text1(want)+"unfinished"), 0o600); err != nil {
		t.Fatal(err)
	}
	sourcetest.Exact(t, sourcetest.Config{
		Plugin: source.New("file", "0.0.1", Connector{}),
		Config: map[string]string{keyPaths: filepath.Join(dir, "*.log"), keyTopic: "lines", keyScan: "10ms"},
		Limits: source.Limits{MaxBatchRecords: 2},
	}, want)
}

func TestRotationByRenameIsTheSameFile(t *testing.T) {
	// A restart at each step must change nothing.
	for restartAt := range 5 {
		t.Run(fmt.Sprint("restart at step ", restartAt), func(t *testing.T) {
			f := newFolder(t, "app.log*", nil)
			task := f.runner.Start(f.spec)
			step := func(n int) {
				if n == restartAt {
					task.Kill()
					task = f.runner.Start(f.spec)
				}
			}
			old := f.hold("app.log")
			defer old.Close()
			f.addTo(old, text1(numbers(1, 5)))
			f.want(task, 5, numbers(1, 5)...)
			step(0)
			f.rename("app.log", "app.log.1")
			step(1)
			f.addTo(old, text1(numbers(6, 7)))
			step(2)
			f.want(task, 2, numbers(1, 7)...)
			step(3)
			f.add("app.log", text1(numbers(8, 10)))
			step(4)
			f.want(task, 3, numbers(1, 10)...)
			task.Stop()
			for _, r := range f.runner.Committed()[:7] {
				if key := string(r.Key); key != f.path("app.log") {
					t.Errorf("record %s has key %s: rotation must not change a file's key", r.Value, key)
				}
			}
		})
	}
}

func TestFileRenamedOutOfTheGlobIsReadToItsEnd(t *testing.T) {
	f := newFolder(t, "app.log", nil)
	old := f.hold("app.log")
	defer old.Close()
	f.addTo(old, "1\n")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "1")
	f.rename("app.log", "app.old")
	f.addTo(old, "2\n")
	f.write("app.log", "3\n")
	f.want(task, 2, "1", "2", "3")
	task.Stop()
}

func TestFileRotatedOutOfTheGlobWhileNobodyReadsIsFinishedFirst(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	f.write("app.log", text1(numbers(1, 3)))
	task := f.runner.Start(f.spec)
	f.want(task, 3, numbers(1, 3)...)
	task.Kill()
	f.add("app.log", text1(numbers(4, 6)))
	f.rename("app.log", "app.log.1")
	f.write("app.log", text1(numbers(7, 9)))
	task = f.runner.Start(f.spec)
	f.want(task, 6, numbers(1, 9)...)
	task.Kill()
	// Once more, over a file that is finished: nothing comes twice.
	task = f.runner.Start(f.spec)
	f.add("app.log", "10\n")
	f.want(task, 1, numbers(1, 10)...)
	task.Stop()
}

func TestWriterThatStillHoldsARotatedFileIsHeard(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	old := f.hold("app.log")
	defer old.Close()
	f.addTo(old, "1\n")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "1")
	task.Kill()
	f.rename("app.log", "app.log.1")
	task = f.runner.Start(f.spec)
	task.WaitIdle()
	f.addTo(old, "2\n")
	f.want(task, 1, "1", "2")
	task.Stop()
}

func TestHiddenFilesMatchAndLinksToFoldersAreLeftAlone(t *testing.T) {
	f := newFolder(t, "**/*.log", nil)
	f.write(".hidden.log", "hidden\n")
	f.link(".", "loop")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "hidden")
	if key := string(f.runner.Committed()[0].Key); key != f.path(".hidden.log") {
		t.Errorf("the key is %s", key)
	}
	task.Stop()
}

func TestAnErrorOfTheRuntimeIsNoFaultOfTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.log")
	if err := os.WriteFile(path, []byte(strings.Repeat("x", 1000)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	runner := sourcetest.New(t, sourcetest.Config{
		Plugin: source.New("file", "0.0.1", Connector{}), Config: map[string]string{keyPaths: path, keyTopic: "lines"}, Limits: source.Limits{MaxRecordBytes: 500},
	})
	if err := runner.Start(runner.Plan(1)[0]).End(); err == nil || !strings.Contains(err.Error(), "500") {
		t.Errorf("a record over the limit: the task ended with %v", err)
	}
}

func TestLinksAndTheirTargetAreOneFile(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	f.write("x.log", text1(numbers(1, 3)))
	f.link("x.log", "l.log")
	f.link("nowhere", "dangling.log")
	if err := os.Link(f.path("x.log"), f.path("hard.log")); err != nil {
		t.Fatal(err)
	}
	task := f.runner.Start(f.spec)
	f.want(task, 3, numbers(1, 3)...)
	task.WaitIdle()
	task.Stop()
	sourcetest.CheckExact(t, "in the end", sourcetest.Values(f.runner.Committed()), numbers(1, 3))
}

func TestRetargetedLinkFinishesTheOldFileFirst(t *testing.T) {
	f := newFolder(t, "current", nil)
	f.write("x", text1(numbers(1, 3)))
	f.write("y", text1(numbers(4, 6)))
	f.link("x", "current")
	task := f.runner.Start(f.spec)
	f.want(task, 3, numbers(1, 3)...)
	f.link("y", "current")
	f.want(task, 3, numbers(1, 6)...)
	task.Stop()
}

func TestNewFilesAreRead(t *testing.T) {
	f := newFolder(t, "**/*.log", nil)
	task := f.runner.Start(f.spec)
	task.WaitIdle()
	if err := os.MkdirAll(f.path("a/b"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("a/b/c.log", "1\n")
	f.want(task, 1, "1")
	task.Stop()
}

func TestCutOffFileStartsAtItsBeginning(t *testing.T) {
	for name, content := range map[string]string{"shorter": "4\n", "longer": "4\n5\n6\n7\n8\n9\n"} {
		t.Run(name, func(t *testing.T) {
			f := newFolder(t, "*.log", nil)
			f.write("a.log", text1(numbers(1, 3)))
			task := f.runner.Start(f.spec)
			f.want(task, 3, numbers(1, 3)...)
			f.write("a.log", content)
			lines := strings.Split(strings.TrimSuffix(content, "\n"), "\n")
			f.want(task, len(lines), append(numbers(1, 3), lines...)...)
			task.Stop()
		})
	}
}

func TestFileReplacedWhileNobodyReads(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	f.write("a.log", text1(numbers(1, 3)))
	task := f.runner.Start(f.spec)
	f.want(task, 3, numbers(1, 3)...)
	task.Kill()
	f.write("a.log", text1(numbers(11, 19))) // the same inode with another head
	task = f.runner.Start(f.spec)
	f.want(task, 9, append(numbers(1, 3), numbers(11, 19)...)...)
	task.Stop()
}

func TestRemovedFileDisturbsNothing(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	f.write("a.log", "1\n")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "1")
	if err := os.Remove(f.path("a.log")); err != nil {
		t.Fatal(err)
	}
	f.write("b.log", "2\n")
	f.want(task, 1, "1", "2")
	task.Stop()
}

func TestWhatIsNotAFileIsNeverOpened(t *testing.T) {
	f := newFolder(t, "*", nil)
	if err := syscall.Mkfifo(f.path("fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(f.path("dir"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.write("a.log", "1\n")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "1")
	task.WaitNotice(f.path("fifo") + ": is a FIFO, not a file: it is not read")
	task.Stop()
}

func TestUnreadableFileIsNamedAndTheOthersGoOn(t *testing.T) {
	// A link that leads to itself can be read by nobody, root included.
	f := newFolder(t, "*.log", nil)
	f.link("a.log", "a.log")
	f.write("b.log", "2\n")
	task := f.runner.Start(f.spec)
	f.want(task, 1, "2")
	task.WaitNotice(f.path("a.log") + ": too many levels of symbolic links")
	if err := os.Remove(f.path("a.log")); err != nil {
		t.Fatal(err)
	}
	f.write("a.log", "1\n")
	f.want(task, 1, "2", "1")
	task.WaitNotice()
	task.Stop()
}

func TestLongLinePolicies(t *testing.T) {
	content := "short\n" + strings.Repeat("x", 70_000) + "\n" + strings.Repeat("y", 5<<20) + "\nend\n"
	t.Run("fail", func(t *testing.T) {
		f := newFolder(t, "*.log", map[string]string{keyLineMax: "65536"})
		f.write("a.log", content)
		task := f.runner.Start(f.spec)
		var err *source.Error
		if !errors.As(task.End(), &err) || err.Kind != source.Fatal || err.Key != keyLineTooLong || !strings.Contains(err.Error(), "byte 6 is longer than 65536") {
			t.Errorf("the error is %v; it must name the key, the place and the limit", err)
		}
	})
	t.Run("skip", func(t *testing.T) {
		f := newFolder(t, "*.log", map[string]string{keyLineMax: "65536", keyLineTooLong: "skip"})
		f.write("a.log", content)
		task := f.runner.Start(f.spec)
		f.want(task, 2, "short", "end")
		if dropped := task.Dropped(); len(dropped) != 1 {
			t.Errorf("dropped: %v", dropped)
		}
		task.Stop()
	})
	t.Run("truncate", func(t *testing.T) {
		f := newFolder(t, "*.log", map[string]string{keyLineMax: "10", keyLineTooLong: "truncate"})
		f.write("a.log", content)
		task := f.runner.Start(f.spec)
		f.want(task, 4, "short", "xxxxxxxxxx", "yyyyyyyyyy", "end")
		task.Stop()
	})
}

func TestLastLineTimeout(t *testing.T) {
	f := newFolder(t, "*.log", map[string]string{keyLastLine: "30ms"})
	f.write("a.log", "1\nlast")
	task := f.runner.Start(f.spec)
	f.want(task, 2, "1", "last")
	task.Kill()
	task = f.runner.Start(f.spec)
	f.add("a.log", "\nnext\n")
	f.want(task, 1, "1", "last", "next")
	task.Stop()
}

func TestStartAtEnd(t *testing.T) {
	f := newFolder(t, "*.log", map[string]string{keyStartAt: "end"})
	f.write("a.log", text1(numbers(1, 3)))
	task := f.runner.Start(f.spec)
	task.WaitIdle()
	task.Commit()
	task.Kill() // the place where it started must have been stored
	f.add("a.log", "\n4\n")
	f.write("new.log", "5\n")
	task = f.runner.Start(f.spec)
	f.want(task, 3, "", "4", "5")
	task.Stop()
}

func TestTasksShareFilesAndKeepThem(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	var want []string
	for i := range 40 {
		f.write(fmt.Sprintf("%02d.log", i), fmt.Sprintf("%d\n", i))
		want = append(want, fmt.Sprint(i))
	}
	got := map[string]int{}
	for _, spec := range f.runner.Plan(4) {
		task := f.runner.Start(spec)
		for _, r := range task.WaitIdle() {
			got[string(r.Value)]++
		}
		task.Kill()
	}
	for _, line := range want {
		if got[line] != 1 {
			t.Errorf("line %s: read by %d tasks", line, got[line])
		}
	}
}

func TestBytesOfALineAndItsKeySurvive(t *testing.T) {
	f := newFolder(t, "*.log", nil)
	f.write("a\xff.log", "\xFF\xFE\x00\x80\n\n")
	task := f.runner.Start(f.spec)
	f.want(task, 2, "\xFF\xFE\x00\x80", "")
	task.Stop()
	for _, r := range f.runner.Committed() {
		if string(r.Key) != f.path("a\xff.log") || r.Value == nil {
			t.Errorf("record %+v", r)
		}
	}
}

func TestValidateNamesWhatCannotBeRead(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		dir:                        "is a directory",
		fifo:                       "is a FIFO",
		filepath.Join(dir, "none"): "is not there yet",
		"[":                        "is not a glob",
	} {
		v := Connector{}.Validate(t.Context(), source.Config{keyPaths: path})
		if len(v.Problems) != 1 || v.Problems[0].Key != keyPaths || !strings.Contains(v.Problems[0].Message, want) {
			t.Errorf("%s: problems %+v, want one that says %q", path, v.Problems, want)
		}
	}
}

func TestValidateChecksTheTopic(t *testing.T) {
	for _, topic := range []string{"bad topic/x", "a b", "..", ".", strings.Repeat("x", 250), "\u00fc"} {
		v := Connector{}.Validate(t.Context(), source.Config{keyPaths: "/*.log", keyTopic: topic})
		if len(v.Problems) != 1 || v.Problems[0].Key != keyTopic {
			t.Errorf("%q: problems %+v", topic, v.Problems)
		}
	}
}

func BenchmarkRead(b *testing.B) {
	dir := b.TempDir()
	content := strings.Repeat(strings.Repeat("x", 99)+"\n", 10_000)
	if err := os.WriteFile(filepath.Join(dir, "a.log"), []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
	f, err := os.Open(filepath.Join(dir, "a.log"))
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	s := splitter{maxLine: 1 << 20, policy: tooLongFail}
	b.SetBytes(int64(len(content)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := s.split(f, &cursor{}, func(line) (bool, error) { return true, nil }); err != nil {
			b.Fatal(err)
		}
	}
}
