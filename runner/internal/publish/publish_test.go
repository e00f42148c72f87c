package publish

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestCommittedRecordsAreReadableOnceAndInOrder(t *testing.T) {
	bed, _ := fakeBed(t)
	p, topic := bed.producer(t, "a", nil), bed.topic(t, 1, nil)
	for i := range 5 {
		transact(t, p, numbered(i*100, 100, 10), topic)
	}
	wantNumbered(t, bed.read(t, topic), 500, 10)
}

// codecs are how batches can be compressed. A reader tells an aborted batch by what is outside of the compressed part.
var codecs = []string{"none", "gzip", "snappy", "lz4", "zstd"}

func TestAbortedRecordsAreNotReadable(t *testing.T) {
	bed, _ := fakeBed(t)
	for _, codec := range codecs {
		t.Run(codec, func(t *testing.T) { checkAborted(t, bed, codec) })
	}
}

func checkAborted(t *testing.T, bed *bed, codec string) {
	t.Helper()
	p, topic := bed.producer(t, "aborts-"+codec, override("compression.codec", codec)), bed.topic(t, 1, nil)
	for range 2 {
		if err := p.Begin(); err != nil {
			t.Fatal(err)
		}
		if err := p.Produce(short(t), numbered(5000, 1000, 100), []string{"", topic}); err != nil {
			t.Fatal(err)
		}
		// They are on their way: else the abort would only empty the queue.
		if left := p.client.Flush(10_000); left > 0 {
			t.Fatalf("%d records aren't sent", left)
		}
		if err := p.Abort(short(t)); err != nil {
			t.Fatal(err)
		}
	}
	transact(t, p, numbered(0, 100, 100), topic)
	wantNumbered(t, bed.read(t, topic), 100, 100)
}

func TestRecordKeepsEveryByte(t *testing.T) {
	bed, _ := fakeBed(t)
	checkFidelity(t, bed)
}

// checkFidelity writes what differs in the smallest way and wants it back as it was.
func checkFidelity(t *testing.T, bed *bed) {
	t.Helper()
	type header struct {
		name  string
		value []byte
	}
	type record struct {
		key, value []byte
		topic      uint32
		partition  int32
		timestamp  int64
		headers    []header
	}
	const base = 1_700_000_000_000
	records := []record{
		{key: nil, value: nil, partition: 0, timestamp: base},
		{key: []byte{}, value: []byte{}, partition: 0, timestamp: 1},
		{key: []byte{0}, value: []byte{0xff, 0}, partition: 1, timestamp: base + 1},
		{key: []byte("k"), value: []byte("v"), partition: 2, timestamp: source.NoTimestamp},
		{key: []byte("h"), value: nil, topic: 2, partition: 0, timestamp: base + 2, headers: []header{
			{"a", nil}, {"a", []byte{}}, {"a", []byte("2")}, {"", []byte{}}, {"\xff\x00\xfe", []byte{0, 0xff}},
		}},
		{key: nil, value: []byte("x"), partition: 1, timestamp: source.NoTimestamp, headers: []header{{"only", nil}}},
		{key: []byte("after"), value: []byte("headers"), partition: 1, timestamp: base + 3},
	}
	b := &source.Batch{Count: len(records)}
	nullable := func(col source.U32, v []byte) source.U32 {
		b.Arena = append(b.Arena, v...)
		if v == nil {
			return col.Append(0)
		}
		return col.Append(uint32(len(v)) + 1)
	}
	for _, r := range records {
		b.KeyLen = nullable(b.KeyLen, r.key)
		b.ValueLen = nullable(b.ValueLen, r.value)
		b.Topic = b.Topic.Append(max(r.topic, 1))
		b.KafkaPartition = b.KafkaPartition.Append(uint32(r.partition))
		b.TimestampMS = b.TimestampMS.Append(r.timestamp)
		b.HeaderCount = b.HeaderCount.Append(uint32(len(r.headers)))
		for _, h := range r.headers {
			b.Arena = append(b.Arena, h.name...)
			b.HeaderNameLen = b.HeaderNameLen.Append(uint32(len(h.name)))
			b.HeaderValueLen = nullable(b.HeaderValueLen, h.value)
		}
	}
	one, two := bed.topic(t, 3, nil), bed.topic(t, 1, nil)
	p := bed.producer(t, "fidelity", nil)
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	started := time.Now().Truncate(time.Millisecond)
	if err := p.Produce(short(t), b, []string{"", one, two}); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(short(t)); err != nil {
		t.Fatal(err)
	}

	next := map[string]map[int32][]*kgo.Record{}
	for _, topic := range []string{one, two} {
		next[topic] = map[int32][]*kgo.Record{}
		for _, r := range bed.read(t, topic) {
			next[topic][r.Partition] = append(next[topic][r.Partition], r)
		}
	}
	for i, want := range records {
		topic := one
		if want.topic == 2 {
			topic = two
		}
		queue := next[topic][want.partition]
		if len(queue) == 0 {
			t.Fatalf("record %d is missing", i)
		}
		got := queue[0]
		next[topic][want.partition] = queue[1:]
		if want.timestamp == source.NoTimestamp {
			if got.Timestamp.Before(started) || got.Timestamp.After(time.Now()) {
				t.Errorf("record %d has the timestamp %v, want the time of publishing", i, got.Timestamp)
			}
			want.timestamp = got.Timestamp.UnixMilli()
		}
		back := record{key: got.Key, value: got.Value, topic: want.topic, partition: got.Partition, timestamp: got.Timestamp.UnixMilli()}
		for _, h := range got.Headers {
			back.headers = append(back.headers, header{h.Key, h.Value})
		}
		if diff := cmp.Diff(want, back, cmp.AllowUnexported(record{}, header{})); diff != "" {
			t.Errorf("record %d (-written +read):\n%s", i, diff)
		}
	}
}

