package soak

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/process"
)

// member is a long-lived process of the world, which dies and is started again. At most one fault has hold of it at a time.
type member struct {
	name string
	log  string
	spec func() process.Spec
	// died is called where the process ends although nobody asked it to.
	died func(*member, *process.Process)

	mu      sync.Mutex
	process *process.Process
	// wanted says that it should run: its end is nobody's intention then.
	wanted bool
	// over says that it is never started again.
	over  bool
	watch sync.WaitGroup
}

// start starts it, unless it runs.
func (m *member) start() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.over || m.process != nil && m.process.Running() {
		return nil
	}
	p, err := process.Start(m.spec())
	if err != nil {
		return err
	}
	m.process, m.wanted = p, true
	m.watch.Go(func() {
		<-p.Exited()
		m.mu.Lock()
		unasked := m.wanted && m.process == p
		m.mu.Unlock()
		if unasked {
			m.died(m, p)
		}
	})
	return nil
}

// now is its process; nil before the first start.
func (m *member) now() *process.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.process
}

// let says that its end is wanted from now on, and gives the process.
func (m *member) let() *process.Process {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wanted = false
	return m.process
}

// kill is kill -9.
func (m *member) kill() {
	if p := m.let(); p != nil {
		p.Kill()
	}
}

// stop is SIGTERM; one that isn't gone within the limit is killed, and that is an error.
func (m *member) stop(limit time.Duration) error {
	p := m.let()
	if p == nil || !p.Running() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		return fmt.Errorf("%s did not end within %s of SIGTERM", m.name, limit)
	}
	if code := p.State().ExitCode(); code != 0 {
		return fmt.Errorf("%s ended with %v after SIGTERM", m.name, p.State())
	}
	return nil
}

// end kills it for good, and waits for who watched it.
func (m *member) end() {
	m.mu.Lock()
	m.over, m.wanted = true, false
	p := m.process
	m.mu.Unlock()
	if p != nil {
		p.Kill()
	}
	m.watch.Wait()
}

func (m *member) freeze() error { return m.now().Signal(syscall.SIGSTOP) }
func (m *member) thaw() error   { return m.now().Signal(syscall.SIGCONT) }
