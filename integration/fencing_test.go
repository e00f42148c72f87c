package integration

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/puppet"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// puppetOn starts a coordinator with a runner that runs nothing, and a connector of so many tasks.
func puppetOn(t *testing.T, bed *harness.Bed, tasks int) (*puppet.Puppet, map[string]string) {
	t.Helper()
	bed.StartCoordinator()
	p, err := puppet.Start(t.Context(), puppet.Config{Name: "puppet", Coordinator: bed.Coordinator})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	config := map[string]string{"connector.class": puppet.Class, "tasks.max": strconv.Itoa(tasks), "change": "0"}
	bed.Create("many", config)
	holds(t, bed, p, tasks)
	return p, config
}

// holds waits until a puppet holds every task, each of the connector's newest generation.
func holds(t *testing.T, bed *harness.Bed, p *puppet.Puppet, tasks int) {
	t.Helper()
	harness.Wait(t, scene.Patience, "every task of the newest generation is granted", func(ctx context.Context) error {
		if _, err := p.Held(); err != nil {
			return harness.Final(err)
		}
		c, err := bed.Connector(ctx, "many")
		if err != nil {
			return err
		}
		if got := p.Generations("many"); len(got) != 1 || got[c.GetGeneration()] != tasks {
			return fmt.Errorf("generation %d; by generation: %v", c.GetGeneration(), got)
		}
		return nil
	})
}

// TestFencingOfAThousandIDs: after a round over 1,000 ids no transaction of an earlier generation can be committed, and nothing of one is readable.
func TestFencingOfAThousandIDs(t *testing.T) {
	for name, start := range map[string]func(harness.T) string{"kfake": harness.Kfake, "kafka": harness.Kafka} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const ids, sample = 1000, 10
			bed := harness.New(t, "thousand-"+name, start(t))
			harness.CreateTopic(t, bed.Bootstrap, bed.Cluster, 1)
			p, config := puppetOn(t, bed, ids)
			var old []*kgo.Client
			for i := range sample {
				old = append(old, openTransaction(t, bed.Bootstrap, fmt.Sprintf("fencepost.%s.many.%d", bed.Cluster, i*ids/sample), bed.Cluster))
			}
			since := time.Now()
			config["change"] = "1"
			bed.MustCLI("apply", "-f", bed.ConnectorFile("many", config))
			holds(t, bed, p, ids)
			t.Logf("a change with %d ids took %s", ids, time.Since(since))
			for i, client := range old {
				if err := client.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
					t.Errorf("transaction %d of the old generation was committed", i)
				}
			}
			if err := reader.Topic(t.Context(), bed.Bootstrap, bed.Cluster, func(r *kgo.Record) error { return fmt.Errorf("%s is readable", r.Value) }); err != nil {
				t.Error(err)
			}
		})
	}
}

// openTransaction writes a record in a transaction and leaves it open.
func openTransaction(t *testing.T, bootstrap, id, topic string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID(id), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), kgo.StringRecord("of "+id)).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return client
}

