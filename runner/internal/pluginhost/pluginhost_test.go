package pluginhost

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(host.CookieKey) == host.CookieValue:
		os.Exit(pluginMain(filepath.Base(os.Args[0])))
	case os.Getenv("PLUGINHOST_TEST_RUNNER") != "":
		os.Exit(runnerMain())
	}
	goleak.VerifyTestMain(m)
}

// plugin links the test binary under a name and returns its path.
func plugin(t *testing.T, mode string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), mode)
	copyTo(t, path)
	return path
}

// copyTo makes the test binary available at a path.
func copyTo(t *testing.T, path string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if os.Link(self, path) == nil {
		return
	}
	text, err := os.ReadFile(self)
	if err == nil {
		err = os.WriteFile(path, text, 0o700)
	}
	if err != nil {
		t.Fatal(err)
	}
}

var shortLadder = Ladder{
	Shutdown: 200 * time.Millisecond, Exit: 2 * time.Second, Stdin: 200 * time.Millisecond, Term: 200 * time.Millisecond, Kill: 5 * time.Second,
}

// newHost makes a Host, and checks at the end of the test that no process and no file of it is left.
func newHost(t *testing.T, change func(*Config)) *Host {
	t.Helper()
	cfg := Config{Ladder: shortLadder, SocketDir: shortDir(t)}
	if change != nil {
		change(&cfg)
	}
	h, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		h.Close()
		if _, err := os.Stat(h.folder.path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket folder is left: %v", err)
		}
		if pids := withEnvironment("PLUGIN_UNIX_SOCKET_DIR=" + h.folder.path); len(pids) > 0 {
			t.Errorf("processes are left: %v", pids)
		}
	})
	return h
}

// shortDir is a temporary folder whose path leaves room for sockets.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// withEnvironment finds processes by the beginning of a variable in their environment.
func withEnvironment(prefix string) []int {
	var pids []int
	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		for _, v := range bytes.Split(text, []byte{0}) {
			if bytes.HasPrefix(v, []byte(prefix)) {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

func mustStart(t *testing.T, h *Host, spec Spec) *Process {
	t.Helper()
	p, err := h.Start(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// awaitGone waits for the end of any process.
func awaitGone(t *testing.T, pid int, within time.Duration) {
	t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	deadline := time.Now().Add(within)
	for {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(deadline).Milliseconds(), 0)))
		if n == 1 {
			return
		}
		if !errors.Is(err, unix.EINTR) {
			t.Fatalf("process %d is still there after %s", pid, within)
		}
	}
}

// sink collects log lines.
type sink struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.Write(p)
}

func (s *sink) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func TestFirstLineThatIsNoHandshakeIsQuotedAndLeavesNothing(t *testing.T) {
	cases := map[string][]string{
		"banner":      {`its first line on stdout is "Starting up… xxx`, `…; stdout must carry only the handshake line`},
		"bom":         {"byte order mark", `"\ufeff1|1|unix|/tmp/x|grpc"`},
		"emptyline":   {"its first line on stdout is empty"},
		"nonewline":   {`it wrote "1|1|unix|/tmp/x|grpc" to stdout and no line end within 1s`},
		"silent":      {"it wrote nothing to stdout within 1s"},
		"closed":      {"it closed its stdout without having written the handshake line"},
		"deadport":    {"no answer on tcp 127.0.0.1:9", "connection refused"},
		"remote":      {"an address that isn't 127.0.0.1"},
		"oldcore":     {"core version 2"},
		"oldprotocol": {"protocol version 7, and this runner speaks 1"},
		"netrpc":      {`asks for the protocol "netrpc"`},
		"cert":        {"TLS certificate"},
		"exits":       {"exited with code 3", "no licence found"},
		"unhealthy":   {"no answer on unix", `doesn't report the health of the service "plugin"`},
	}
	for mode, want := range cases {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, func(c *Config) { c.StartTimeout = time.Second })
			begin := time.Now()
			_, err := h.Start(t.Context(), Spec{Path: plugin(t, mode)})
			if err == nil {
				t.Fatal("it started")
			}
			for _, w := range want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error %q lacks %q", err, w)
				}
			}
			blamesHost(t, err, false)
			if len(err.Error()) > 800 {
				t.Errorf("the error has %d bytes: %s", len(err.Error()), err)
			}
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("it took %s", took)
			}
		})
	}
}

