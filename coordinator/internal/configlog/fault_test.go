package configlog_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// fail answers the next n requests of a kind with an error code; n < 0 is all. A nil code closes the connection instead.
func (b *bed) fail(n int, kind kmsg.Request, code *kerr.Error) {
	left := n
	b.cluster.ControlKey(kind.Key(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if left == 0 {
			return nil, nil, false
		}
		left--
		b.cluster.KeepControl()
		if code == nil {
			return nil, errors.New("the broker closes the connection"), true
		}
		return refuse(req, code.Code), nil, true
	})
}

func refuse(req kmsg.Request, code int16) kmsg.Response {
	switch resp := req.ResponseKind().(type) {
	case *kmsg.AddPartitionsToTxnResponse:
		t, p := kmsg.NewAddPartitionsToTxnResponseTopic(), kmsg.NewAddPartitionsToTxnResponseTopicPartition()
		p.ErrorCode = code
		t.Topic, t.Partitions = logTopic, append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
		return resp
	case *kmsg.ProduceResponse:
		t, p := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
		p.ErrorCode = code
		t.Topic, t.Partitions = logTopic, append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
		return resp
	case *kmsg.EndTxnResponse:
		resp.ErrorCode = code
		return resp
	}
	return nil
}

func TestAWriteIsWrittenOnceWhateverTheBrokerRefusesForAWhile(t *testing.T) {
	add, produce, end := kmsg.NewPtrAddPartitionsToTxnRequest(), kmsg.NewPtrProduceRequest(), kmsg.NewPtrEndTxnRequest()
	for name, fault := range map[string]func(*bed){
		"the transaction before is being finished": func(b *bed) { b.fail(5, add, kerr.ConcurrentTransactions) },
		"the coordinator moved":                    func(b *bed) { b.fail(1, add, kerr.NotCoordinator); b.fail(1, end, kerr.NotCoordinator) },
		"the coordinator is loading":               func(b *bed) { b.fail(3, end, kerr.CoordinatorLoadInProgress) },
		"the leader moved":                         func(b *bed) { b.fail(2, produce, kerr.NotLeaderForPartition) },
		"too few replicas":                         func(b *bed) { b.fail(2, produce, kerr.NotEnoughReplicas) },
		"connections die":                          func(b *bed) { b.fail(1, add, nil); b.fail(1, produce, nil); b.fail(1, end, nil) },
		"the coordinator really moves":             func(b *bed) { b.cluster.RehashCoordinators(); b.cluster.ShufflePartitionLeaders() },
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 3)
			l := b.candidate(t, "one:1", nil).lead(t)
			write(t, l, record("a", "1"))
			fault(b)
			write(t, l, record("a", "2"))
			write(t, l, record("a", "3"))
			if diff := cmp.Diff([]string{"a=1", "a=2", "a=3"}, readable(t, b.bootstrap)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnUnknownOutcomeEndsTheLeadership(t *testing.T) {
	b := newBed(t, 1)
	l := b.candidate(t, "one:1", func(c *configlog.Config) { c.WriteTimeout = 300 * time.Millisecond }).lead(t)
	write(t, l, record("a", "1"))
	b.fail(-1, kmsg.NewPtrEndTxnRequest(), kerr.CoordinatorNotAvailable)
	err := l.Write(t.Context(), []state.Record{record("a", "2")})
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, kerr.CoordinatorNotAvailable) || !strings.Contains(err.Error(), "commit") {
		t.Fatalf("error %v", err)
	}
	<-l.Done()
	l.Resign()
	next := b.candidate(t, "two:2", nil).lead(t)
	if diff := cmp.Diff([]state.Record{record("a", "1")}, next.Content().Records); diff != "" {
		t.Error(diff)
	}
}

func TestARefusalForGoodEndsTheLeadership(t *testing.T) {
	for _, code := range []*kerr.Error{kerr.InvalidProducerEpoch, kerr.ProducerFenced, kerr.InvalidTxnState, kerr.InvalidProducerIDMapping, kerr.TransactionalIDAuthorizationFailed} {
		b := newBed(t, 1)
		l := b.candidate(t, "one:1", nil).lead(t)
		b.fail(1, kmsg.NewPtrAddPartitionsToTxnRequest(), code)
		if err := l.Write(t.Context(), []state.Record{record("a", "1")}); !errors.Is(err, code) {
			t.Errorf("%v: %v", code, err)
		}
		<-l.Done()
	}
}

// TestAWriteIsDoneOnlyWhenItCanBeRead holds the last stable offset back, as a lost marker does.
func TestAWriteIsDoneOnlyWhenItCanBeRead(t *testing.T) {
	b := newBed(t, 1)
	l := b.candidate(t, "one:1", func(c *configlog.Config) { c.WriteTimeout = 300 * time.Millisecond }).lead(t)
	write(t, l, record("a", "1"))
	b.holdBack(func() bool { return true })
	if err := l.Write(t.Context(), []state.Record{record("a", "2")}); err == nil || !strings.Contains(err.Error(), "last stable offset is behind") {
		t.Fatalf("error %v", err)
	}
	<-l.Done()
}

// holdBack answers questions for the last stable offset with 0 while hold says so.
func (b *bed) holdBack(hold func() bool) {
	b.cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		q, isQ := req.(*kmsg.ListOffsetsRequest)
		resp, isR := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		if !isQ || !isR || q.IsolationLevel != 1 || !hold() {
			return nil, nil, false
		}
		t, p := kmsg.NewListOffsetsResponseTopic(), kmsg.NewListOffsetsResponseTopicPartition()
		t.Topic, p.Offset = logTopic, 0
		t.Partitions = append(t.Partitions, p)
		resp.Topics = append(resp.Topics, t)
		return resp, nil, true
	})
}

// TestWhatADeadLeaderHadOpenIsNeverRead: the transaction is ended by the take-over, and reading goes on behind it.
func TestWhatADeadLeaderHadOpenIsNeverRead(t *testing.T) {
	b := newBed(t, 1)
	first := b.candidate(t, "one:1", nil).lead(t)
	write(t, first, record("a", "1"))
	first.Resign()
	dead, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(b.bootstrap, ",")...), kgo.TransactionalID(logID), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer dead.Close()
	if err := dead.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := dead.ProduceSync(t.Context(), &kgo.Record{Topic: logTopic, Key: []byte("a"), Value: []byte("never")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	second := b.candidate(t, "two:2", nil).lead(t)
	if diff := cmp.Diff([]state.Record{record("a", "1")}, second.Content().Records); diff != "" {
		t.Error(diff)
	}
	if err := dead.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("the dead leader committed")
	}
}

func TestWritesAreFast(t *testing.T) {
	b := newBed(t, 1)
	l := b.candidate(t, "one:1", nil).lead(t)
	write(t, l, record("a", "0"))
	began := time.Now()
	const writes = 200
	for range writes {
		write(t, l, record("a", "1"))
	}
	t.Logf("%v a write", time.Since(began)/writes)
}
