package session

import (
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// keptBeats is how many heartbeats without an answer are remembered. A stream is dead after three that nothing answers, so that more are on their way only where other messages keep it alive.
const keptBeats = 16

// beats remembers when heartbeats were sent, and for which leases.
type beats struct {
	mu     sync.Mutex
	seq    uint64
	sentAt [keptBeats]time.Time
	leases [keptBeats][]lease.Lease
}

// add notes a heartbeat that is about to be sent and numbers it. It owns the slice from here on.
func (b *beats) add(now time.Time, leases []lease.Lease) uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.seq++
	b.sentAt[b.seq%keptBeats], b.leases[b.seq%keptBeats] = now, leases
	return b.seq
}

// take gives back a heartbeat that is answered, once.
func (b *beats) take(seq uint64) (time.Time, []lease.Lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq == 0 || seq > b.seq || seq+keptBeats <= b.seq || b.sentAt[seq%keptBeats].IsZero() {
		return time.Time{}, nil, false
	}
	at, leases := b.sentAt[seq%keptBeats], b.leases[seq%keptBeats]
	b.sentAt[seq%keptBeats], b.leases[seq%keptBeats] = time.Time{}, nil
	return at, leases, true
}
