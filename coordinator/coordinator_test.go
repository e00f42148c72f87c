package coordinator_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/fencepost-io/fencepost/coordinator"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func TestMain(m *testing.M) {
	// The starter of processes keeps its thread for life, so that brokers die with the test.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/fencepost-io/fencepost/integration/process.init.func1.1"))
}

// fakeKafka is a broker in this process.
func fakeKafka(t *testing.T, opts ...kfake.Opt) (bootstrap string) {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Millisecond)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return strings.Join(cluster.ListenAddrs(), ",")
}

// running is a coordinator that runs, and its clients.
type running struct {
	*coordinator.Coordinator
	address string
	log     *log
	control controlv1.ControlClient
	runners runnerv1.CoordinatorClient
	health  healthv1.HealthClient
	conn    *grpc.ClientConn
	stop    func()
}

// log keeps what was logged.
type log struct {
	mu   sync.Mutex
	text bytes.Buffer
	said chan struct{} // one token: something was logged
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.said <- struct{}{}:
	default:
	}
	return l.text.Write(p)
}

func (l *log) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// wait waits for a text in the log.
func (l *log) wait(t *testing.T, text string) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for !l.has(text) {
		select {
		case <-l.said:
		case <-deadline:
			t.Fatalf("%q isn't in the log:\n%s", text, l.text.String())
		}
	}
}

// pause waits until something more is logged, for a moment at most.
func (l *log) pause() {
	select {
	case <-l.said:
	case <-time.After(50 * time.Millisecond):
	}
}

func start(t *testing.T, bootstrap string, change func(*coordinator.Config)) *running {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &running{address: listener.Addr().String(), log: &log{said: make(chan struct{}, 1)}}
	config := coordinator.Config{
		Cluster: "c", Bootstrap: bootstrap, Listener: listener, SessionTimeout: time.Second, Version: "test",
		Logger: hclog.New(&hclog.LoggerOptions{Output: r.log, Level: hclog.Debug}),
	}
	if change != nil {
		change(&config)
	}
	if r.Coordinator, err = coordinator.New(config); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	if r.conn, err = grpc.NewClient(r.address, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	r.control, r.runners, r.health = controlv1.NewControlClient(r.conn), runnerv1.NewCoordinatorClient(r.conn), healthv1.NewHealthClient(r.conn)
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
		r.conn.Close()
	})
	t.Cleanup(r.stop)
	return r
}

func (r *running) awaitLeading(t *testing.T) {
	t.Helper()
	select {
	case <-r.Leading():
	case <-time.After(30 * time.Second):
		t.Fatalf("doesn't lead:\n%s", r.log.text.String())
	}
}

// detail of an error.
func detail(t *testing.T, err error, code codes.Code) *controlv1.ErrorDetail {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("%v, want %v", err, code)
	}
	for _, d := range status.Convert(err).Details() {
		if found, ok := d.(*controlv1.ErrorDetail); ok {
			return found
		}
	}
	t.Fatalf("%v has no detail", err)
	return nil
}

func TestALeaderServesEverything(t *testing.T) {
	c := start(t, fakeKafka(t), nil)
	c.awaitLeading(t)
	cluster, err := c.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
	if err != nil || !cluster.GetLeading() || cluster.GetLeader() != c.address || cluster.GetTerm() != 1 || cluster.GetCluster() != "c" || cluster.GetVersion() != "test" {
		t.Fatalf("%v, %v", cluster, err)
	}
	for _, service := range []string{"", "fencepost.control.v1.Control", "fencepost.runner.v1.Coordinator"} {
		health, err := c.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: service})
		if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, health, err)
		}
	}
	reflection, err := reflectionv1.NewServerReflectionClient(c.conn).ServerReflectionInfo(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := reflection.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if services, err := reflection.Recv(); err != nil || !strings.Contains(services.String(), "fencepost.control.v1.Control") {
		t.Errorf("reflection: %v, %v", services, err)
	}
}

func TestASecondCoordinatorWaitsAndNamesTheLeader(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	second := start(t, bootstrap, nil)
	second.log.wait(t, "waiting, another coordinator leads: leader="+first.address)
	_, err := second.control.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != first.address {
		t.Errorf("leader %q", d.GetLeader())
	}
	stream, err := second.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetRedirect().GetLeader() != first.address {
		t.Errorf("%v, %v", m, err)
	}
	health, err := second.health.Check(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil || health.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("%v, %v", health, err)
	}
	cluster, err := second.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
	if err != nil || cluster.GetLeading() || cluster.GetLeader() != first.address {
		t.Errorf("%v, %v", cluster, err)
	}
	first.stop()
	began := time.Now()
	second.awaitLeading(t)
	t.Logf("took over in %v", time.Since(began))
	if cluster, err := second.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{}); err != nil || cluster.GetTerm() != 2 {
		t.Errorf("%v, %v", cluster, err)
	}
}

