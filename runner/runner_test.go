package runner

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func TestMain(m *testing.M) {
	if what := os.Getenv(pluginVariable); what != "" {
		pluginMain(what)
		return
	}
	goleak.VerifyTestMain(m)
}

// bead is a plugin at an address.
type bead struct {
	pluginv1.UnimplementedPluginServer
}

func (bead) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Name: "bead", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{
		Name: "bead", Config: []*pluginv1.ConfigKey{{Name: "count", Type: pluginv1.ConfigType_CONFIG_TYPE_LONG, Required: true}},
	}}}, nil
}

func (bead) Validate(_ context.Context, r *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	if r.GetConfig()["count"] == "13" {
		return nil, status.Error(codes.InvalidArgument, "13 brings bad luck")
	}
	return &pluginv1.ValidateResponse{ExactlyOnce: pluginv1.Possible_POSSIBLE_YES}, nil
}

// serve serves what register registers, until the test is over.
func serve(t *testing.T, register func(*grpc.Server)) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-served })
	return listener.Addr().String()
}

// shortDir is a folder whose path leaves room for sockets, as t.TempDir's doesn't.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func serveBead(t *testing.T) string {
	t.Helper()
	return serve(t, func(s *grpc.Server) {
		pluginv1.RegisterPluginServer(s, bead{})
		checks := health.NewServer()
		checks.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
		healthpb.RegisterHealthServer(s, checks)
	})
}

func TestNewTellsEveryProblemAtOnce(t *testing.T) {
	_, err := New(Config{
		Coordinators: []string{"nowhere"}, PluginAddresses: map[string]string{"bead": "x"}, CommitsPerSecond: -1,
		Kafka: map[string]string{"acks": "1", "no.such.key": "1", "transaction.timeout.ms": "5000"},
	})
	var wrong *ConfigError
	if !errors.As(err, &wrong) {
		t.Fatal(err)
	}
	var keys []string
	for _, p := range wrong.Problems {
		keys = append(keys, p.Key)
	}
	want := []string{"bootstrap-servers", "commits-per-second", "coordinator", "kafka.acks", "kafka.no.such.key", "kafka.transaction.timeout.ms", "name", "plugin-address"}
	if !slices.Equal(keys, want) {
		t.Fatalf("got %q\nwant %q", keys, want)
	}
	if lines := strings.Split(err.Error(), "\n"); len(lines) != len(want) {
		t.Fatal(err)
	}
}

func TestValidateNeedsNeitherCoordinatorNorBroker(t *testing.T) {
	cfg := Config{PluginAddresses: map[string]string{"bead": serveBead(t)}, SocketDir: shortDir(t)}
	for _, c := range []struct {
		config map[string]string
		key    string
		text   string
	}{
		{map[string]string{"connector.class": "bead", "count": "3", "exactly.once.support": "required"}, "", ""},
		{map[string]string{"connector.class": "bead", "count": "3", "cuont": "4"}, "cuont", "unknown key"},
		{map[string]string{"connector.class": "bead", "count": "13"}, "connector.class", "13 brings bad luck"},
		{map[string]string{"connector.class": "baed"}, "connector.class", "no plugin has"},
		{map[string]string{"connector.class": "bead", "count": "3", "producer.override.acks": "1"}, "producer.override.acks", "Fencepost"},
		{map[string]string{"connector.class": "bead", "count": "3", "producer.override.sasl.password": "x"}, "producer.override.sasl.password", "can't be overridden"},
	} {
		problems, err := Validate(t.Context(), cfg, "beads", c.config)
		if err != nil {
			t.Fatal(err)
		}
		if c.key == "" {
			if len(problems) > 0 {
				t.Errorf("%v: %+v", c.config, problems)
			}
			continue
		}
		if len(problems) != 1 || problems[0].Key != c.key || !strings.Contains(problems[0].Message, c.text) {
			t.Errorf("%v: %+v", c.config, problems)
		}
	}
}

func TestBrokenPluginsAreNamedWhereATypeIsMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "bead"), []byte("#!/bin/sh\necho hello\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cfg := Config{PluginPath: []string{dir}, SocketDir: shortDir(t)}
	problems, err := Validate(t.Context(), cfg, "beads", map[string]string{"connector.class": "bead"})
	if err != nil || len(problems) != 2 || !problems[1].Warning || !strings.Contains(problems[1].Message, "doesn't work as a plugin") {
		t.Fatal(problems, err)
	}
	found, broken, err := Plugins(t.Context(), cfg)
	if err != nil || len(found) != 0 || len(broken) != 1 {
		t.Fatal(found, broken, err)
	}
	if _, _, err := Plugins(t.Context(), Config{}); err == nil {
		t.Fatal("no plugins at all is a mistake")
	}
}

