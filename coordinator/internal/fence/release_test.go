package fence_test

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const singleID = "fencepost.c"

// held is a partition that a transaction of an id's earlier producer id holds, which a fake broker can show: it belongs to another id there.
type held struct {
	*hung
	single fence.Single
	as     atomic.Pointer[fence.Taken] // how the transaction coordinator shows the id
}

func newHeld(t *testing.T, decision kmsg.TransactionState) *held {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topic, stateTopic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	h := &held{hung: &hung{bed: &bed{Fencer: newFencer(t, strings.Join(cluster.ListenAddrs(), ",")), cluster: cluster}, id: singleID}}
	cl := h.bed.producer(t, "fencepost.c.a.0", 0)
	if h.producer, h.epoch, err = cl.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	h.markers()
	if decision != 0 {
		h.record(t, decision)
	}
	taken, err := h.Take(t.Context(), singleID)
	if err != nil {
		t.Fatal(err)
	}
	h.single = fence.Single{ID: singleID, Topic: topic, Taken: taken}
	cluster.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		as := h.as.Load()
		if q, ok := req.(*kmsg.DescribeTransactionsRequest); !ok || as == nil || q.TransactionalIDs[0] != singleID {
			return nil, nil, false
		}
		resp := kmsg.NewPtrDescribeTransactionsResponse()
		described := kmsg.NewDescribeTransactionsResponseTransactionState()
		described.TransactionalID, described.State, described.ProducerID, described.ProducerEpoch = singleID, "Empty", as.ProducerID, as.Epoch
		resp.TransactionStates = append(resp.TransactionStates, described)
		return resp, nil, true
	})
	return h
}

// keptProducer says that the id has the holder's producer id still.
func (h *held) keptProducer() {
	h.single.Taken.ProducerID, h.single.Taken.Epoch = h.producer, h.epoch+1
	h.as.Store(&h.single.Taken)
}

// heldBy is the error of what can't be ended; nothing may be written then.
func (h *held) heldBy(t *testing.T, words ...string) {
	t.Helper()
	err := h.Release(t.Context(), h.single)
	var by *fence.HeldError
	if !errors.As(err, &by) {
		t.Fatalf("got %v, want a HeldError", err)
	}
	if by.Holder.ProducerID != h.producer || by.Holder.ProducerEpoch != h.epoch {
		t.Errorf("held by %+v, want producer %d", by.Holder, h.producer)
	}
	for _, word := range words {
		if !strings.Contains(by.Reason, word) {
			t.Errorf("%q isn't in %s", word, by.Reason)
		}
	}
	if _, stable := h.readable(t); stable != 0 {
		t.Error("it was ended")
	}
}

func TestAPartitionIsFreedAsItWasDecided(t *testing.T) {
	for decision, want := range map[kmsg.TransactionState]int{2: 1, 3: 0} {
		h := newHeld(t, decision)
		if err := h.Release(t.Context(), h.single); err != nil {
			t.Fatal(err)
		}
		if records, stable := h.readable(t); records != want || stable != 2 {
			t.Errorf("%s: %d records are readable, the last stable offset is %d", decision, records, stable)
		}
		if err := h.Release(t.Context(), h.single); err != nil {
			t.Errorf("a free partition: %v", err)
		}
	}
}

func TestAnothersTransactionIsNamedAndLeft(t *testing.T) {
	h := newHeld(t, 0)
	h.heldBy(t, "partition 0", `"out"`, "since offset 0", `"fencepost.c.a.0", Ongoing`, "since 20", "stop that program")
}

func TestADirectionThatIsntProvenIsLeftAndNamed(t *testing.T) {
	h := newHeld(t, 0)
	h.keptProducer()
	h.heldBy(t, "partition 0", `"out"`, singleID, "isn't proven", "kafka-transactions.sh", "abort --topic out --partition 0 --start-offset 0", "fencepost transactions end can't")
	h.single.Noted = state.Decision{Outcome: state.OutcomeAborted, ProducerID: h.producer, ProducerEpoch: h.epoch + 2} // of a later transaction
	h.heldBy(t, "isn't proven")
}

