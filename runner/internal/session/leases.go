package session

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// leases has the deadline of each lease that the runner holds. A lease whose deadline has passed is still held: it is renewed by the next answer, unless that says that it is lost.
type leases struct {
	mu        sync.Mutex
	deadlines map[lease.Lease]time.Time
	ttl       time.Duration // of a renewal, as the last leader said
}

// lasting notes how long a renewal lasts.
func (t *leases) lasting(ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ttl = ttl
}

// trust is a lease's deadline, and how long a renewal lasts.
func (t *leases) trust(l lease.Lease) (until time.Time, ttl time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.deadlines[l], t.ttl
}

// add notes a grant. It refuses what is over the limit.
func (t *leases) add(l lease.Lease, deadline time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, again := t.deadlines[l]; !again && len(t.deadlines) >= maxLeases {
		return false
	}
	t.extend(l, deadline)
	return true
}

// renew moves the deadlines of those leases that are still held. A promise made earlier is never shortened: a new leader counts every lease as renewed when it takes over.
func (t *leases) renew(ls []lease.Lease, deadline time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range ls {
		if _, held := t.deadlines[l]; held {
			t.extend(l, deadline)
		}
	}
}

func (t *leases) extend(l lease.Lease, deadline time.Time) {
	if deadline.After(t.deadlines[l]) {
		t.deadlines[l] = deadline
	}
}

// drop forgets a lease, and says whether it was held.
func (t *leases) drop(l lease.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, held := t.deadlines[l]
	delete(t.deadlines, l)
	return held
}

// held says whether the runner holds a lease, in time or not.
func (t *leases) held(l lease.Lease) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, held := t.deadlines[l]
	return held
}

// valid says whether a lease is held and its deadline hasn't passed.
func (t *leases) valid(l lease.Lease, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return now.Before(t.deadlines[l])
}

// all are the leases held, in a stable order.
func (t *leases) all() []lease.Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := make([]lease.Lease, 0, len(t.deadlines))
	for l := range t.deadlines {
		all = append(all, l)
	}
	slices.SortFunc(all, func(a, b lease.Lease) int {
		return cmp.Or(cmp.Compare(a.Connector, b.Connector), cmp.Compare(a.Task, b.Task), cmp.Compare(a.Epoch, b.Epoch))
	})
	return all
}
