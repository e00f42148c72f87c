package host

import (
	"context"
	"math"
	"sync"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// maxQueuedOtherBytes bounds the messages beside batches, which no credit covers, that wait for a slow host. A million declared partitions fit.
const maxQueuedOtherBytes = 256 << 20

// queue holds messages between the receive loop and host.Send. I10: batches are bounded by the credit that was given, everything else by its bytes; whoever sends more
// breaks the protocol.
type queue struct {
	// ready has room for one wake-up; more would say nothing new.
	ready chan struct{}

	mu     sync.Mutex
	items  []queued
	closed bool
	// granted and used count bytes of batches since the stream began.
	granted, used uint64
	// other is the bytes of waiting messages that aren't batches.
	other int
}

type queued struct {
	message source.Message
	// size is 0 for batches.
	size int
}

func newQueue() *queue { return &queue{ready: make(chan struct{}, 1)} }

// grant adds credit.
func (q *queue) grant(bytes uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.granted > math.MaxUint64-bytes {
		q.granted = math.MaxUint64
		return
	}
	q.granted += bytes
}

// putBatch adds a batch: one may be sent while credit is left, and may use more than is left.
func (q *queue) putBatch(b *source.Batch) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.used >= q.granted {
		return source.Fatalf("protocol: the plugin sent Batch %d without credit: %d bytes were granted and %d used before it", b.Seq, q.granted, q.used)
	}
	q.used += uint64(b.WireBytes)
	q.add(queued{message: b})
	return nil
}

// put adds any other message.
func (q *queue) put(m source.Message, size int) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.other+size > maxQueuedOtherBytes {
		return source.Fatalf("protocol: over %d MiB of messages beside batches wait to be taken", maxQueuedOtherBytes>>20)
	}
	q.other += size
	q.add(queued{message: m, size: size})
	return nil
}

// add appends and wakes next; the caller holds the lock.
func (q *queue) add(m queued) {
	q.items = append(q.items, m)
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// close lets next end when the queue is empty.
func (q *queue) close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	select {
	case q.ready <- struct{}{}:
	default:
	}
}

// next waits for a message; ok is false when the queue is closed and empty, or ctx is done.
func (q *queue) next(ctx context.Context) (m source.Message, ok bool) {
	for {
		if m, closed := q.pop(); m != nil || closed {
			return m, m != nil
		}
		select {
		case <-q.ready:
		case <-ctx.Done():
			return nil, false
		}
	}
}

func (q *queue) pop() (m source.Message, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		q.items = nil // lets the array go after a burst
		return nil, q.closed
	}
	first := q.items[0]
	q.items[0] = queued{}
	q.items = q.items[1:]
	q.other -= first.size
	return first.message, false
}
