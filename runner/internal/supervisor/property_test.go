package supervisor_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"pgregory.net/rapid"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/runner/internal/task"
)

// ledger watches the promises of a supervisor: at most one attempt of a task at a time, none under a lease that was given back, and each lease given back.
type ledger struct {
	fakeSession
	mu      sync.Mutex
	broken  []string
	running map[lease.ID]lease.Lease
	newest  map[lease.ID]uint64
	back    map[lease.Lease]int
}

func (l *ledger) Ended(ended lease.Lease, _ bool, _ string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.back[ended]++
	if l.running[ended.ID()] == ended {
		l.broken = append(l.broken, ended.String()+" was given back while it ran")
	}
}

func (l *ledger) HostFailed(ended lease.Lease, reason string) { l.Ended(ended, true, reason) }

func (l *ledger) Status(session.Status) {}

// attempt is an attempt that goes as chance wants it.
func (l *ledger) attempt(ctx context.Context, a supervisor.Attempt) error {
	mine := a.Grant.Lease
	l.mu.Lock()
	if other, busy := l.running[mine.ID()]; busy {
		l.broken = append(l.broken, mine.String()+" began while "+other.String()+" ran")
	}
	if l.back[mine] > 0 {
		l.broken = append(l.broken, mine.String()+" began after it was given back")
	}
	if mine.Epoch < l.newest[mine.ID()] {
		l.broken = append(l.broken, mine.String()+" began after a newer lease")
	}
	l.newest[mine.ID()] = mine.Epoch
	l.running[mine.ID()] = mine
	l.mu.Unlock()
	defer func() {
		l.mu.Lock()
		delete(l.running, mine.ID())
		l.mu.Unlock()
	}()
	slow := time.Duration(mine.Epoch%4) * time.Second // Some take their time to end.
	select {
	case <-ctx.Done():
		<-time.After(slow)
		return &task.Failure{Class: task.Stop, Cause: task.CauseAbandoned, Err: context.Cause(ctx)}
	case <-a.Drain:
		select {
		case <-time.After(slow):
			return nil
		case <-ctx.Done():
			return &task.Failure{Class: task.Stop, Cause: task.CauseAbandoned, Err: context.Cause(ctx)}
		}
	case <-time.After(time.Duration(1+mine.Epoch%3) * time.Minute):
		return &task.Failure{Class: task.Class(1 + mine.Epoch%3), Cause: task.CauseSource, Err: errors.New("by chance")}
	}
}

// step is an event and the time after it.
type step struct {
	event session.Event
	pause time.Duration
}

func steps(t *rapid.T) []step {
	drawn := make([]step, rapid.IntRange(1, 40).Draw(t, "steps"))
	for i := range drawn {
		one := lease.Lease{Connector: "orders", Incarnation: "i1", Generation: 1, Task: rapid.Uint32Range(0, 1).Draw(t, "task"), Epoch: rapid.Uint64Range(1, 12).Draw(t, "epoch")}
		drawn[i].pause = time.Duration(rapid.IntRange(0, 90).Draw(t, "seconds")) * time.Second
		switch rapid.IntRange(0, 4).Draw(t, "event") {
		case 0, 1:
			drawn[i].event = &session.Grant{Lease: one, Config: map[string]string{"connector.class": "seq"}, Plugin: session.PluginRef{Name: "seq", Version: "1.0.0", Type: "seq"}}
		case 2:
			drawn[i].event = &session.Revoke{Lease: one, Drain: true, Deadline: 2 * time.Second}
		case 3:
			drawn[i].event = &session.Revoke{Lease: one}
		default:
			drawn[i].event = &session.Lost{Lease: one}
		}
	}
	return drawn
}

func TestAtMostOneProducerOfATaskWhateverTheCoordinatorSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		drawn := steps(rt)
		l := &ledger{running: map[lease.ID]lease.Lease{}, newest: map[lease.ID]uint64{}, back: map[lease.Lease]int{}}
		synctest.Test(t, func(t *testing.T) { l.live(t, drawn) })
		for _, s := range drawn {
			if g, ok := s.event.(*session.Grant); ok && l.back[g.Lease] == 0 {
				rt.Errorf("%s was never given back", g.Lease)
			}
		}
		for _, b := range l.broken {
			rt.Error(b)
		}
		if len(l.running) > 0 {
			rt.Errorf("still running: %v", l.running)
		}
	})
}

// live is one supervisor's life.
func (l *ledger) live(t *testing.T, drawn []step) {
	t.Helper()
	w := &world{procs: map[string]*process{}, plans: map[string]*planCall{}, fail: map[string]error{}}
	v := supervisor.NewValidator(w.start, checkOverrides, hclog.NewNullLogger())
	v.SetPlugins([]supervisor.Plugin{{Description: description("1.0.0"), Path: "/p/seq"}})
	s, err := supervisor.New(supervisor.Config{Validator: v, RunTask: l.attempt, LoadOffsets: loadOffsets, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, l) }()
	for _, next := range drawn {
		if err := s.Deliver(next.event); err != nil {
			t.Error(err)
		}
		<-time.After(next.pause)
	}
	synctest.Wait() // The last event is taken.
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
