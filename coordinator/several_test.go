package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"google.golang.org/grpc/codes"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fencepost-io/fencepost/coordinator"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// cluster waits until a coordinator says of the cluster what a test wants to hear.
func (r *running) cluster(t *testing.T, what string, fits func(*controlv1.GetClusterResponse) bool) *controlv1.GetClusterResponse {
	t.Helper()
	for until := time.Now().Add(30 * time.Second); ; r.log.pause() {
		cluster, err := r.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
		if err == nil && fits(cluster) {
			return cluster
		}
		if time.Now().After(until) {
			t.Fatalf("%s: %v, %v", what, cluster, err)
		}
	}
}

// healthy waits until a service is: the others may know of a coordinator a moment before it stands for election.
func (r *running) healthy(t *testing.T, service string) {
	t.Helper()
	watch, err := r.health.Watch(t.Context(), &healthv1.HealthCheckRequest{Service: service})
	for err == nil {
		var health *healthv1.HealthCheckResponse
		if health, err = watch.Recv(); health.GetStatus() == healthv1.HealthCheckResponse_SERVING {
			return
		}
	}
	t.Errorf("health of %q: %v", service, err)
}

func addressesOf(cluster *controlv1.GetClusterResponse) []string {
	var all []string
	for _, c := range cluster.GetCoordinators() {
		all = append(all, c.GetAddress())
	}
	return all
}

// TestEveryCoordinatorKnowsTheCluster: who leads, in which term and at which level, and who else there is, whoever is asked.
func TestEveryCoordinatorKnowsTheCluster(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	second := start(t, bootstrap, nil)
	third := start(t, bootstrap, nil)
	want := []string{first.address, second.address, third.address}
	slices.Sort(want)
	for _, r := range []*running{first, second, third} {
		cluster := r.cluster(t, "all three", func(c *controlv1.GetClusterResponse) bool { return len(c.GetCoordinators()) == 3 && c.GetTerm() == 1 })
		if diff := cmp.Diff(want, addressesOf(cluster)); diff != "" {
			t.Error(diff)
		}
		if cluster.GetLevel() != 1 || cluster.GetLeader() != first.address || cluster.GetLeading() != (r == first) || cluster.GetLevelMax() != 1 {
			t.Errorf("%v", cluster)
		}
		for _, c := range cluster.GetCoordinators() {
			if c.GetLeading() != (c.GetAddress() == first.address) || c.GetVersion() != "test" || c.GetLevelMin() != 1 || c.GetLevelMax() != 1 || c.GetHost() == "" {
				t.Errorf("%v", c)
			}
		}
		r.healthy(t, "fencepost.coordinator.election")
	}
	third.stop()
	second.cluster(t, "two are left", func(c *controlv1.GetClusterResponse) bool { return len(c.GetCoordinators()) == 2 })
}

// join opens a session and returns its Welcome.
func (r *running) join(t *testing.T, name string) (runnerv1.Coordinator_SessionClient, *runnerv1.Welcome) {
	t.Helper()
	stream, err := r.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(hello(name)); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.GetWelcome() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	return stream, m.GetWelcome()
}

// TestRunnersHearOfOtherCoordinators as they come and go, so that one that was given a single address survives that host.
func TestRunnersHearOfOtherCoordinators(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, func(c *coordinator.Config) { c.LeaseTTL = 5 * time.Minute }) // no heartbeats to wait for
	first.awaitLeading(t)
	stream, welcome := first.join(t, "r")
	if !slices.Equal(welcome.GetCoordinators(), []string{first.address}) {
		t.Errorf("welcome: %v", welcome)
	}
	second := start(t, bootstrap, nil)
	both := []string{first.address, second.address}
	slices.Sort(both)
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if changed := m.GetClusterChanged(); changed != nil && slices.Equal(changed.GetCoordinators(), both) {
			break
		}
	}
	second.cluster(t, "both", func(c *controlv1.GetClusterResponse) bool {
		return len(c.GetCoordinators()) == 2 && c.GetLeader() != ""
	})
	redirected, err := second.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := redirected.Recv(); err != nil || m.GetRedirect().GetLeader() != first.address || !slices.Equal(m.GetRedirect().GetCoordinators(), both) {
		t.Errorf("%v, %v", m, err)
	}
}

