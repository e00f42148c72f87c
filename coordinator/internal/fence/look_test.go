package fence_test

import (
	"context"
	"net"
	"strconv"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
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

// behind makes the fake broker say n times that it doesn't know a topic, as one that has not heard of it yet.
func (b *bed) behind(t *testing.T, n int32, topic string) {
	t.Helper()
	host, port, err := net.SplitHostPort(b.cluster.ListenAddrs()[0])
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	b.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		m, _ := req.(*kmsg.MetadataRequest)
		resp, is := req.ResponseKind().(*kmsg.MetadataResponse)
		if !is || len(m.Topics) != 1 || m.Topics[0].Topic == nil || *m.Topics[0].Topic != topic || n == 0 {
			return nil, nil, false
		}
		n--
		resp.Brokers = []kmsg.MetadataResponseBroker{{Host: host, Port: int32(number)}}
		one := kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = m.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
		resp.Topics = append(resp.Topics, one)
		return resp, nil, true
	})
}

// TestATopicThatOneBrokerDoesntKnowIsNotFree: a hang there would be passed over, and a decision of Kafka's own taken for none.
func TestATopicThatOneBrokerDoesntKnowIsNotFree(t *testing.T) {
	h := newHung(t, 2)
	h.behind(t, 1, topic)
	hanging, err := h.Look(t.Context(), []string{topic}, idsOf(h.id), nil)
	if err == nil || len(hanging) != 0 {
		t.Fatalf("hanging %v, %v", hanging, err)
	}
	if hanging, err = h.Look(t.Context(), []string{topic}, idsOf(h.id), nil); err != nil || len(hanging) != 1 {
		t.Fatalf("hanging %v, %v", hanging, err)
	}
	h = newHung(t, 2)
	h.behind(t, 1, stateTopic)
	hanging = []state.Hang{{ID: h.id, Topic: topic, ProducerID: h.producer, ProducerEpoch: h.epoch}}
	if proven, err := h.Prove(t.Context(), h.id, hanging, state.Decision{}); err == nil {
		t.Fatalf("proven %v: %v", proven[0].Outcome, proven[0].Proof)
	}
	if proven, err := h.Prove(t.Context(), h.id, hanging, state.Decision{}); err != nil || proven[0].Outcome != state.OutcomeCommitted {
		t.Fatalf("proven %v, %v", proven, err)
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
