package configlog_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const stateTopic = "__transaction_state"

// open has a record in an open transaction on the log, of an id that isn't the log's.
func (b *bed) open(t *testing.T, r *kgo.Record) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(b.bootstrap, ",")...), kgo.TransactionalID("stranger"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cl
}

// hang makes cl's open transaction one that an earlier producer of the log's id left hanging: Kafka's own record says that it was decided, and its marker frees the partition.
func (b *bed) hang(t *testing.T, cl *kgo.Client, decision kmsg.TransactionState) {
	t.Helper()
	producer, epoch, err := cl.ProducerID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	writer, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(b.bootstrap, ",")...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	for _, s := range []kmsg.TransactionState{1, decision} {
		key := kmsg.TxnMetadataKey{TransactionalID: logID}
		value := kmsg.NewTxnMetadataValue()
		value.Version, value.ProducerID, value.ProducerEpoch, value.State = 1, producer, epoch, s
		value.Topics = []kmsg.TxnMetadataValueTopic{{Topic: logTopic, Partitions: []int32{0}}}
		if err := writer.ProduceSync(t.Context(), &kgo.Record{Topic: stateTopic, Key: key.AppendTo(nil), Value: value.AppendTo(nil)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	var marked atomic.Bool
	b.cluster.ControlKey(int16(kmsg.WriteTxnMarkers), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		marked.Store(true)
		return nil, nil, false
	})
	b.cluster.ControlKey(int16(kmsg.DescribeProducers), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		if !marked.Load() { // The fake leader asks the transaction coordinator, which knows nothing of the marker.
			return nil, nil, false
		}
		resp := kmsg.NewPtrDescribeProducersResponse()
		resp.Topics = []kmsg.DescribeProducersResponseTopic{{Topic: logTopic, Partitions: []kmsg.DescribeProducersResponseTopicPartition{{}}}}
		return resp, nil, true
	})
}

func (b *bed) end(t *testing.T, c *candidate) int64 {
	t.Helper()
	ends, err := kadm.NewClient(c.client).ListEndOffsets(t.Context(), logTopic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(logTopic, 0)
	return end.Offset
}

// TestATakeOverEndsWhatHangsAsItWasDecided: a transaction that was aborted may have been half produced, and one that was committed was the leader's word.
func TestATakeOverEndsWhatHangsAsItWasDecided(t *testing.T) {
	for decision, want := range map[kmsg.TransactionState][]state.Record{
		2: {record("a", "1"), record("b", "hung")},
		3: {record("a", "1")},
	} {
		b := newBed(t, 1, kfake.SeedTopics(1, stateTopic))
		first := b.candidate(t, "one:1", nil).lead(t)
		write(t, first, record("a", "1"))
		first.Resign()
		b.hang(t, b.open(t, &kgo.Record{Topic: logTopic, Key: []byte("b"), Value: []byte("hung")}), decision)
		second := b.candidate(t, "two:2", nil).lead(t)
		if diff := cmp.Diff(want, second.Content().Records); diff != "" {
			t.Error(decision, diff)
		}
		write(t, second, record("c", "1"))
	}
}

// TestALogThatSomebodyElseHoldsIsNotLed names who does, writes nothing, and leads when it is over.
func TestALogThatSomebodyElseHoldsIsNotLed(t *testing.T) {
	b := newBed(t, 1)
	first := b.candidate(t, "one:1", nil).lead(t)
	write(t, first, record("a", "1"))
	first.Resign()
	stranger := b.open(t, &kgo.Record{Topic: logTopic, Key: []byte("b"), Value: []byte("1")})
	c := b.candidate(t, "two:2", nil)
	before := b.end(t, c)
	_, err := c.Campaign(t.Context())
	if !errors.Is(err, configlog.ErrHeld) {
		t.Fatalf("got %v, want ErrHeld", err)
	}
	for _, word := range []string{`partition 0 of topic "c.config"`, `"stranger", Ongoing`, `"fencepost.c"`, "stop that program"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q isn't in %v", word, err)
		}
	}
	if now := b.end(t, c); now != before {
		t.Errorf("the log ended at %d and ends at %d", before, now)
	}
	if err := stranger.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	second := c.lead(t)
	if diff := cmp.Diff([]state.Record{record("a", "1")}, second.Content().Records); diff != "" {
		t.Error(diff)
	}
	write(t, second, record("c", "1"))
}

// lines is a log that tells of its lines.
type lines struct {
	mu    sync.Mutex
	all   strings.Builder
	wrote chan struct{}
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	l.all.Write(p)
	l.mu.Unlock()
	select {
	case l.wrote <- struct{}{}:
	default:
	}
	return len(p), nil
}

func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for {
		l.mu.Lock()
		all := l.all.String()
		l.mu.Unlock()
		if strings.Contains(all, text) {
			return
		}
		select {
		case <-l.wrote:
		case <-time.After(time.Minute):
			t.Fatalf("%q isn't in %s", text, all)
		}
	}
}

// TestWhoeverWaitsSaysThatTheLogIsHeld, and that it isn't any more.
func TestWhoeverWaitsSaysThatTheLogIsHeld(t *testing.T) {
	b := newBed(t, 1)
	write(t, b.candidate(t, "one:1", nil).lead(t), record("a", "1"))
	out := &lines{wrote: make(chan struct{}, 1)}
	waiting := b.candidate(t, "two:2", func(c *configlog.Config) {
		c.Quiet, c.Logger = 50*time.Millisecond, hclog.New(&hclog.LoggerOptions{Output: out})
	})
	ctx, stop := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- waiting.Follow(ctx, func(string) {}) }()
	stranger := b.open(t, &kgo.Record{Topic: logTopic, Key: []byte("b"), Value: []byte("1")})
	out.await(t, "waiting, the config log is held")
	if err := waiting.Trouble(); !errors.Is(err, configlog.ErrHeld) || !strings.Contains(err.Error(), "stranger") {
		t.Errorf("trouble: %v", err)
	}
	if err := stranger.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	out.await(t, "isn't held any more")
	if err := waiting.Trouble(); err != nil {
		t.Errorf("trouble: %v", err)
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
}