func TestHandshakeMayEndInCRLF(t *testing.T) {
	h := newHost(t, nil)
	p := mustStart(t, h, Spec{Path: plugin(t, "crlf")})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestEndOfContextEndsAStart(t *testing.T) {
	h := newHost(t, nil)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if _, err := h.Start(ctx, Spec{Path: plugin(t, "silent")}); !errors.Is(err, context.Canceled) {
		t.Fatalf("got %v", err)
	}
}

func TestFilesThatCannotBeRunSayWhy(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	self, _ := os.Executable()
	other, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	other = other[:4096:4096]
	other[18], other[19] = 0xb7, 0 // AArch64
	if runtime.GOARCH == "arm64" {
		other[18] = 0x3e
	}
	cases := map[string]string{
		filepath.Join(dir, "absent"):                   "not found",
		dir:                                            "it is a folder, not a program",
		write("plain", "x", 0o600):                     "has no run bit: chmod +x",
		write("text", "hello", 0o700):                  "neither a program for this system nor a script",
		write("empty", "", 0o700):                      "it is empty",
		write("windows", "MZ\x90\x00", 0o700):          "built for Windows",
		write("script", "#!/no/such/python3\n", 0o700): `the interpreter "/no/such/python3"`,
		write("foreign", string(other), 0o700):         "built for another processor",
		"/dev/null":                                    "no regular file",
	}
	h := newHost(t, nil)
	for path, want := range cases {
		if _, err := h.Start(t.Context(), Spec{Path: path}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		} else {
			blamesHost(t, err, true)
		}
	}
	entries, _ := os.ReadDir(h.folder.path)
	if len(entries) > 0 {
		t.Errorf("left in the socket folder: %v", entries)
	}
}

func TestPluginSeesOnlyAllowedVariables(t *testing.T) {
	t.Setenv("FENCEPOST_SECRET", "hunter2")
	t.Setenv("WANTED", "yes")
	for _, pass := range [][]string{nil, {"WANTED"}} {
		h := newHost(t, func(c *Config) { c.PassEnv = pass })
		p := mustStart(t, h, Spec{Path: plugin(t, "good")})
		v, err := p.Plugin().Validate(t.Context(), &source.ValidateRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, problem := range v.Problems {
			all = append(all, problem.Message)
		}
		text := strings.Join(all, "\n")
		if strings.Contains(text, "hunter2") || !strings.Contains(text, "PATH=") || strings.Contains(text, "WANTED") != (pass != nil) {
			t.Errorf("pass %v: %s", pass, text)
		}
	}
}

func TestLineThatPanicsGoPluginIsAPlainLine(t *testing.T) {
	var log sink
	h := newHost(t, func(c *Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &log}) })
	p := mustStart(t, h, Spec{Path: plugin(t, "panicline")})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Close()
	if !strings.Contains(log.String(), `{"@message": 1}`) {
		t.Errorf("log: %s", log.String())
	}
}

func TestFloodsAreDrainedInBoundedMemory(t *testing.T) {
	var log sink
	h := newHost(t, func(c *Config) {
		c.Logger, c.StartTimeout = hclog.New(&hclog.LoggerOptions{Output: &log}), time.Minute
	})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	p := mustStart(t, h, Spec{Path: plugin(t, "floods")})
	if _, err := p.Plugin().Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.Close()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapSys) - int64(before.HeapSys); grown > 64<<20 {
		t.Errorf("the heap grew by %d MiB", grown>>20)
	}
	text := log.String()
	for _, want := range []string{"truncated", "plugin stderr lines dropped"} {
		if !strings.Contains(text, want) {
			t.Errorf("the log lacks %q", want)
		}
	}
	if len(text) > 2<<20 {
		t.Errorf("the log has %d bytes", len(text))
	}
	var exit *ExitError
	if !errors.As(p.Err(), &exit) || exit.Class != ExitAsked || exit.Stderr[len(exit.Stderr)-1] != "last \ufffd words" {
		t.Errorf("got %+v", p.Err())
	}
}

