package serve

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

// process is this test binary as a plugin.
type process struct {
	cmd    *exec.Cmd
	stdin  io.Closer
	stderr *bufio.Reader
	dir    string
	// network and address of the handshake.
	network, address string
}

// launch starts a plugin and reads its handshake.
func launch(t *testing.T, role string, env ...string) *process {
	t.Helper()
	p := command(t, role)
	p.cmd.Env = append(p.cmd.Env, wire.CookieKey+"="+wire.CookieValue, "PLUGIN_PROTOCOL_VERSIONS=1", "PLUGIN_UNIX_SOCKET_DIR="+p.dir)
	p.cmd.Env = append(p.cmd.Env, env...)
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.stdin, p.stderr = stdin, bufio.NewReader(stderr)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
		_ = p.cmd.Wait()
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	fields := strings.Split(strings.TrimSuffix(line, "\n"), "|")
	if err != nil || len(fields) != 5 || fields[0] != "1" || fields[1] != "1" || fields[4] != "grpc" {
		rest, _ := io.ReadAll(stderr)
		t.Fatalf("handshake %q, %v\n%s", line, err, rest)
	}
	p.network, p.address = fields[2], fields[3]
	return p
}

func command(t *testing.T, role string) *process {
	t.Helper()
	// t.TempDir is too long for a socket under some systems' temporary folders.
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{cmd: exec.Command(self), dir: dir}
	p.cmd.Env = []string{roleKey + "=" + role}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return p
}

func (p *process) dial(t *testing.T) *grpc.ClientConn {
	t.Helper()
	target := "unix:" + p.address
	if p.network == "tcp" {
		target = p.address
	}
	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// wait waits for the end of the process and returns its error.
func (p *process) wait(t *testing.T) error {
	t.Helper()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Wait() }()
	select {
	case err := <-done:
		return err
	case <-time.After(20 * time.Second):
		t.Fatal("the plugin didn't end")
		return nil
	}
}

func (p *process) signalled(err error, s syscall.Signal) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == s
}

func TestPluginInAProcessIsExact(t *testing.T) {
	for name, env := range map[string]string{"unix": "X=1", "tcp": "PLUGIN_UNIX_SOCKET_DIR="} {
		t.Run(name, func(t *testing.T) {
			p := launch(t, "plugin", env)
			if p.network != name {
				t.Fatalf("the plugin listens on %s %s", p.network, p.address)
			}
			sourcetest.Exact(t, sourcetest.Config{Plugin: host.New(p.dial(t))}, []string{"1", "2", "3", "4", "5"})
		})
	}
}

func TestShutdownEndsTheProcessAndItsStreams(t *testing.T) {
	p := launch(t, "plugin")
	conn := p.dial(t)
	r := sourcetest.New(t, sourcetest.Config{Plugin: host.New(conn)})
	task := r.Start(r.Plan(1)[0])
	task.WaitIdle()
	if _, err := pluginv1.NewPluginClient(conn).Shutdown(t.Context(), &pluginv1.ShutdownRequest{}); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err != nil {
		t.Fatalf("got %v", err)
	}
	if err := task.End(); err == nil {
		t.Error("the task's stream ended unasked, and the runner wasn't told")
	}
	if files, _ := filepath.Glob(p.dir + "/*"); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestTerminateEndsTheProcessAndInterruptDoesNot(t *testing.T) {
	p := launch(t, "plugin")
	conn := p.dial(t)
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	if _, err := host.New(conn).Describe(t.Context()); err != nil {
		t.Fatalf("after an interrupt: %v", err)
	}
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	if err := p.wait(t); err != nil {
		t.Fatalf("got %v", err)
	}
}

func TestEndOfStdinEndsTheWholeGroup(t *testing.T) {
	p := launch(t, "parent")
	var child int
	line, err := p.stderr.ReadString('\n')
	if _, scanErr := fmt.Sscanf(line, "child %d", &child); err != nil || scanErr != nil {
		t.Fatalf("got %q, %v, %v", line, err, scanErr)
	}
	_ = p.stdin.Close()
	// The child holds stderr open as long as it lives: the end of the pipe proves that both are gone.
	if _, err := io.ReadAll(p.stderr); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); !p.signalled(err, syscall.SIGKILL) {
		t.Fatalf("got %v", err)
	}
	if files, _ := filepath.Glob(p.dir + "/*"); len(files) > 0 {
		t.Errorf("left behind: %v", files)
	}
}

