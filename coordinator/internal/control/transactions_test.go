package control_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// brokers say what a test says of transactions.
type brokers struct{ hanging map[string][]fence.Proven }

func (brokers) Open(_ context.Context, prefix string) ([]fence.OpenTransaction, error) {
	return []fence.OpenTransaction{
		{ID: prefix + "a.0", State: "Ongoing", ProducerID: 7, ProducerEpoch: 3, Since: time.Now().Add(-time.Minute), Partitions: []state.TopicPartition{{Topic: "out", Partition: 2}}},
		{ID: prefix + "strange", State: "PrepareAbort"},
	}, nil
}

func (b brokers) Look(_ context.Context, topics []string, ids map[uint32]string, _ map[uint32]int64) (hangs []state.Hang, err error) {
	for _, id := range ids {
		for _, p := range b.hanging[id] {
			for _, topic := range topics {
				if topic == p.Topic {
					hangs = append(hangs, p.Hang)
				}
			}
		}
	}
	return hangs, nil
}

func (b brokers) Prove(_ context.Context, id string, _ []state.Hang, _ state.Decision) ([]fence.Proven, error) {
	return b.hanging[id], nil
}

func (brokers) Ends(context.Context, ...string) (map[state.TopicPartition]int64, error) {
	return map[state.TopicPartition]int64{{Topic: "out", Partition: 1}: 99}, nil
}

// of is a connector a with one task, whose id was used, on topic out; gone ones keep both.
func (b *bed) of(t *testing.T) {
	t.Helper()
	for _, record := range []state.Record{
		{Key: "name/a", Value: []byte(`{"v":1,"b":{"generation":1,"fenced":1,"ids":1}}`)}, {Key: "topics/a", Value: []byte(`{"v":1,"b":{"topics":["out"]}}`)},
		{Key: "id/a/0", Value: []byte(`{"v":1,"b":{"outcome":"committed","producer_id":7,"producer_epoch":3}}`)},
	} {
		if err := b.state.Load(record); err != nil {
			t.Fatal(err)
		}
	}
}

func TestTransactionsAreListedWithWhoHasThemAndHowTheyWereDecided(t *testing.T) {
	b := newBed(t)
	b.transactions = brokers{hanging: map[string][]fence.Proven{"fencepost.c.a.0": {
		{Hang: state.Hang{ID: "fencepost.c.a.0", Topic: "out", Partition: 1, ProducerID: 7, ProducerEpoch: 2, Start: 41}, Outcome: state.OutcomeCommitted, Proof: "a proof"},
	}}}
	b.state = state.New(state.Options{Cluster: "c"})
	b.of(t)
	b.lead(t)
	resp, err := b.ListTransactions(t.Context(), &controlv1.ListTransactionsRequest{})
	if err != nil || len(resp.GetTransactions()) != 3 || resp.GetTrouble() != "" {
		t.Fatalf("%v, %v", resp, err)
	}
	open, strange, hanging := resp.GetTransactions()[0], resp.GetTransactions()[1], resp.GetTransactions()[2]
	if open.GetConnector() != "a" || open.GetConnectorExists() || open.GetState() != "Ongoing" || open.GetAgeMs() < 60_000 || open.GetPartitions()[0].GetTopic() != "out" || open.GetProducerId() != 7 {
		t.Errorf("open: %v", open)
	}
	if strange.GetConnector() != "" || strange.GetState() != "PrepareAbort" {
		t.Errorf("of nobody: %v", strange)
	}
	if p := hanging.GetPartitions()[0]; hanging.GetState() != "Hanging" || hanging.GetDirection() != controlv1.Direction_DIRECTION_COMMIT || hanging.GetProof() != "a proof" || p.GetFirstOffset() != 41 || p.GetEndOffset() != 99 {
		t.Errorf("hanging: %v", hanging)
	}
}

func TestADirectionIsTakenOnlyFromWhoSaysToKnow(t *testing.T) {
	b := newBed(t)
	b.lead(t)
	_, err := b.EndTransaction(t.Context(), &controlv1.EndTransactionRequest{TransactionalId: "fencepost.c.a.0", Force: controlv1.Direction_DIRECTION_ABORT})
	if d := detail(t, err, codes.InvalidArgument); d.GetHint() == "" {
		t.Error(err)
	}
	_, err = b.EndTransaction(t.Context(), &controlv1.EndTransactionRequest{TransactionalId: "fencepost.c.a.0"})
	detail(t, err, codes.NotFound)
}
