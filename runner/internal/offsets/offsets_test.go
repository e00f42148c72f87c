package offsets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The thread that starts brokers lives as long as the process, since Linux would stop the brokers with it.
		goleak.IgnoreAnyFunction("github.com/fencepost-io/fencepost/integration/process.init.func1.1"),
	)
}

const (
	topic     = "fencepost.offsets.seq"
	connector = "seq"
)

// bed is a cluster, and who writes to it.
type bed struct {
	t      *testing.T
	addr   string
	client *kgo.Client
	admin  *kadm.Client
}

func newBed(t *testing.T, addr string) *bed {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return &bed{t: t, addr: addr, client: client, admin: kadm.NewClient(client)}
}

func fakeBed(t *testing.T) *bed {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return newBed(t, cluster.ListenAddrs()[0])
}

func (b *bed) config() Config {
	return Config{Topic: topic, Connector: connector, Client: map[string]string{"bootstrap.servers": b.addr}}
}

func (b *bed) create(partitions int32) {
	b.t.Helper()
	policy := "compact"
	answer, err := b.admin.CreateTopic(b.t.Context(), partitions, 1, map[string]*string{"cleanup.policy": &policy}, topic)
	if err := errors.Join(err, answer.Err); err != nil {
		b.t.Fatal(err)
	}
}

// record is a record of the offsets topic; a value "-" is a tombstone.
type record struct {
	key, value string
	partition  int32
	ms         int64
}

func (b *bed) write(records ...record) {
	b.t.Helper()
	for _, r := range records {
		kr := &kgo.Record{Topic: topic, Key: []byte(r.key), Partition: r.partition, Timestamp: time.UnixMilli(max(r.ms, 1))}
		if r.value != "-" {
			kr.Value = []byte(r.value)
		}
		if err := b.client.ProduceSync(b.t.Context(), kr).FirstErr(); err != nil {
			b.t.Fatal(err)
		}
	}
}

// ensured and loaded are the two halves of what Open answers.
func ensured(ctx context.Context, cfg Config) (string, error) {
	_, id, err := Open(ctx, cfg)
	return id, err
}

func loaded(ctx context.Context, cfg Config) (*Store, error) {
	store, _, err := Open(ctx, cfg)
	return store, err
}

func (b *bed) load() *Store {
	b.t.Helper()
	store, err := loaded(b.limited(), b.config())
	if err != nil {
		b.t.Fatal(err)
	}
	return store
}

func (b *bed) limited() context.Context {
	ctx, cancel := context.WithTimeout(b.t.Context(), 20*time.Second)
	b.t.Cleanup(cancel)
	return ctx
}

func (b *bed) publisher(id string) *publish.Producer {
	b.t.Helper()
	p, err := publish.New(publish.Config{TransactionalID: id, Client: map[string]string{"bootstrap.servers": b.addr}})
	if err != nil {
		b.t.Fatal(err)
	}
	b.t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			b.t.Error(err)
		}
	})
	if err := p.Init(b.limited()); err != nil {
		b.t.Fatal(err)
	}
	return p
}

// open stages positions in a transaction that stays open.
func (b *bed) open(p *publish.Producer, s *Store, positions ...source.PartitionOffset) {
	b.t.Helper()
	batch, topics, err := s.Stage(positions)
	if err != nil {
		b.t.Fatal(err)
	}
	if err := p.Begin(); err != nil {
		b.t.Fatal(err)
	}
	if err := p.Produce(b.limited(), batch, topics); err != nil {
		b.t.Fatal(err)
	}
}

func (b *bed) commit(p *publish.Producer, s *Store, positions ...source.PartitionOffset) {
	b.t.Helper()
	b.open(p, s, positions...)
	if err := p.Commit(b.limited()); err != nil {
		b.t.Fatal(err)
	}
	s.Applied()
}

func position(partition, offset string) source.PartitionOffset {
	p := source.PartitionOffset{Partition: source.JSON(partition)}
	if offset != "-" {
		p.Offset = source.JSON(offset)
	}
	return p
}

