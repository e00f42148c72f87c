package fence_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestOperationsOnOneIDKeepTheirOrder(t *testing.T) {
	b := newBed(t, 1)
	events := make(chan state.Event, 16)
	desk, _ := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error { events <- e; return nil })
	// The first operation is held up for long: nothing behind it may overtake it.
	b.answer(20, kmsg.NewPtrInitProducerIDRequest(), initCode(kerr.ConcurrentTransactions.Code))
	lease := state.Lease{Connector: "a", Epoch: 1}
	desk.PrepareID(state.PrepareID{Session: 3, RequestID: 9, Lease: lease, ID: "id"})
	desk.StartRound(state.StartRound{Connector: "a", Seq: 2, Tasks: []uint32{0}, IDs: []string{"id"}})
	desk.PrepareID(state.PrepareID{Session: 4, RequestID: 10, Lease: lease, ID: "id"})
	none := state.Decision{Outcome: state.OutcomeNone, ProducerID: -1, ProducerEpoch: -1}
	first, ok := (<-events).(state.IDPrepared)
	if diff := cmp.Diff(state.IDPrepared{Session: 3, RequestID: 9, Lease: lease, Decision: none}, first); !ok || diff != "" {
		t.Fatal(diff)
	}
	if second, ok := (<-events).(state.RoundDone); !ok || second.Decisions[0].Outcome != state.OutcomeNone || second.Decisions[0].ProducerEpoch != 0 {
		t.Fatalf("second %+v", second)
	}
	if third, ok := (<-events).(state.IDPrepared); !ok || third.Session != 4 || third.Decision.ProducerEpoch != 1 {
		t.Fatalf("third %+v", third)
	}
}

func TestACancelledRoundGivesNoAnswerAndHoldsNobodyUp(t *testing.T) {
	b := newBed(t, 1)
	events := make(chan state.Event, 16)
	desk, stop := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error { events <- e; return nil })
	busy := make(chan struct{})
	var seen int
	b.answer(-1, kmsg.NewPtrInitProducerIDRequest(), func(req kmsg.Request, resp kmsg.Response) {
		if seen++; seen == 2 {
			close(busy)
		}
		if q, ok := req.(*kmsg.InitProducerIDRequest); ok && *q.TransactionalID == "held" {
			initCode(kerr.ConcurrentTransactions.Code)(req, resp)
		}
	})
	desk.StartRound(state.StartRound{Connector: "a", Seq: 1, Tasks: []uint32{0, 1}, IDs: []string{"held", "free"}})
	<-busy
	desk.CancelRound(state.CancelRound{Connector: "a", Seq: 1})
	desk.StartRound(state.StartRound{Connector: "a", Seq: 2, Tasks: []uint32{1}, IDs: []string{"free"}})
	if done, ok := (<-events).(state.RoundDone); !ok || done.Seq != 2 {
		t.Fatalf("event %+v", done)
	}
	stop()
	if len(events) != 0 {
		t.Errorf("another event: %+v", <-events)
	}
}

func TestARefusedIDFailsItsRoundAndTheOthersAreFenced(t *testing.T) {
	b := newBed(t, 1)
	events := make(chan state.Event, 1)
	desk, _ := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error { events <- e; return nil })
	b.answer(-1, kmsg.NewPtrInitProducerIDRequest(), func(req kmsg.Request, resp kmsg.Response) {
		if q, ok := req.(*kmsg.InitProducerIDRequest); ok && *q.TransactionalID == "b" {
			initCode(kerr.TransactionalIDAuthorizationFailed.Code)(req, resp)
		}
	})
	desk.StartRound(state.StartRound{Connector: "a", Seq: 1, Tasks: []uint32{0, 1, 2}, IDs: []string{"a", "b", "c"}})
	failed, ok := (<-events).(state.RoundFailed)
	if !ok || failed.Task != 1 || failed.Reason == "" || len(failed.Decisions) != 2 {
		t.Fatalf("event %+v", failed)
	}
}

func TestNothingIsLeftBehindWhenTheDeskEnds(t *testing.T) {
	b := newBed(t, 1)
	desk, stop := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error { t.Errorf("event %+v", e); return nil })
	busy := make(chan struct{})
	var seen int
	b.answer(-1, kmsg.NewPtrInitProducerIDRequest(), func(req kmsg.Request, resp kmsg.Response) {
		if seen++; seen == 1 {
			close(busy)
		}
		initCode(kerr.ConcurrentTransactions.Code)(req, resp)
	})
	desk.PrepareID(state.PrepareID{ID: "id"})
	desk.StartRound(state.StartRound{Connector: "a", Seq: 1, Tasks: []uint32{0}, IDs: []string{"id"}})
	<-busy
	stop() // goleak looks for the rest.
}
