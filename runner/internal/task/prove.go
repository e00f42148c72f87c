package task

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"
)

// While a leader renews the lease, nothing here does anything. Without one, Kafka alone can say that the task is still this runner's: whoever has taken it over has initialised its transactional id, and every
// transaction of the earlier producer is refused. A busy task hears of that at its next commit. An idle one asks nobody, and an empty transaction asks nobody either, so its plugin would hold on to the source,
// a lock or a replication slot, while the successor waits for it: fencing protects Kafka and not the source. So an idle task without a leader commits a transaction that changes nothing, and where that is
// refused or doesn't return the plugin is stopped at once.
//
// The times, in lease times since the leader's last renewal, so that a successor that the leader chooses when the lease has run out soon gets the source:
//
//	from ½ on    an idle task proves its id every ¼
//	from 2 on    once each
//	any time     2 after the last renewal, or after the last commit that succeeded began, the plugin is stopped, whatever the task is doing

// trust is what is known about the right to go on.
type trust struct {
	// until is when the leader's last renewal runs out, ttl how long each lasts.
	until time.Time
	ttl   time.Duration
	// proven is when the last transaction began that was committed, asked when a proof was last asked for.
	proven, asked time.Time
}

// step is what to do about it.
type step uint8

const (
	goOn step = iota
	prove
	giveUp
)

// lost is from when on there is no leader, unless it is heard of before.
func (t trust) lost() time.Time { return t.until.Add(-t.ttl / 2) }

// judge says what to do now, and when to ask again. It is pure.
func (t trust) judge(now time.Time) (step, time.Time) {
	renewed, lost := t.until.Add(-t.ttl), t.lost()
	if now.Before(lost) {
		return goOn, lost
	}
	end := later(renewed, t.proven).Add(2 * t.ttl)
	if !now.Before(end) {
		return giveUp, time.Time{}
	}
	pause := t.ttl
	if now.Before(renewed.Add(2 * t.ttl)) {
		pause /= 4
	}
	if due := later(t.proven, t.asked).Add(pause); now.Before(due) {
		return goOn, earlier(due, end)
	}
	return prove, earlier(now.Add(pause), end)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// prover carries word between the watch and the writer.
type prover struct {
	// wanted has room for one: the writer is to prove the id, unless it commits anyhow.
	wanted chan struct{}

	mu     sync.Mutex
	proven time.Time
}

func newProver() *prover { return &prover{wanted: make(chan struct{}, 1)} }

// committed notes a commit that returned nil, and when it began: by then at the latest the id was still the task's own.
func (p *prover) committed(began time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proven = began
}

func (p *prover) last() time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.proven
}

// watchTrust asks for proofs while there is no leader, and ends the attempt where none succeeds for too long.
func (a *attempt) watchTrust(ctx context.Context, p *prover, end context.CancelCauseFunc) {
	var asked time.Time
	for {
		until, ttl := a.cfg.Coordinator.Trust(a.cfg.Lease)
		now := time.Now()
		do, again := trust{until: until, ttl: ttl, proven: p.last(), asked: asked}.judge(now)
		switch do {
		case giveUp:
			end(unproven(fmt.Errorf("no transaction has succeeded for two lease times of %s", ttl)))
			return
		case prove:
			asked = now
			select {
			case p.wanted <- struct{}{}:
			default: // the one before hasn't been taken yet
			}
		}
		// The tasks of a runner lose their leader together; they needn't all ask Kafka at the same moment.
		spread := time.Duration(rand.Int64N(int64(ttl/16) + 1))
		if pause(ctx, again.Sub(now)+spread) != nil {
			return
		}
	}
}

// prove commits a transaction that changes nothing, to hear whether the id is still the task's own. Nothing is pending.
func (w *writer) prove(ctx context.Context) error {
	w.budget.spent(time.Now())
	batch, topics := w.store.proof(w.cfg.Lease.Task)
	if err := w.conclude(ctx, batch, topics); err != nil {
		return err
	}
	return w.lookIfLost(ctx)
}

// fencedAlone ends a task that was fenced while there is no leader, as a proof that was refused does: there is nobody to ask whether it was meant.
func (a *attempt) fencedAlone(err error) error {
	until, ttl := a.cfg.Coordinator.Trust(a.cfg.Lease)
	var f *Failure
	if errors.As(err, &f) && f.Cause == CauseFenced && f.Class == Again && !time.Now().Before(trust{until: until, ttl: ttl}.lost()) {
		return unproven(err)
	}
	return err
}

// unproven ends a task that can't show that it is still this runner's. There is no leader to ask, so it is not tried again: the plugin goes, and with it its hold on the source. The next leader hears that the task has
// ended, and grants it again.
func unproven(err error) *Failure {
	cause := CauseUnproven
	var f *Failure
	if errors.As(err, &f) {
		cause = f.Cause
	}
	return failure(Stop, cause, "no coordinator renews the lease, and the task can't show that its transactional id is still its own: %w", err)
}