func TestAPluginThatAnswersLateIsOfferedThen(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := silent.Close(); err != nil {
		t.Fatal(err)
	}
	cfg := Config{PluginAddresses: map[string]string{"bead": silent.Addr().String(), "pearl": serveBead(t)}, SocketDir: shortDir(t)}
	host, p, err := alone(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	p.discover(t.Context())
	found, broken := p.all()
	if len(found) != 0 || len(broken) != 2 || !strings.Contains(broken[0].Reason, "no answer") || !strings.Contains(broken[1].Reason, `"bead", not "pearl"`) {
		t.Fatal(found, broken)
	}
	cfg.PluginAddresses["bead"] = serveBead(t)
	if !p.dialSilent(t.Context()) {
		t.Fatal("not noticed")
	}
	found, _ = p.all()
	if len(found) != 1 || found[0].Name != "bead" || found[0].SHA256 != "" {
		t.Fatal(found)
	}
	plugin := toSupervisor(found)[0]
	proc, err := p.start(t.Context(), plugin, "beads")
	if err != nil {
		t.Fatal(err)
	}
	if err := proc.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// coordinator notes what a runner says and answers as a leader.
type coordinator struct {
	runnerv1.UnimplementedCoordinatorServer
	said chan *runnerv1.SessionRequest
}

func (c *coordinator) Session(rpc grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]) error {
	for {
		m, err := rpc.Recv()
		if err != nil {
			return nil //nolint:nilerr // The runner has gone.
		}
		c.said <- m
		if m.GetHello() != nil {
			err = errors.Join(
				rpc.Send(&runnerv1.SessionResponse{Term: 1, Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{Cluster: "test", LeaseTtlMs: 10_000, HeartbeatMs: 2000}}}),
				rpc.Send(&runnerv1.SessionResponse{Term: 1, Message: &runnerv1.SessionResponse_Validate{Validate: &runnerv1.Validate{RequestId: 7, Connector: "beads", Config: map[string]string{"connector.class": "bead"}}}}))
		}
		if err != nil {
			return err
		}
	}
}

func TestARunnerOffersItsPluginsAnswersAndLeaves(t *testing.T) {
	c := &coordinator{said: make(chan *runnerv1.SessionRequest, 100)}
	r, err := New(Config{
		Name: "runner-1", Coordinators: []string{"127.0.0.1:9", serve(t, func(s *grpc.Server) { runnerv1.RegisterCoordinatorServer(s, c) })}, Bootstrap: "127.0.0.1:9",
		PluginAddresses: map[string]string{"bead": serveBead(t)}, SocketDir: shortDir(t), Version: "1.2.3",
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() {
		ended <- r.Run(ctx)
	}()

	hello := next(t, c, (*runnerv1.SessionRequest).GetHello)
	if hello.GetName() != "runner-1" || hello.GetVersion() != "1.2.3" || hello.GetProcessId() == "" || hello.GetOffer().GetPlugins()[0].GetDescription().GetName() != "bead" {
		t.Fatal(hello)
	}
	answer := next(t, c, (*runnerv1.SessionRequest).GetValidateAnswer)
	if answer.GetRequestId() != 7 || len(answer.GetProblems()) != 1 || answer.GetProblems()[0].GetKey() != "count" {
		t.Fatal(answer)
	}
	stop()
	next(t, c, (*runnerv1.SessionRequest).GetDraining)
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// next is the next message of a kind.
func next[T any](t *testing.T, c *coordinator, pick func(*runnerv1.SessionRequest) *T) *T {
	t.Helper()
	late := time.After(20 * time.Second)
	for {
		select {
		case m := <-c.said:
			if got := pick(m); got != nil {
				return got
			}
		case <-late:
			t.Fatal("it never came")
		}
	}
}

func TestARunnerWithoutASocketFolderEndsWithItsName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "missing")
	r, err := New(Config{Name: "homeless", Coordinators: []string{"127.0.0.1:9"}, Bootstrap: "127.0.0.1:9", SocketDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := r.Run(ctx); err == nil || !strings.Contains(err.Error(), `"homeless"`) || !strings.Contains(err.Error(), dir) {
		t.Fatal(err)
	}
}