// TestFencingIsRepeatedUntilTheBrokerSaysOk: CONCURRENT_TRANSACTIONS may have fenced nobody. The coordinator asks again, with a new note of the last decision before each try, and no task starts before the answer was ok.
func TestFencingIsRepeatedUntilTheBrokerSaysOk(t *testing.T) {
	t.Parallel()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	const busy = 5
	prefix := "fencepost.concurrent.numbers."
	bed := harness.New(t, "concurrent", cluster.ListenAddrs()[0])
	harness.CreateTopic(t, bed.Bootstrap, "concurrent.zombie", 1)
	zombie := openTransaction(t, bed.Bootstrap, prefix+"0", "concurrent.zombie")
	var mu sync.Mutex
	asked := map[string]string{}
	cluster.ControlKey(int16(kmsg.DescribeTransactions), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		for _, id := range req.(*kmsg.DescribeTransactionsRequest).TransactionalIDs {
			asked[id] += "D"
		}
		return nil, nil, false
	})
	cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		init := req.(*kmsg.InitProducerIDRequest)
		if init.TransactionalID == nil || !strings.HasPrefix(*init.TransactionalID, prefix) || init.TransactionTimeoutMillis == 0 {
			return nil, nil, false
		}
		mu.Lock()
		defer mu.Unlock()
		id := *init.TransactionalID
		if strings.Count(asked[id], "I") >= busy {
			asked[id] += "o"
			return nil, nil, false
		}
		asked[id] += "I"
		resp := init.ResponseKind().(*kmsg.InitProducerIDResponse)
		resp.ErrorCode, resp.ProducerID, resp.ProducerEpoch = kerr.ConcurrentTransactions.Code, -1, -1
		return resp, nil, true
	})
	s := scene.New(bed, 1)
	s.Runner("a", nil)
	w := s.Numbers("numbers", 2, 50)
	mu.Lock()
	seen := maps.Clone(asked)
	mu.Unlock()
	for _, id := range []string{prefix + "0", prefix + "1"} {
		if want := strings.Repeat("DI", busy) + "Do"; !strings.HasPrefix(seen[id], want) {
			t.Errorf("%s was asked for by %q, want %q first", id, seen[id], want)
		}
	}
	if err := zombie.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Error("a transaction that was open before was committed")
	}
	if n := readableOf(t, bed.Bootstrap, "concurrent.zombie"); n != 0 {
		t.Errorf("%d of its records are readable", n)
	}
	w.Exact()
	s.StopAll()
}

// TestFencingOfManyConnectorsAtOnce: twenty connectors are created at the same moment. Nobody's round waits for another's or fails because of one, and all run without anybody's help.
func TestFencingOfManyConnectorsAtOnce(t *testing.T) {
	t.Parallel()
	const connectors, tasks = 20, 2
	bed := harness.New(t, "at-once", harness.Kfake(t))
	bed.StartCoordinator()
	p, err := puppet.Start(t.Context(), puppet.Config{Name: "puppet", Coordinator: bed.Coordinator})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Stop)
	control, failures := bed.Control(), make(chan error, connectors)
	for n := range connectors {
		go func() {
			_, err := control.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: fmt.Sprintf("c%d", n), Config: map[string]string{
				"connector.class": puppet.Class, "tasks.max": strconv.Itoa(tasks),
			}})
			failures <- err
		}()
	}
	for range connectors {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	harness.Wait(t, scene.Patience, "every task of all is granted", func(context.Context) error {
		held, err := p.Held()
		if err != nil {
			return harness.Final(err)
		}
		for n := range connectors {
			if got := p.Generations(fmt.Sprintf("c%d", n)); len(got) != 1 || got[1] != tasks {
				return fmt.Errorf("c%d by generation: %v; %d held", n, got, held)
			}
		}
		return nil
	})
}

