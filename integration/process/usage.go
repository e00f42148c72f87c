package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is what /proc counts processor time in; it is 100 a second on every Linux that Go runs on.
const tick = 10 * time.Millisecond

// CPU is the user and system time that a live process has used, of all its threads.
func CPU(pid int) (time.Duration, error) {
	fields, err := stat(pid)
	if err != nil {
		return 0, err
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("stat of %d: %w", pid, err)
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("stat of %d: %w", pid, err)
	}
	return time.Duration(user+system) * tick, nil
}

// RSS is the memory that a live process holds, in bytes.
func RSS(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(b))
	if len(fields) < 2 {
		return 0, fmt.Errorf("statm of %d: %q", pid, b)
	}
	pages, err := strconv.ParseInt(fields[1], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("statm of %d: %w", pid, err)
	}
	return pages * int64(os.Getpagesize()), nil
}

// Threads is how many threads a live process has.
func Threads(pid int) (int, error) {
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	return len(entries), err
}

// Below lists the live processes whose executable is in a folder or below it, also one that has been deleted there.
func Below(folder string) ([]int, error) {
	folder, err := filepath.EvalSymlinks(folder)
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		exe, err := os.Readlink(filepath.Join("/proc", e.Name(), "exe"))
		if err != nil || !strings.HasPrefix(exe, folder+"/") {
			continue // gone meanwhile, a kernel thread, or another program
		}
		if fields, err := stat(pid); err == nil && fields[0] != "Z" {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// stat is /proc/PID/stat from the third field, the state, on: the second may hold anything, also spaces and brackets.
func stat(pid int) ([]string, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil, err
	}
	end := bytes.LastIndexByte(b, ')')
	if end < 0 {
		return nil, fmt.Errorf("stat of %d: %q", pid, b)
	}
	fields := strings.Fields(string(b[end+1:]))
	if len(fields) < 13 {
		return nil, fmt.Errorf("stat of %d: %q", pid, b)
	}
	return fields, nil
}