// TestALeaderThatLosesTheLogStandsAgain takes the log's id away, as another leader does.
func TestALeaderThatLosesTheLogStandsAgain(t *testing.T) {
	bootstrap := fakeKafka(t)
	c := start(t, bootstrap, nil)
	c.awaitLeading(t)
	thief, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("fencepost.c"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer thief.Close()
	if _, _, err := thief.ProducerID(t.Context()); err != nil {
		t.Fatal(err)
	}
	// A write is needed to notice.
	if _, err := c.control.DeleteConnector(t.Context(), &controlv1.DeleteConnectorRequest{Name: "none"}); status.Code(err) != codes.NotFound {
		t.Fatal(err)
	}
	stream, err := c.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(hello("r")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetWelcome() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	beat := time.NewTicker(100 * time.Millisecond) // Heartbeats make an idle leader write.
	defer beat.Stop()
	for !c.log.has("the leadership is lost") {
		<-beat.C
		if err := stream.Send(&runnerv1.SessionRequest{Term: 1, Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: &runnerv1.Heartbeat{}}}); err != nil {
			break
		}
	}
	c.log.wait(t, "term=2")
	for {
		m, err := stream.Recv()
		if err != nil || m.GetRedirect() != nil {
			break
		}
	}
}

// What people want to know of the past isn't gone with the leader that saw it.
func TestWhatHappenedOutlivesTheLeader(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	validator(t, first)
	if _, err := first.control.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "a", Config: map[string]string{"connector.class": "file"}, Target: controlv1.TargetState_TARGET_STATE_PAUSED}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := first.control.ResumeConnector(t.Context(), &controlv1.ResumeConnectorRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
		if _, err := first.control.PauseConnector(t.Context(), &controlv1.PauseConnectorRequest{Name: "a"}); err != nil {
			t.Fatal(err)
		}
	}
	events := func(c *running) []*controlv1.Happening {
		got, err := c.control.GetConnector(t.Context(), &controlv1.GetConnectorRequest{Name: "a"})
		if err != nil {
			t.Fatal(err)
		}
		return got.GetConnector().GetEvents()
	}
	want := events(first)
	if last := want[len(want)-1]; last.GetText() != "target is paused" || last.GetCount() != 3 {
		t.Fatal(want)
	}
	awaitStatus(t, bootstrap, `"count":3,"text":"target is paused"`)
	first.stop()
	second := start(t, bootstrap, nil)
	second.awaitLeading(t)
	deadline := time.After(30 * time.Second)
	for got := events(second); !slices.EqualFunc(got, want, func(a, b *controlv1.Happening) bool { return proto.Equal(a, b) }); got = events(second) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("%v, and it was %v", got, want)
		}
	}
}

// validator is a runner that finds every configuration good. It leaves when its coordinator does.
func validator(t *testing.T, c *running) {
	t.Helper()
	stream, err := c.runners.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	opening := hello("r")
	opening.GetHello().Offer = &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{{Description: &pluginv1.DescribeResponse{Name: "file", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: "file"}}}}}}
	if err := stream.Send(opening); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetWelcome() == nil {
		t.Fatalf("%v, %v", m, err)
	}
	left := make(chan struct{})
	t.Cleanup(func() { <-left })
	go func() {
		defer close(left)
		for {
			m, err := stream.Recv()
			if err != nil {
				return
			}
			if v := m.GetValidate(); v != nil {
				_ = stream.Send(&runnerv1.SessionRequest{Term: m.GetTerm(), Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{RequestId: v.GetRequestId()}}})
			}
		}
	}()
}

// awaitStatus waits until the status topic has a record with a text.
func awaitStatus(t *testing.T, bootstrap, text string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.ConsumeTopics("c.status"), kgo.DisableClientMetrics(), kgo.MetadataMinAge(100*time.Millisecond), kgo.UnknownTopicRetries(-1))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for found := false; !found; {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("%q isn't in the status topic", text)
		}
		fetches.EachRecord(func(r *kgo.Record) { found = found || strings.Contains(string(r.Value), text) })
	}
}

func hello(name string) *runnerv1.SessionRequest {
	return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Hello{Hello: &runnerv1.Hello{Name: name, ProcessId: "p", LevelMin: 1, LevelMax: 1}}}
}

func TestABrokerThatIsAbsentIsWaitedFor(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	port := free.Addr().(*net.TCPAddr).Port
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	c := start(t, address, nil)
	c.log.wait(t, "no broker answers at "+address)
	_, err = c.control.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != "" || !strings.Contains(err.Error(), "can't reach Kafka: no broker answers at "+address) {
		t.Errorf("while no broker is there: %v, %v", err, d)
	}
	fakeKafka(t, kfake.Ports(port))
	c.awaitLeading(t)
}