// shown is what a store holds, one line an offset.
func shown(s *Store) []string {
	lines := []string{}
	for _, p := range s.All() {
		lines = append(lines, fmt.Sprintf("%s → %s", p.Partition, p.Offset))
	}
	return lines
}

func wantShown(t *testing.T, s *Store, want ...string) {
	t.Helper()
	if diff := cmp.Diff(append([]string{}, want...), shown(s)); diff != "" {
		t.Errorf("stored offsets (-want +got):\n%s", diff)
	}
}

// raw returns all records of the topic, control records apart.
func (b *bed) raw() []record {
	b.t.Helper()
	ends, err := b.admin.ListEndOffsets(b.limited(), topic)
	if err != nil {
		b.t.Fatal(err)
	}
	from, left := map[int32]kgo.Offset{}, int64(0)
	ends.Each(func(o kadm.ListedOffset) { from[o.Partition] = kgo.NewOffset().At(0); left += o.Offset })
	reader, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}), kgo.KeepControlRecords(), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		b.t.Fatal(err)
	}
	defer reader.Close()
	var records []record
	for left > 0 {
		fetches := reader.PollFetches(b.limited())
		if err := fetches.Err(); err != nil {
			b.t.Fatal(err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			left--
			if r.Attrs.IsControl() {
				return
			}
			value := "-"
			if r.Value != nil {
				value = string(r.Value)
			}
			records = append(records, record{key: string(r.Key), value: value, partition: r.Partition})
		})
	}
	return records
}

func wantRaw(t *testing.T, got []record, want ...record) {
	t.Helper()
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(record{})); diff != "" {
		t.Errorf("records of the topic (-want +got):\n%s", diff)
	}
}

func TestOpenCreatesTheTopicOnce(t *testing.T) {
	b := fakeBed(t)
	id, err := ensured(b.limited(), b.config())
	if err != nil {
		t.Fatal(err)
	}
	topics, err := b.admin.ListTopics(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	detail := topics[topic]
	if want := fmt.Sprintf("%x", detail.ID[:]); len(detail.Partitions) != 1 || id != want {
		t.Errorf("id %s, %d partitions, want %s and 1", id, len(detail.Partitions), want)
	}
	configs, err := b.admin.DescribeTopicConfigs(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range configs[0].Configs {
		if want, ok := ownTopicSettings[c.Key]; ok && (c.Value == nil || *c.Value != want) {
			t.Errorf("%s is %v, want %s", c.Key, c.Value, want)
		}
	}
	known := b.config()
	known.KnownID = id
	if again, err := ensured(b.limited(), known); err != nil || again != id {
		t.Errorf("the second Open returned %s and %v, want %s", again, err, id)
	}
}

func TestMissingOrReplacedTopicIsAnOperatorsDecision(t *testing.T) {
	for name, look := range looks {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // It takes as long as a broker may be behind, twice.
			b := fakeBed(t)
			known := b.config()
			known.KnownID = "0123456789abcdef0123456789abcdef"
			check := func(err error, found bool) {
				t.Helper()
				var lost *LostError
				if !errors.As(err, &lost) || (lost.FoundID != "") != found {
					t.Fatalf("got %v, want a LostError", err)
				}
				if v := publish.Classify(err); v.Class != publish.Fail || !strings.Contains(v.Text, "operator") {
					t.Errorf("verdict is %+v", v)
				}
			}
			check(look(b.limited(), known), false)
			if topics, err := b.admin.ListTopics(t.Context()); err != nil || topics.Has(topic) {
				t.Errorf("the missing topic was created, or %v", err)
			}
			b.create(1)
			check(look(b.limited(), known), true)
		})
	}
}

// looks are those for which a topic that isn't there is an operator's affair.
var looks = map[string]func(context.Context, Config) error{
	"Open": func(ctx context.Context, c Config) error { _, _, err := Open(ctx, c); return err },
}

