package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator"
	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	"github.com/fencepost-io/fencepost/integration/kafka"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// What a fake broker can't show: CONCURRENT_TRANSACTIONS, the states of a transaction, rights, and a broker that dies. FENCEPOST_KAFKA_LIBS names the folder of Apache Kafka's jars.

const out = "out"

// part is a Fencer and what it needs, on a broker.
type part struct {
	*fence.Fencer
	settings *kafkaclient.Settings
	direct   *kafkaclient.Direct
}

func newPart(t *testing.T, bootstrap string, keys kafkaclient.Map) *part {
	t.Helper()
	settings, err := kafkaclient.Parse(bootstrap, keys)
	if err != nil {
		t.Fatal(err)
	}
	client, err := settings.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	direct := kafkaclient.NewDirect(client)
	return &part{Fencer: fence.New(fence.Config{Direct: direct}), settings: settings, direct: direct}
}

// producer has one record in an open transaction.
func producer(t *testing.T, bootstrap, id string) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id), kgo.DefaultProduceTopic(out), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	begin(t, cl)
	return cl
}

func begin(t *testing.T, cl *kgo.Client) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), kgo.StringRecord("v")).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func TestRealBroker(t *testing.T) {
	kafka.Need(t)
	broker, err := kafka.Start(t.Context(), kafka.Options{
		Dir: t.TempDir(), Fast: true, Users: []kafka.User{{Name: "alice", Password: "right"}}, Properties: map[string]string{"group.min.session.timeout.ms": "1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { broker.Kill() }()
	admin, err := broker.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.CreateTopic(t.Context(), 1, 1, nil, out); err != nil {
		t.Fatal(err)
	}
	t.Run("fence", func(t *testing.T) { realFence(t, broker) })
	t.Run("look", func(t *testing.T) { realLook(t, broker) })
	t.Run("rights", func(t *testing.T) { realRights(t, broker, admin) })
	t.Run("log", func(t *testing.T) { realLog(t, broker) })
	t.Run("hand-over", func(t *testing.T) { realHandOver(t, broker) })
	t.Run("kills", func(t *testing.T) { realKills(t, broker, 2) })
	t.Run("restart", func(t *testing.T) { realRestart(t, broker) })
}

func realFence(t *testing.T, broker *kafka.Broker) {
	p := newPart(t, broker.AdminAddr, nil)
	never, err := p.Take(t.Context(), "fencepost.c.never.0")
	if err != nil || never.Last.Outcome != state.OutcomeNone {
		t.Errorf("an id that was never used: %+v, %v", never, err)
	}
	// Open: the first attempt answers 51, and ends it.
	zombie := producer(t, broker.AdminAddr, "fencepost.c.open.0")
	taken, err := p.Take(t.Context(), "fencepost.c.open.0")
	if err != nil || taken.Last.Outcome != state.OutcomeAborted {
		t.Errorf("an open transaction: %+v, %v", taken, err)
	}
	if err := zombie.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("the zombie committed")
	}
	// Idle after a commit, and after an abort.
	for outcome, end := range map[state.Outcome]kgo.TransactionEndTry{state.OutcomeCommitted: kgo.TryCommit, state.OutcomeAborted: kgo.TryAbort} {
		id := "fencepost.c." + string(outcome) + ".0"
		live := producer(t, broker.AdminAddr, id)
		if err := live.EndTransaction(t.Context(), end); err != nil {
			t.Fatal(err)
		}
		taken, err := p.Take(t.Context(), id)
		if err != nil || taken.Last.Outcome != outcome {
			t.Errorf("%s: %+v, %v", outcome, taken, err)
		}
		if err := live.BeginTransaction(); err == nil {
			err := live.ProduceSync(t.Context(), kgo.StringRecord("late")).FirstErr()
			if ended := live.EndTransaction(t.Context(), kgo.TryCommit); err == nil && ended == nil {
				t.Errorf("%s: the old producer goes on", outcome)
			}
		}
	}
	done := make(chan state.Event, 1)
	desk := fence.NewDesk(p.Fencer, func(_ context.Context, e state.Event) error { done <- e; return nil })
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- desk.Run(ctx) }()
	round := state.StartRound{Connector: "many", Seq: 1}
	for i := range uint32(1000) {
		round.Tasks, round.IDs = append(round.Tasks, i), append(round.IDs, fmt.Sprintf("fencepost.c.many.%d", i))
	}
	began := time.Now()
	desk.StartRound(round)
	if e, ok := (<-done).(state.RoundDone); !ok || len(e.Decisions) != 1000 {
		t.Errorf("round %T", e)
	}
	t.Logf("fenced 1,000 ids in %v", time.Since(began))
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func realLook(t *testing.T, broker *kafka.Broker) {
	p := newPart(t, broker.AdminAddr, nil)
	ids := []string{"fencepost.c.look.0", "fencepost.c.look.1"}
	own, other := producer(t, broker.AdminAddr, ids[0]), producer(t, broker.AdminAddr, "somebody-else")
	for range 20 { // Open, being committed and just committed are no hangs.
		if hanging, err := p.Look(t.Context(), []string{out}, map[uint32]string{0: ids[0], 1: ids[1]}, nil); err != nil || len(hanging) != 0 {
			t.Fatalf("%v, %v", hanging, err)
		}
		committed := make(chan error, 1)
		go func() { committed <- own.EndTransaction(context.Background(), kgo.TryCommit) }()
		if hanging, err := p.Look(t.Context(), []string{out}, map[uint32]string{0: ids[0], 1: ids[1]}, nil); err != nil || len(hanging) != 0 {
			t.Fatalf("%v, %v", hanging, err)
		}
		if err := <-committed; err != nil {
			t.Fatal(err)
		}
		begin(t, own)
	}
	for _, cl := range []*kgo.Client{own, other} {
		if err := cl.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
			t.Error(err)
		}
	}
}

func realRights(t *testing.T, broker *kafka.Broker, admin *kadm.Client) {
	keys := kafkaclient.Map{"security.protocol": "sasl_plaintext", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice", "sasl.password": "right"}
	p := newPart(t, broker.Addr, keys)
	const id = "fencepost.c.rights.0"
	var refused *fence.Refused
	for name, try := range map[string]func() error{
		"take":  func() error { _, err := p.Take(t.Context(), id); return err },
		"probe": func() error { return p.Probe(t.Context(), id) },
	} {
		if err := try(); !errors.As(err, &refused) || !errors.Is(err, kerr.TransactionalIDAuthorizationFailed) || !strings.Contains(err.Error(), `"fencepost.c."`) {
			t.Errorf("%s without the right: %v", name, err)
		}
	}
	log := configlog.New(configlog.Config{Cluster: "c", Address: "a:1", Settings: p.settings, Direct: p.direct, Fencer: p.Fencer, SessionTimeout: time.Second})
	if _, err := log.Campaign(t.Context()); err == nil || !strings.Contains(err.Error(), "needs the right") || !strings.Contains(err.Error(), `"c.config"`) {
		t.Errorf("campaign without rights: %v", err)
	}
	grant := kadm.NewACLs().Allow("User:alice").AllowHosts("*").ResourcePatternType(kadm.ACLPatternPrefixed).TransactionalIDs("fencepost.c").Groups("c.").Topics("c.").
		Operations(kadm.OpWrite, kadm.OpDescribe, kadm.OpRead, kadm.OpCreate)
	if _, err := admin.CreateACLs(t.Context(), grant); err != nil {
		t.Fatal(err)
	}
	p = newPart(t, broker.Addr, keys) // A client remembers for some seconds what it wasn't told of a topic.
	log = configlog.New(configlog.Config{Cluster: "c", Address: "a:1", Settings: p.settings, Direct: p.direct, Fencer: p.Fencer, SessionTimeout: time.Second})
	if err := p.Probe(t.Context(), id); err != nil {
		t.Errorf("probe with the right: %v", err)
	}
	if described, err := admin.DescribeTransactions(t.Context(), id); err != nil || !errors.Is(described[id].Err, kerr.TransactionalIDNotFound) {
		t.Errorf("the probe made the id: %+v, %v", described[id], err)
	}
	if _, err := p.Take(t.Context(), id); err != nil {
		t.Errorf("take with the right: %v", err)
	}
	leadership, err := log.Campaign(t.Context())
	if err != nil {
		t.Fatalf("campaign with the rights: %v", err)
	}
	defer log.Resign()
	if err := leadership.Write(t.Context(), []state.Record{{Key: "a", Value: []byte("1")}}); err != nil {
		t.Error(err)
	}
	keys["sasl.password"] = "geheim"
	wrong := newPart(t, broker.Addr, keys)
	err = wrong.direct.Client().Ping(t.Context())
	if text := wrong.settings.Explain(err); !strings.Contains(text, "refused the user name or the password") || strings.Contains(text, "geheim") {
		t.Errorf("a wrong password: %v, explained as %q", err, text)
	}
}

func realLog(t *testing.T, broker *kafka.Broker) {
	newLog := func(address string) (*configlog.Log, *part) {
		p := newPart(t, broker.AdminAddr, nil)
		return configlog.New(configlog.Config{Cluster: "log", Address: address, Settings: p.settings, Direct: p.direct, Fencer: p.Fencer, SessionTimeout: 6 * time.Second}), p
	}
	log, p := newLog("one:1")
	first, err := log.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Resign()
	const writes = 200
	slowest, began := time.Duration(0), time.Now()
	for i := range writes {
		one := time.Now()
		if err := first.Write(t.Context(), []state.Record{{Key: "a", Value: fmt.Append(nil, i)}, {Key: fmt.Sprint("b", i%10), Value: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(one))
	}
	t.Logf("a write takes %v, the slowest took %v", time.Since(began)/writes, slowest)
	// A leader that believes in itself while another has taken the log's id.
	if _, err := p.Take(t.Context(), "fencepost.log"); err != nil {
		t.Fatal(err)
	}
	if err := first.Write(t.Context(), []state.Record{{Key: "a", Value: []byte("stale")}}); !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		t.Fatalf("stale write: %v", err)
	}
	<-first.Done()
	log.Resign()
	next, _ := newLog("two:2")
	began = time.Now()
	second, err := next.Campaign(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer next.Resign()
	t.Logf("took over in %v", time.Since(began))
	if len(second.Content().Records) != 11 || second.Content().Records[0].Key == "" {
		t.Errorf("%d records", len(second.Content().Records))
	}
	for _, r := range second.Content().Records {
		if r.Key == "a" {
			if diff := cmp.Diff(fmt.Sprint(writes-1), string(r.Value)); diff != "" {
				t.Error(diff)
			}
		}
	}
}

func realHandOver(t *testing.T, broker *kafka.Broker) {
	named := func(c *coordinator.Config) { c.Cluster = "hand-over" }
	first := start(t, broker.AdminAddr, named)
	first.awaitLeading(t)
	second := start(t, broker.AdminAddr, named)
	second.log.wait(t, "waiting, another coordinator leads: leader="+first.address)
	first.stop()
	began := time.Now()
	second.awaitLeading(t)
	t.Logf("led %v after the first had stopped", time.Since(began))
	if cluster, err := second.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{}); err != nil || cluster.GetTerm() != 2 {
		t.Errorf("%v, %v", cluster, err)
	}
}

// realRestart kills the broker under a leader; it must be the last part.
func realRestart(t *testing.T, broker *kafka.Broker) {
	c := start(t, broker.AdminAddr, func(c *coordinator.Config) { c.Cluster, c.SessionTimeout = "restart", 6*time.Second })
	c.awaitLeading(t)
	broker.Kill()
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	for {
		// Each call that needs a write ends with an answer; the first that is carried out shows a leader that can write.
		_, err := c.control.DeleteConnector(t.Context(), &controlv1.DeleteConnectorRequest{Name: "none"})
		if err == nil || strings.Contains(err.Error(), "there is no connector") {
			break
		}
		if time.Since(began) > 30*time.Second {
			t.Fatalf("no leader 30 s after the broker came back: %v", err)
		}
	}
	t.Logf("answered %v after the broker was back", time.Since(began))
}

// realKills kills the broker while the log is being written. Whatever was reported as written is there for the next leader, though Kafka may have lost the marker of a transaction that was being committed.
func realKills(t *testing.T, broker *kafka.Broker, kills int) {
	want := "" // what was written last, of all rounds: a write may be overtaken by the kill from the first one on
	for kill := range kills {
		p := newPart(t, broker.AdminAddr, nil)
		log := configlog.New(configlog.Config{Cluster: "kills", Address: "a:1", Settings: p.settings, Direct: p.direct, Fencer: p.Fencer, WriteTimeout: 2 * time.Second})
		leadership, err := log.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		written, over := make(chan int, 1), make(chan struct{})
		go func() {
			defer close(over)
			n := 0
			for ; leadership.Err() == nil; n++ {
				if err := leadership.Write(context.Background(), []state.Record{{Key: "n", Value: fmt.Append(nil, kill, ".", n)}}); err != nil {
					t.Logf("after %d writes: %v", n, err)
					break
				}
			}
			written <- n - 1
		}()
		time.Sleep(time.Duration(150+17*kill) * time.Millisecond) //nolint:forbidigo // any moment will do
		broker.Kill()
		if err := broker.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		<-over
		last := <-written
		if last >= 0 {
			want = fmt.Sprint(kill, ".", last)
		}
		log.Resign()
		next := configlog.New(configlog.Config{Cluster: "kills", Address: "b:2", Settings: p.settings, Direct: p.direct, Fencer: p.Fencer})
		began := time.Now()
		leadership, err = next.Campaign(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("took over in %v", time.Since(began))
		got := ""
		for _, r := range leadership.Content().Records {
			got = string(r.Value)
		}
		unknown := fmt.Sprint(kill, ".", last+1)
		if got != want && got != unknown {
			t.Fatalf("the next leader reads %q, written was %q", got, want)
		}
		want = got
		next.Resign()
	}
}
