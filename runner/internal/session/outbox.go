package session

import (
	"maps"
	"slices"
	"sync"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// statusPause is the time after which statuses are sent that say nothing new but numbers.
const statusPause = time.Second

// outbox holds what is to be sent. Everything in it is bounded: a status per lease, a result per plan, a few questions per task, an end per lease, and answers to the questions of one stream.
type outbox struct {
	mu   sync.Mutex
	wake chan struct{} // One token is enough: whoever takes it empties the box.

	offer         *runnerv1.Offer
	offerDirty    bool
	draining      bool // the runner stops
	drained       bool // a leader drains it
	drainingDirty bool
	ended         []*runnerv1.TaskEnded
	asks          map[uint64]*ask
	unasked       []uint64
	lastID        uint64
	plans         map[PlanRef]*planEntry
	plansDue      []PlanRef
	statuses      map[lease.Lease]*statusEntry
	statusDue     []lease.Lease
	stream        uint64
	answers       []*runnerv1.SessionRequest
}

// ask is a question of the runner's that has no answer yet.
type ask struct {
	lease   lease.Lease
	message *runnerv1.SessionRequest
	answer  chan answer // Room for the one answer.
}

// planEntry and statusEntry are queued at most once: what is sent is the newest at that moment.
type planEntry struct {
	message *runnerv1.PlanResult
	queued  bool
}

type statusEntry struct {
	now, sent *Status
	seq       uint64
	queued    bool
}

func (b *outbox) init() {
	b.wake = make(chan struct{}, 1)
	b.offer = &runnerv1.Offer{}
	b.asks = map[uint64]*ask{}
	b.plans = map[PlanRef]*planEntry{}
	b.statuses = map[lease.Lease]*statusEntry{}
}

// change runs f under the lock and wakes the sender.
func (b *outbox) change(f func()) {
	b.mu.Lock()
	f()
	b.mu.Unlock()
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// reopen makes the box ready for a new stream: whatever the coordinator may have missed is sent again. Answers to the old stream's questions are dropped.
func (b *outbox) reopen() (offer *runnerv1.Offer, plans []PlanRef, draining *runnerv1.Draining, stream uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stream++
	b.answers = nil
	b.offerDirty, b.drainingDirty = false, b.draining || b.drained // beside Hello, for leaders that don't read it there
	b.unasked = slices.Sorted(maps.Keys(b.asks))
	for ref, p := range b.plans {
		b.queuePlan(ref, p)
		plans = append(plans, ref)
	}
	for l, s := range b.statuses {
		s.sent = nil
		b.queueStatus(l, s)
	}
	if b.draining || b.drained {
		draining = b.drainingMessage()
	}
	return b.offer, plans, draining, b.stream
}

func (b *outbox) drainingMessage() *runnerv1.Draining { return &runnerv1.Draining{Asked: !b.draining} }

func (b *outbox) setOffer(o *runnerv1.Offer) { b.change(func() { b.offer, b.offerDirty = o, true }) }

func (b *outbox) setDraining() { b.change(func() { b.draining, b.drainingDirty = true, true }) }

// setDrained notes what a leader says; it needn't be told.
func (b *outbox) setDrained(drained bool) { b.change(func() { b.drained = drained }) }

func (b *outbox) setStatus(st Status) {
	b.change(func() {
		e := b.statuses[st.Lease]
		if e == nil {
			e = &statusEntry{}
			b.statuses[st.Lease] = e
		}
		e.now = &st
		if e.urgent() {
			b.queueStatus(st.Lease, e)
		}
	})
}

// statusesDue queues every status whose numbers have changed since it was sent.
func (b *outbox) statusesDue() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for l, e := range b.statuses {
		if e.now != e.sent {
			b.queueStatus(l, e)
		}
	}
}

func (b *outbox) queueStatus(l lease.Lease, e *statusEntry) {
	if !e.queued {
		e.queued = true
		b.statusDue = append(b.statusDue, l)
	}
}

func (b *outbox) queuePlan(ref PlanRef, e *planEntry) {
	if !e.queued && e.message != nil {
		e.queued = true
		b.plansDue = append(b.plansDue, ref)
	}
}

// addEnded queues the end of a task; its statuses are over. An end that is lost with its stream need not be sent again: the next Hello doesn't name the lease.
func (b *outbox) addEnded(l lease.Lease, clean, host bool, reason string) {
	b.change(func() {
		delete(b.statuses, l)
		if len(b.ended) < 2*maxLeases { // Only without any stream for long can there be more, and then Hello says it.
			b.ended = append(b.ended, &runnerv1.TaskEnded{Lease: leaseToWire(l), Clean: clean, Host: host, Reason: reason})
		}
	})
}

func (b *outbox) forget(l lease.Lease) { b.change(func() { delete(b.statuses, l) }) }

func (b *outbox) holdPlan(ref PlanRef) {
	b.change(func() {
		if b.plans[ref] == nil {
			b.plans[ref] = &planEntry{}
		}
	})
}

func (b *outbox) dropPlan(ref PlanRef) { b.change(func() { delete(b.plans, ref) }) }

func (b *outbox) setPlan(r PlanResult) {
	b.change(func() {
		if e := b.plans[r.Plan]; e != nil {
			e.message = planResultToWire(r)
			b.queuePlan(r.Plan, e)
		}
	})
}

// addAnswer queues an answer to a coordinator's question, where its stream still lives.
func (b *outbox) addAnswer(id RequestID, m *runnerv1.SessionRequest) {
	b.change(func() {
		if id.stream == b.stream {
			b.answers = append(b.answers, m)
		}
	})
}

// next takes the message that is most urgent, or nil where there is none. The order: ends, questions and answers, plans, the offer, statuses.
func (b *outbox) next() *runnerv1.SessionRequest {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.drainingDirty:
		b.drainingDirty = false
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Draining{Draining: b.drainingMessage()}}
	case len(b.ended) > 0:
		e := b.ended[0]
		b.ended = b.ended[1:]
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: e}}
	case len(b.answers) > 0:
		m := b.answers[0]
		b.answers = b.answers[1:]
		return m
	case b.offerDirty:
		b.offerDirty = false
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Offer{Offer: b.offer}}
	}
	if m := b.nextAsk(); m != nil {
		return m
	}
	if m := b.nextPlan(); m != nil {
		return m
	}
	return b.nextStatus()
}