// TestFullQueueWaitsAndGoesOnWithTheSameRecord is B13: a batch of a hundred times the queue's size.
func TestFullQueueWaitsAndGoesOnWithTheSameRecord(t *testing.T) {
	bed, _ := fakeBed(t)
	checkFullQueue(t, bed)
}

func checkFullQueue(t *testing.T, bed *bed) {
	t.Helper()
	p, topic := bed.producer(t, "full", override("queue.buffering.max.messages", "100")), bed.topic(t, 1, nil)
	transact(t, p, numbered(0, 10_000, 1000), topic)
	wantNumbered(t, bed.read(t, topic), 10_000, 1000)
}

func TestFullQueueEndsWithItsContext(t *testing.T) {
	bed, cluster := fakeBed(t)
	p, topic := bed.producer(t, "full", override("queue.buffering.max.messages", "10")), bed.topic(t, 1, nil)
	transact(t, p, batchOf("first"), topic)
	hold := make(chan struct{})
	defer close(hold)
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		<-hold
		return nil, nil, false
	})
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	err := p.Produce(within(t, 200*time.Millisecond), numbered(0, 1000, 10), []string{"", topic})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Produce returned %v, want the end of its context", err)
	}
	if v := Classify(err); v.Class != Again || v.Cause != "broker" {
		t.Errorf("verdict is %+v", v)
	}
	// I1: a transaction that lacks records has no commit, whatever librdkafka thinks of it.
	if err := p.Commit(short(t)); err == nil {
		t.Error("Commit of a batch that was taken in part returned nil")
	}
}

func TestMemoryOfABatchIsFreeAfterProduce(t *testing.T) {
	bed, _ := fakeBed(t)
	checkPoison(t, bed)
}

// checkPoison overwrites a batch as soon as Produce has returned. librdkafka would publish the overwritten bytes under a valid checksum if it read them later.
func checkPoison(t *testing.T, bed *bed) {
	t.Helper()
	p, topic := bed.producer(t, "poison", override("linger.ms", "200")), bed.topic(t, 1, nil)
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		b := numbered(i*100, 100, 100)
		if err := p.Produce(short(t), b, []string{"", topic}); err != nil {
			t.Fatal(err)
		}
		for j := range b.Arena {
			b.Arena[j] = 'X'
		}
		clear(b.ValueLen)
	}
	if err := p.Commit(short(t)); err != nil {
		t.Fatal(err)
	}
	wantNumbered(t, bed.read(t, topic), 1000, 100)
}

// TestCommitIsRefusedAfterARefusedRecord is I1: librdkafka alone commits such a transaction without the record.
func TestCommitIsRefusedAfterARefusedRecord(t *testing.T) {
	bed, _ := fakeBed(t)
	p, topic := bed.producer(t, "a", override("message.max.bytes", "10000")), bed.topic(t, 1, nil)
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	err := p.Produce(short(t), batchOf("small", strings.Repeat("x", 20_000)), []string{"", topic})
	var e *Error
	if !errors.As(err, &e) || e.Topic != topic || e.Record != 1 {
		t.Fatalf("Produce returned %v, want an error that names record 1 and the topic", err)
	}
	if v := Classify(err); v.Class != Fail || v.Cause != "record" {
		t.Errorf("verdict is %+v", v)
	}
	if err := p.Commit(short(t)); err == nil {
		t.Fatal("Commit returned nil")
	}
	if err := p.Abort(short(t)); err != nil {
		t.Fatal(err)
	}
	transact(t, p, numbered(0, 1, 1), topic)
	wantNumbered(t, bed.read(t, topic), 1, 1)
}

