package offsets

import (
	"context"
	"maps"
	"sync"
	"time"
)

// gatherFor is how long a reading is waited for, at most, before the next one of the same offsets begins beside it.
const gatherFor = 250 * time.Millisecond

// Sharing opens offsets topics for the tasks of a runner. Tasks of one connector that start at the same time share a reading: it gives all of the connector's offsets, and a client costs more than what it reads.
//
// It keeps I3: whoever asks gets a reading that begins after the question, and so after the own id was initialised. One that has begun takes nobody in any more; who comes meanwhile waits for the next one, which begins when
// this one ends, or after a moment where it doesn't.
//
// The zero value is ready. Its methods may be called from anywhere. It has no goroutine: the first who asks reads, for all who join.
type Sharing struct {
	mu        sync.Mutex
	gathering map[sharedKey]*reading                                // haven't begun
	begun     map[sharedKey]*reading                                // the last of each that has begun and not ended
	open      func(context.Context, Config) (*Store, string, error) // Open, where it is nil
}

// sharedKey is what a reading depends on.
type sharedKey struct{ topic, connector, knownID string }

// reading is one Open for all who have joined it.
type reading struct {
	done chan struct{} // closed when the rest is set
	// given up says that its reader didn't come to an end, since its task was told to: who has joined asks again.
	givenUp bool
	store   *Store
	topicID string
	err     error
}

// Open is the package's Open. The Store is the caller's own.
func (s *Sharing) Open(ctx context.Context, cfg Config) (*Store, string, error) {
	key := sharedKey{cfg.Topic, cfg.Connector, cfg.KnownID}
	for {
		r, first := s.join(key)
		if first {
			s.read(ctx, cfg, key, r)
			return r.store.clone(), r.topicID, r.err
		}
		select {
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		case <-r.done:
		}
		if !r.givenUp {
			return r.store.clone(), r.topicID, r.err
		}
	}
}

// join finds the reading that gathers, or begins to gather one.
func (s *Sharing) join(key sharedKey) (r *reading, first bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r := s.gathering[key]; r != nil {
		return r, false
	}
	if s.gathering == nil {
		s.gathering, s.begun = map[sharedKey]*reading{}, map[sharedKey]*reading{}
	}
	r = &reading{done: make(chan struct{})}
	s.gathering[key] = r
	return r, true
}

// read waits its turn and reads.
func (s *Sharing) read(ctx context.Context, cfg Config, key sharedKey, r *reading) {
	defer close(r.done)
	s.await(ctx, key)
	s.mu.Lock()
	delete(s.gathering, key) // from here on nobody joins: what is read next would be no answer to a later question
	s.begun[key] = r
	s.mu.Unlock()
	open := s.open
	if open == nil {
		open = Open
	}
	r.givenUp = true // also where this panics
	r.store, r.topicID, r.err = open(ctx, cfg)
	r.givenUp = r.err != nil && ctx.Err() != nil
	s.mu.Lock()
	if s.begun[key] == r {
		delete(s.begun, key)
	}
	s.mu.Unlock()
}

// await waits for the reading that has begun, but not for long.
func (s *Sharing) await(ctx context.Context, key sharedKey) {
	s.mu.Lock()
	before := s.begun[key]
	s.mu.Unlock()
	if before == nil {
		return
	}
	timer := time.NewTimer(gatherFor)
	defer timer.Stop()
	select {
	case <-before.done:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// clone is a Store of its own with the same offsets. What is committed is shared: it is replaced and never changed.
func (s *Store) clone() *Store {
	if s == nil {
		return nil
	}
	own := *s
	own.committed, own.staged = maps.Clone(s.committed), map[string]*entry{}
	return &own
}
