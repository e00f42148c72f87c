package fence_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const stateTopic = "__transaction_state"

// hung is a hang on a fake cluster: an open transaction whose id is called complete. Kafka's own record of it says what the test says.
type hung struct {
	*bed
	id       string
	producer int64
	epoch    int16
	// call changes what the transaction coordinator says of an id.
	call func(id, state string)
	// refuse is how many markers the leader refuses at first.
	refuse atomic.Int64
}

// markers makes the leader show no open transaction any more once a marker was written: the fake one asks the transaction coordinator, which doesn't know of it.
func (h *hung) markers() {
	var marked atomic.Bool
	h.cluster.ControlKey(int16(kmsg.WriteTxnMarkers), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if h.refuse.Add(-1) < 0 {
			marked.Store(true)
		}
		return nil, nil, false
	})
	h.cluster.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if !marked.Load() {
			return nil, nil, false
		}
		resp := kmsg.NewPtrDescribeProducersResponse()
		resp.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: topic, Partitions: []kmsg.DescribeProducersResponseTopicPartition{{Partition: 0}}}}
		return resp, nil, true
	})
}

func newHung(t *testing.T, decision kmsg.TransactionState) *hung {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topic, stateTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	h := &hung{bed: &bed{Fencer: newFencer(t, strings.Join(cluster.ListenAddrs(), ",")), cluster: cluster}, id: "fencepost.c.a.0"}
	cl := h.bed.producer(t, h.id, 0)
	if h.producer, h.epoch, err = cl.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.call = h.calling(map[string]string{h.id: "CompleteCommit"}, map[string]int64{h.id: h.producer})
	h.markers()
	if decision != 0 {
		h.record(t, decision)
	}
	return h
}

