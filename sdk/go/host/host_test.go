package host

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// script is a plugin whose calls are functions of a test; a call without one is UNIMPLEMENTED.
type script struct {
	pluginv1.UnimplementedPluginServer
	describe func(context.Context) (*pluginv1.DescribeResponse, error)
	validate func(context.Context) (*pluginv1.ValidateResponse, error)
	plan     func(grpc.BidiStreamingServer[pluginv1.PlanRequest, pluginv1.PlanResponse]) error
	run      func(grpc.BidiStreamingServer[pluginv1.RunRequest, pluginv1.RunResponse]) error
}

func (s *script) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return s.describe(ctx)
}

func (s *script) Validate(ctx context.Context, _ *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	return s.validate(ctx)
}

func (s *script) Plan(stream grpc.BidiStreamingServer[pluginv1.PlanRequest, pluginv1.PlanResponse]) error {
	return s.plan(stream)
}

func (s *script) Run(stream grpc.BidiStreamingServer[pluginv1.RunRequest, pluginv1.RunResponse]) error {
	return s.run(stream)
}

// start serves a script and returns a client of it, with short deadlines.
func start(t *testing.T, s *script) *Client {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	server := grpc.NewServer(grpc.MaxRecvMsgSize(20<<20), grpc.MaxSendMsgSize(100<<20))
	pluginv1.RegisterPluginServer(server, s)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	options := append(DialOptions(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	conn, err := grpc.NewClient("passthrough:///plugin", options...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		server.Stop()
		<-served
	})
	c := New(conn)
	c.within = deadlines{
		describe: time.Second / 4, validate: time.Second / 4, alter: time.Second / 4, shutdown: time.Second / 4,
		firstTasks: time.Second / 2, afterStop: time.Second / 4, send: 2 * time.Second, lookup: time.Second,
	}
	return c
}

// wantError checks kind and text of an error.
func wantError(t *testing.T, err error, kind source.ErrorKind, text string) {
	t.Helper()
	var e *source.Error
	if !errors.As(err, &e) {
		t.Fatalf("got %v (%T), want a *source.Error", err, err)
	}
	if e.Kind != kind || !strings.Contains(e.Error(), text) {
		t.Fatalf("got kind %d %q, want kind %d with %q", e.Kind, e.Error(), kind, text)
	}
}

func good() *pluginv1.DescribeResponse {
	return &pluginv1.DescribeResponse{Name: "seq", Version: "1.4.0", Types: []*pluginv1.ConnectorType{{Name: "seq"}}}
}

func TestDescribeThatHangsEndsByItsDeadline(t *testing.T) {
	c := start(t, &script{describe: func(ctx context.Context) (*pluginv1.DescribeResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}})
	_, err := c.Describe(t.Context())
	wantError(t, err, source.Retriable, "Describe: the plugin gave no answer within 250ms")
}

func TestMessageOverTheLimitIsFatalAndNamesIt(t *testing.T) {
	c := start(t, &script{describe: func(context.Context) (*pluginv1.DescribeResponse, error) {
		d := good()
		d.Types[0].Summary = strings.Repeat("x", 40_000_000)
		return d, nil
	}})
	c.within.describe = 10 * time.Second
	_, err := c.Describe(t.Context())
	wantError(t, err, source.Fatal, "the plugin answered with a message of 40 MB; the limit is 20 MiB")
}

func TestDescriptionIsCheckedAsHostileInput(t *testing.T) {
	text := "x"
	cases := map[string]struct {
		spoil func(*pluginv1.DescribeResponse)
		want  string
	}{
		"name":       {func(d *pluginv1.DescribeResponse) { d.Name = "Seq\x1b[31m" }, `isn't 1 to 64 of [a-z0-9-]`},
		"long name":  {func(d *pluginv1.DescribeResponse) { d.Name = strings.Repeat("a", 1000) }, `…`},
		"version":    {func(d *pluginv1.DescribeResponse) { d.Version = "latest" }, `semantic version`},
		"no type":    {func(d *pluginv1.DescribeResponse) { d.Types = nil }, `no connector type`},
		"type name":  {func(d *pluginv1.DescribeResponse) { d.Types[0].Name = "a b" }, `connector type "a b"`},
		"type twice": {func(d *pluginv1.DescribeResponse) { d.Types = append(d.Types, d.Types[0]) }, `named twice`},
		"summary":    {func(d *pluginv1.DescribeResponse) { d.Types[0].Summary = "a\x1b" }, `summary`},
		"key name":   {func(d *pluginv1.DescribeResponse) { d.Types[0].Config[0].Name = "" }, `configuration key ""`},
		"key twice":  {func(d *pluginv1.DescribeResponse) { d.Types[0].Config[1].Name = "a" }, `named twice`},
		"key type":   {func(d *pluginv1.DescribeResponse) { d.Types[0].Config[0].Type = 77 }, `type 77 isn't known`},
		"key both": {func(d *pluginv1.DescribeResponse) {
			c := d.Types[0].Config[0]
			c.Required, c.DefaultValue = true, &text
		}, `required and has a default`},
		"too many keys": {func(d *pluginv1.DescribeResponse) { d.Types[0].Config = make([]*pluginv1.ConfigKey, 20_000) }, `the limit is 10000`},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			d := good()
			d.Types[0].Config = []*pluginv1.ConfigKey{{Name: "a", Type: 1}, {Name: "b", Type: 1}}
			if err := func() error { tc.spoil(d); return nil }(); err != nil {
				t.Fatal(err)
			}
			c := start(t, &script{describe: func(context.Context) (*pluginv1.DescribeResponse, error) { return d, nil }})
			_, err := c.Describe(t.Context())
			wantError(t, err, source.Fatal, tc.want)
		})
	}
}

func TestStatusesMeanWhatTheProtocolSays(t *testing.T) {
	cases := map[codes.Code]source.ErrorKind{
		codes.InvalidArgument: source.Configuration, codes.FailedPrecondition: source.Configuration,
		codes.Unavailable: source.Retriable, codes.Aborted: source.Retriable, codes.ResourceExhausted: source.Retriable,
		codes.DeadlineExceeded: source.Retriable,
		codes.Internal:         source.Fatal, codes.Unknown: source.Fatal, codes.PermissionDenied: source.Fatal, codes.Unimplemented: source.Fatal,
	}
	for code, kind := range cases {
		t.Run(code.String(), func(t *testing.T) {
			c := start(t, &script{validate: func(context.Context) (*pluginv1.ValidateResponse, error) {
				return nil, status.Error(code, "the table is locked")
			}})
			_, err := c.Validate(t.Context(), &source.ValidateRequest{})
			wantError(t, err, kind, "Validate: the table is locked")
		})
	}
}

func TestAPluginWithoutAlterOffsetsHasNothingToSay(t *testing.T) {
	c := start(t, &script{})
	answer, err := c.AlterOffsets(t.Context(), &source.AlterRequest{})
	if err != nil || answer.Done || answer.Veto != "" {
		t.Fatalf("got %+v, %v", answer, err)
	}
}

func TestRequestOverTheLimitIsRefusedBeforeItIsSent(t *testing.T) {
	c := start(t, &script{})
	_, err := c.Validate(t.Context(), &source.ValidateRequest{Config: map[string]string{"a": strings.Repeat("x", 21<<20)}})
	wantError(t, err, source.Configuration, "the limit is 20971520 (20 MiB)")
}
