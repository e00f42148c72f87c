package publish

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// bed is a cluster to test against, by its address.
type bed struct {
	addr string
	// client is a map for Config.Client.
	client map[string]string
	admin  *kadm.Client
}

func newBed(t testing.TB, addr string) *bed {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	admin := kadm.NewClient(client)
	t.Cleanup(admin.Close)
	return &bed{addr: addr, client: map[string]string{keyBootstrap: addr}, admin: admin}
}

func fakeBed(t *testing.T) (*bed, *kfake.Cluster) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return newBed(t, cluster.ListenAddrs()[0]), cluster
}

// topic makes a topic with the test's name.
func (b *bed) topic(t *testing.T, partitions int32, config map[string]string) string {
	t.Helper()
	return b.namedTopic(t, fmt.Sprintf("t%d", time.Now().UnixNano()), partitions, config)
}

func (b *bed) namedTopic(t testing.TB, name string, partitions int32, config map[string]string) string {
	t.Helper()
	configs := map[string]*string{}
	for key, value := range config {
		configs[key] = &value
	}
	answer, err := b.admin.CreateTopic(t.Context(), partitions, 1, configs, name)
	if err := errors.Join(err, answer.Err); err != nil && !errors.Is(err, kerr.TopicAlreadyExists) {
		t.Fatal(err)
	}
	return name
}

// read returns all records that a read_committed reader sees, in each partition's order.
func (b *bed) read(t *testing.T, topic string) []*kgo.Record {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	ends, err := b.admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	from := map[int32]kgo.Offset{}
	left := 0
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			from[o.Partition] = kgo.NewOffset().At(0)
			left++
		}
	})
	reader, err := kgo.NewClient(kgo.SeedBrokers(b.addr), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: from}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	var records []*kgo.Record
	done := map[int32]bool{}
	for left > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("read %q: %v", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				records = append(records, r)
			}
			if end, _ := ends.Lookup(topic, r.Partition); r.Offset == end.Offset-1 && !done[r.Partition] {
				done[r.Partition] = true
				left--
			}
		})
	}
	return records
}

// producer makes one that is initialised.
func (b *bed) producer(t *testing.T, id string, change func(*Config)) *Producer {
	t.Helper()
	p := b.idle(t, id, change)
	if err := p.Init(short(t)); err != nil {
		t.Fatal(err)
	}
	return p
}

func (b *bed) idle(t *testing.T, id string, change func(*Config)) *Producer {
	t.Helper()
	cfg := Config{TransactionalID: id, Client: b.client}
	if change != nil {
		change(&cfg)
	}
	p, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return p
}

// short is long enough for any call that goes well.
func short(t *testing.T) context.Context {
	t.Helper()
	return within(t, 30*time.Second)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func override(pairs ...string) func(*Config) {
	return func(cfg *Config) {
		cfg.Overrides = map[string]string{}
		for i := 0; i < len(pairs); i += 2 {
			cfg.Overrides[pairs[i]] = pairs[i+1]
		}
	}
}

// batchOf has records with the given values, all to topic 1.
func batchOf(values ...string) *source.Batch {
	b := &source.Batch{Count: len(values), DefaultTopic: 1}
	for _, v := range values {
		b.Arena = append(b.Arena, v...)
		b.ValueLen = b.ValueLen.Append(uint32(len(v)) + 1)
	}
	return b
}

// numbered has values from first to first+n-1, padded to size.
func numbered(first, n, size int) *source.Batch {
	values := make([]string, n)
	for i := range values {
		values[i] = fmt.Sprintf("%0*d", size, first+i)
	}
	return batchOf(values...)
}

// transact commits b in a transaction of its own.
func transact(t *testing.T, p *Producer, b *source.Batch, topic string) {
	t.Helper()
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(short(t), b, []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	if err := p.Commit(short(t)); err != nil {
		t.Fatal(err)
	}
}

// wantNumbered wants exactly the numbers 0 to n-1, once each and in order.
func wantNumbered(t *testing.T, records []*kgo.Record, n, size int) {
	t.Helper()
	if len(records) != n {
		t.Fatalf("%d records are readable, want %d", len(records), n)
	}
	for i, r := range records {
		if want := fmt.Sprintf("%0*d", size, i); string(r.Value) != want {
			t.Fatalf("record %d is %q, want %q", i, r.Value, want)
		}
	}
}