// TestARecordAfterARefusedOneSaysWhy: a transaction takes no more records once a broker has refused one, and the error is about the one that was refused. (Without that a record that is too large, in a transaction that is open for long,
// was "Erroneous state", again and again.)
func TestARecordAfterARefusedOneSaysWhy(t *testing.T) {
	for _, reports := range []bool{false, true} {
		t.Run(fmt.Sprintf("reports %t", reports), func(t *testing.T) {
			bed, cluster := fakeBed(t)
			p, topic := bed.producer(t, "a", func(cfg *Config) { cfg.DeliveryReports = reports }), bed.topic(t, 1, nil)
			cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
				resp := req.ResponseKind().(*kmsg.ProduceResponse)
				for _, rt := range req.(*kmsg.ProduceRequest).Topics {
					st := kmsg.NewProduceResponseTopic()
					st.Topic, st.TopicID = rt.Topic, rt.TopicID
					for _, rp := range rt.Partitions {
						sp := kmsg.NewProduceResponseTopicPartition()
						sp.Partition, sp.ErrorCode = rp.Partition, kerr.MessageTooLarge.Code
						st.Partitions = append(st.Partitions, sp)
					}
					resp.Topics = append(resp.Topics, st)
				}
				return resp, nil, true
			})
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			if err := p.Produce(short(t), batchOf("large"), []string{"", topic}); err != nil {
				t.Fatal(err)
			}
			if left := p.client.Flush(10_000); left > 0 {
				t.Fatalf("%d records have no answer", left)
			}
			err := p.Produce(short(t), batchOf("next"), []string{"", topic})
			if v := Classify(err); v.Class != Fail || v.Cause != "record" || !strings.Contains(v.Text, topic) {
				t.Errorf("Produce returned %v, verdict %+v", err, v)
			}
			if err := p.Commit(short(t)); err == nil {
				t.Error("Commit returned nil")
			}
			if err := p.Abort(short(t)); err != nil {
				t.Fatal(err)
			}
			transact(t, p, numbered(0, 1, 1), topic)
			wantNumbered(t, bed.read(t, topic), 1, 1)
		})
	}
}

func TestBatchThatDoesNotFitTogetherIsRefused(t *testing.T) {
	bed, _ := fakeBed(t)
	p, topic := bed.producer(t, "a", nil), bed.topic(t, 1, nil)
	cases := map[string]func(b *source.Batch){
		"value beyond the arena":  func(b *source.Batch) { b.ValueLen = source.U32{}.Append(100).Append(100) },
		"arena not used up":       func(b *source.Batch) { b.Arena = append(b.Arena, 'x') },
		"column too short":        func(b *source.Batch) { b.KeyLen = source.U32{}.Append(0) },
		"headers without columns": func(b *source.Batch) { b.HeaderCount = source.U32{}.Append(0).Append(7) },
		"header name too long": func(b *source.Batch) {
			b.HeaderCount = source.U32{}.Append(0).Append(1)
			b.HeaderNameLen = source.U32{}.Append(1 << 31)
		},
		"topic not declared": func(b *source.Batch) { b.DefaultTopic = 2 },
		"topic number 0":     func(b *source.Batch) { b.Topic = source.U32{}.Append(1).Append(0) },
		"timestamp 0":        func(b *source.Batch) { b.TimestampMS = source.I64{}.Append(1).Append(0) },
		"partition -2":       func(b *source.Batch) { b.KafkaPartition = source.U32{}.Append(0).Append(0xfffffffe) },
	}
	for name, spoil := range cases {
		t.Run(name, func(t *testing.T) {
			if err := p.Begin(); err != nil {
				t.Fatal(err)
			}
			b := batchOf("one", "two")
			spoil(b)
			err := p.Produce(short(t), b, []string{"", topic})
			if err == nil {
				t.Fatal("Produce returned nil")
			}
			if v := Classify(err); v.Class != Fail || v.Cause != "record" {
				t.Errorf("verdict is %+v", v)
			}
			if err := p.Commit(short(t)); err == nil {
				t.Error("Commit returned nil")
			}
			if err := p.Abort(short(t)); err != nil {
				t.Fatal(err)
			}
		})
	}
	if records := bed.read(t, topic); len(records) != 0 {
		t.Errorf("%d records are readable, want none", len(records))
	}
}