func TestCrashDuringARunIsRetriableAndSaysHow(t *testing.T) {
	cases := map[string]struct {
		class ExitClass
		want  string
	}{
		"exit":   {ExitCode, "exited with code 4"},
		"crash":  {ExitSignal, "crashed: signal 15 (terminated)"},
		"panic":  {ExitCode, "last lines on stderr: panic: index out of range"},
		"killed": {ExitMemory, "ran out of memory"},
	}
	if !raceEnabled { // The race detector needs more memory than the limit, so .ci/gotest runs this test once more without it.
		cases["eat"] = struct {
			class ExitClass
			want  string
		}{ExitCode, "memory limit of 268435456 bytes"}
	}
	for connector, tc := range cases {
		t.Run(connector, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, nil)
			spec := Spec{Path: plugin(t, "good"), Label: "connector c"}
			if connector == "eat" {
				spec.MemoryLimitBytes = 256 << 20
			}
			p := mustStart(t, h, spec)
			err := p.Plugin().Run(t.Context(), &source.RunOpen{Connector: connector}, &quiet{})
			var e *source.Error
			var exit *ExitError
			if !errors.As(err, &e) || e.Kind != source.Retriable || !errors.As(err, &exit) || exit.Class != tc.class {
				t.Fatalf("got %v (%+v)", err, exit)
			}
			if !strings.Contains(err.Error(), tc.want) || len(exit.Stderr) != 20 {
				t.Errorf("got %v", err)
			}
			if connector != "eat" && connector != "panic" && (exit.Stderr[19] != "line 29" || !strings.Contains(err.Error(), "line 10 | line 11")) {
				t.Errorf("last lines: %q", exit.Stderr)
			}
			<-p.Done()
			if p.Err() == nil {
				t.Error("Err is nil")
			}
		})
	}
}

func TestErrorOfALivingPluginStaysItsOwn(t *testing.T) {
	h := newHost(t, nil)
	p := mustStart(t, h, Spec{Path: plugin(t, "good")})
	err := p.Plugin().Run(t.Context(), &source.RunOpen{Connector: "unavailable"}, &quiet{})
	if err == nil || !strings.Contains(err.Error(), "the database is away") || p.Err() != nil {
		t.Fatalf("got %v, %v", err, p.Err())
	}
}

// quiet is a RunHost that says nothing and takes everything.
type quiet struct{}

func (*quiet) Send(context.Context, source.Message) error { return nil }
func (*quiet) Lookup(context.Context, []source.JSON) ([]source.PartitionOffset, error) {
	return nil, errors.New("nothing is stored")
}
func (*quiet) Signals() <-chan source.Signal { return nil }

func TestStopEndsWhateverThePluginDoes(t *testing.T) {
	for name, prepare := range map[string]func(*Process) error{
		"good":     func(*Process) error { return nil },
		"stubborn": func(*Process) error { return nil },
		"stopped":  func(p *Process) error { return syscall.Kill(p.PID(), syscall.SIGSTOP) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t, nil)
			p := mustStart(t, h, Spec{Path: plugin(t, name)})
			if err := prepare(p); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			if err := p.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if took := time.Since(begin); took > 4*time.Second {
				t.Errorf("it took %s", took)
			}
			select {
			case <-p.Done():
			default:
				t.Error("Stop returned before Done")
			}
			if err := p.Stop(t.Context()); err != nil {
				t.Errorf("a second Stop: %v", err)
			}
		})
	}
}