// TestALeaderThatStopsSendsItsRunnersToTheNextOne, and that one leads within a second.
func TestALeaderThatStopsSendsItsRunnersToTheNextOne(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, func(c *coordinator.Config) { c.SessionTimeout, c.LeaseTTL = 6*time.Second, 5*time.Minute })
	first.awaitLeading(t)
	second := start(t, bootstrap, func(c *coordinator.Config) { c.SessionTimeout = 6 * time.Second })
	for _, r := range []*running{first, second} {
		r.cluster(t, "both", func(c *controlv1.GetClusterResponse) bool { return len(c.GetCoordinators()) == 2 })
	}
	stream, _ := first.join(t, "r")
	began := time.Now()
	go first.stop()
	for {
		m, err := stream.Recv()
		if err != nil {
			t.Fatalf("no redirect: %v", err)
		}
		if to := m.GetRedirect(); to != nil {
			if to.GetLeader() != second.address {
				t.Errorf("redirected to %q", to.GetLeader())
			}
			break
		}
	}
	redirected := time.Since(began)
	second.awaitLeading(t)
	t.Logf("led after %v, redirected after %v", time.Since(began), redirected)
	if took := time.Since(began); took > 3*time.Second { // Under a second where nothing else runs.
		t.Errorf("the hand-over took %v", took)
	}
}

// TestWhatWasUnderWayIsAnsweredByWhereToAskAgain: nothing is claimed to have failed, or to be done, by a leader that stops.
func TestWhatWasUnderWayIsAnsweredByWhereToAskAgain(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	stream, _ := first.join(t, "r")
	defer stream.CloseSend()
	answer := make(chan error, 1)
	asked := make(chan struct{})
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		close(asked)
		_, err := first.control.DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "none"})
		for err != nil && strings.Contains(err.Error(), "there is no connector") { // until the stop overtakes one
			_, err = first.control.DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "none"})
		}
		answer <- err
	}()
	<-asked
	first.stop()
	if d := detail(t, <-answer, codes.Unavailable); d != nil && d.GetHint() == "" {
		t.Errorf("no hint: %v", d)
	}
}

// TestTwoCoordinatorsWithOneAddressSaySo: nobody could tell runners which of them is meant. It is how two clusters with one name on one Kafka show, where each of them listens on the usual address.
func TestTwoCoordinatorsWithOneAddressSaySo(t *testing.T) {
	bootstrap := fakeKafka(t)
	same := func(c *coordinator.Config) { c.Advertise = "127.0.0.1:8780" }
	first := start(t, bootstrap, same)
	first.awaitLeading(t)
	second := start(t, bootstrap, same)
	for _, r := range []*running{first, second} {
		r.log.wait(t, "two coordinators have one address")
		if cluster := r.cluster(t, "it says so", func(c *controlv1.GetClusterResponse) bool { return c.GetTrouble() != "" }); !strings.Contains(cluster.GetTrouble(), "--advertise") || !strings.Contains(cluster.GetTrouble(), "--cluster") {
			t.Errorf("%v", cluster)
		}
	}
	second.stop()
	first.cluster(t, "put right", func(c *controlv1.GetClusterResponse) bool { return c.GetTrouble() == "" })
}

// TestWhatOthersWriteIntoTheLogDoesntCount: what a coordinator wrote is restored, and where that may be gone nobody leads.
func TestWhatOthersWriteIntoTheLogDoesntCount(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	first.stop()
	byHand := func(key string, value []byte) {
		t.Helper()
		cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DisableClientMetrics())
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "c.config", Key: []byte(key), Value: value}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	byHand("rubbish", []byte("\x00\xff"))
	byHand("meta/cluster", []byte(`{"v":1,"b":{"cluster":"other","term":0,"level":7}}`))
	second := start(t, bootstrap, nil)
	second.awaitLeading(t)
	if cluster := second.cluster(t, "term", func(*controlv1.GetClusterResponse) bool { return true }); cluster.GetTerm() != 2 || cluster.GetLevel() != 1 {
		t.Errorf("%v", cluster)
	}
	for _, want := range []string{`key=rubbish`, `key=meta/cluster`} {
		if !second.log.has(want) {
			t.Errorf("the log doesn't say %s", want)
		}
	}
	second.stop()
	byHand("connector/a", []byte(`{"v":1,"b":{"incarnation":"x"}}`))
	third := start(t, bootstrap, nil)
	third.log.wait(t, "can't lead; another coordinator may")
	if cluster := third.cluster(t, "why", func(c *controlv1.GetClusterResponse) bool { return c.GetTrouble() != "" }); !strings.Contains(cluster.GetTrouble(), `key "connector/a"`) {
		t.Errorf("%v", cluster)
	}
	byHand("connector/a", nil)
	third.awaitLeading(t)
}

