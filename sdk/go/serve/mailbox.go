package serve

import (
	"context"
	"sync"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// mailbox keeps signals for a plugin that is slow to take them, in bounded memory (I10): credits add up, and of committed numbers the newest says it all. So whoever puts never waits.
type mailbox struct {
	out chan source.Signal

	mu      sync.Mutex
	waiting []source.Signal // at most one of each kind, in the order of their kinds
	closed  bool
	changed chan struct{} // room for one
}

func newMailbox() *mailbox {
	return &mailbox{out: make(chan source.Signal), changed: make(chan struct{}, 1)}
}

func (m *mailbox) put(s source.Signal) {
	m.mu.Lock()
	m.merge(s)
	m.mu.Unlock()
	m.wake()
}

// merge keeps the kinds in order: what a stop might make pointless comes before it.
func (m *mailbox) merge(s source.Signal) {
	for i := range m.waiting {
		w := &m.waiting[i]
		switch {
		case w.Kind == s.Kind && s.Kind == source.SignalCredit:
			if w.Bytes+s.Bytes >= w.Bytes {
				w.Bytes += s.Bytes
			}
			if s.MaxUncommitted > 0 {
				w.MaxUncommitted = s.MaxUncommitted
			}
			return
		case w.Kind == s.Kind && s.Kind == source.SignalCommitted:
			w.Seq = max(w.Seq, s.Seq)
			return
		case w.Kind == s.Kind:
			return
		case w.Kind > s.Kind:
			m.waiting = append(m.waiting[:i], append([]source.Signal{s}, m.waiting[i:]...)...)
			return
		}
	}
	m.waiting = append(m.waiting, s)
}

// close says that no more signals come.
func (m *mailbox) close() {
	m.mu.Lock()
	m.closed = true
	m.mu.Unlock()
	m.wake()
}

func (m *mailbox) wake() {
	select {
	case m.changed <- struct{}{}:
	default:
	}
}

// take returns the next signal; more is false where nothing will come.
func (m *mailbox) take() (s source.Signal, ok, more bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.waiting) == 0 {
		return s, false, !m.closed
	}
	s = m.waiting[0]
	m.waiting = m.waiting[1:]
	return s, true, true
}

// deliver hands signals on until the mailbox is closed and empty, which closes out, or ctx is done.
func (m *mailbox) deliver(ctx context.Context) {
	for {
		s, ok, more := m.take()
		if !more {
			close(m.out)
			return
		}
		if !ok {
			select {
			case <-m.changed:
			case <-ctx.Done():
				return
			}
			continue
		}
		select {
		case m.out <- s:
		case <-ctx.Done():
			return
		}
	}
}
