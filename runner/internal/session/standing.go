package session

import (
	"maps"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// Standing is how a Session stands at one moment, for people.
type Standing struct {
	// Connected says that a leader has accepted the runner, on the stream that is open now.
	Connected bool
	// Joined is how often one has since the start.
	Joined uint64
	// Term is the highest that was seen.
	Term uint64
	// Leases has until when each lease that is held may be trusted. It is a copy.
	Leases map[lease.Lease]time.Time
}

// Standing tells how the session stands.
func (s *Session) Standing() Standing {
	return Standing{Connected: s.connected.Load(), Joined: s.joined.Load(), Term: s.highest(), Leases: s.leases.snapshot()}
}

func (t *leases) snapshot() map[lease.Lease]time.Time {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.deadlines)
}