// TestUnansweredCommitIsRepeatedAndNeverAborted: the broker may have committed, and an abort could then delete what was committed.
func TestUnansweredCommitIsRepeatedAndNeverAborted(t *testing.T) {
	bed, cluster := fakeBed(t)
	p, topic := bed.producer(t, "a", nil), bed.topic(t, 1, nil)
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(short(t), numbered(0, 10, 5), []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	answer := make(chan struct{})
	cluster.ControlKey(int16(kmsg.EndTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.SleepControl(func() { <-answer })
		return nil, nil, false
	})
	err := p.Commit(within(t, 300*time.Millisecond))
	var e *Error
	if !errors.As(err, &e) || !e.Unknown {
		t.Fatalf("Commit returned %v, want an unknown outcome", err)
	}
	if v := Classify(err); v.Class != Ask || v.Cause != "unknown" {
		t.Errorf("verdict is %+v", v)
	}
	if err := p.Abort(short(t)); err == nil {
		t.Fatal("Abort after a commit without an answer returned nil")
	}
	close(answer)
	if err := p.Commit(short(t)); err != nil {
		t.Fatal(err)
	}
	wantNumbered(t, bed.read(t, topic), 10, 5)
}

// TestInitNamesTheAddressThatDoesNotAnswer is A19.
func TestInitNamesTheAddressThatDoesNotAnswer(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	bed := newBed(t, addr)
	p := bed.idle(t, "a", nil)
	err = p.Init(within(t, 500*time.Millisecond))
	if err == nil {
		t.Fatal("Init returned nil without a broker")
	}
	for _, want := range []string{addr, "Connection refused"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q doesn't name %q", err, want)
		}
	}
	if v := Classify(err); v.Class != RetryCall || v.Cause != "broker" {
		t.Errorf("verdict is %+v", v)
	}
}

// TestInitGoesOnWhereItTimedOut: a late answer makes no second producer, which would be fenced by the first one's, or fence it. Once answers come, the id is initialised twice at most.
func TestInitGoesOnWhereItTimedOut(t *testing.T) {
	bed, cluster := fakeBed(t)
	answer := make(chan struct{})
	var asked atomic.Int64
	cluster.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if asked.Add(1) == 1 {
			cluster.SleepControl(func() { <-answer })
		}
		return nil, nil, false
	})
	p, topic := bed.idle(t, "a", nil), bed.topic(t, 1, nil)
	err := p.Init(within(t, 300*time.Millisecond))
	if v := Classify(err); v.Class != RetryCall {
		t.Fatalf("Init returned %v, verdict %+v, want a repetition of the call", err, v)
	}
	late := asked.Load()
	close(answer)
	if err := p.Init(short(t)); err != nil {
		t.Fatal(err)
	}
	transact(t, p, numbered(0, 3, 1), topic)
	if n := asked.Load(); n > late+2 {
		t.Errorf("the id was initialised %d times after the first answer", n-late)
	}
}

