package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
)

const (
	// keepWarm is how long a process that a validation started is kept, so that creating the connector right after it is fast.
	keepWarm = 5 * time.Second
	// keepForGrant is how long a process is kept for a task that another runner still has. It is the protocol's.
	keepForGrant = time.Minute
	// stopLadder bounds the steps by which a process is stopped; it is killed then.
	stopLadder = 30 * time.Second
)

// processKey names a process: one per connector and plugin. The version is part of it, since a path may have another plugin from one day to the next while the process of the old one still runs.
type processKey struct {
	connector, path, version, pin string
}

// processes shares plugin processes among the tasks of a connector, its plan, and questions about it. A process starts when it is first needed and is stopped when its last user has gone. One that
// ended by itself is never handed out again.
type processes struct {
	start func(context.Context, Plugin, string) (Process, error)
	log   hclog.Logger
	stops sync.WaitGroup

	mu     sync.Mutex
	byKey  map[processKey]*shared
	closed bool
}

// shared is a process and who uses it.
type shared struct {
	owner *processes
	key   processKey
	ready chan struct{} // Closed when proc and err are set.
	proc  Process
	err   error

	// These are guarded by the owner's lock.
	users   int
	warm    *time.Timer
	retired bool
	gone    chan struct{} // Closed when the process was stopped.
}

// closed is a channel that is closed.
var closed = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

func newProcesses(start func(context.Context, Plugin, string) (Process, error), log hclog.Logger) *processes {
	return &processes{start: start, log: log, byKey: map[processKey]*shared{}}
}

// errClosing is the answer to whoever needs a process while the runner stops.
var errClosing = errors.New("the runner is stopping")

// acquire gives a process that runs, and counts its user until release.
func (ps *processes) acquire(ctx context.Context, connector string, p Plugin) (*shared, error) {
	key := processKey{connector, p.Path, p.Description.Version, p.Pin}
	ps.mu.Lock()
	if ps.closed {
		ps.mu.Unlock()
		return nil, errClosing
	}
	sh := ps.byKey[key]
	first := sh == nil || sh.over()
	if first {
		sh = &shared{owner: ps, key: key, ready: make(chan struct{}), gone: make(chan struct{})}
		ps.byKey[key] = sh
	}
	sh.users++
	if sh.warm != nil {
		sh.warm.Stop()
		sh.warm = nil
	}
	ps.mu.Unlock()
	if first {
		// Others wait for the same start: it doesn't end with this user's context.
		ps.stops.Go(func() {
			sh.proc, sh.err = ps.start(context.WithoutCancel(ctx), p, connector)
			close(sh.ready)
		})
	}
	select {
	case <-ctx.Done():
		sh.release(0)
		return nil, context.Cause(ctx)
	case <-sh.ready:
	}
	if sh.err != nil {
		sh.release(0)
		return nil, fmt.Errorf("start plugin %s: %w", p.Description.Name, sh.err)
	}
	return sh, nil
}

// over says whether the process can't be used any more: it failed to start, or has ended.
func (sh *shared) over() bool {
	if !isClosed(sh.ready) {
		return false
	}
	return sh.err != nil || isClosed(sh.proc.Done())
}

// release is the end of a use. The last user's release stops the process, after warm. The channel is closed when the process is gone, or at once where others use it or it is kept.
func (sh *shared) release(warm time.Duration) <-chan struct{} {
	ps := sh.owner
	ps.mu.Lock()
	defer ps.mu.Unlock()
	sh.users--
	if sh.users > 0 {
		return closed
	}
	if warm > 0 && !ps.closed {
		sh.warm = time.AfterFunc(warm, func() {
			ps.mu.Lock()
			defer ps.mu.Unlock()
			if sh.users == 0 && sh.warm != nil {
				sh.retire()
			}
		})
		return closed
	}
	sh.retire()
	return sh.gone
}

// retire takes the process out and stops it, once. The lock is held.
func (sh *shared) retire() {
	ps := sh.owner
	sh.warm = nil
	if ps.byKey[sh.key] == sh {
		delete(ps.byKey, sh.key)
	}
	if sh.retired {
		return
	}
	sh.retired = true
	ps.stops.Go(func() {
		defer close(sh.gone)
		<-sh.ready // A start has its own deadline.
		if sh.err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), stopLadder)
		defer cancel()
		if err := sh.proc.Stop(ctx); err != nil {
			ps.log.Warn("plugin didn't stop well", "connector", sh.key.connector, "error", err)
			sh.proc.Kill()
		}
	})
}

// close stops every process that is still there and waits for all.
func (ps *processes) close() {
	ps.mu.Lock()
	ps.closed = true
	for _, sh := range ps.byKey {
		if sh.warm != nil {
			sh.warm.Stop()
		}
		sh.retire()
	}
	ps.mu.Unlock()
	ps.stops.Wait()
}
