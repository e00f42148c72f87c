//go:build faults

package task

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The crash points X0 to X7 for tests that kill processes. FENCEPOST_FAULT is POINT:VICTIM:N, for example X3:runner:2: at the second passing of X3 the runner kills itself with SIGKILL; the victim
// "plugin" is every child of the runner, each with its process group. FENCEPOST_FAULT_MARK names a file that is made just before; where it exists already nothing happens, so that the next
// process of the same test lives.

// armed is the one fault of this process.
var armed = parseFault(os.Getenv("FENCEPOST_FAULT"))

type plannedFault struct {
	point, victim string
	// left counts passings down; the one that reaches 0 is it.
	left atomic.Int64
}

func parseFault(text string) *plannedFault {
	parts := strings.Split(text, ":")
	if len(parts) != 3 {
		return nil
	}
	n, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || n < 1 {
		return nil
	}
	f := &plannedFault{point: parts[0], victim: parts[1]}
	f.left.Store(n)
	return f
}

// fires says whether this passing is the one, and leaves the mark.
func (f *plannedFault) fires(point string) bool {
	if f == nil || f.point != point || f.left.Add(-1) != 0 {
		return false
	}
	mark, err := os.OpenFile(os.Getenv("FENCEPOST_FAULT_MARK"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	_ = mark.Close()
	return true
}

func (f *plannedFault) kill() {
	if f.victim == "plugin" {
		killChildren()
		return
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // SIGKILL arrives before anything else is done here
}

// killChildren kills each child of this process together with its process group.
func killChildren() {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// pid (name) state ppid …; the name may hold anything, a parenthesis too.
		head, tail := string(b), ""
		if i := strings.LastIndexByte(head, ')'); i >= 0 {
			head, tail = head[:i], head[i+1:]
		}
		fields := strings.Fields(tail)
		if len(fields) < 2 || fields[1] != strconv.Itoa(os.Getpid()) {
			continue
		}
		if pid, err := strconv.Atoi(strings.Fields(head)[0]); err == nil {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// fault marks a crash point.
func fault(point string) {
	if armed.fires(point) {
		armed.kill()
	}
}

// faultDuring marks a crash point while a call is on its way.
func faultDuring(point string, call func() error) error {
	if !armed.fires(point) {
		return call()
	}
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	// Nothing tells when librdkafka has written the request to its socket. A millisecond is enough for that most of the time, and less than the broker's answer takes; either way is a crash that
	// must do no harm.
	<-time.After(time.Millisecond)
	armed.kill()
	return <-answer
}
