package supervisor

import (
	"fmt"
	"sync"

	"github.com/fencepost-io/fencepost/runner/internal/session"
)

// maxEvents bounds the coordinator's events that wait: several for each lease that a runner may hold.
const maxEvents = 50_000

// queue is what waits for the supervisor's goroutine. Events of the coordinator's are bounded, so that a flood ends its stream; the supervisor's own are bounded by what runs.
type queue struct {
	wake chan struct{} // One token is enough: whoever takes it empties the queue.

	mu     sync.Mutex
	events []any
}

func (q *queue) init() { q.wake = make(chan struct{}, 1) }

// push adds an event of the coordinator's.
func (q *queue) push(e session.Event) error {
	q.mu.Lock()
	if len(q.events) >= maxEvents {
		q.mu.Unlock()
		return fmt.Errorf("%d events wait for the supervisor, more than it takes", maxEvents)
	}
	q.events = append(q.events, e)
	q.mu.Unlock()
	q.signal()
	return nil
}

// pushOwn adds an event of the supervisor's own.
func (q *queue) pushOwn(e any) {
	q.mu.Lock()
	q.events = append(q.events, e)
	q.mu.Unlock()
	q.signal()
}

func (q *queue) signal() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// pop takes the oldest event.
func (q *queue) pop() (any, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.events) == 0 {
		return nil, false
	}
	e := q.events[0]
	q.events[0] = nil
	q.events = q.events[1:]
	return e, true
}
