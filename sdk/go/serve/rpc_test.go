package serve

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

// dial serves p in this process and connects to it.
func dial(t *testing.T, p source.Plugin) *grpc.ClientConn {
	t.Helper()
	s := newServer(p)
	listener := bufconn.Listen(1 << 20)
	served := make(chan error, 1)
	go func() { served <- s.grpc.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(wire.MaxMessageBytes), grpc.MaxCallSendMsgSize(wire.MaxMessageBytes)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.stop(time.Second)
		_ = conn.Close()
		if err := <-served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	return conn
}

func TestPluginBehindGRPCIsExact(t *testing.T) {
	for _, mode := range []string{"", "lookup"} {
		cfg := sourcetest.Config{Plugin: host.New(dial(t, source.New("counter", "1.2.3", &counter{}))), Limits: source.Limits{MaxBatchRecords: 2}}
		if mode != "" {
			cfg.Config = map[string]string{"mode": mode}
		}
		sourcetest.Exact(t, cfg, []string{"1", "2", "3", "4", "5"})
	}
}

func TestRecordsCrossTheWireWhole(t *testing.T) {
	r := sourcetest.New(t, sourcetest.Config{Plugin: host.New(dial(t, source.New("counter", "1.2.3", &counter{}))), Config: map[string]string{"count": "30000"}})
	task := r.Start(r.Plan(1)[0])
	got := task.Wait(30_000)
	last := got[29_999]
	if string(last.Value) != "30000" || last.Key == nil || last.Timestamp.UnixMilli() != 1e12 || last.Topic != "t" || last.Partition != `{"counter":"a"}` ||
		len(last.Headers) != 1 || last.Headers[0].Name != "h" || last.Headers[0].Value != nil {
		t.Fatalf("got %+v", last)
	}
	task.Stop()
	if o := r.Offset(source.Fields{"counter": "a"}); o["n"] != int64(30_000) {
		t.Fatalf("offset %v", o)
	}
}

func TestErrorsKeepTheirKind(t *testing.T) {
	for mode, want := range map[string]source.Error{
		"fail":        {Kind: source.Configuration, Key: "mode", Message: "asked to fail", Hint: "don't"},
		"plain error": {Kind: source.Retriable, Message: "connection refused"},
	} {
		r := sourcetest.New(t, sourcetest.Config{Plugin: host.New(dial(t, source.New("counter", "1.2.3", &counter{}))), Config: map[string]string{"mode": mode}})
		var e *source.Error
		if err := r.Start(source.One()).End(); !errors.As(err, &e) || e.Kind != want.Kind || e.Key != want.Key || e.Message != want.Message || e.Hint != want.Hint {
			t.Errorf("%s: got %#v", mode, err)
		}
	}
}

func TestPlanStreams(t *testing.T) {
	p := host.New(dial(t, source.New("counter", "1.2.3", &counter{})))
	r := sourcetest.New(t, sourcetest.Config{Plugin: p, Config: map[string]string{"mode": "lookup"},
		Stored: []source.PartitionOffset{{Partition: source.JSON(`{"counter":"a"}`), Offset: source.JSON(`{"n":3}`)}}})
	if tasks := r.Plan(1); string(tasks[0].Config["stored"]) != "3" || string(tasks[0].Claim.Prefix) != "{" {
		t.Fatalf("got %v", tasks)
	}
	err := p.Plan(t.Context(), &source.PlanOpen{Type: "counter", Config: map[string]string{"mode": "panic in plan"}}, noPlan{})
	var e *source.Error
	if !errors.As(err, &e) || e.Kind != source.Fatal || !strings.Contains(e.Message, "Plan panicked") {
		t.Fatalf("got %v", err)
	}
}

// noPlan is a PlanHost that nothing reaches.
type noPlan struct{ source.PlanHost }

func TestCallsAnswer(t *testing.T) {
	conn := dial(t, source.New("counter", "1.2.3", &counter{}))
	p := host.New(conn)
	d, err := p.Describe(t.Context())
	if err != nil || d.Name != "counter" || d.Version != "1.2.3" || len(d.Types) != 1 {
		t.Fatalf("got %+v, %v", d, err)
	}
	v, err := p.Validate(t.Context(), &source.ValidateRequest{Type: "counter", Config: map[string]string{"cuont": "1"}})
	if err != nil || len(v.Problems) != 1 || v.Problems[0].Hint != "did you mean count?" {
		t.Fatalf("got %+v, %v", v, err)
	}
	a, err := pluginv1.NewPluginClient(conn).AlterOffsets(t.Context(), &pluginv1.AlterOffsetsRequest{Type: "counter"})
	if err != nil || a.GetVerdict() != pluginv1.AlterOffsetsResponse_VERDICT_VETO {
		t.Fatalf("got %v, %v", a, err)
	}
	h, err := grpc_health_v1.NewHealthClient(conn).Check(t.Context(), &grpc_health_v1.HealthCheckRequest{Service: "plugin"})
	if err != nil || h.GetStatus() != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Fatalf("got %v, %v", h, err)
	}
}