// behind makes the fake broker answer the next n questions for the topic as one that is behind: it doesn't know the topic or, where old, knows the one that had the name before.
func (b *bed) behind(cluster *kfake.Cluster, n int32, old bool) {
	host, port, err := net.SplitHostPort(b.addr)
	if err != nil {
		b.t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		b.t.Fatal(err)
	}
	var asked atomic.Int32
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		m, _ := req.(*kmsg.MetadataRequest)
		resp, is := req.ResponseKind().(*kmsg.MetadataResponse)
		if !is || len(m.Topics) != 1 || m.Topics[0].Topic == nil || *m.Topics[0].Topic != topic || asked.Add(1) > n {
			return nil, nil, false
		}
		resp.Brokers = []kmsg.MetadataResponseBroker{{Host: host, Port: int32(number)}}
		one := kmsg.NewMetadataResponseTopic()
		one.Topic = kmsg.StringPtr(topic)
		if old {
			one.TopicID = [16]byte{1}
			one.Partitions = []kmsg.MetadataResponseTopicPartition{{Replicas: []int32{0}, ISR: []int32{0}}}
		} else {
			one.ErrorCode = kerr.UnknownTopicOrPartition.Code
		}
		resp.Topics = append(resp.Topics, one)
		return resp, nil, true
	})
	b.t.Cleanup(func() {
		if asked.Load() <= n {
			b.t.Errorf("it was asked %d times: one that is behind was believed", asked.Load())
		}
	})
}

