package fence_test

import (
	"context"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// idsOf numbers ids as tasks.
func idsOf(ids ...string) map[uint32]string {
	numbered := map[uint32]string{}
	for i, id := range ids {
		numbered[uint32(i)] = id
	}
	return numbered
}

// producerID asks the fake cluster for an id's producer id.
func (b *bed) producerID(t *testing.T, cl *kgo.Client) int64 {
	t.Helper()
	id, _, err := cl.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return id
}

// calling makes the transaction coordinator say of each id what the test says: an open transaction whose id is called complete is what a hang looks like.
func (b *bed) calling(states map[string]string, ids map[string]int64) (change func(id, state string)) {
	var mu sync.Mutex
	b.answer(-1, kmsg.NewPtrDescribeTransactionsRequest(), described(func(id string) (string, int64) {
		mu.Lock()
		defer mu.Unlock()
		return states[id], ids[id]
	}))
	return func(id, state string) {
		mu.Lock()
		defer mu.Unlock()
		states[id] = state
	}
}

func TestALookFindsOwnFinishedTransactionsOnly(t *testing.T) {
	b := newBed(t, 1)
	own, sibling, other := b.producer(t, "own", 0), b.producer(t, "sibling", 1), b.producer(t, "other", 2)
	producers := map[string]int64{"own": b.producerID(t, own), "sibling": b.producerID(t, sibling), "other": b.producerID(t, other)}
	change := b.calling(map[string]string{"sibling": "Ongoing"}, producers)
	for _, finished := range []string{"Empty", "CompleteCommit", "CompleteAbort"} {
		change("own", finished)
		hanging, err := b.Look(t.Context(), []string{topic, "gone"}, idsOf("own", "sibling"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if want := (state.Hang{ID: "own", Topic: topic, ProducerID: producers["own"]}); len(hanging) != 1 || hanging[0] != want {
			t.Fatalf("%s: hanging %v", finished, hanging)
		}
	}
	change("own", "PrepareCommit")
	change("sibling", "PrepareAbort")
	if hanging, err := b.Look(t.Context(), []string{topic}, idsOf("own", "sibling"), nil); err != nil || len(hanging) != 0 {
		t.Fatalf("a commit that goes on is no hang: %v, %v", hanging, err)
	}
}

func TestALookAtFreePartitionsAsksNobodyElse(t *testing.T) {
	b := newBed(t, 1)
	cl := b.producer(t, "own", 0)
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	b.answer(-1, kmsg.NewPtrDescribeProducersRequest(), func(kmsg.Request, kmsg.Response) { t.Error("asked for producers") })
	for _, topics := range [][]string{{topic}, {"gone"}, nil} {
		if hanging, err := b.Look(t.Context(), topics, idsOf("own"), nil); err != nil || len(hanging) != 0 {
			t.Fatalf("%v: %v, %v", topics, hanging, err)
		}
	}
}

// TestATransactionThatJustEndedIsNoHang commits between the two questions of a look: the partition's leader still showed it open, the coordinator then calls it complete.
func TestATransactionThatJustEndedIsNoHang(t *testing.T) {
	b := newBed(t, 1)
	cl := b.producer(t, "own", 0)
	id := b.producerID(t, cl)
	committed := make(chan error, 1)
	asked := make(chan struct{}, 1)
	b.cluster.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		asked <- struct{}{}
		var err error
		b.cluster.SleepControl(func() { err = <-committed })
		if err != nil {
			t.Error(err)
		}
		resp := req.ResponseKind()
		described(func(string) (string, int64) { return "CompleteCommit", id })(req, resp)
		return resp, nil, true
	})
	go func() {
		<-asked
		committed <- cl.EndTransaction(context.Background(), kgo.TryCommit)
	}()
	if hanging, err := b.Look(t.Context(), []string{topic}, idsOf("own"), nil); err != nil || len(hanging) != 0 {
		t.Fatalf("hanging %v, %v", hanging, err)
	}
}

func TestTheDeskAnswersALook(t *testing.T) {
	b := newBed(t, 1)
	cl := b.producer(t, "own", 0)
	b.calling(map[string]string{"own": "Empty"}, map[string]int64{"own": b.producerID(t, cl)})
	events := make(chan state.Event, 1)
	desk, _ := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error { events <- e; return nil })
	desk.Look(state.Look{Session: 1, RequestID: 2, Lease: state.Lease{Connector: "a"}, Topics: []string{topic}, IDs: map[uint32]string{0: "own"}})
	looked, ok := (<-events).(state.Looked)
	if !ok || looked.Session != 1 || looked.RequestID != 2 || looked.Lease.Connector != "a" || len(looked.Hanging) != 1 || looked.Failed != "" {
		t.Fatalf("event %+v", looked)
	}
}
