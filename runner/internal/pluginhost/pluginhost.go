// Package pluginhost starts plugin processes, keeps them from harming the runner, and ends them.
//
// It owns the processes, their socket folders and the record of both on disk. hashicorp/go-plugin does the handshake only, through a RunnerFunc of our own, and sees
// nothing of a plugin but a handshake line that was checked before: with version 1.8.0 a stderr line {"@message": 1} panics the host (log_entry.go), so does a
// certificate in the handshake where AutoMTLS is off (client.go, loadServerCert), a stdout line over 64 KiB ends the draining, Kill never returns on a stopped
// plugin, and an environment that isn't set is the host's.
//
// What holds here, whatever a plugin does (I10):
//
//   - It runs in a process group of its own, which is killed as a whole when its first process ends, also where the runner itself is killed and started again.
//   - Its stdout and stderr are read for as long as it lives, in bounded memory, and never wait for the log.
//   - Every step of its start and of its end has a deadline, also for a plugin that was stopped by SIGSTOP.
//   - It sees only the variables of an allow-list, and its end comes with its exit, its signal and its last lines on stderr.
//
// It never reads records and never restarts anything: that is the supervisor's. Where to read next: start.go, then child.go.
package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

// Config of a Host.
type Config struct {
	// Name of the runner. A Host of the same name on the same machine finds, and kills, what earlier ones left behind, and leaves those that live alone: runners of
	// two clusters may share a name. Empty is nameless: nothing is recorded, and nothing is shared.
	Name string
	// SocketDir is the folder in which the Host makes its own private one. Empty: the system's folder for temporary files or, where its path is too long for
	// sockets, /tmp.
	SocketDir string
	// PassEnv names variables that plugins see beside those of the built-in list.
	PassEnv []string
	// StartTimeout bounds a start from its first step to the answer of the health check. Default 10 s.
	StartTimeout time.Duration
	// Ladder has the deadlines of Stop; zero ones are DefaultLadder's.
	Ladder Ladder
	// Logger gets the plugins' lines and what happens to their processes. Default: none.
	Logger hclog.Logger
}

// Host starts and ends plugin processes. Close it when no plugin is needed any more.
type Host struct {
	cfg     Config
	log     hclog.Logger
	folder  *folder
	ledger  *ledger
	starter *starter
	// running counts the goroutines that wait for processes.
	running sync.WaitGroup

	mu     sync.Mutex
	closed bool
	// children are the processes that haven't been reaped.
	children map[*child]struct{}
	counts   Counts
}

// errClosed is the answer of a Host after Close.
var errClosed = errors.New("plugin host is closed")

// New makes the private folder, kills what an earlier Host of the same name left behind, and starts the thread on which processes are started; Close ends it.
func New(cfg Config) (*Host, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if cfg.StartTimeout <= 0 {
		cfg.StartTimeout = 10 * time.Second
	}
	cfg.Ladder = cfg.Ladder.withDefaults()
	folder, err := openFolder(cfg.SocketDir, cfg.Name)
	if err != nil {
		return nil, fmt.Errorf("plugin host: %w", err)
	}
	killed, err := clearLeftovers(folder, cfg.Name)
	if err != nil {
		folder.release()
		return nil, fmt.Errorf("plugin host: plugins of an earlier run: %w", err)
	}
	if len(killed) > 0 {
		cfg.Logger.Warn("killed plugins of an earlier run", "pids", killed)
	}
	return &Host{
		cfg: cfg, log: cfg.Logger, folder: folder, ledger: newLedger(folder.ledgerPath()), starter: newStarter(), children: map[*child]struct{}{}, counts: Counts{Exits: map[ExitClass]uint64{}},
	}, nil
}

// clearLeftovers ends and removes what Hosts of this name left behind, in the folder that was taken over and in those that nobody holds. It returns the processes that it killed.
func clearLeftovers(own *folder, name string) ([]int, error) {
	killed, err := newLedger(own.ledgerPath()).killLeftovers()
	if err != nil || !own.named {
		return killed, err
	}
	own.sweep()
	others, err := own.abandoned(name)
	for _, other := range others {
		more, failed := newLedger(other.ledgerPath()).killLeftovers()
		killed, err = append(killed, more...), errors.Join(err, failed)
		if failed != nil {
			other.release()
			continue
		}
		other.remove()
	}
	return killed, err
}

// Close kills every process that is still there, waits for its end and removes the private folder.
func (h *Host) Close() {
	h.mu.Lock()
	closed := h.closed
	h.closed = true
	for c := range h.children {
		c.kill()
	}
	h.mu.Unlock()
	if closed {
		return
	}
	h.running.Wait()
	h.starter.stop()
	h.folder.remove()
}

// adopt takes a child in before it is started, so that Close finds it.
func (h *Host) adopt(c *child) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	h.children[c] = struct{}{}
	return nil
}

func (h *Host) disown(c *child) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.children, c)
}

// enter keeps Close waiting until leave; it fails after Close.
func (h *Host) enter() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return errClosed
	}
	h.running.Add(1)
	return nil
}

func (h *Host) leave() { h.running.Done() }

// environment is what a plugin sees: an allow-list of the runner's variables and what the start adds. It is never empty, since an empty list would be the whole
// environment of the runner, with its secrets.
func (h *Host) environment(added []string) []string {
	allowed := append([]string{
		"PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_COLLATE", "LC_NUMERIC", "LC_TIME", "LC_MESSAGES", "TZ",
		"TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "JAVA_HOME", "LD_LIBRARY_PATH", "PYTHONPATH", "NODE_PATH",
	}, h.cfg.PassEnv...)
	var env []string
	for _, name := range allowed {
		if value, ok := os.LookupEnv(name); ok {
			env = append(env, name+"="+value)
		}
	}
	return append(env, added...)
}

// waitFor waits for a channel within a time; ok is whether it was closed.
func waitFor(ctx context.Context, done <-chan struct{}, within time.Duration) (ok bool) {
	timer := time.NewTimer(within)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	select { // both may be ready
	case <-done:
		return true
	default:
		return false
	}
}