func TestPluginThatLeadsNoGroupEndsAlone(t *testing.T) {
	p := command(t, "plugin")
	p.cmd.SysProcAttr = nil // in the group of this test
	p.cmd.Env = append(p.cmd.Env, wire.CookieKey+"="+wire.CookieValue, "PLUGIN_PROTOCOL_VERSIONS=1", "PLUGIN_UNIX_SOCKET_DIR="+p.dir)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.cmd.Run() }() // stdin is the null device
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-ctx.Done():
		t.Fatal("the plugin didn't end")
	}
}

func TestLogLinesReachStderr(t *testing.T) {
	p := launch(t, "plugin")
	plain, _ := p.stderr.ReadString('\n')
	structured, _ := p.stderr.ReadString('\n')
	if plain != "a plain line\n" || !strings.Contains(structured, `"@level":"warn"`) || !strings.Contains(structured, `"answer":42`) {
		t.Fatalf("got %q and %q", plain, structured)
	}
}

func TestPluginAtAnAddressIsExact(t *testing.T) {
	p := command(t, "plugin")
	p.cmd.Env = append(p.cmd.Env, ListenVariable+"=127.0.0.1:0")
	stderr, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	address := ""
	for lines := bufio.NewScanner(stderr); address == ""; {
		if !lines.Scan() {
			t.Fatal("the plugin never said where it serves")
		}
		_, address, _ = strings.Cut(lines.Text(), "--plugin-address counter=")
	}
	conn, err := grpc.NewClient(address, append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	sourcetest.Exact(t, sourcetest.Config{Plugin: host.New(conn)}, []string{"1", "2", "3", "4", "5"})
	// By hand it ends with Ctrl-C, as any program does.
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err != nil {
		t.Errorf("it ended with %v", err)
	}
}

func TestStartsThatCannotWorkSayWhy(t *testing.T) {
	good := []string{wire.CookieKey + "=" + wire.CookieValue, "PLUGIN_PROTOCOL_VERSIONS=1"}
	for want, c := range map[string]struct {
		role string
		env  []string
	}{
		"fencepost plugins --plugin-path":                                              {"plugin", nil},
		"This is counter 1.2.3, a Fencepost plugin with the connector types: counter.": {"plugin", nil},
		"this plugin is broken":                                                        {"broken", nil},
		"describe the plugin: the plugin's name":                                       {"broken", good},
		`protocol versions "2,3", this plugin speaks 1`:                                {"plugin", []string{good[0], "PLUGIN_PROTOCOL_VERSIONS=2,3"}},
		"needs a shorter socket folder":                                                {"plugin", append(good, "PLUGIN_UNIX_SOCKET_DIR=/"+strings.Repeat("x", 100))},
		"the connection isn't encrypted; use 127.0.0.1":                                {"plugin", []string{ListenVariable + "=0.0.0.0:0"}},
		"is not HOST:PORT":                                                             {"plugin", []string{ListenVariable + "=7000"}},
		"listen on the socket":                                                         {"plugin", append(good, "PLUGIN_UNIX_SOCKET_DIR=/nowhere")},
	} {
		p := command(t, c.role)
		p.cmd.Env = append(p.cmd.Env, c.env...)
		var stdout, stderr strings.Builder
		p.cmd.Stdout, p.cmd.Stderr = &stdout, &stderr
		err := p.cmd.Run()
		var exit *exec.ExitError
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || stdout.Len() > 0 || !strings.Contains(stderr.String(), want) {
			t.Errorf("%s: got %v, stdout %q, stderr %q", want, err, stdout.String(), stderr.String())
		}
	}
}
