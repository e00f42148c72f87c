package source

import (
	"context"
	"math"
	"sync"
)

// maxUnacknowledged bounds the messages that are sent and not committed: drops and batches without records cost little of the credit, or nothing.
const maxUnacknowledged = 65_536

// flow is what a task may send, and what it has sent that isn't committed yet. Its methods may be called from several goroutines.
type flow struct {
	mu             sync.Mutex
	credit         int64 // bytes; one batch may take it below zero
	uncommitted    uint64
	maxUncommitted uint64 // 0: none was given
	sent           []unacknowledged
	changed        chan struct{} // room for one: a wake-up says "look again"
}

type unacknowledged struct {
	seq       uint64
	records   uint64
	positions []Position
}

func newFlow() *flow { return &flow{changed: make(chan struct{}, 1)} }

// take waits until a message may be sent, and counts it. Only batches need credit, and what has no number is never held up. One goroutine at a time.
func (f *flow) take(ctx context.Context, o outgoing) error {
	b, _ := o.message.(*Batch)
	for {
		if f.tryTake(b, o) {
			return nil
		}
		select {
		case <-f.changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (f *flow) tryTake(b *Batch, o outgoing) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if o.seq == 0 {
		return true
	}
	// I10: what is sent and not committed is bounded.
	if len(f.sent) >= maxUnacknowledged {
		return false
	}
	entry := unacknowledged{seq: o.seq, positions: o.positions}
	if b != nil {
		if f.credit <= 0 || f.maxUncommitted > 0 && f.uncommitted >= f.maxUncommitted {
			return false
		}
		f.credit -= int64(b.Size())
		entry.records = uint64(b.Count)
		f.uncommitted += entry.records
	}
	if entry.records > 0 || len(entry.positions) > 0 {
		f.sent = append(f.sent, entry)
	}
	return true
}

// grant adds to the credit.
func (f *flow) grant(bytes, maxUncommitted uint64) {
	f.mu.Lock()
	f.credit += int64(min(bytes, math.MaxInt64/2))
	f.credit = min(f.credit, math.MaxInt64/2)
	if maxUncommitted > 0 {
		f.maxUncommitted = maxUncommitted
	}
	f.mu.Unlock()
	f.wake()
}

// commit forgets everything up to seq, and gives its positions to each in order.
func (f *flow) commit(seq uint64, each func(Position)) {
	f.mu.Lock()
	n := 0
	for n < len(f.sent) && f.sent[n].seq <= seq {
		f.uncommitted -= f.sent[n].records
		for _, p := range f.sent[n].positions {
			each(p)
		}
		n++
	}
	rest := copy(f.sent, f.sent[n:])
	clear(f.sent[rest:])
	f.sent = f.sent[:rest]
	f.mu.Unlock()
	f.wake()
}

func (f *flow) wake() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// acknowledgements collects the newest committed position of each partition until somebody takes them.
type acknowledgements struct {
	mu    sync.Mutex
	place map[*Partition]int
	list  []Position
	ready chan struct{} // room for one
}

func newAcknowledgements() *acknowledgements {
	return &acknowledgements{place: make(map[*Partition]int), ready: make(chan struct{}, 1)}
}

func (a *acknowledgements) add(p Position) {
	a.mu.Lock()
	if i, ok := a.place[p.Partition]; ok {
		a.list[i] = p
	} else {
		a.place[p.Partition] = len(a.list)
		a.list = append(a.list, p)
	}
	a.mu.Unlock()
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

// take returns what was collected, nil where nothing was.
func (a *acknowledgements) take() []Position {
	a.mu.Lock()
	defer a.mu.Unlock()
	list := a.list
	a.list = nil
	clear(a.place)
	return list
}