// TestFencingRoundIsSuperseded: a change during a round takes its place. Nobody's command fails because of it, no round does, and only the last configuration is granted.
func TestFencingRoundIsSuperseded(t *testing.T) {
	t.Parallel()
	const ids = 16
	broker := harness.LinkedKafka(t, 1)
	bed := harness.New(t, "superseded", broker.Links[0].Addr())
	p, config := puppetOn(t, bed, ids)
	broker.Links[0].SetDelay(brokerDelay)
	harness.Cut(t, broker.Links[0], proxy.Delay)
	const changes = 4
	results := make(chan harness.Result, changes)
	generation := uint64(0)
	for n := range changes {
		config["change"] = strconv.Itoa(n + 1)
		file := bed.ConnectorFile("many", config)
		go func() { results <- bed.CLI("apply", "-f", file) }()
		harness.Wait(t, scene.Patience, "a round is under way", func(ctx context.Context) error {
			c, err := bed.Connector(ctx, "many")
			switch {
			case err != nil:
				return err
			case c.GetState() != "FENCING" || c.GetGeneration() <= generation:
				return fmt.Errorf("generation %d is %s", c.GetGeneration(), c.GetState())
			}
			generation = c.GetGeneration()
			return nil
		})
	}
	for range changes {
		if r := <-results; r.Code != 0 && r.Code != 4 {
			t.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
	}
	harness.Cut(t, broker.Links[0], proxy.Pass)
	holds(t, bed, p, ids)
	c, err := bed.Connector(t.Context(), "many")
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.GetConfig()["change"], strconv.Itoa(changes); got != want {
		t.Errorf("the configuration is of change %s, want %s", got, want)
	}
	for _, e := range c.GetEvents() {
		if strings.Contains(e.GetText(), "fencing failed") {
			t.Error(e.GetText())
		}
	}
}

// TestFencingWithoutTheRight: where the right on the ids is missing, users are told the id and the right; with the right the work goes on by itself.
func TestFencingWithoutTheRight(t *testing.T) {
	t.Parallel()
	broker := securedBroker(t)
	s := newSecured(t, broker, "no-right")
	load := numbers{topic: "no-right-numbers", count: 1000, partitions: 2, tasks: 2, transaction: 10}
	harness.CreateTopic(t, broker.AdminAddr, load.topic, 1)
	s.change(true, rights(s.Cluster, load.topic)...)
	s.StartCoordinator("--config", s.config("coordinator", "SCRAM-SHA-256"))
	s.StartRunner("runner", nil, "--config", s.config("runner", "PLAIN"))
	s.Create("numbers", load.config())
	s.AwaitCaughtUp(scene.Patience, "numbers")

	const prefix = "fencepost.no-right.numbers."
	s.deny(prefix)
	load.transaction = 20
	file := s.ConnectorFile("numbers", load.config())
	harness.Wait(t, scene.Patience, "users are told the id and the right", func(context.Context) error {
		said := s.CLI("apply", "-f", file).Stderr + problems(t, s.Bed, "numbers")
		if !strings.Contains(said, prefix+"0") || !strings.Contains(said, "Write") {
			return errors.New(said)
		}
		return nil
	})
	s.undeny(prefix)
	harness.Wait(t, 3*scene.Patience, "it works once the right is there", func(ctx context.Context) error {
		c, err := s.Connector(ctx, "numbers")
		if err == nil && (c.GetState() != "RUNNING" || c.GetConfig()["transaction.boundary.max.records"] != "20") {
			err = fmt.Errorf("%s: %s", c.GetState(), c.GetMessage())
			s.CLI("apply", "-f", file) // Where it was refused before it was stored.
		}
		return err
	})
	s.AwaitCaughtUp(scene.Patience, "numbers")
	load.exact(t, broker.AdminAddr, offsetsTopic(s.Bed, "numbers"), "numbers")
}

// deny takes the right to write under ids with a prefix away from the coordinator, whatever else allows it; undeny gives it back.
func (s *secured) deny(prefix string) {
	s.t.Helper()
	req := kmsg.NewPtrCreateACLsRequest()
	creation := kmsg.NewCreateACLsRequestCreation()
	creation.ResourceType, creation.ResourceName, creation.ResourcePatternType = txnACL, prefix, kmsg.ACLResourcePatternTypePrefixed
	creation.Principal, creation.Host, creation.Operation, creation.PermissionType = "User:coordinator", "*", write, kmsg.ACLPermissionTypeDeny
	req.Creations = append(req.Creations, creation)
	resp, err := req.RequestWith(s.t.Context(), s.client())
	if err == nil {
		err = kerr.ErrorForCode(resp.Results[0].ErrorCode)
	}
	if err != nil {
		s.t.Fatalf("deny %s: %v", prefix, err)
	}
}

func (s *secured) undeny(prefix string) {
	s.t.Helper()
	req := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName, filter.ResourcePatternType = txnACL, kmsg.StringPtr(prefix), kmsg.ACLResourcePatternTypePrefixed
	filter.Operation, filter.PermissionType = write, kmsg.ACLPermissionTypeDeny
	req.Filters = append(req.Filters, filter)
	resp, err := req.RequestWith(s.t.Context(), s.client())
	if err == nil && len(resp.Results[0].MatchingACLs) != 1 {
		err = fmt.Errorf("%d rights", len(resp.Results[0].MatchingACLs))
	}
	if err != nil {
		s.t.Fatalf("undeny %s: %v", prefix, err)
	}
}

// client is one that may do everything.
func (s *secured) client() *kgo.Client {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker.AdminAddr))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(client.Close)
	return client
}
