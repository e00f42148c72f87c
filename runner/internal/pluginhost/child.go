package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin/runner"
)

// child is one plugin process, as go-plugin's Runner. Its goroutines: two that read stdout and stderr, one that logs, one that waits for the end. They end when the
// process has, at the latest pipeGrace after it, whoever else holds its pipes.
type child struct {
	host *Host
	spec Spec
	log  hclog.Logger
	// env is what go-plugin adds: cookie, versions, ports, socket folder.
	env       []string
	socketDir string

	exe *executable
	cmd *exec.Cmd
	// stdin is open for as long as the plugin may live: its end tells the plugin that the runner is gone.
	stdin    *os.File
	handover *io.PipeReader
	nothing  *io.PipeReader // go-plugin's view of stderr
	quiet    *io.PipeWriter
	out      stdout
	err      *stderr

	// gone is closed when the process is reaped, its group killed and its output read; exit is set before.
	gone chan struct{}
	exit *ExitError

	mu sync.Mutex
	// pid is 0 before the start and after the reaping: a number that may belong to somebody else is never signalled.
	pid int
	// asked says that this runner wants the process to end.
	asked bool
	// failure is why the start was given up, where it isn't the exit.
	failure error
}

var _ runner.Runner = (*child)(nil)

// pipeGrace is how long the pipes of a dead process are still read: long enough for its last words, where a process that left the group keeps them open.
const pipeGrace = time.Second

// busyRetry is how long a start waits for whoever is still writing the file.
const busyRetry = 2 * time.Second

func newChild(h *Host, spec Spec, env []string, socketDir string) *child {
	log := h.log.With("plugin", spec.Label)
	c := &child{host: h, spec: spec, log: log, socketDir: socketDir, err: newStderr(log), gone: make(chan struct{})}
	for _, v := range env { // go-plugin's own, and nothing else that it may add one day
		if strings.HasPrefix(v, "PLUGIN_") || strings.HasPrefix(v, "FENCEPOST_PLUGIN=") {
			c.env = append(c.env, v)
		}
	}
	c.nothing, c.quiet = io.Pipe()
	return c
}