// panicking is a plugin that isn't made by source.New.
type panicking struct{ source.Plugin }

func (panicking) Describe(context.Context) (*source.Description, error) { panic("boom") }

func (panicking) Run(context.Context, *source.RunOpen, source.RunHost) error { panic("boom") }

func TestPanicOfAPluginEndsTheCallAlone(t *testing.T) {
	conn := dial(t, panicking{})
	client := pluginv1.NewPluginClient(conn)
	for range 2 {
		if _, err := client.Describe(t.Context(), &pluginv1.DescribeRequest{}); status.Code(err) != codes.Internal || !strings.Contains(err.Error(), "boom") || strings.Contains(err.Error(), ".go") {
			t.Fatalf("got %v", err)
		}
	}
	if _, err := client.AlterOffsets(t.Context(), &pluginv1.AlterOffsetsRequest{}); status.Code(err) != codes.Unimplemented {
		t.Fatalf("got %v", err)
	}
	stream, err := client.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = stream.Send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Open{Open: &pluginv1.RunOpen{}}})
	_ = stream.Send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Stored{Stored: &pluginv1.StoredOffsets{Last: true}}})
	if _, err := stream.Recv(); status.Code(err) != codes.Internal {
		t.Fatalf("got %v", err)
	}
}

func TestStreamsBeginInOrder(t *testing.T) {
	client := pluginv1.NewPluginClient(dial(t, source.New("counter", "1.2.3", &counter{})))
	run, err := client.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	_ = run.Send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Credit{Credit: &pluginv1.Credit{}}})
	if _, err := run.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
	run, _ = client.Run(t.Context())
	_ = run.Send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Open{Open: &pluginv1.RunOpen{}}})
	_ = run.Send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Credit{Credit: &pluginv1.Credit{}}})
	if _, err := run.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
	plan, _ := client.Plan(t.Context())
	_ = plan.Send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Stop{}})
	if _, err := plan.Recv(); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("got %v", err)
	}
}

func TestSignalsWaitInBoundedMemory(t *testing.T) {
	m := newMailbox()
	for i := range uint64(1000) {
		m.put(source.Signal{Kind: source.SignalCommitted, Seq: i})
		m.put(source.Signal{Kind: source.SignalCredit, Bytes: 1})
	}
	m.put(source.Signal{Kind: source.SignalStop})
	m.put(source.Signal{Kind: source.SignalDrain})
	m.put(source.Signal{Kind: source.SignalCredit, MaxUncommitted: 7})
	m.close()
	go m.deliver(t.Context())
	var got []source.Signal
	for s := range m.out {
		got = append(got, s)
	}
	want := []source.Signal{
		{Kind: source.SignalCredit, Bytes: 1000, MaxUncommitted: 7}, {Kind: source.SignalCommitted, Seq: 999}, {Kind: source.SignalDrain}, {Kind: source.SignalStop},
	}
	if len(got) != len(want) {
		t.Fatalf("got %+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("got %+v, want %+v", got[i], want[i])
		}
	}
}

// TestSizeIsWhatCreditCounts: both ends count on their own, so they must agree to the byte.
func TestSizeIsWhatCreditCounts(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b source.Builder
		for range rapid.IntRange(0, 5).Draw(t, "records") {
			b.Add(source.RecordView{
				Key: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "key"), Value: rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(t, "value"),
				Partition: rapid.Uint32().Draw(t, "partition"), Topic: rapid.Uint32().Draw(t, "topic"),
				KeySchema: rapid.Uint32().Draw(t, "key schema"), ValueSchema: rapid.Uint32().Draw(t, "value schema"),
				KafkaPartition: rapid.Int32().Draw(t, "kafka partition"), TimestampMS: rapid.Int64().Draw(t, "timestamp"),
			})
			for range rapid.IntRange(0, 2).Draw(t, "headers") {
				b.Header(rapid.String().Draw(t, "name"), rapid.SliceOf(rapid.Byte()).Draw(t, "header"))
			}
		}
		for i := range rapid.IntRange(0, 3).Draw(t, "offsets") {
			b.Reach(rapid.Uint32().Draw(t, "of")+uint32(i), rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "offset"))
		}
		batch := b.Batch(rapid.Uint64().Draw(t, "seq"))
		batch.Continues = rapid.Bool().Draw(t, "continues")
		batch.Boundary = source.Mark(rapid.IntRange(0, 3).Draw(t, "mark"))
		if got, want := batch.Size(), proto.Size(wire.EncodeBatch(batch)); got != want {
			t.Fatalf("Size is %d, the message has %d bytes", got, want)
		}
	})
}
