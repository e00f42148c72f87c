package sessions

import (
	"sync"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// mail is what waits for a session's writer: bounded, but only as large as what waits. One step of the leader's may have a message for each lease that a runner holds.
type mail struct {
	limit int
	wake  chan struct{} // one token: something waits

	mu      sync.Mutex
	waiting []*runnerv1.SessionResponse
}

func newMail(limit int) *mail { return &mail{limit: limit, wake: make(chan struct{}, 1)} }

// put adds a message; false is that too many wait already.
func (q *mail) put(m *runnerv1.SessionResponse) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.limit {
		return false
	}
	q.waiting = append(q.waiting, m)
	select {
	case q.wake <- struct{}{}:
	default:
	}
	return true
}

// take removes everything that waits, in order.
func (q *mail) take() []*runnerv1.SessionResponse {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := q.waiting
	q.waiting = nil
	return all
}
