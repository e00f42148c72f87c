// Package process starts the programs that tests and benchmarks are about, as real processes.
//
// It owns their lives: a process never outlives the one that started it, its output goes to a file, and its end is an event that anyone can wait for.
// It never looks at what they do; see the packages kafka and harness for that.
package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"syscall"
)

// Spec says what to start.
type Spec struct {
	// Name is for people.
	Name string
	// Path is the executable.
	Path string
	Args []string
	// Env is added to this process's own environment.
	Env []string
	Dir string
	// Log is the file that stdout and stderr are appended to.
	Log string
	// Stdout, where set, takes stdout instead of Log.
	Stdout *os.File
}

// Process is a started program. Its methods may be called from any goroutine.
type Process struct {
	Name string
	Log  string

	cmd    *exec.Cmd
	exited chan struct{}
	err    error // valid once exited is closed
}

// Start starts a process in a process group of its own. It is killed when this process ends, however it ends.
func Start(s Spec) (*Process, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("log of %s: %w", s.Name, err)
	}
	defer log.Close()

	cmd := exec.Command(s.Path, s.Args...)
	cmd.Dir = s.Dir
	cmd.Env = append(os.Environ(), s.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	if s.Stdout != nil {
		cmd.Stdout = s.Stdout
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := fork(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", s.Name, err)
	}
	p := &Process{Name: s.Name, Log: s.Log, cmd: cmd, exited: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.exited)
	}()
	return p, nil
}

// PID is the process's id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Exited is closed when the process has ended.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// Running says whether it has not ended yet.
func (p *Process) Running() bool {
	select {
	case <-p.exited:
		return false
	default:
		return true
	}
}

// Wait waits for the process's end and returns its exit code, −1 where a signal ended it.
func (p *Process) Wait(ctx context.Context) (int, error) {
	select {
	case <-p.exited:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-ctx.Done():
		return 0, fmt.Errorf("%s (pid %d) still runs: %w", p.Name, p.PID(), context.Cause(ctx))
	}
}

// State is the state of a process that has ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// KilledBy is the signal that ended the process; 0 where none did.
func (p *Process) KilledBy() syscall.Signal {
	<-p.exited
	if ws, ok := p.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return ws.Signal()
	}
	return 0
}

// Signal sends a signal to the process alone; one that has ended is no error.
func (p *Process) Signal(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Kill is kill -9 of the process alone: what it started is left to itself. It returns when the process is gone.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // it fails only where the process is gone
	<-p.exited
}

// Stop sends SIGTERM and waits; past the context's end it kills and says so.
func (p *Process) Stop(ctx context.Context) error {
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.Name, err)
	}
	if _, err := p.Wait(ctx); err != nil {
		p.Kill()
		return err
	}
	return nil
}

// Tail is the end of the log, for messages.
func (p *Process) Tail(lines int) string {
	b, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	if len(all) > lines {
		all = all[len(all)-lines:]
	}
	return strings.Join(all, "\n")
}

// Linux sends the parent-death signal when the forking *thread* ends, so one thread that never ends does all forking.
var forker = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

func fork(cmd *exec.Cmd) error {
	done := make(chan error)
	forker() <- func() { done <- cmd.Start() }
	return <-done
}
