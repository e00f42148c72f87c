package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Core is what takes events: a loop.
type Core interface {
	Submit(ctx context.Context, event state.Event) error
}

// Shell counts what a loop does through a shell. A nil Metrics counts nothing.
func (m *Metrics) Shell(shell loop.Shell) loop.Shell {
	if m == nil {
		return shell
	}
	shell.Log = &watchedLog{Log: shell.Log, m: m}
	shell.Fencer = &watchedFencer{Fencer: shell.Fencer, m: m}
	shell.Sender = &watchedSender{Sender: shell.Sender, m: m}
	return shell
}

// Events counts what is submitted to a loop.
func (m *Metrics) Events(to Core) Core {
	if m == nil {
		return to
	}
	return &watchedCore{Core: to, m: m}
}

type watchedCore struct {
	Core
	m *Metrics
}

// Submit counts an event and passes it on.
func (c *watchedCore) Submit(ctx context.Context, event state.Event) error {
	c.m.event(event)
	return c.Core.Submit(ctx, event)
}

type watchedLog struct {
	loop.Log
	m *Metrics
}

// Write passes a transaction on and counts it.
func (l *watchedLog) Write(ctx context.Context, records []state.Record) error {
	began, c := time.Now(), &l.m.counted
	if err := l.Log.Write(ctx, records); err != nil {
		c.transactions.WithLabelValues(failed).Inc()
		return err
	}
	c.transactions.WithLabelValues(committed).Inc()
	c.records.Add(float64(len(records)))
	c.transactionTime.Observe(time.Since(began).Seconds())
	return nil
}

type watchedFencer struct {
	loop.Fencer
	m *Metrics
}

// StartRound notes when a round began.
func (f *watchedFencer) StartRound(r state.StartRound) {
	f.m.mu.Lock()
	f.m.rounds[round{r.Connector, r.Seq}] = begun{at: time.Now(), ids: len(r.IDs)}
	f.m.mu.Unlock()
	f.Fencer.StartRound(r)
}

// CancelRound counts a round that a newer one takes the place of.
func (f *watchedFencer) CancelRound(r state.CancelRound) {
	if _, under := f.m.over(r.Connector, r.Seq); under {
		f.m.counted.rounds.WithLabelValues(superseded).Inc()
	}
	f.Fencer.CancelRound(r)
}

// over ends a round, and tells when it began where it was under way: an answer may come after the round was cancelled.
func (m *Metrics) over(connector string, seq uint64) (b begun, under bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	key := round{connector, seq}
	b, under = m.rounds[key]
	delete(m.rounds, key)
	return b, under
}

type watchedSender struct {
	loop.Sender
	m *Metrics
}

// Send counts grants and revocations.
func (s *watchedSender) Send(e state.Send) {
	switch {
	case e.Message.GetGrant() != nil:
		s.m.ofConnector(s.m.counted.grants, e.Message.GetGrant().GetLease().GetConnector(), 1)
	case e.Message.GetRevoke() != nil:
		s.m.ofConnector(s.m.counted.takeback, e.Message.GetRevoke().GetLease().GetConnector(), 1)
	}
	s.Sender.Send(e)
}

// ofConnector counts with a connector's label, which is remembered so that it can be taken away.
func (m *Metrics) ofConnector(of *prometheus.CounterVec, connector string, n int) {
	m.mu.Lock()
	m.labelled[connector] = true
	m.mu.Unlock()
	of.WithLabelValues(connector).Add(float64(n))
}

// event counts what comes back.
func (m *Metrics) event(event state.Event) {
	c := &m.counted
	switch e := event.(type) {
	case state.RoundDone:
		if b, under := m.over(e.Connector, e.Seq); under {
			c.rounds.WithLabelValues(done).Inc()
			c.ids.WithLabelValues(forRound).Add(float64(b.ids))
			c.roundTime.Observe(time.Since(b.at).Seconds())
		}
	case state.RoundFailed:
		if _, under := m.over(e.Connector, e.Seq); under {
			c.rounds.WithLabelValues(refused).Inc()
			c.ids.WithLabelValues(forRound).Add(float64(len(e.Decisions)))
		}
	case state.IDPrepared:
		if e.Failed == "" {
			c.ids.WithLabelValues(forStart).Inc()
		}
	case state.Looked:
		c.looks.WithLabelValues(found(e)).Inc()
		if n := len(e.Hanging); n > 0 {
			m.ofConnector(c.hanging, e.Lease.Connector, n)
		}
	case state.Healed:
		m.ofConnector(c.healed, e.Connector, len(e.Mended))
		m.ofConnector(c.left, e.Connector, len(e.Left))
	case state.Found:
		m.ofConnector(c.hanging, e.Connector, len(e.Hanging))
	case state.SessionOpened:
		c.sessions.WithLabelValues(opened).Inc()
	case state.SessionClosed:
		c.sessions.WithLabelValues(closed).Inc()
	}
}

func found(e state.Looked) string {
	switch {
	case e.Failed != "":
		return failed
	case len(e.Hanging) > 0:
		return hanging
	}
	return clean
}