// TestABrokerThatIsBehindHasLostNoTopic: just after a topic was made, or a broker was started, a broker may not know of it yet. That is no operator's affair, and nobody who only asks hears that nothing is stored.
func TestABrokerThatIsBehindHasLostNoTopic(t *testing.T) {
	look := maps.Clone(looks)
	look["Peek"] = func(ctx context.Context, c Config) error {
		store, err := Peek(ctx, c)
		if err == nil && len(store.All()) != 1 {
			err = fmt.Errorf("%d positions are stored", len(store.All()))
		}
		return err
	}
	for name, look := range look {
		for _, old := range []bool{false, true} {
			if old && name == "Peek" {
				continue // It expects no id.
			}
			t.Run(fmt.Sprint(name, " the one before ", old), func(t *testing.T) {
				cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
				if err != nil {
					t.Fatal(err)
				}
				defer cluster.Close()
				b := newBed(t, cluster.ListenAddrs()[0])
				b.create(1)
				b.write(record{key: `["seq",{"p":1}]`, value: `{"n":1}`})
				known := b.config()
				topics, err := b.admin.ListTopics(t.Context(), topic)
				if err != nil {
					t.Fatal(err)
				}
				if id := topics[topic].ID; name != "Peek" {
					known.KnownID = fmt.Sprintf("%x", id[:])
				}
				b.behind(cluster, 3, old)
				if err := look(b.limited(), known); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestWhereTheControllerKnowsNoTopicNobodyWaits: a plan's look-up before a connector's first start.
func TestWhereTheControllerKnowsNoTopicNobodyWaits(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	b := newBed(t, cluster.ListenAddrs()[0])
	var asked atomic.Int32 // a broker that is asked about nothing more may still be answering
	cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if m, is := req.(*kmsg.MetadataRequest); is && len(m.Topics) == 1 {
			asked.Add(1)
		}
		return nil, nil, false
	})
	store, err := Peek(b.limited(), b.config())
	if err != nil || len(store.All()) != 0 || asked.Load() != 1 {
		t.Errorf("%v, asked %d times", err, asked.Load())
	}
	if topics, err := b.admin.ListTopics(t.Context()); err != nil || topics.Has(topic) {
		t.Errorf("the topic was created, or %v", err)
	}
}

func TestTopicThatIsNotCompactedIsReported(t *testing.T) {
	b := fakeBed(t)
	if _, err := b.admin.CreateTopic(t.Context(), 1, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	cfg := b.config()
	var warned []string
	cfg.Warn = func(text string) { warned = append(warned, text) }
	if _, err := ensured(b.limited(), cfg); err != nil {
		t.Fatal(err)
	}
	if len(warned) != 1 || !strings.Contains(warned[0], "cleanup.policy=delete") {
		t.Errorf("warnings: %q", warned)
	}
}

func TestLoadOfAnEmptyTopicIsEmpty(t *testing.T) {
	b := fakeBed(t)
	b.create(3)
	wantShown(t, b.load())
}

func TestOtherConnectorsKeysAreLeftAlone(t *testing.T) {
	b := fakeBed(t)
	b.create(2)
	b.write(
		record{key: `["other",{"file":"a"}]`, value: `{"n":1}`},
		record{key: `["seq2",{"file":"a"}]`, value: `{"n":2}`},
		record{key: `not json`, value: `{"n":3}`},
		record{key: `["seq"]`, value: `{"n":4}`},
		record{key: `{"seq":{}}`, value: `{"n":5}`},
		record{key: `["seq",{"file":"a"}]`, value: `{"n":6}`, partition: 1},
	)
	wantShown(t, b.load(), `{"file":"a"} → {"n":6}`)
}

func TestNumbersStayExact(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	b.write(record{key: `["seq",{"id":9007199254740993}]`, value: `{"n":123456789012345678901234567890,"f":0.1}`})
	s := b.load()
	wantShown(t, s, `{"id":9007199254740993} → {"n":123456789012345678901234567890,"f":0.1}`)
	if _, ok := s.Stored([]byte(`{"id":9007199254740993}`)); !ok {
		t.Error("it isn't found by its canonical form")
	}
}

func TestKeyThatExistsIsWrittenWithItsOwnBytesToItsOwnPartition(t *testing.T) {
	b := fakeBed(t)
	b.create(5)
	const key = `["seq", {"z" : "1", "a":"\u0041"}]`
	b.write(record{key: key, value: `{"n":1}`, partition: 3})
	s := b.load()
	b.commit(b.publisher("p"), s, position(`{"a":"A","z":"1"}`, `{"n" : 2}`))
	wantShown(t, s, `{"z" : "1", "a":"\u0041"} → {"n":2}`)
	wantRaw(t, b.raw(), record{key: key, value: `{"n":1}`, partition: 3}, record{key: key, value: `{"n":2}`, partition: 3})
	wantShown(t, b.load(), shown(s)...)
}

func TestNewKeyKeepsTheFieldOrderAndGoesWhereJavaPutsIt(t *testing.T) {
	b := fakeBed(t)
	b.create(7)
	s := b.load()
	b.commit(b.publisher("p"), s, position(`{"z": 1, "a": "x y"}`, `{"b": 2, "a": 1}`))
	const key = `["seq",{"z":1,"a":"x y"}]`
	wantRaw(t, b.raw(), record{key: key, value: `{"b":2,"a":1}`, partition: partitionOf([]byte(key), 7)})
	wantShown(t, b.load(), `{"z":1,"a":"x y"} → {"b":2,"a":1}`)
}

func TestNewerSpellingWinsAndTheOtherIsTombstoned(t *testing.T) {
	b := fakeBed(t)
	b.create(2)
	const old, newer = `["seq",{"b":2,"a":1}]`, `["seq",{"a":1,"b":2}]`
	b.write(
		record{key: newer, value: `{"n":9}`, partition: 0, ms: 2000},
		record{key: old, value: `{"n":1}`, partition: 1, ms: 1000},
	)
	s := b.load()
	wantShown(t, s, `{"a":1,"b":2} → {"n":9}`)
	p := b.publisher("p")
	b.commit(p, s, position(`{"a":1,"b":2}`, `{"n":10}`))
	b.commit(p, s, position(`{"a":1,"b":2}`, `{"n":11}`))
	all := b.raw()
	tombstones := 0
	for _, r := range all {
		if r.value == "-" {
			tombstones++
			wantRaw(t, []record{r}, record{key: old, value: "-", partition: 1})
		}
	}
	if tombstones != 1 || len(all) != 5 {
		t.Errorf("records %+v, want one tombstone among five", all)
	}
	wantShown(t, b.load(), `{"a":1,"b":2} → {"n":11}`)
}

func TestTombstonedOffsetDoesNotComeBackFromAnotherSpelling(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	b.write(
		record{key: `["seq",{"b":2,"a":1}]`, value: `{"n":1}`},
		record{key: `["seq",{"a":1,"b":2}]`, value: `{"n":2}`},
		record{key: `["seq",{"a":1,"b":2}]`, value: "-"},
	)
	s := b.load()
	wantShown(t, s)
	// The stale spelling goes with the next change.
	b.commit(b.publisher("p"), s, position(`{"a":1,"b":2}`, `{"n":3}`))
	wantRaw(t, b.raw()[3:], record{key: `["seq",{"b":2,"a":1}]`, value: "-"}, record{key: `["seq",{"a":1,"b":2}]`, value: `{"n":3}`})
}

func TestResetRemovesEverySpelling(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	b.write(
		record{key: `["seq",{"b":2,"a":1}]`, value: `{"n":1}`},
		record{key: `["seq",{"a":1,"b":2}]`, value: `{"n":2}`},
		record{key: `["seq",{"c":1}]`, value: `{"n":3}`},
	)
	s := b.load()
	p := b.publisher("p")
	b.commit(p, s, position(`{"a":1,"b":2}`, "-"), position(`{"never":"stored"}`, "-"))
	wantShown(t, s, `{"c":1} → {"n":3}`)
	wantShown(t, b.load(), `{"c":1} → {"n":3}`)
	if n := len(b.raw()); n != 5 {
		t.Errorf("%d records, want two tombstones after three", n)
	}
}

func TestStagedOffsetsShowOnlyAfterTheCommit(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	s := b.load()
	p := b.publisher("p")
	b.open(p, s, position(`{"a":1}`, `{"n":1}`))
	wantShown(t, s)
	if err := p.Abort(b.limited()); err != nil {
		t.Fatal(err)
	}
	s.Discard()
	wantShown(t, s)
	wantShown(t, b.load())
	// A new key that was dropped is new again.
	b.commit(p, s, position(`{"a":1}`, `{"n":2}`))
	wantShown(t, s, `{"a":1} → {"n":2}`)
	wantShown(t, b.load(), `{"a":1} → {"n":2}`)
}

// TestLoadWaitsForASiblingsOpenTransaction is I3: this connector's own last offset lies behind a sibling's open transaction, where a read_committed reader is told that the partition ends.
func TestLoadWaitsForASiblingsOpenTransaction(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	checkSibling(t, b)
}

func checkSibling(t *testing.T, b *bed) {
	t.Helper()
	own, sibling := b.publisher("own"), b.publisher("sibling")
	s := b.load()
	b.open(sibling, b.load(), position(`{"src":"sibling"}`, `{"n":1}`))
	b.flushed()
	b.commit(own, s, position(`{"src":"own"}`, `{"n":7}`))

	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := loaded(ctx, b.config())
	var held *HeldError
	if !errors.As(err, &held) || held.Position >= held.Target {
		t.Fatalf("Open returned %v, want a HeldError", err)
	}
	for _, want := range []string{topic, "partition 0", "open transaction"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q doesn't name %q", err, want)
		}
	}
	if v := publish.Classify(err); v.Class != publish.Again {
		t.Errorf("verdict is %+v", v)
	}
	done := make(chan error, 1)
	go func() {
		store, err := loaded(b.limited(), b.config())
		if err == nil {
			if _, ok := store.Stored([]byte(`{"src":"own"}`)); !ok {
				err = fmt.Errorf("own offset is missing: %v", shown(store))
			}
		}
		done <- err
	}()
	if err := sibling.Abort(b.limited()); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// flushed waits until a record is in partition 0, though its transaction is open.
func (b *bed) flushed() {
	b.t.Helper()
	for {
		ends, err := b.admin.ListEndOffsets(b.limited(), topic)
		if err != nil {
			b.t.Fatal(err)
		}
		if end, ok := ends.Lookup(topic, 0); ok && end.Offset > 0 {
			return
		}
	}
}

func TestDamagedRecordIsAnErrorThatNamesIt(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	b.write(record{key: `["seq",{"a":1}]`, value: `{"n":`})
	_, err := loaded(b.limited(), b.config())
	var damaged *DamagedError
	if !errors.As(err, &damaged) || damaged.Offset != 0 {
		t.Fatalf("Open returned %v, want a DamagedError", err)
	}
	// It is repaired as the error says.
	b.write(record{key: `["seq",{"a":1}]`, value: `{"n":1}`})
	wantShown(t, b.load(), `{"a":1} → {"n":1}`)
}

func TestKeyThatNamesNoPartitionIsReported(t *testing.T) {
	b := fakeBed(t)
	b.create(1)
	b.write(record{key: `["seq",{"a":[1]}]`, value: `{"n":1}`}, record{key: `["seq",{"a":1}]`, value: `null`})
	cfg := b.config()
	var warned []string
	cfg.Warn = func(text string) { warned = append(warned, text) }
	s, err := loaded(b.limited(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, s)
	if len(warned) != 1 || !strings.Contains(warned[0], "record 0") {
		t.Errorf("warnings: %q", warned)
	}
}

// TestAProofChangesNothing: it is a transaction like any other to the broker, and nothing at all to readers, also beside stored offsets and through a compaction that keeps it.
func TestAProofChangesNothing(t *testing.T) {
	b := fakeBed(t)
	b.create(3)
	p, s := b.publisher("p"), b.load()
	prove := func() {
		batch, topics := s.Proof(2)
		if err := p.Begin(); err != nil {
			t.Fatal(err)
		}
		if err := p.Produce(b.limited(), batch, topics); err != nil {
			t.Fatal(err)
		}
		if err := p.Commit(b.limited()); err != nil {
			t.Fatal(err)
		}
	}
	prove()
	wantShown(t, b.load())
	b.commit(p, s, position(`{"file":"a"}`, `{"n":1}`))
	prove()
	wantShown(t, s, `{"file":"a"} → {"n":1}`)
	wantShown(t, b.load(), `{"file":"a"} → {"n":1}`)
	key := `["seq",{"fencepost.task":2}]`
	proofs := 0
	for _, r := range b.raw() {
		if r.key == key {
			proofs++
			if want := (record{key: key, value: "-", partition: partitionOf([]byte(key), 3)}); r != want {
				t.Errorf("the proof is %+v, want %+v", r, want)
			}
		}
	}
	if proofs != 2 {
		t.Errorf("%d proofs were written, want 2", proofs)
	}
}

func TestStageRefusesWhatIsNoOffset(t *testing.T) {
	s := newStore(&Config{Topic: topic, Connector: connector}, 1)
	for _, p := range []source.PartitionOffset{position(`{"a":[]}`, `{"n":1}`), position(`{}`, `{"n":1}`), position(`{"a":1}`, `{"n":{}}`), position(`{"a":1}`, `7`)} {
		if _, _, err := s.Stage([]source.PartitionOffset{p}); err == nil {
			t.Errorf("%s → %s was taken", p.Partition, p.Offset)
		}
	}
}

// TestMurmur2IsJavas has the vectors of Kafka's UtilsTest.
func TestMurmur2IsJavas(t *testing.T) {
	for text, want := range map[string]int32{
		"21": -973932308, "foobar": -790332482, "a-little-bit-long-string": -985981536, "a-little-bit-longer-string": -1486304829,
		"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971, "abc": 479470107,
	} {
		if got := int32(murmur2([]byte(text))); got != want {
			t.Errorf("murmur2(%q) is %d, want %d", text, got, want)
		}
	}
}

func TestWhoeverOnlyAsksNeverCreatesTheTopic(t *testing.T) {
	b := fakeBed(t)
	store, err := Peek(b.limited(), b.config())
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, store)
	if topics, err := b.admin.ListTopics(t.Context()); err != nil || topics.Has(topic) {
		t.Errorf("the topic was created, or %v", err)
	}
	b.create(1)
	b.write(record{key: `["seq",{"file":"a"}]`, value: `{"n":1}`})
	if store, err = Peek(b.limited(), b.config()); err != nil {
		t.Fatal(err)
	}
	wantShown(t, store, `{"file":"a"} → {"n":1}`)
}