func TestStopWithAnEndedContextKillsAtOnce(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Ladder = Ladder{} })
	p := mustStart(t, h, Spec{Path: plugin(t, "stubborn")})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	begin := time.Now()
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(begin); took > 2*time.Second {
		t.Errorf("it took %s", took)
	}
}

func TestGrandchildrenEndWithThePlugin(t *testing.T) {
	h := newHost(t, nil)
	p := mustStart(t, h, Spec{Path: plugin(t, "grandchild")})
	d, err := p.Plugin().Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(d.Types[0].Summary)
	// Only the plugin's own process is killed: its group must follow.
	if err := syscall.Kill(p.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Done()
	awaitGone(t, pid, 2*time.Second)
}

func TestProcessThatLeftTheGroupDoesNotHoldUpTheEnd(t *testing.T) {
	h := newHost(t, nil)
	p := mustStart(t, h, Spec{Path: plugin(t, "escapee")})
	d, err := p.Plugin().Describe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pid, _ := strconv.Atoi(d.Types[0].Summary)
	defer func() { _ = syscall.Kill(pid, syscall.SIGKILL); awaitGone(t, pid, 2*time.Second) }()
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestPluginOutlivesTheThreadThatAskedForIt(t *testing.T) {
	h := newHost(t, nil)
	path := plugin(t, "good")
	type started struct {
		p   *Process
		err error
		tid int
	}
	result := make(chan started)
	go func() {
		runtime.LockOSThread() // the thread ends with this goroutine
		p, err := h.Start(context.Background(), Spec{Path: path})
		result <- started{p, err, unix.Gettid()}
	}()
	s := <-result
	if s.err != nil {
		t.Fatal(s.err)
	}
	for {
		if _, err := os.Stat(fmt.Sprintf("/proc/self/task/%d", s.tid)); errors.Is(err, os.ErrNotExist) {
			break
		}
		runtime.Gosched()
	}
	if _, err := s.p.Plugin().Describe(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestChecksumIsThatOfWhatRuns(t *testing.T) {
	h := newHost(t, nil)
	path := plugin(t, "good")
	exe, err := openExecutable(path, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = exe.file.Close()
	p := mustStart(t, h, Spec{Path: path, SHA256: strings.ToUpper(exe.sha256)})
	if p.SHA256() != exe.sha256 {
		t.Errorf("got %s", p.SHA256())
	}
	// Replaced by rename while it runs: the process keeps its file, and the next start is refused without running anything.
	mark := filepath.Join(t.TempDir(), "ran")
	other := path + ".new"
	if err := os.WriteFile(other, []byte("#!/bin/sh\ntouch "+mark+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(other, path); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Plugin().Describe(t.Context()); err != nil {
		t.Errorf("the running plugin: %v", err)
	}
	_, err = h.Start(t.Context(), Spec{Path: path, SHA256: exe.sha256})
	if err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("got %v", err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("the other file was run")
	}
}

func TestScriptCanBeAPlugin(t *testing.T) {
	h := newHost(t, nil)
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nexec "+plugin(t, "good")+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	exe, err := openExecutable(path, "")
	if err != nil {
		t.Fatal(err)
	}
	_ = exe.file.Close()
	p := mustStart(t, h, Spec{Path: path, SHA256: exe.sha256})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFileThatIsStillBeingWrittenIsTriedAgain(t *testing.T) {
	h := newHost(t, nil)
	path := filepath.Join(t.TempDir(), "good")
	self, _ := os.Open(plugin(t, "good"))
	defer self.Close()
	writer, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o700)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(writer, self); err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = writer.Close() })
	p := mustStart(t, h, Spec{Path: path})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestClosedHostStartsNothing(t *testing.T) {
	h := newHost(t, nil)
	p := mustStart(t, h, Spec{Path: plugin(t, "good")})
	h.Close()
	<-p.Done()
	if _, err := h.Start(t.Context(), Spec{Path: plugin(t, "good")}); !errors.Is(err, errClosed) {
		t.Errorf("got %v", err)
	}
	h.Close()
}
