package pluginhost

import (
	"context"
	"errors"
	"syscall"
)

// HostError is a start that this host is to blame for and not the plugin: its file is gone or can't be run here, there is no room for its socket, or the system has no more processes, memory or open files. On another
// host the same plugin may start.
type HostError struct{ Err error }

// Error is the text of the cause, for users.
func (e *HostError) Error() string { return e.Err.Error() }

// Unwrap is the cause.
func (e *HostError) Unwrap() error { return e.Err }

// HostFault marks it for whoever doesn't know this package.
func (e *HostError) HostFault() {}

// hostFault makes the error of something that only this host does a HostError. An end that was asked for is nobody's fault.
func hostFault(err error) error {
	if err == nil || errors.Is(err, errClosed) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	return &HostError{err}
}

// Exit codes by which a shell, env or the system's loader says that it couldn't run what it was to run: an interpreter or a library is missing here.
const (
	exitNotRunnable = 126
	exitNotFound    = 127
)

// ofHost says whether a plugin that ended before it answered ended because of the host.
func (h *Host) ofHost(exit *ExitError) bool {
	return exit.Class == ExitCode && (exit.Code == exitNotRunnable || exit.Code == exitNotFound) || h.folder.full()
}

// full says whether no socket can be made in the folder for want of room.
func (f *folder) full() bool {
	var stat syscall.Statfs_t
	if syscall.Statfs(f.path, &stat) != nil {
		return false
	}
	// A file system that counts no files, or no blocks, says 0 of 0.
	return stat.Blocks > 0 && stat.Bavail == 0 || stat.Files > 0 && stat.Ffree == 0
}
