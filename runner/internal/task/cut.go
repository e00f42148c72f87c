package task

import (
	"context"
	"time"
)

// A call to Kafka that doesn't come back may mean that Kafka is away, for everybody, or that this host is cut off from it, and another runner would do better. The lease tells the two apart: a renewal reaches at most one
// lease time beyond the last transaction that the leader has committed (I7), so a lease that is renewed far enough says that the leader has reached Kafka since. Then the status says that the host is to blame. The task
// goes on trying: where another runner fits, the coordinator takes it back, and where none does, nothing is better than to wait here.

// probeTimeout bounds the question whether any broker answers here. It is generous: a client that gives up on an answer drops the connection.
const probeTimeout = 3 * time.Second

// noBroker is what the status says then.
const noBroker = "no broker answers this host, although the coordinator reaches them"

// reach is what is known of the ways to Kafka while a call lasts. It is pure.
type reach struct {
	// against is when no broker answered here for the first time although the leader had reached one since the call began.
	against time.Time
}

// judge takes an answer and says whether the host is to blame: no broker has answered for half a lease time, and the leader has reached one since the beginning of that, too. began is when the call did, and leader when the
// leader committed last, at the earliest. Half a lease leaves the client the time to connect again where the brokers have just come back for everybody.
func (r *reach) judge(now time.Time, answers bool, began, leader time.Time, ttl time.Duration) bool {
	switch {
	case answers || !leader.After(began):
		r.against = time.Time{}
	case r.against.IsZero():
		r.against = now
	default:
		return now.Sub(r.against) >= ttl/2 && leader.After(r.against)
	}
	return false
}

// watched makes a call to Kafka, and has the status say so where the host is to blame that it doesn't return. Nothing of it is left when it returns.
func (a *attempt) watched(ctx context.Context, call func() error) error {
	_, ttl := a.cfg.Coordinator.Trust(a.cfg.Lease)
	if ttl <= 0 {
		return call()
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began, done := time.Now(), make(chan struct{})
	timer := time.AfterFunc(ttl/2, func() {
		defer close(done)
		a.watchReach(ctx, began)
	})
	err := call()
	cancel()
	if !timer.Stop() {
		<-done
	}
	return err
}

// watchReach asks again and again whether any broker answers, until the call has returned.
func (a *attempt) watchReach(ctx context.Context, began time.Time) {
	defer a.reporter.blame(false)
	var r reach
	for ctx.Err() == nil {
		answers := a.pub.Reaches(probeTimeout)
		until, ttl := a.cfg.Coordinator.Trust(a.cfg.Lease)
		blamed := r.judge(time.Now(), answers, began, until.Add(-ttl), ttl)
		if ctx.Err() != nil {
			return
		}
		a.reporter.blame(blamed)
		if pause(ctx, max(ttl/4, retryPause)) != nil {
			return
		}
	}
}
