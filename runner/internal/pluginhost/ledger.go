package pluginhost

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
)

// ledger is the record, on disk, of the processes that a Host has started and not yet seen end. The next Host of the same name kills what is in it and still runs,
// and never anything else: a process is known by its number, its start time and the boot of the machine, so a number that was given again is not mistaken.
type ledger struct {
	path string

	mu      sync.Mutex
	entries map[int]entry
}

// entry is one process, the leader of its group.
type entry struct {
	PID int `json:"pid"`
	// Start is the kernel's start time in clock ticks since boot.
	Start uint64 `json:"start"`
	Boot  string `json:"boot"`
	// SocketDir is in the environment of the process and of all that it started, and never used twice.
	SocketDir string `json:"socket_dir"`
}

// newLedger makes a ledger; with an empty path it records nothing.
func newLedger(path string) *ledger { return &ledger{path: path, entries: map[int]entry{}} }

// add records a process that was just started.
func (l *ledger) add(pid int, socketDir string) error {
	if l.path == "" {
		return nil
	}
	start, err := startTime(pid)
	if err != nil {
		return fmt.Errorf("read the start time of process %d: %w", pid, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries[pid] = entry{PID: pid, Start: start, Boot: bootID(), SocketDir: socketDir}
	return l.write()
}

// drop forgets a process that has been reaped. A record that stays behind because the disk is full does no harm: its start time fits no other process.
func (l *ledger) drop(pid int) {
	if l.path == "" {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.entries, pid)
	_ = l.write()
}

// write replaces the file as a whole, so that a crash leaves the old or the new one.
func (l *ledger) write() error {
	list := make([]entry, 0, len(l.entries))
	for _, e := range l.entries {
		list = append(list, e)
	}
	text, err := json.Marshal(list)
	if err != nil {
		return err
	}
	next := l.path + ".next"
	if err := os.WriteFile(next, text, 0o600); err != nil {
		return fmt.Errorf("record the plugin's process: %w", err)
	}
	if err := os.Rename(next, l.path); err != nil {
		return fmt.Errorf("record the plugin's process: %w", err)
	}
	return nil
}

// killLeftovers kills the process groups of an earlier run and waits for their end. It returns the numbers of the processes that it killed.
func (l *ledger) killLeftovers() ([]int, error) {
	if l.path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var list []entry
	if err := json.Unmarshal(text, &list); err != nil {
		// Nothing can be known from it, and guessing would kill strangers.
		return nil, os.Remove(l.path)
	}
	var killed []int
	for _, e := range list {
		if e.Boot != bootID() || e.PID <= 1 || e.SocketDir == "" {
			continue
		}
		pids, err := killGroupOf(e)
		if err != nil {
			return killed, err
		}
		killed = append(killed, pids...)
	}
	return killed, os.Remove(l.path)
}