func TestAWrongPasswordIsSaid(t *testing.T) {
	bootstrap := fakeKafka(t, kfake.EnableSASL(), kfake.Superuser("PLAIN", "alice", "right"))
	c := start(t, bootstrap, func(c *coordinator.Config) {
		c.Kafka = map[string]string{"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "geheim"}
	})
	c.log.wait(t, "check security.protocol, sasl.mechanism, sasl.username and sasl.password")
	if c.log.has("geheim") {
		t.Error("the password is in the log")
	}
}

func TestALogOfANewerVersionIsNotLed(t *testing.T) {
	bootstrap := fakeKafka(t)
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	first.stop()
	writeLog(t, bootstrap, "meta/cluster", `{"v":99,"b":{}}`)
	second := start(t, bootstrap, nil)
	second.log.wait(t, "can't lead; another coordinator may")
	select {
	case <-second.Leading():
		t.Error("it leads")
	default:
	}
	if members := membersOf(t, bootstrap); members != 0 {
		t.Errorf("%d members of the election, which belongs to others", members)
	}
	if cluster, err := second.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{}); err != nil || !strings.Contains(cluster.GetTrouble(), "has form 99") || cluster.GetLeading() {
		t.Errorf("%v, %v", cluster, err)
	}
	if health, err := second.health.Check(t.Context(), &healthv1.HealthCheckRequest{Service: "fencepost.coordinator.election"}); err != nil || health.GetStatus() != healthv1.HealthCheckResponse_NOT_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
	writeLog(t, bootstrap, "meta/cluster", `{"v":1,"b":{"cluster":"c","term":41,"level":1}}`)
	second.awaitLeading(t)
	if cluster, err := second.control.GetCluster(t.Context(), &controlv1.GetClusterRequest{}); err != nil || cluster.GetTrouble() != "" || cluster.GetTerm() != 42 {
		t.Errorf("put right: %v, %v", cluster, err)
	}
}

// writeLog writes one record into the log as a coordinator does.
func writeLog(t *testing.T, bootstrap, key, value string) {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("fencepost.c"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: "c.config", Key: []byte(key), Value: []byte(value)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
}

// membersOf counts the members of the election.
func membersOf(t *testing.T, bootstrap string) int {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	groups, err := kadm.NewClient(client).DescribeGroups(t.Context(), "c.coordinator")
	if err != nil {
		t.Fatal(err)
	}
	return len(groups["c.coordinator"].Members)
}

// TestALeaderThatLosesItsBrokerSaysSo: it doesn't name itself, and the one that waits says why as well.
func TestALeaderThatLosesItsBrokerSaysSo(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	bootstrap := cluster.ListenAddrs()[0]
	first := start(t, bootstrap, nil)
	first.awaitLeading(t)
	second := start(t, bootstrap, nil)
	second.log.wait(t, "waiting, another coordinator leads: leader="+first.address)
	for membersOf(t, bootstrap) < 2 {
		second.log.pause()
	}
	cluster.Close()
	first.log.wait(t, "the leadership is lost")
	second.log.wait(t, "cause=")
	_, err = first.control.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != "" || !strings.Contains(err.Error(), "can't reach Kafka") || !strings.Contains(err.Error(), bootstrap) {
		t.Errorf("the leader: %v, %v", err, d)
	}
	_, err = second.control.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	if detail(t, err, codes.Unavailable); !strings.Contains(err.Error(), "can't reach Kafka") {
		t.Errorf("the one that waits: %v", err)
	}
}

func TestTimesThatNobodyCanKeepAreRefused(t *testing.T) {
	for _, d := range []time.Duration{time.Millisecond, -time.Second, 5*time.Minute + 1} {
		_, err := coordinator.New(coordinator.Config{LeaseTTL: d, SessionTimeout: d})
		for _, key := range []string{"lease-ttl", "session-timeout"} {
			if want := fmt.Sprintf("%s: %v is out of range: 1s to 5m", key, d); err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%q is missing in %v", want, err)
			}
		}
	}
}

func TestEveryMistakeOfTheConfigurationIsSaid(t *testing.T) {
	_, err := coordinator.New(coordinator.Config{Cluster: "Not Good", Bootstrap: "nowhere:x", Kafka: map[string]string{"linger.ms": "1", "sasl.password": "geheim"}})
	for _, text := range []string{"cluster: ", "listen: ", "bootstrap-servers: ", "linger.ms: ", "sasl.password: "} {
		if err == nil || !strings.Contains(err.Error(), text) || strings.Contains(err.Error(), "geheim") {
			t.Errorf("%q is missing in %v", text, err)
		}
	}
}

func TestALeaseUnderAtLeastOnceOutlastsThreeTakeOvers(t *testing.T) {
	_, err := coordinator.New(coordinator.Config{SessionTimeout: 12 * time.Second, AtLeastOnceLeaseTTL: 30 * time.Second})
	if err == nil || !strings.Contains(err.Error(), "at-least-once-lease-ttl: 30s is out of range: 36s") {
		t.Error(err)
	}
	if _, err = coordinator.New(coordinator.Config{SessionTimeout: 12 * time.Second}); strings.Contains(err.Error(), "at-least-once") {
		t.Errorf("the default is refused: %v", err)
	}
}