func TestFencedProducerAsks(t *testing.T) {
	bed, _ := fakeBed(t)
	old, topic := bed.producer(t, "same", nil), bed.topic(t, 1, nil)
	transact(t, old, numbered(0, 1, 1), topic)
	if err := old.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := old.Produce(short(t), batchOf("zombie"), []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	bed.producer(t, "same", nil)
	err := old.Commit(short(t))
	if v := Classify(err); v.Class != Ask || v.Cause != "fenced" {
		t.Errorf("Commit of a fenced producer returned %v, verdict %+v", err, v)
	}
	wantNumbered(t, bed.read(t, topic), 1, 1)
}

// A connection that nothing was asked on ends without an error event: only the log has it. Without that a broker that dies between the last record and the commit goes unnoticed, and the next transaction decides over one that Kafka
// left hanging.
func TestABrokerThatOnlyTheLogMissesIsLost(t *testing.T) {
	e := &events{logger: hclog.NewNullLogger()}
	e.log(6, "CONNECTED", "[thrd:1]: up")
	if e.takeLost() {
		t.Error("lost by being connected")
	}
	e.log(6, "FAIL", "[thrd:127.0.0.1:9092/2]: Disconnected (after 2000ms in state UP)")
	if !e.takeLost() || e.takeLost() {
		t.Error("a broker that went away is lost once")
	}
}

func TestLostBrokerIsNoticedOnce(t *testing.T) {
	bed, cluster := fakeBed(t)
	p, topic := bed.producer(t, "a", nil), bed.topic(t, 1, nil)
	transact(t, p, numbered(0, 1, 1), topic)
	if p.BrokerLost() {
		t.Error("lost before anything happened")
	}
	cluster.Close()
	ctx := short(t)
	for !p.BrokerLost() {
		select {
		case <-ctx.Done():
			t.Fatal("not noticed")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestTopicsFindsWhatIsThere(t *testing.T) {
	bed, _ := fakeBed(t)
	p, topic := bed.producer(t, "a", nil), bed.topic(t, 3, nil)
	infos, err := p.Topics(short(t), []string{topic, "nope"})
	if err != nil {
		t.Fatal(err)
	}
	if got := infos[topic]; !got.Exists || got.Partitions != 3 || got.Err != nil {
		t.Errorf("%s: %+v", topic, got)
	}
	if got := infos["nope"]; got.Exists || got.Err != nil {
		t.Errorf("nope: %+v", got)
	}
}

func TestHandleIsTheProducersOwn(t *testing.T) {
	client, err := kafka.NewProducer(&kafka.ConfigMap{"client.id": "who", "log_level": 0})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := handleOf(client); err != nil {
		t.Error(err)
	}
}

// stuckLogger is a log that nobody reads: from when it is armed on, every line waits.
type stuckLogger struct {
	hclog.Logger
	armed atomic.Bool
	until chan struct{}
}

func (l *stuckLogger) Log(hclog.Level, string, ...any) {
	if l.armed.Load() {
		<-l.until
	}
}

// TestEventsThatNobodyTakesHoldNothingUpForEver: where the goroutine that takes the client's events stands still, a commit ends in its time, half of nothing is readable, and the producer is left behind in its time.
func TestEventsThatNobodyTakesHoldNothingUpForEver(t *testing.T) {
	bed, _ := fakeBed(t)
	l := &stuckLogger{Logger: hclog.NewNullLogger(), until: make(chan struct{})}
	p, topic := bed.producer(t, "unread", func(cfg *Config) {
		cfg.Logger, cfg.Overrides = l, map[string]string{"debug": "msg,eos"}
	}), bed.topic(t, 1, nil)
	transact(t, p, numbered(0, 50, 10), topic)
	l.armed.Store(true)
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(short(t), numbered(50, 50, 10), []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	err := p.Commit(within(t, 3*time.Second))
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the commit took %s", took)
	}
	began = time.Now()
	if closed := p.Close(within(t, time.Second)); closed == nil {
		t.Error("it closed, although its events stand still")
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("the close took %s", took)
	}
	close(l.until)
	awaitNoneLeft(t)
	bed.producer(t, "unread", nil) // the next life ends what is still open
	if readable := len(bed.read(t, topic)); readable != 50 && readable != 100 || err == nil && readable != 100 {
		t.Errorf("%d records are readable after a commit that returned %v", readable, err)
	}
}

// awaitNoneLeft waits until no producer is left behind any more.
func awaitNoneLeft(t *testing.T) {
	t.Helper()
	for leaked.Load() > 0 {
		select {
		case <-t.Context().Done():
			t.Fatal("still on the count")
		case <-time.After(time.Millisecond):
		}
	}
}

func TestProducerThatDoesNotCloseIsLeftBehindFourTimes(t *testing.T) {
	bed, _ := fakeBed(t)
	stuck := make(chan struct{})
	for i := range maxLeaked + 1 {
		p, err := New(Config{TransactionalID: "stuck", Client: bed.client})
		if err != nil {
			t.Fatal(err)
		}
		p.destroy = func() { <-stuck; p.destroyClient() }
		err = p.Close(within(t, time.Millisecond))
		if err == nil {
			t.Fatal("Close returned nil")
		}
		if must := errors.Is(err, ErrMustExit); must != (i == maxLeaked) {
			t.Fatalf("Close %d returned %v", i+1, err)
		}
	}
	if _, err := New(Config{TransactionalID: "more", Client: bed.client}); !errors.Is(err, ErrMustExit) {
		t.Errorf("New returned %v, want ErrMustExit", err)
	}
	// They end late, and are off the count then.
	close(stuck)
	awaitNoneLeft(t)
}