// Start runs the file on the starter's thread. A file that is being written is tried again for a short time.
func (c *child) Start(ctx context.Context) error {
	deadline := time.Now().Add(busyRetry)
	for {
		err := c.startOnce()
		if !errors.Is(err, syscall.ETXTBSY) || time.Now().After(deadline) {
			return err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// startOnce opens, checks and runs the file, and starts the goroutines that go with the process.
func (c *child) startOnce() error {
	exe, err := openExecutable(c.spec.Path, c.spec.SHA256)
	if err != nil {
		return err
	}
	defer exe.file.Close()
	c.exe = exe
	pipes, err := newPipes()
	if err != nil {
		return fmt.Errorf("plugin %q: %w", c.spec.Path, err)
	}
	c.cmd = &exec.Cmd{
		Path: exe.runPath(), Args: []string{c.spec.Path}, Env: c.host.environment(c.env),
		Stdin: pipes.stdin.theirs, Stdout: pipes.stdout.theirs, Stderr: pipes.stderr.theirs, SysProcAttr: attributes(),
	}
	if err := c.launch(); err != nil {
		pipes.closeAll()
		return err
	}
	pipes.closeTheirs()
	c.stdin = pipes.stdin.ours
	// Before anybody waits for the process, so that its number is its own whatever happens to it, and before its handshake is looked at.
	err = c.afterLaunch()
	c.follow(pipes.stdout.ours, pipes.stderr.ours)
	if err != nil {
		c.abort(err)
		return err
	}
	return nil
}

// launch forks and executes.
func (c *child) launch() error {
	if err := c.host.adopt(c); err != nil {
		return err
	}
	var err error
	c.host.starter.do(func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.failure != nil {
			err = c.failure
			return
		}
		if err = c.cmd.Start(); err == nil {
			c.pid = c.cmd.Process.Pid
		}
	})
	if err != nil {
		c.host.disown(c)
		if c.why() == nil {
			err = c.exe.explain(err)
		}
	}
	return err
}

// afterLaunch does what needs the process' number.
func (c *child) afterLaunch() error {
	pid := c.cmd.Process.Pid
	err := c.host.ledger.add(pid, c.socketDir)
	if err == nil && c.spec.MemoryLimitBytes > 0 {
		if err = limitMemory(pid, c.spec.MemoryLimitBytes); err != nil {
			err = fmt.Errorf("set the memory limit: %w", err)
		}
	}
	if err == nil && c.spec.SHA256 != "" && c.exe.script && c.exe.replaced() {
		err = fmt.Errorf("checksum: the script was replaced while it was started")
	}
	if err != nil {
		return hostFault(fmt.Errorf("plugin %q: %w", c.spec.Path, err))
	}
	c.log.Debug("plugin process started", "path", c.spec.Path, "pid", pid, "sha256", c.exe.sha256)
	return nil
}

// follow starts the goroutines that go with a running process.
func (c *child) follow(out, errs *os.File) {
	reader, writer := io.Pipe()
	c.handover = reader
	var output sync.WaitGroup
	output.Go(func() { c.out.pass(out, writer, c.abort) })
	output.Go(func() { c.err.read(errs) })
	logged := make(chan struct{})
	c.host.running.Go(func() { defer close(logged); c.err.write() })
	c.host.running.Go(func() {
		c.reap()
		read := make(chan struct{})
		c.host.running.Go(func() { defer close(read); output.Wait() })
		if !waitFor(context.Background(), read, pipeGrace) {
			_, _ = out.SetReadDeadline(time.Now()), errs.SetReadDeadline(time.Now())
			<-read
		}
		for _, end := range []io.Closer{out, errs, c.handover, c.quiet} {
			_ = end.Close() // nobody writes any more
		}
		c.exit.Stderr = c.err.last()
		c.end()
		<-logged
	})
}

// reap waits for the process, kills its group while its number is still its own, and notes how it ended.
func (c *child) reap() {
	pid := c.cmd.Process.Pid
	waited := awaitExit(pid)
	defer c.host.ledger.drop(pid)
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = syscall.Kill(-c.pid, syscall.SIGKILL) // the group may be empty already
	_ = c.cmd.Wait()                          // the status says more than the error
	c.exit = &ExitError{Label: c.spec.Label, MemoryLimitBytes: c.spec.MemoryLimitBytes}
	status, known := syscall.WaitStatus(0), false
	if c.cmd.ProcessState != nil && waited == nil {
		status, known = c.cmd.ProcessState.Sys().(syscall.WaitStatus)
	}
	c.exit.classify(status, known, c.asked)
	c.pid = 0
}

// end takes away what the process leaves behind, and tells everybody.
func (c *child) end() {
	c.closeStdin()
	_ = os.RemoveAll(c.socketDir)
	c.host.buried(c)
	if c.exit.Class == ExitAsked || c.exit.Class == ExitCode && c.exit.Code == 0 {
		c.log.Debug("plugin process ended", "class", string(c.exit.Class))
	} else {
		c.log.Warn("plugin process ended", "class", string(c.exit.Class), "exit_code", c.exit.Code, "signal", int(c.exit.Signal))
	}
	close(c.gone)
}

// signal sends a signal to the whole group, unless the process has been reaped.
func (c *child) signal(s syscall.Signal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pid > 0 {
		_ = syscall.Kill(-c.pid, s) // an ended group needs none
	}
}

// ask notes that what ends now was wanted.
func (c *child) ask() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = true
}

// kill ends the group at once, and keeps a child that wasn't started from being so.
func (c *child) kill() {
	c.abort(errClosed)
}

// abort gives up a start, or a plugin, for a reason. The first reason counts.
func (c *child) abort(reason error) {
	c.ask()
	c.mu.Lock()
	if c.failure == nil {
		c.failure = reason
	}
	c.mu.Unlock()
	c.signal(syscall.SIGKILL)
}

// why is the reason that abort was given.
func (c *child) why() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}

func (c *child) closeStdin() { _ = c.stdin.Close() } // a second time is no harm

// The rest is what go-plugin asks of a Runner.

// Wait returns when the process is gone. How it ended is the Process' to say.
func (c *child) Wait(context.Context) error {
	<-c.gone
	return nil
}

// Kill does nothing: go-plugin calls it where it gives up a start, also because the process is just ending, and startError tells the one from the other.
func (c *child) Kill(context.Context) error { return nil }

// Diagnose adds nothing: Host.Start knows more than go-plugin.
func (c *child) Diagnose(context.Context) string { return "" }

// Stdout carries the handshake line and nothing else.
func (c *child) Stdout() io.ReadCloser { return c.handover }

// Stderr carries nothing.
func (c *child) Stderr() io.ReadCloser { return c.nothing }

// Name is the path.
func (c *child) Name() string { return c.spec.Path }

// ID is the process' number.
func (c *child) ID() string { return strconv.Itoa(c.cmd.Process.Pid) }

// PluginToHost and HostToPlugin change nothing: plugin and host see the same files.
func (c *child) PluginToHost(network, address string) (string, string, error) {
	return network, address, nil
}

// HostToPlugin changes nothing.
func (c *child) HostToPlugin(network, address string) (string, string, error) {
	return network, address, nil
}
