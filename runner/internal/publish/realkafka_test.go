package publish

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/twmb/franz-go/pkg/kadm"

	broker "github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// What only a real broker decides. FENCEPOST_KAFKA_LIBS names the folder with Kafka's jars; make test sets it.

const weakUser, weakPassword = "weak", "weak-secret"

func startBroker(t *testing.T) *broker.Broker {
	t.Helper()
	broker.Need(t)
	b, err := broker.Start(t.Context(), broker.Options{Dir: t.TempDir(), Fast: true, Users: []broker.User{{Name: weakUser, Password: weakPassword}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Kill)
	return b
}

// weak is how the user connects that has no rights but those that a test gives.
func weak(b *broker.Broker, password string) map[string]string {
	return map[string]string{keyBootstrap: b.Addr, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": weakUser, "sasl.password": password}
}

func (b *bed) allow(t *testing.T, acl *kadm.ACLBuilder) {
	t.Helper()
	if _, err := b.admin.CreateACLs(t.Context(), acl.Allow("User:"+weakUser).AllowHosts().ResourcePatternType(kadm.ACLPatternPrefixed)); err != nil {
		t.Fatal(err)
	}
}

func TestRealKafka(t *testing.T) {
	b := startBroker(t)
	bed := newBed(t, b.AdminAddr)
	t.Run("record keeps every byte", func(t *testing.T) { checkFidelity(t, bed) })
	for _, codec := range codecs {
		t.Run("aborted records aren't readable, compressed by "+codec, func(t *testing.T) { checkAborted(t, bed, codec) })
	}
	t.Run("full queue waits and goes on with the same record", func(t *testing.T) { checkFullQueue(t, bed) })
	t.Run("memory of a batch is free after produce", func(t *testing.T) { checkPoison(t, bed) })
	t.Run("timestamps at both ends stay", func(t *testing.T) { checkTimestamps(t, bed) })
	t.Run("commit is refused after a failed delivery", func(t *testing.T) { checkFailedDeliveries(t, bed, b) })
	t.Run("expired transaction is told from a fence", func(t *testing.T) { checkExpiry(t, bed) })
	t.Run("failed login is named at once", func(t *testing.T) { checkLogin(t, b) })
	t.Run("missing rights are named", func(t *testing.T) { checkRights(t, bed, b) })
	t.Run("transaction time-out above the broker's is refused", func(t *testing.T) {
		p := bed.idle(t, "long", override(keyTransactionTimeout, "3600000"))
		if v := Classify(p.Init(short(t))); v.Class != Fail || v.Cause != "config" || !strings.Contains(v.Text, "transaction.timeout.ms is 3600000 here, and the broker's transaction.max.timeout.ms is 900000") {
			t.Errorf("verdict is %+v", v)
		}
	})
	// The last one: it stops the broker.
	t.Run("commit is refused after messages timed out", func(t *testing.T) { checkTimedOut(t, bed, b) })
}

func checkTimestamps(t *testing.T, bed *bed) {
	t.Helper()
	topic := bed.topic(t, 1, map[string]string{"message.timestamp.after.max.ms": "9223372036854775807"})
	p := bed.producer(t, "timestamps", nil)
	b := batchOf("first", "last")
	b.TimestampMS = source.I64{}.Append(1).Append(source.MaxTimestampMS)
	transact(t, p, b, topic)
	for i, r := range bed.read(t, topic) {
		if want := []int64{1, source.MaxTimestampMS}[i]; r.Timestamp.UnixMilli() != want {
			t.Errorf("timestamp %d is %d, want %d", i, r.Timestamp.UnixMilli(), want)
		}
	}
}

// checkFailedDeliveries is I1 on the pinned version: delivery reports are off, and librdkafka alone has to count what failed.
func checkFailedDeliveries(t *testing.T, bed *bed, b *broker.Broker) {
	t.Helper()
	far := batchOf("far")
	far.TimestampMS = source.I64{}.Append(time.Now().Add(24 * time.Hour).UnixMilli())
	toPartition := batchOf("x")
	toPartition.KafkaPartition = source.U32{}.Append(99)
	cases := []struct {
		name     string
		settings map[string]string // of the topic; nil: there is no topic
		batch    *source.Batch
		weak     bool
		purge    bool
		class    Class
		cause    string
		// named: with delivery reports, the error names topic and key.
		causeNamed string
	}{
		{"too large", map[string]string{"max.message.bytes": "1000"}, batchOf(strings.Repeat("x", 5000)), false, false, Fail, "record", "record"},
		{"timestamp", map[string]string{}, far, false, false, Fail, "timestamp", "timestamp"},
		{"null key", map[string]string{"cleanup.policy": "compact"}, batchOf("x"), false, false, Fail, "record", "record"},
		{"not authorised", map[string]string{}, batchOf("x"), true, false, Fail, "rights", "rights"},
		{"unknown topic", nil, batchOf("x"), false, false, Again, "delivery", "topic"},
		{"unknown partition", map[string]string{}, toPartition, false, false, Again, "delivery", "topic"},
		{"purged", map[string]string{}, batchOf("x"), false, true, Again, "delivery", "broker"},
	}
	bed.allow(t, kadm.NewACLs().TransactionalIDs("i1-").Operations(kadm.OpWrite, kadm.OpDescribe))
	bed.allow(t, kadm.NewACLs().Topics("t").Operations(kadm.OpDescribe))
	for _, c := range cases {
		for _, reports := range []bool{false, true} {
			name, cause := c.name, c.cause
			if reports {
				name, cause = name+", with reports", c.causeNamed
			}
			t.Run(name, func(t *testing.T) {
				topic := "nope"
				if c.settings != nil {
					topic = bed.topic(t, 1, c.settings)
				}
				p := bed.producer(t, "i1-"+strings.ReplaceAll(name, " ", "-"), func(cfg *Config) {
					cfg.DeliveryReports = reports
					cfg.Overrides = map[string]string{keyMessageTimeout: "3000", "topic.metadata.propagation.max.ms": "1000"}
					if c.weak {
						cfg.Client = weak(b, weakPassword)
					}
					if c.purge {
						cfg.Overrides["linger.ms"] = "2500"
					}
				})
				if err := p.Begin(); err != nil {
					t.Fatal(err)
				}
				// A partition that metadata rules out already is refused at once.
				if err := p.Produce(short(t), c.batch, []string{"", topic}); err != nil && Classify(err).Cause != "topic" {
					t.Fatal(err)
				}
				if c.purge {
					if err := p.client.Purge(kafka.PurgeQueue | kafka.PurgeInFlight); err != nil {
						t.Fatal(err)
					}
				}
				err := p.Commit(short(t))
				if err == nil {
					t.Fatal("Commit returned nil")
				}
				t.Log(err)
				v := Classify(err)
				if v.Cause != cause && v.Cause != c.causeNamed || (!reports && v.Class != c.class) {
					t.Errorf("verdict is %+v, want cause %s", v, cause)
				}
				if reports && !strings.Contains(v.Text, topic) {
					t.Errorf("text %q doesn't name topic %q", v.Text, topic)
				}
				if err := p.Abort(short(t)); err != nil {
					t.Logf("abort: %v", err)
				}
				if c.settings != nil {
					if records := bed.read(t, topic); len(records) != 0 {
						t.Errorf("%d records are readable", len(records))
					}
				}
			})
		}
	}
}

func checkExpiry(t *testing.T, bed *bed) {
	t.Helper()
	topic := bed.topic(t, 1, nil)
	p := bed.producer(t, "expiry", override(keyTransactionTimeout, "1000"))
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(short(t), batchOf("x"), []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	// The broker looks every second; its marker moves the last stable offset.
	ctx := short(t)
	for stable := int64(0); stable < 2; {
		offsets, err := bed.admin.ListCommittedOffsets(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		o, _ := offsets.Lookup(topic, 0)
		stable = o.Offset
	}
	err := p.Commit(short(t))
	if v := Classify(err); v.Class != Ask || v.Cause != "expired" {
		t.Errorf("Commit returned %v, verdict %+v", err, v)
	}
	// Nothing but a new producer goes on.
	if err := p.Close(context.Background()); err != nil {
		t.Fatal(err)
	}
	transact(t, bed.producer(t, "expiry", nil), numbered(0, 1, 1), topic)
	wantNumbered(t, bed.read(t, topic), 1, 1)
}

func checkLogin(t *testing.T, b *broker.Broker) {
	t.Helper()
	p, err := New(Config{TransactionalID: "login", Client: weak(b, "wrong")})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = p.Close(context.Background()) }()
	started := time.Now()
	err = p.Init(short(t))
	if v := Classify(err); v.Class != Again || v.Cause != "login" || !strings.Contains(v.Text, b.Addr) {
		t.Errorf("verdict is %+v", v)
	}
	if strings.Contains(err.Error(), "wrong") {
		t.Errorf("error %q has the password", err)
	}
	if took := time.Since(started); took > 10*time.Second {
		t.Errorf("it took %v", took)
	}
}

func checkRights(t *testing.T, bed *bed, b *broker.Broker) {
	t.Helper()
	client := func(cfg *Config) { cfg.Client = weak(b, weakPassword) }
	p := bed.idle(t, "no-rights", client)
	if v := Classify(p.Init(short(t))); v.Class != Fail || v.Cause != "rights" || !strings.Contains(v.Text, "no-rights") {
		t.Errorf("verdict without a right on the id is %+v", v)
	}
	bed.allow(t, kadm.NewACLs().TransactionalIDs("rights-").Operations(kadm.OpWrite, kadm.OpDescribe))
	hidden, shown, open := bed.namedTopic(t, "hidden", 1, nil), bed.namedTopic(t, "shown", 1, nil), bed.namedTopic(t, "open", 1, nil)
	bed.allow(t, kadm.NewACLs().Topics(shown).Operations(kadm.OpDescribe))
	bed.allow(t, kadm.NewACLs().Topics(open).Operations(kadm.OpDescribe, kadm.OpWrite))
	p = bed.producer(t, "rights-1", client)
	infos, err := p.Topics(short(t), []string{hidden, shown, open})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{hidden, shown} {
		if v := Classify(infos[name].Err); v.Class != Fail || v.Cause != "rights" || !strings.Contains(v.Text, name) {
			t.Errorf("%s: %+v, verdict %+v", name, infos[name], v)
		}
	}
	if got := infos[open]; !got.Exists || got.Partitions != 1 || got.Err != nil {
		t.Errorf("%s: %+v", open, got)
	}
	infos, err = bed.producer(t, "rights-2", nil).Topics(short(t), []string{"no such name"})
	if v := Classify(infos["no such name"].Err); err != nil || v.Class != Fail || v.Cause != "topic" {
		t.Errorf("a name that isn't allowed: %+v, %v", infos["no such name"], err)
	}
}

// checkTimedOut also shows that an abort waits for the broker, and that Close doesn't.
func checkTimedOut(t *testing.T, bed *bed, b *broker.Broker) {
	t.Helper()
	topic := bed.topic(t, 1, nil)
	p := bed.producer(t, "timed-out", func(cfg *Config) {
		cfg.DeliveryReports = true
		cfg.Overrides = map[string]string{keyMessageTimeout: "1000"}
	})
	transact(t, p, numbered(0, 1, 1), topic)
	b.Kill()
	if err := p.Begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.Produce(short(t), batchOf("lost"), []string{"", topic}); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	err := p.Commit(within(t, 10*time.Second))
	t.Log(time.Since(started), err)
	if v := Classify(err); v.Class != Again || v.Cause != "broker" {
		t.Errorf("Commit returned %v, verdict %+v", err, v)
	}
	var e *Error
	if errors.As(err, &e) && e.Unknown {
		t.Errorf("Commit returned %v: its outcome is known", err)
	}
	if v := Classify(p.Abort(within(t, 500*time.Millisecond))); v.Class != RetryCall {
		t.Errorf("Abort without a broker: %+v", v)
	}
	started = time.Now()
	if err := p.Close(context.Background()); err != nil || time.Since(started) > 2*time.Second {
		t.Errorf("Close returned %v after %v", err, time.Since(started))
	}
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	transact(t, bed.producer(t, "timed-out", nil), numbered(1, 1, 1), topic)
	wantNumbered(t, bed.read(t, topic), 2, 1)
}