// nextAsk takes a question that this stream hasn't carried yet. Questions that were given up meanwhile are left out.
func (b *outbox) nextAsk() *runnerv1.SessionRequest {
	for len(b.unasked) > 0 {
		a := b.asks[b.unasked[0]]
		b.unasked = b.unasked[1:]
		if a != nil {
			// A message is changed once it is sent, by its term: what is kept for the next stream is never sent itself.
			return &runnerv1.SessionRequest{Message: a.message.GetMessage()}
		}
	}
	return nil
}

// nextPlan takes a plan's result. Plans that were let go meanwhile are left out.
func (b *outbox) nextPlan() *runnerv1.SessionRequest {
	for len(b.plansDue) > 0 {
		p := b.plans[b.plansDue[0]]
		b.plansDue = b.plansDue[1:]
		if p != nil && p.queued {
			p.queued = false
			return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: p.message}}
		}
	}
	return nil
}

// nextStatus takes a status. Those of leases that were given back meanwhile are left out.
func (b *outbox) nextStatus() *runnerv1.SessionRequest {
	for len(b.statusDue) > 0 {
		e := b.statuses[b.statusDue[0]]
		b.statusDue = b.statusDue[1:]
		if e != nil && e.queued {
			e.seq++
			e.queued, e.sent = false, e.now
			return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: statusToWire(e.now, e.seq)}}
		}
	}
	return nil
}

// urgent says whether the status differs in more than numbers from the last one sent.
func (e *statusEntry) urgent() bool {
	a, b := e.sent, e.now
	return a == nil || a.State != b.State || a.Phase != b.Phase || a.Error != b.Error || a.Host != b.Host || a.CaughtUp != b.CaughtUp || a.Attempt != b.Attempt || !maps.Equal(a.Rewinds, b.Rewinds) || !slices.Equal(a.Notices, b.Notices)
}
