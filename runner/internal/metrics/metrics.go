// Package metrics shows to Prometheus what a runner does.
//
// It owns figures and no work: it is told what the supervisor tells the coordinator anyway, and what each attempt reports beside it, which is a few calls a second for a busy task and none for an idle one. Nothing is counted per
// record, and nothing runs between two scrapes: a scrape copies the figures and makes text of them.
//
// Its invariants:
//   - A counter never falls while the process lives. A status counts from its grant and an attempt from its beginning, so what is shown is the sum of what they grew by.
//   - Labels are connector, task, and words of fixed lists; never a value of a configuration or a text of an error, which may hold what is secret (I9). Only what a plugin itself offers as a metric is shown with the plugin's words.
//   - The number of tasks is bounded (I10). One that has left is shown for 10 minutes more, so that its last figures are seen, and is forgotten then.
//
// Every metric with its meaning is in docs/metrics.md, which a test compares with what a scrape gives. Read next: figures.go, then collect.go.
package metrics

import (
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

const (
	// keepFor is how long a task is shown after it has left: some scrapes.
	keepFor = 10 * time.Minute
	// maxTasks bounds what is kept; a runner has at most 10,000 leases.
	maxTasks = 20_000
)

// Config of Metrics.
type Config struct {
	// Runner and Version are the runner's.
	Runner, Version string
	// Session, Plugins and LeftBehind are asked at each scrape; LeftBehind counts producers that didn't close.
	Session    func() session.Standing
	Plugins    func() pluginhost.Counts
	LeftBehind func() int
}

// Metrics are those of one runner; a prometheus.Collector. A nil one takes everything and keeps nothing.
type Metrics struct {
	cfg Config

	most  int // maxTasks, but for tests
	mu    sync.Mutex
	tasks map[lease.ID]*figures
	// begun are attempts that came as far as running, stillborn those that ended before.
	begun, stillborn uint64
}

// New makes Metrics; whoever calls it registers them.
func New(cfg Config) *Metrics {
	return &Metrics{cfg: cfg, most: maxTasks, tasks: map[lease.ID]*figures{}}
}

// Watch passes everything on to a session and keeps what it says of tasks.
func (m *Metrics) Watch(to supervisor.Session) supervisor.Session {
	if m == nil {
		return to
	}
	return &watched{Session: to, m: m}
}

type watched struct {
	supervisor.Session
	m *Metrics
}

// Status notes a status and passes it on.
func (w *watched) Status(s session.Status) {
	w.m.status(s)
	w.Session.Status(s)
}

// Ended notes the end of a lease and passes it on.
func (w *watched) Ended(l lease.Lease, clean bool, reason string) {
	w.m.ended(l)
	w.Session.Ended(l, clean, reason)
}

// HostFailed notes the end of a lease and passes it on.
func (w *watched) HostFailed(l lease.Lease, reason string) {
	w.m.ended(l)
	w.Session.HostFailed(l, reason)
}

func (m *Metrics) status(s session.Status) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.of(s.Lease); f != nil {
		f.take(s, time.Now())
	}
}

func (m *Metrics) ended(l lease.Lease) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.tasks[l.ID()]; f != nil && f.lease == l {
		f.leave(time.Now())
	}
}

// of finds a task's figures under a lease, and makes them; nil where a newer lease was seen. The lock is held.
func (m *Metrics) of(l lease.Lease) *figures {
	f := m.tasks[l.ID()]
	switch {
	case f == nil:
		m.makeRoom()
		f = newFigures()
		m.tasks[l.ID()] = f
	case f.lease == l:
		return f
	case l.Newer(f.lease) < 0:
		return nil
	}
	f.begin(l, time.Now())
	return f
}

// makeRoom forgets tasks that have left long ago and, where there are too many all the same, the one that left first.
func (m *Metrics) makeRoom() {
	if len(m.tasks) < m.most {
		return // A scrape forgets, too.
	}
	if m.forget(time.Now()); len(m.tasks) < m.most {
		return
	}
	var oldest lease.ID
	var at time.Time
	for id, f := range m.tasks {
		if !f.left.IsZero() && (at.IsZero() || f.left.Before(at)) {
			oldest, at = id, f.left
		}
	}
	delete(m.tasks, oldest)
}

func (m *Metrics) forget(now time.Time) {
	for id, f := range m.tasks {
		if !f.left.IsZero() && now.Sub(f.left) > keepFor {
			delete(m.tasks, id)
		}
	}
}

// Attempt begins to follow an attempt of a task. Its methods may be called on nil.
func (m *Metrics) Attempt(g *session.Grant) *Attempt {
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	f := m.of(g.Lease)
	if f == nil {
		return nil
	}
	f.attempts++
	f.plugin = g.Plugin
	f.attempt = &Attempt{m: m, f: f}
	return f.attempt
}

// Attempt is one attempt of a task.
type Attempt struct {
	m *Metrics
	f *figures
	// last is what it reported last.
	last task.Status
	// queued is asked for what waits in the producer; nil before there is one and after the end.
	queued func() int
	ran    bool
	over   bool
}

// Report takes what the attempt reports.
func (a *Attempt) Report(s task.Status) {
	if a == nil {
		return
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	a.f.report(&s, &a.last)
	a.last = s
	a.ran = a.ran || s.Phase == task.PhaseRunning
}

// Queue has queued asked for how much the attempt's producer holds. It must not block.
func (a *Attempt) Queue(queued func() int) {
	if a == nil {
		return
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	a.queued = queued
}

// End is the end of the attempt.
func (a *Attempt) End() {
	if a == nil {
		return
	}
	a.m.mu.Lock()
	defer a.m.mu.Unlock()
	a.over, a.queued = true, nil
	if !a.last.OpenSince.IsZero() {
		a.f.dropped++
	}
	if a.ran {
		a.m.begun++
	} else {
		a.m.stillborn++
	}
}
