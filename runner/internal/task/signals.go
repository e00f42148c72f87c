package task

import (
	"context"
	"sync"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// signals carries what the plugin is told. Who tells it never waits: credit adds up, a committed position replaces the one before, and one goroutine hands them over as fast as they are taken (I10).
type signals struct {
	// out is not buffered: what was sent was taken.
	out  chan source.Signal
	wake chan struct{} // room for one wake-up

	mu             sync.Mutex
	bytes, records uint64
	seq            uint64
	// draining and stopping are nil where there is nothing to say.
	draining, stopping *source.Signal
}

func newSignals() *signals {
	return &signals{out: make(chan source.Signal), wake: make(chan struct{}, 1)}
}

func (s *signals) change(f func()) {
	s.mu.Lock()
	f()
	s.mu.Unlock()
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *signals) credit(bytes uint64)        { s.change(func() { s.bytes += bytes }) }
func (s *signals) limit(records uint64)       { s.change(func() { s.records = records }) }
func (s *signals) committed(seq uint64)       { s.change(func() { s.seq = seq }) }
func (s *signals) drain(signal source.Signal) { s.change(func() { s.draining = &signal }) }
func (s *signals) stop(reason string) {
	s.change(func() { s.stopping = &source.Signal{Kind: source.SignalStop, Reason: reason} })
}

// next is what there is to say, in an order in which nothing is lost: a stop ends the listening, so it comes last.
func (s *signals) next() (signal source.Signal, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.bytes > 0 || s.records > 0:
		signal = source.Signal{Kind: source.SignalCredit, Bytes: s.bytes, MaxUncommitted: s.records}
		s.bytes, s.records = 0, 0
	case s.seq > 0:
		signal = source.Signal{Kind: source.SignalCommitted, Seq: s.seq}
		s.seq = 0
	case s.draining != nil:
		signal, s.draining = *s.draining, nil
	case s.stopping != nil:
		signal, s.stopping = *s.stopping, nil
	default:
		return signal, false
	}
	return signal, true
}

// pump hands signals over until ctx is done.
func (s *signals) pump(ctx context.Context) {
	defer close(s.out)
	for {
		signal, ok := s.next()
		if !ok {
			select {
			case <-s.wake:
				continue
			case <-ctx.Done():
				return
			}
		}
		select {
		case s.out <- signal:
		case <-ctx.Done():
			return
		}
		if signal.Kind == source.SignalCommitted {
			fault("X7")
		}
	}
}