// TestALogThatSomebodyElseHoldsIsSaidByEveryCoordinator: nobody leads, each says who holds it, to users as well, and they lead when it is over.
func TestALogThatSomebodyElseHoldsIsSaidByEveryCoordinator(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	first.stop()
	stranger, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("stranger"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer stranger.Close()
	if err := stranger.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := stranger.ProduceSync(t.Context(), &kgo.Record{Topic: "c.config", Key: []byte("k"), Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	second, third := start(t, bootstrap, nil), start(t, bootstrap, nil)
	for _, r := range []*running{second, third} {
		r.log.wait(t, "can't lead, and no other coordinator can")
		r.cluster(t, "it says who holds the log", func(c *controlv1.GetClusterResponse) bool {
			return strings.Contains(c.GetTrouble(), `"stranger", Ongoing`)
		})
	}
	if err := stranger.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
		t.Fatal(err)
	}
	select {
	case <-second.Leading():
	case <-third.Leading():
	case <-time.After(time.Minute):
		t.Fatalf("nobody leads:\n%s", second.log.text.String())
	}
}

// TestARecordOfTheLogHasNoTime: a broker refuses what is an hour ahead of its clock, and clocks of hosts may be hours apart.
func TestARecordOfTheLogHasNoTime(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics("c.config"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
		if r.Timestamp.UnixMilli() != -1 {
			t.Errorf("record %s has time %v", r.Key, r.Timestamp)
		}
	})
}

// TestALogThatLostRecordsIsLedWhenAnOperatorSaysSo, and only then; the log remembers it.
func TestALogThatLostRecordsIsLedWhenAnOperatorSaysSo(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	first.stop()
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var upTo kadm.Offsets
	upTo.AddOffset("c.config", 0, 1, -1)
	if _, err := kadm.NewClient(cl).DeleteRecords(t.Context(), upTo); err != nil {
		t.Fatal(err)
	}
	second := start(t, bootstrap, nil)
	second.log.wait(t, "can't lead; another coordinator may")
	if cluster := second.cluster(t, "why", func(c *controlv1.GetClusterResponse) bool { return c.GetTrouble() != "" }); !strings.Contains(cluster.GetTrouble(), "begins at offset 1") || !strings.Contains(cluster.GetTrouble(), "--accept-lost-records") {
		t.Errorf("%v", cluster)
	}
	second.stop()
	third := start(t, bootstrap, func(c *coordinator.Config) { c.AcceptLostRecords = true })
	third.awaitLeading(t)
	third.stop()
	fourth := start(t, bootstrap, nil)
	fourth.awaitLeading(t)
}

// TestALogWithWrongSettingsIsNotLedUntilItIsPutRight: Kafka would delete parts of it, or nobody could tell its order.
func TestALogWithWrongSettingsIsNotLedUntilItIsPutRight(t *testing.T) {
	for name, test := range map[string]struct {
		partitions int32
		policy     string
		want       string
	}{
		"deletes":        {1, "delete", "cleanup.policy=delete"},
		"two partitions": {2, "compact", "has 2 partitions, the config log has exactly one"},
	} {
		t.Run(name, func(t *testing.T) {
			bootstrap := fakeKafka(t)
			cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DisableClientMetrics())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			admin := kadm.NewClient(cl)
			if _, err := admin.CreateTopic(t.Context(), test.partitions, 1, map[string]*string{"cleanup.policy": &test.policy}, "c.config"); err != nil {
				t.Fatal(err)
			}
			c := start(t, bootstrap, nil)
			c.log.wait(t, test.want)
			if cluster := c.cluster(t, "why", func(c *controlv1.GetClusterResponse) bool { return c.GetTrouble() != "" }); !strings.Contains(cluster.GetTrouble(), test.want) {
				t.Errorf("%v", cluster)
			}
			compact := "compact"
			if test.partitions == 1 {
				_, err = admin.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "cleanup.policy", Value: &compact}}, "c.config")
			} else {
				_, err = admin.DeleteTopics(t.Context(), "c.config")
			}
			if err != nil {
				t.Fatal(err)
			}
			c.awaitLeading(t)
		})
	}
}

// TestARunnerOfAnotherClusterIsRefused, with what to do about it.
func TestARunnerOfAnotherClusterIsRefused(t *testing.T) {
	c := start(t, fakeKafka(t), nil)
	c.awaitLeading(t)
	stream, err := c.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	message := hello("r")
	message.GetHello().Cluster = "another"
	if err := stream.Send(message); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), `this is cluster "c", and the runner belongs to cluster "another"`) {
		t.Errorf("%v, %v", m, err)
	}
}

// TestALeaderThatWasReplacedShowsNothing: what it remembers may be another leader's to change by now.
func TestALeaderThatWasReplacedShowsNothing(t *testing.T) {
	bootstrap := fakeKafka(t)
	c := start(t, bootstrap, nil)
	c.awaitLeading(t)
	<-time.After(600 * time.Millisecond) // Longer than a committed transaction is trusted.
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("fencepost.c"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, _, err := cl.ProducerID(t.Context()); err != nil { // as another leader takes the log's id
		t.Fatal(err)
	}
	_, err = c.control.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	detail(t, err, codes.Unavailable)
	c.log.wait(t, "the leadership is lost")
}
