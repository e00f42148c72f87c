package offsets

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	broker "github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// checkManyCommits: an active segment is never compacted, so that a start reads every commit of up to ten minutes. A transaction of one offset is some 200 bytes of the log.
func checkManyCommits(t *testing.T, b *bed) {
	const producers, each = 4, 2500
	var group errgroup.Group
	for i := range producers {
		p, s := b.publisher(fmt.Sprintf("many-%d", i)), newStore(&Config{Topic: topic, Connector: "many"}, 1)
		group.Go(func() error {
			for n := range each {
				batch, topics, err := s.Stage([]source.PartitionOffset{position(fmt.Sprintf(`{"task":%d}`, i), fmt.Sprintf(`{"n":%d}`, n))})
				if err == nil {
					err = p.Begin()
				}
				if err == nil {
					err = p.Produce(t.Context(), batch, topics)
				}
				if err == nil {
					err = p.Commit(t.Context())
				}
				if err != nil {
					return err
				}
				s.Applied()
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	for _, connector := range []string{"many", "seq"} {
		cfg := b.config()
		cfg.Connector = connector
		began := time.Now()
		s, err := loaded(b.limited(), cfg)
		if err != nil {
			t.Fatal(err)
		}
		took := time.Since(began)
		t.Logf("%d commits are read in %s, %d offsets of connector %s", producers*each, took.Round(time.Millisecond), len(s.All()), connector)
		if took > 10*time.Second {
			t.Error("that is far more than a second")
		}
		if connector == "many" && len(s.All()) != producers {
			t.Errorf("read %s", shown(s))
		}
	}
}

// TestRealKafka has what only a real broker decides. FENCEPOST_KAFKA_LIBS names the folder with Kafka's jars; make test sets it.
func TestRealKafka(t *testing.T) {
	broker.Need(t)
	const user, password = "weak", "weak-secret"
	kafka, err := broker.Start(t.Context(), broker.Options{Dir: t.TempDir(), Fast: true, Users: []broker.User{{Name: user, Password: password}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Kill)
	b := newBed(t, kafka.AdminAddr)

	// The controller says that there is no topic: nobody waits for a broker that may be behind.
	began := time.Now()
	if s, err := Peek(b.limited(), b.config()); err != nil || len(s.All()) != 0 || time.Since(began) >= publish.AbsentFor {
		t.Fatalf("%v after %v", err, time.Since(began))
	}
	if topics, err := b.admin.ListTopics(t.Context()); err != nil || topics.Has(topic) {
		t.Fatalf("the topic was created, or %v", err)
	}

	id, err := ensured(b.limited(), b.config())
	if err != nil {
		t.Fatal(err)
	}
	known := b.config()
	known.KnownID = id
	if again, err := ensured(b.limited(), known); err != nil || again != id {
		t.Errorf("the second Open returned %s and %v, want %s", again, err, id)
	}
	t.Run("load waits for a sibling's open transaction", func(t *testing.T) { checkSibling(t, newBed(t, kafka.AdminAddr)) })
	wantShown(t, b.load(), `{"src":"own"} → {"n":7}`)

	t.Run("after ten thousand commits a restart takes no longer", func(t *testing.T) { checkManyCommits(t, newBed(t, kafka.AdminAddr)) })

	weak := known
	weak.Client = map[string]string{"bootstrap.servers": kafka.Addr, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": user, "sasl.password": password,
		"linger.ms": "3"}
	if _, err := loaded(b.limited(), weak); publish.Classify(err).Cause != "rights" {
		t.Errorf("Open without rights returned %v", err)
	}
	acls := kadm.NewACLs().Topics(topic).Operations(kadm.OpRead, kadm.OpDescribe).Allow("User:" + user).AllowHosts().ResourcePatternType(kadm.ACLPatternLiteral)
	if _, err := b.admin.CreateACLs(t.Context(), acls); err != nil {
		t.Fatal(err)
	}
	// Open is for those who write. To look, Read on the topic is enough: no right on any group is needed.
	if _, err := ensured(b.limited(), weak); publish.Classify(err).Cause != "rights" || !strings.Contains(err.Error(), "write") {
		t.Errorf("Open without the right to write returned %v", err)
	}
	s, err := Peek(b.limited(), weak)
	if err != nil {
		t.Fatal(err)
	}
	wantShown(t, s, `{"src":"own"} → {"n":7}`)

	if _, err := b.admin.DeleteTopic(b.limited(), topic); err != nil {
		t.Fatal(err)
	}
	if _, err := ensured(b.limited(), known); publish.Classify(err).Cause != "offsets" {
		t.Errorf("Open of a deleted topic returned %v", err)
	}
	b.create(1)
	if _, err := ensured(b.limited(), known); publish.Classify(err).Cause != "offsets" {
		t.Errorf("Open of a replaced topic returned %v", err)
	}
}
