//go:build faults

package task

import (
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// The points of tests that kill or hold processes: S1 to S4 in the order of a start, X0 to X7 in a cycle. FENCEPOST_FAULT is POINT:VICTIM:N, for example X3:runner:2: at the second passing of X3 the
// runner kills itself with SIGKILL; the victim "plugin" is every child of the runner, each with its process group. FENCEPOST_FAULT_MARK names a file that is made just before; where it exists already
// nothing happens, so that the next process of the same test lives.
//
// The victim "wait" is the task that passes: from the N-th passing on each waits until the file FENCEPOST_FAULT_GATE exists, and adds a line with the point to the mark. POINT:wait:N:MOST holds at most so
// many tasks, and FENCEPOST_FAULT may be a list of several, separated by commas, so that the tasks of one process wait at different points. No context ends the wait: it stands for a process that sleeps.

// armed are the faults of this process.
var armed = parseFaults(os.Getenv("FENCEPOST_FAULT"))

const (
	victimPlugin = "plugin"
	victimWait   = "wait"
	// gateEvery is how often a task that waits looks for the gate.
	gateEvery = 5 * time.Millisecond
)

type plannedFault struct {
	point, victim string
	// left counts passings down; the one that reaches 0 is it, and for tasks that wait each one after it.
	left atomic.Int64
	// room is how many more tasks may wait.
	room atomic.Int64
}

func parseFaults(text string) []*plannedFault {
	var faults []*plannedFault
	for one := range strings.SplitSeq(text, ",") {
		if f := parseFault(one); f != nil {
			faults = append(faults, f)
		}
	}
	return faults
}

func parseFault(text string) *plannedFault {
	parts := strings.Split(text, ":")
	if len(parts) == 4 && parts[1] != victimWait || len(parts) < 3 || len(parts) > 4 {
		return nil
	}
	numbers := []int64{1, math.MaxInt64}
	for i, part := range parts[2:] {
		n, err := strconv.ParseInt(part, 10, 64)
		if err != nil || n < 1 {
			return nil
		}
		numbers[i] = n
	}
	f := &plannedFault{point: parts[0], victim: parts[1]}
	f.left.Store(numbers[0])
	f.room.Store(numbers[1])
	return f
}

// fires says whether this passing is the one, and leaves the mark.
func (f *plannedFault) fires(point string) bool {
	if f.point != point || f.victim == victimWait || f.left.Add(-1) != 0 {
		return false
	}
	mark, err := os.OpenFile(os.Getenv("FENCEPOST_FAULT_MARK"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return false
	}
	_ = mark.Close()
	return true
}

// holds says whether this passing is one that waits.
func (f *plannedFault) holds(point string) bool {
	return f.point == point && f.victim == victimWait && f.left.Add(-1) < 1 && !gateIsOpen() && f.room.Add(-1) >= 0
}

// hold adds to the mark and waits for the gate.
func (f *plannedFault) hold() {
	if mark, err := os.OpenFile(os.Getenv("FENCEPOST_FAULT_MARK"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = mark.WriteString(f.point + "\n")
		_ = mark.Close()
	}
	for !gateIsOpen() {
		<-time.After(gateEvery)
	}
}

func gateIsOpen() bool {
	_, err := os.Stat(os.Getenv("FENCEPOST_FAULT_GATE"))
	return err == nil
}

func (f *plannedFault) kill() {
	if f.victim == victimPlugin {
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

// fault marks a point.
func fault(point string) {
	for _, f := range armed {
		switch {
		case f.fires(point):
			f.kill()
		case f.holds(point):
			f.hold()
		}
	}
}

// faultDuring marks a point while a call is on its way. A task that waits has sent the call and doesn't hear the answer yet.
func faultDuring(point string, call func() error) error {
	for _, f := range armed {
		switch {
		case f.fires(point):
			return killDuring(f, call)
		case f.holds(point):
			err := call()
			f.hold()
			return err
		}
	}
	return call()
}

func killDuring(f *plannedFault, call func() error) error {
	answer := make(chan error, 1)
	go func() { answer <- call() }()
	// Nothing tells when librdkafka has written the request to its socket. A millisecond is enough for that most of the time, and less than the broker's answer takes; either way is a crash that
	// must do no harm.
	<-time.After(time.Millisecond)
	f.kill()
	return <-answer
}
