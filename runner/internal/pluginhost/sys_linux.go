package pluginhost

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// attributes of a plugin's process: a group of its own, and SIGKILL when the starter's thread, and so the runner, ends.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// awaitExit returns when a child has ended, and leaves it a zombie, so that its number, which is its group's too, can't be given to another process before the group
// has been killed.
func awaitExit(pid int) error {
	for {
		err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// limitMemory bounds the memory that a process may write to (RLIMIT_DATA). The limit of the address space would be wrong: the runtimes of Go, Java and Node.js reserve
// far more than they use.
func limitMemory(pid int, bytes int64) error {
	limit := &unix.Rlimit{Cur: uint64(bytes), Max: uint64(bytes)}
	return unix.Prlimit(pid, unix.RLIMIT_DATA, limit, nil)
}

func bootID() string {
	text, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// procStat is what we read of /proc/PID/stat.
type procStat struct {
	state byte
	group int
	start uint64
}

func readStat(pid int) (procStat, error) {
	text, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return procStat{}, err
	}
	// The second field is the program's name in parentheses and may hold anything, also a parenthesis.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) < 20 {
		return procStat{}, fmt.Errorf("/proc/%d/stat has %d fields", pid, len(fields))
	}
	group, err := strconv.Atoi(fields[2])
	if err != nil {
		return procStat{}, err
	}
	start, err := strconv.ParseUint(fields[19], 10, 64)
	return procStat{state: fields[0][0], group: group, start: start}, err
}

func startTime(pid int) (uint64, error) {
	stat, err := readStat(pid)
	return stat.start, err
}

// killGroupOf kills what is left of an entry's group. Each process is held by a descriptor before it is looked at, so that the one killed is the one that was seen.
// Where the leader is dead, members are known by the socket folder in their environment.
func killGroupOf(e entry) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var killed []int
	var ends []int // descriptors of what was killed
	defer func() {
		for _, fd := range ends {
			_ = unix.Close(fd)
		}
	}()
	for _, d := range entries {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		if stat, err := readStat(pid); err != nil || stat.group != e.PID {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue // it has ended
		}
		if !isOf(pid, e) || unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0) != nil {
			_ = unix.Close(fd)
			continue
		}
		killed = append(killed, pid)
		ends = append(ends, fd)
	}
	return killed, awaitEnds(ends, killed)
}

// isOf says whether a process belongs to an entry's group.
func isOf(pid int, e entry) bool {
	stat, err := readStat(pid)
	if err != nil || stat.group != e.PID || stat.state == 'Z' {
		return false
	}
	if pid == e.PID {
		return stat.start == e.Start
	}
	environment, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return false
	}
	for _, v := range bytes.Split(environment, []byte{0}) {
		if string(v) == "PLUGIN_UNIX_SOCKET_DIR="+e.SocketDir {
			return true
		}
	}
	return false
}

// awaitEnds waits until killed processes, which aren't our children, have ended.
func awaitEnds(fds, pids []int) error {
	deadline := time.Now().Add(5 * time.Second)
	for i, fd := range fds {
		for {
			left := time.Until(deadline)
			n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(left.Milliseconds(), 0)))
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if n == 1 {
				break
			}
			return fmt.Errorf("process %d didn't end within 5s of SIGKILL", pids[i])
		}
	}
	return nil
}
