package pluginhost

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"

	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

const killSignal = syscall.SIGKILL

// Ladder has the deadlines of Stop's steps. Draining, the first step of all, is done by the tasks before.
type Ladder struct {
	// Shutdown is for the answer to the Shutdown call. Default 5 s.
	Shutdown time.Duration
	// Exit is for the end of the process after that answer. Default 5 s.
	Exit time.Duration
	// Stdin is for its end after its stdin was closed. Default 3 s.
	Stdin time.Duration
	// Term is for its end after SIGTERM. Default 3 s.
	Term time.Duration
	// Kill is for its end after SIGKILL, which only a process stuck in the kernel outlives. Default 5 s.
	Kill time.Duration
}

func (l Ladder) withDefaults() Ladder {
	for _, step := range []struct {
		value   *time.Duration
		seconds time.Duration
	}{{&l.Shutdown, 5}, {&l.Exit, 5}, {&l.Stdin, 3}, {&l.Term, 3}, {&l.Kill, 5}} {
		if *step.value <= 0 {
			*step.value = step.seconds * time.Second
		}
	}
	return l
}

// Process is a plugin that answers: a process of this Host, or one that was dialled. Its owner ends it with Stop.
type Process struct {
	client *host.Client
	conn   *grpc.ClientConn
	ladder Ladder
	// child is nil where the plugin was dialled.
	child *child
	done  chan struct{}
	once  sync.Once
}

// newProcess joins a child and its connection, which is closed when the child is gone.
func newProcess(h *Host, c *child, conn *grpc.ClientConn) *Process {
	p := &Process{client: host.New(conn), conn: conn, ladder: h.cfg.Ladder, child: c, done: make(chan struct{})}
	h.running.Go(func() {
		<-c.gone
		p.end()
	})
	return p
}

func (p *Process) end() {
	p.once.Do(func() {
		_ = p.conn.Close()
		close(p.done)
	})
}

// Plugin is what the process serves. Where the process ends in the middle of a call, the call's error says how, with the last lines of stderr, and is Retriable.
func (p *Process) Plugin() source.Plugin { return &served{process: p} }

// Done is closed when the process has ended, or a dialled plugin was let go.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err says how the process ended: an *ExitError, or nil while it runs, and for a plugin that was dialled.
func (p *Process) Err() error {
	if p.child == nil {
		return nil
	}
	select {
	case <-p.done:
		return p.child.exit
	default:
		return nil
	}
}

// PID is the number of the process, 0 for a plugin that was dialled.
func (p *Process) PID() int {
	if p.child == nil {
		return 0
	}
	return p.child.cmd.Process.Pid
}

// SHA256 is the checksum, in hex, of the file that runs, whatever its path leads to by now. Empty for a plugin that was dialled.
func (p *Process) SHA256() string {
	if p.child == nil {
		return ""
	}
	return p.child.exe.sha256
}

// Kill ends the process and its group at once; Done tells when they are gone. A plugin that was dialled is let go.
func (p *Process) Kill() {
	if p.child == nil {
		p.end()
		return
	}
	p.child.kill()
}

// Stop ends the process and returns when it is gone: Shutdown → stdin closed → SIGTERM → SIGKILL, the last two for the whole group, each with a deadline of its own.
// Where ctx is done first, SIGKILL comes at once. It works on a process that is stopped or hangs. An error means that not even SIGKILL ended it in time.
// A plugin that was dialled isn't this runner's to end: it is let go.
func (p *Process) Stop(ctx context.Context) error {
	if p.child == nil {
		p.end()
		return nil
	}
	p.child.ask()
	if p.climbDown(ctx) {
		return nil
	}
	p.child.signal(killSignal)
	if !waitFor(context.WithoutCancel(ctx), p.done, p.ladder.Kill+pipeGrace) {
		return fmt.Errorf("plugin process %d of %s didn't end within %s of SIGKILL", p.PID(), p.child.spec.Label, p.ladder.Kill)
	}
	return nil
}

// climbDown goes down the ladder to SIGTERM, and says whether the process has ended.
func (p *Process) climbDown(ctx context.Context) bool {
	asked, cancel := context.WithTimeout(ctx, p.ladder.Shutdown)
	err := p.client.Shutdown(asked)
	cancel()
	if err == nil && waitFor(ctx, p.done, p.ladder.Exit) {
		return true
	}
	p.child.log.Debug("plugin process goes on after shutdown", "pid", p.PID())
	p.child.closeStdin()
	if waitFor(ctx, p.done, p.ladder.Stdin) {
		return true
	}
	if ctx.Err() != nil {
		return false
	}
	p.child.log.Warn("plugin process goes on after its stdin was closed", "pid", p.PID())
	p.child.signal(syscall.SIGTERM)
	if waitFor(ctx, p.done, p.ladder.Term) {
		return true
	}
	p.child.log.Warn("plugin process goes on after SIGTERM", "pid", p.PID())
	return false
}