// record writes what a transaction coordinator would have written.
func (h *hung) record(t *testing.T, decision kmsg.TransactionState) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(h.cluster.ListenAddrs()...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, s := range []kmsg.TransactionState{1, decision} {
		key := kmsg.TxnMetadataKey{TransactionalID: h.id}
		value := kmsg.NewTxnMetadataValue()
		value.Version, value.ProducerID, value.ProducerEpoch, value.State = 1, h.producer, h.epoch, s
		value.Topics = []kmsg.TxnMetadataValueTopic{{Topic: topic, Partitions: []int32{0}}}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: stateTopic, Partition: fence.PartitionOf(h.id, 3), Key: key.AppendTo(nil), Value: value.AppendTo(nil)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// heal has the Desk heal what a look finds.
func (h *hung) heal(t *testing.T, change func(*state.Heal)) state.Healed {
	t.Helper()
	events := make(chan state.Event, 4)
	desk, _ := startDesk(t, h.Fencer, func(_ context.Context, e state.Event) error { events <- e; return nil })
	hanging, err := h.Look(t.Context(), []string{topic}, idsOf(h.id), nil)
	if err != nil || len(hanging) != 1 {
		t.Fatalf("hanging %v, %v", hanging, err)
	}
	heal := state.Heal{Connector: "a", Seq: 9, ID: h.id, Hanging: hanging, Noted: state.Decision{Outcome: state.OutcomeUnknown, ProducerID: -1, ProducerEpoch: -1}}
	if change != nil {
		change(&heal)
	}
	desk.Heal(heal)
	select {
	case e := <-events:
		healed, ok := e.(state.Healed)
		if !ok || healed.Connector != "a" || healed.Seq != 9 {
			t.Fatalf("event %+v", e)
		}
		return healed
	case <-time.After(time.Minute):
		t.Fatal("no answer")
	}
	return state.Healed{}
}

// readable counts what a read_committed reader sees.
func (h *hung) readable(t *testing.T) (records int, stable int64) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(h.cluster.ListenAddrs()...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.DisableClientMetrics(), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	listed, err := kadm.NewClient(cl).ListCommittedOffsets(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	offset, _ := listed.Lookup(topic, 0)
	for at := int64(0); at < offset.Offset; {
		cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			if at = r.Offset + 1; !r.Attrs.IsControl() {
				records++
			}
		})
	}
	return records, offset.Offset
}

func TestAHangIsEndedAsItWasDecided(t *testing.T) {
	for decision, want := range map[kmsg.TransactionState]int{2: 1, 3: 0} {
		h := newHung(t, decision)
		healed := h.heal(t, nil)
		if len(healed.Mended) != 1 || len(healed.Left) != 0 || healed.Failed != "" || healed.Fenced {
			t.Fatalf("%s: %+v", decision, healed)
		}
		if records, stable := h.readable(t); records != want || stable != 2 {
			t.Errorf("%s: %d records are readable, the last stable offset is %d", decision, records, stable)
		}
	}
}

func TestAnUnprovenHangIsLeftAndNamed(t *testing.T) {
	h := newHung(t, 0)
	h.answer(-1, kmsg.NewPtrWriteTxnMarkersRequest(), func(kmsg.Request, kmsg.Response) { t.Error("a marker was written") })
	healed := h.heal(t, func(heal *state.Heal) {
		heal.Noted = state.Decision{Outcome: state.OutcomeCommitted, ProducerID: h.producer, ProducerEpoch: h.epoch + 1}
	})
	if len(healed.Mended) != 0 || len(healed.Left) != 1 {
		t.Fatalf("%+v", healed)
	}
	for _, word := range []string{"partition 0", `"out"`, h.id, "--partition out-0", "fencepost transactions end"} {
		if !strings.Contains(healed.Left[0].GetAdvice(), word) {
			t.Errorf("%q isn't in %s", word, healed.Left[0].GetAdvice())
		}
	}
	if _, stable := h.readable(t); stable != 0 {
		t.Error("it was ended")
	}
}

func TestTheNotedDecisionProvesACommit(t *testing.T) {
	h := newHung(t, 0)
	healed := h.heal(t, func(heal *state.Heal) {
		heal.Noted = state.Decision{Outcome: state.OutcomeCommitted, ProducerID: h.producer, ProducerEpoch: h.epoch}
	})
	if records, _ := h.readable(t); len(healed.Mended) != 1 || records != 1 {
		t.Fatalf("%+v", healed)
	}
}

func TestAUserMayKnowBetter(t *testing.T) {
	h := newHung(t, 0)
	healed := h.heal(t, func(heal *state.Heal) {
		heal.Hanging, heal.Topics, heal.Force, heal.Live = nil, []string{topic}, state.OutcomeAborted, true
	})
	if records, stable := h.readable(t); len(healed.Mended) != 1 || records != 0 || stable != 2 || healed.Aborted {
		t.Fatalf("%+v, %d records", healed, records)
	}
}

// TestAMarkerHasTheValuesThatTheLeaderShows: one that is too high heals as well, and poisons the partition.
func TestAMarkerHasTheValuesThatTheLeaderShows(t *testing.T) {
	h := newHung(t, 2)
	h.refuse.Store(2)
	tries := 0
	h.cluster.ControlKey(int16(kmsg.WriteTxnMarkers), func(req kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		q, ok := req.(*kmsg.WriteTxnMarkersRequest)
		if m := q.Markers[0]; !ok || q.Version != 1 || m.ProducerID != h.producer || m.ProducerEpoch != h.epoch || m.CoordinatorEpoch != 0 || !m.Committed {
			t.Errorf("request %+v", req)
		}
		if tries++; tries > 2 {
			return nil, nil, false
		}
		// A leader that moved, and a value that is read again.
		resp := kmsg.NewPtrWriteTxnMarkersResponse()
		resp.Version = 1
		resp.Markers = []kmsg.WriteTxnMarkersResponseMarker{{ProducerID: h.producer, Topics: []kmsg.WriteTxnMarkersResponseMarkerTopic{
			{Topic: topic, Partitions: []kmsg.WriteTxnMarkersResponseMarkerTopicPartition{{ErrorCode: []int16{kerr.NotLeaderForPartition.Code, kerr.InvalidProducerEpoch.Code}[tries-1]}}},
		}}}
		return resp, nil, true
	})
	if healed := h.heal(t, nil); len(healed.Mended) != 1 || tries != 3 {
		t.Fatalf("%d tries, %+v", tries, healed)
	}
}

// TestAnOpenTransactionIsNoHang: it was one when it was found, and by its turn the id's next transaction has begun.
func TestAnOpenTransactionIsNoHang(t *testing.T) {
	h := newHung(t, 2)
	h.answer(-1, kmsg.NewPtrWriteTxnMarkersRequest(), func(kmsg.Request, kmsg.Response) { t.Error("a marker was written") })
	healed := h.heal(t, func(*state.Heal) { h.call(h.id, "Ongoing") })
	if healed.Failed == "" || len(healed.Mended) != 0 {
		t.Fatalf("%+v", healed)
	}
}
