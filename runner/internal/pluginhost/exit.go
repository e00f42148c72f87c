package pluginhost

import (
	"fmt"
	"strings"
	"syscall"
)

// ExitClass says how a plugin's process ended.
type ExitClass string

// The classes.
const (
	// ExitAsked: this runner ended it.
	ExitAsked ExitClass = "asked"
	// ExitCode: it ended by itself.
	ExitCode ExitClass = "code"
	// ExitSignal: a signal ended it; a crash.
	ExitSignal ExitClass = "signal"
	// ExitMemory: a SIGKILL that this runner didn't send, which is how the kernel ends what takes too much memory.
	ExitMemory ExitClass = "memory"
	// ExitUnknown: the system didn't say how.
	ExitUnknown ExitClass = "unknown"
)

// ExitError says how a plugin's process ended. It is never matched by text: see Class.
type ExitError struct {
	// Label is what the process was started for.
	Label string
	Class ExitClass
	// Code is the exit code where Class is ExitCode.
	Code int
	// Signal is the signal that ended the process, 0 for none.
	Signal syscall.Signal
	// Core says that the system wrote a core dump.
	Core bool
	// MemoryLimitBytes is the limit that it ran under, 0 for none.
	MemoryLimitBytes int64
	// Stderr has its last lines, oldest first, at most 20.
	Stderr []string
}

// Error is the text for users.
func (e *ExitError) Error() string {
	text := fmt.Sprintf("plugin process of %s %s", e.Label, e.how())
	if e.MemoryLimitBytes > 0 && e.Class != ExitAsked {
		text += fmt.Sprintf(" (it had a memory limit of %d bytes)", e.MemoryLimitBytes)
	}
	if len(e.Stderr) > 0 {
		text += "; " + e.tail()
	}
	return text
}

// tail shows the last lines.
func (e *ExitError) tail() string { return "last lines on stderr: " + strings.Join(e.Stderr, " | ") }

func (e *ExitError) how() string {
	switch e.Class {
	case ExitAsked:
		return "was ended by the runner"
	case ExitCode:
		return fmt.Sprintf("exited with code %d", e.Code)
	case ExitMemory:
		return "was killed (SIGKILL) by something else than the runner, most likely because the machine or its container ran out of memory"
	case ExitSignal:
		core := ""
		if e.Core {
			core = ", core dumped"
		}
		return fmt.Sprintf("crashed: signal %d (%s)%s", int(e.Signal), e.Signal, core)
	default:
		return "ended, and the system didn't say how"
	}
}

// classify reads a wait status; asked is whether this runner sent the process to its end.
func (e *ExitError) classify(status syscall.WaitStatus, known, asked bool) {
	switch {
	case asked:
		e.Class = ExitAsked
	case !known:
		e.Class = ExitUnknown
	case status.Exited():
		e.Class, e.Code = ExitCode, status.ExitStatus()
	case status.Signaled() && status.Signal() == syscall.SIGKILL:
		e.Class = ExitMemory
	default:
		e.Class = ExitSignal
	}
	if known && status.Signaled() {
		e.Signal, e.Core = status.Signal(), status.CoreDump()
	}
}