// TestANotedDecisionFreesAPartition where Kafka's own record can't be read: an abort by somebody else's initialisation has the next epoch.
func TestANotedDecisionFreesAPartition(t *testing.T) {
	for outcome, want := range map[state.Outcome]int{state.OutcomeCommitted: 1, state.OutcomeAborted: 0} {
		h := newHeld(t, 0)
		h.keptProducer()
		h.single.Noted = state.Decision{Outcome: outcome, ProducerID: h.producer, ProducerEpoch: h.epoch + int16(1-want)}
		if err := h.Release(t.Context(), h.single); err != nil {
			t.Fatal(err)
		}
		if records, stable := h.readable(t); records != want || stable != 2 {
			t.Errorf("%s: %d records are readable, the last stable offset is %d", outcome, records, stable)
		}
	}
}

// TestAnIDThatSomebodyElseHasTakenFreesNothing: the newer leader does it, and may have written meanwhile.
func TestAnIDThatSomebodyElseHasTakenFreesNothing(t *testing.T) {
	h := newHeld(t, 2)
	if _, err := h.Take(t.Context(), singleID); err != nil {
		t.Fatal(err)
	}
	err := h.Release(t.Context(), h.single)
	if by := (*fence.HeldError)(nil); err == nil || errors.As(err, &by) || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("got %v", err)
	}
	if _, stable := h.readable(t); stable != 0 {
		t.Error("it was ended")
	}
}

// TestWithoutTheRightToWriteMarkersAnEmptyTransactionFreesThePartition, in the direction that was decided, and only for the producer id that the id has.
func TestWithoutTheRightToWriteMarkersAnEmptyTransactionFreesThePartition(t *testing.T) {
	for decision, commit := range map[kmsg.TransactionState]bool{2: true, 3: false} {
		h := newHeld(t, decision)
		h.refuse.Store(1000)
		h.cluster.ControlKey(int16(kmsg.WriteTxnMarkers), func(kmsg.Request) (kmsg.Response, error, bool) {
			h.cluster.KeepControl()
			resp := kmsg.NewPtrWriteTxnMarkersResponse()
			resp.Version = 1
			resp.Markers = []kmsg.WriteTxnMarkersResponseMarker{{ProducerID: h.producer, Topics: []kmsg.WriteTxnMarkersResponseMarkerTopic{
				{Topic: topic, Partitions: []kmsg.WriteTxnMarkersResponseMarkerTopicPartition{{ErrorCode: kerr.ClusterAuthorizationFailed.Code}}},
			}}}
			return resp, nil, true
		})
		h.heldBy(t, "another producer id", "ClusterAction")
		h.keptProducer()
		var ended atomic.Bool
		h.cluster.ControlKey(int16(kmsg.AddPartitionsToTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			h.cluster.KeepControl()
			if q, ok := req.(*kmsg.AddPartitionsToTxnRequest); !ok || q.ProducerID != h.producer || q.ProducerEpoch != h.epoch+1 {
				t.Errorf("request %+v", req)
			}
			resp, ok := req.ResponseKind().(*kmsg.AddPartitionsToTxnResponse)
			if !ok {
				return nil, nil, false
			}
			resp.Topics = []kmsg.AddPartitionsToTxnResponseTopic{{Topic: topic, Partitions: []kmsg.AddPartitionsToTxnResponseTopicPartition{{Partition: 0}}}}
			return resp, nil, true
		})
		h.cluster.ControlKey(int16(kmsg.EndTxn), func(req kmsg.Request) (kmsg.Response, error, bool) {
			h.cluster.KeepControl()
			if q, ok := req.(*kmsg.EndTxnRequest); !ok || q.Commit != commit || q.ProducerID != h.producer {
				t.Errorf("request %+v, want commit %v", req, commit)
			}
			ended.Store(true)
			return req.ResponseKind(), nil, true
		})
		h.shows(ended.Load)
		if err := h.Release(t.Context(), h.single); err != nil {
			t.Fatal(err)
		}
		if !ended.Load() {
			t.Error("nothing was ended")
		}
	}
}

// shows makes the leader show no open transaction, and everything stable, once it is ended.
func (h *held) shows(ended func() bool) {
	h.cluster.ControlKey(int16(kmsg.DescribeProducers), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if !ended() {
			return nil, nil, false
		}
		resp := kmsg.NewPtrDescribeProducersResponse()
		resp.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: topic, Partitions: []kmsg.DescribeProducersResponseTopicPartition{{Partition: 0}}}}
		return resp, nil, true
	})
	h.cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		q, ok := req.(*kmsg.ListOffsetsRequest)
		if !ok || q.IsolationLevel != 1 || !ended() {
			return nil, nil, false
		}
		q.IsolationLevel = 0 // the high watermark is what is stable then
		return nil, nil, false
	})
}
