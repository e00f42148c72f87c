// Package host is the runner's side of the plugin protocol: a source.Plugin whose methods are calls to a plugin process.
//
// It owns the deadlines of calls and the order of messages on streams, and takes every plugin to be hostile: what breaks a rule of plugin.proto is a Fatal error
// that names the rule, what hangs ends by a deadline, and everything that waits is bounded (I10). It never starts or stops a process (see
// runner/internal/pluginhost), never stores an offset, and doesn't look into batches (see source.Batch.Check).
//
// Where to read next: run.go, the records' way; plan.go; then sdk/go/serve, the other side.
package host

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Names and numbers that whoever starts a plugin process needs, see plugin.proto.
const (
	// CookieKey and CookieValue tell a plugin that a runner has started it, and not a person.
	CookieKey   = wire.CookieKey
	CookieValue = wire.CookieValue
	// ProtocolVersion is the version of the protocol in the handshake.
	ProtocolVersion = wire.ProtocolVersion
	// HealthService is the service name that a plugin reports as SERVING.
	HealthService = wire.HealthService
)

// DialOptions are the options that a connection to a plugin needs: message limits, flow-control windows and keepalive. The caller adds credentials and, where it needs one, a dialer.
//
// Windows of 8 MiB instead of 64 KiB raised the throughput of a stream of 1,000-record batches by almost a half. Keepalive finds a plugin that was stopped or cut off
// within 30 s; permitted without streams, since a plan can be quiet for days.
func DialOptions() []grpc.DialOption {
	const window = 8 << 20
	return []grpc.DialOption{
		grpc.WithDefaultCallOptions(
			grpc.MaxCallRecvMsgSize(wire.MaxMessageBytes),
			grpc.MaxCallSendMsgSize(wire.MaxMessageBytes),
		),
		grpc.WithInitialWindowSize(window),
		grpc.WithInitialConnWindowSize(window),
		grpc.WithMaxHeaderListSize(256 << 10),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
		grpc.WithIdleTimeout(0), // a quiet plugin is watched too
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithNoProxy(),
	}
}

// deadlines bound everything that a plugin could hang in. Opening a source is not among them: a snapshot may take minutes.
type deadlines struct {
	describe, validate, alter, shutdown time.Duration
	// firstTasks is how long a plan may take to its first task set.
	firstTasks time.Duration
	// afterStop is how long a stream may stay open after Stop.
	afterStop time.Duration
	// send is how long the plugin may take to make room for one message to it.
	send time.Duration
	// lookup is how long the runner may take to answer a Lookup.
	lookup time.Duration
}

var defaultDeadlines = deadlines{
	describe: 10 * time.Second, validate: 30 * time.Second, alter: 60 * time.Second, shutdown: 5 * time.Second,
	firstTasks: 5 * time.Minute, afterStop: 10 * time.Second, send: 30 * time.Second, lookup: 60 * time.Second,
}

// Client is a plugin behind a connection. It implements source.Plugin and source.OffsetAlterer; all its errors are *source.Error.
type Client struct {
	rpc    pluginv1.PluginClient
	within deadlines
}

var (
	_ source.Plugin        = (*Client)(nil)
	_ source.OffsetAlterer = (*Client)(nil)
)

// New makes a Client of a connection that was made with DialOptions. The connection stays the caller's to close.
func New(conn grpc.ClientConnInterface) *Client {
	return &Client{rpc: pluginv1.NewPluginClient(conn), within: defaultDeadlines}
}

// Describe asks what the plugin is, and checks the answer: names, sizes, doubles. Deadline: 10 s.
func (c *Client) Describe(ctx context.Context) (*source.Description, error) {
	res, err := call(ctx, "Describe", c.within.describe, c.rpc.Describe, &pluginv1.DescribeRequest{})
	if err != nil {
		return nil, err
	}
	d := wire.DecodeDescription(res)
	if err := checkDescription(d); err != nil {
		return nil, source.Fatalf("Describe: %w", err)
	}
	return d, nil
}

// Validate asks for the problems of a configuration. Deadline: 30 s.
func (c *Client) Validate(ctx context.Context, req *source.ValidateRequest) (*source.Validation, error) {
	res, err := call(ctx, "Validate", c.within.validate, c.rpc.Validate, wire.EncodeValidateRequest(req))
	if err != nil {
		return nil, err
	}
	if n := len(res.GetProblems()); n > maxProblems {
		return nil, source.Fatalf("Validate: the plugin answered with %d problems; the limit is %d", n, maxProblems)
	}
	return wire.DecodeValidation(res), nil
}

// AlterOffsets asks about new offsets of a stopped connector. A plugin without this ability has nothing to say. Deadline: 60 s.
func (c *Client) AlterOffsets(ctx context.Context, req *source.AlterRequest) (*source.AlterAnswer, error) {
	res, err := call(ctx, "AlterOffsets", c.within.alter, c.rpc.AlterOffsets, wire.EncodeAlterRequest(req))
	if errors.Is(err, wire.ErrUnimplemented) {
		return &source.AlterAnswer{}, nil
	}
	if err != nil {
		return nil, err
	}
	return wire.DecodeAlterAnswer(res), nil
}

// Shutdown asks the process to end. It returns when the plugin has answered, which is before it has ended. Deadline: 5 s.
func (c *Client) Shutdown(ctx context.Context) error {
	_, err := call(ctx, "Shutdown", c.within.shutdown, c.rpc.Shutdown, &pluginv1.ShutdownRequest{})
	return err
}

// call makes one unary call with a deadline.
func call[Req proto.Message, Res any](ctx context.Context, name string, within time.Duration,
	rpc func(context.Context, Req, ...grpc.CallOption) (Res, error), req Req,
) (Res, error) {
	var none Res
	if err := checkSize(name, req); err != nil {
		return none, err
	}
	callCtx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	res, err := rpc(callCtx, req)
	switch {
	case err == nil:
		return res, nil
	case ctx.Err() == nil && outOfTime(callCtx, err):
		return none, &source.Error{
			Kind: source.Retriable, Message: fmt.Sprintf("%s: the plugin gave no answer within %s", name, within), Err: context.DeadlineExceeded,
		}
	}
	return none, explain(name, err)
}

// outOfTime says whether a call failed because its time was up. The plugin's side knows the deadline too, and may give up, with CANCELLED, a moment before this one.
func outOfTime(ctx context.Context, err error) bool {
	deadline, _ := ctx.Deadline()
	code := status.Code(err)
	return ctx.Err() != nil || (code == codes.Canceled || code == codes.DeadlineExceeded) && time.Until(deadline) < 50*time.Millisecond
}

// checkSize refuses what the plugin couldn't receive, naming the limit.
func checkSize(name string, m proto.Message) error {
	if size := proto.Size(m); size > wire.MaxMessageBytes {
		return &source.Error{Kind: source.Configuration, Message: fmt.Sprintf(
			"%s: the message to the plugin would have %d bytes; the limit is %d (20 MiB)", name, size, wire.MaxMessageBytes)}
	}
	return nil
}

// explain turns the error of a call or a stream into what plugin.proto says it means.
func explain(name string, err error) error {
	decoded := wire.DecodeStatus(err)
	var e *source.Error
	if !errors.As(decoded, &e) {
		return decoded
	}
	// gRPC has one code for "over the limit here" and "over a limit there"; its text is the only difference, and a test pins it.
	var got, limit int64
	if n, _ := fmt.Sscanf(e.Message, "grpc: received message larger than max (%d vs. %d)", &got, &limit); n == 2 {
		e.Kind = source.Fatal
		e.Message = fmt.Sprintf("the plugin answered with a message of %d MB; the limit is %d MiB", (got+500_000)/1_000_000, limit>>20)
	}
	e.Message = name + ": " + e.Message
	return e
}
