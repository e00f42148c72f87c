package serve

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// windowBytes is the flow-control window of a stream and of the connection. Measured at 1 KiB per record: 4 to 8 MiB give half as much again as the default.
const windowBytes = 8 << 20

// server serves one plugin. It starts the gRPC server's goroutines and nothing else; stop ends them.
type server struct {
	pluginv1.UnimplementedPluginServer
	plugin source.Plugin
	grpc   *grpc.Server

	// ending is done when streams have to end.
	ending context.Context
	end    context.CancelFunc
	// shutdown is closed by the first Shutdown.
	shutdown     chan struct{}
	shutdownOnce sync.Once
}

func newServer(p source.Plugin) *server {
	s := &server{plugin: p, shutdown: make(chan struct{})}
	s.ending, s.end = context.WithCancel(context.Background())
	s.grpc = grpc.NewServer(
		grpc.MaxRecvMsgSize(wire.MaxMessageBytes),
		grpc.MaxSendMsgSize(wire.MaxMessageBytes),
		grpc.InitialWindowSize(windowBytes),
		grpc.InitialConnWindowSize(windowBytes),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}), // A runner pings every 20 s.
		grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (res any, err error) {
			defer recovered(&err)
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer recovered(&err)
			return next(srv, stream)
		}),
	)
	pluginv1.RegisterPluginServer(s.grpc, s)
	h := health.NewServer()
	h.SetServingStatus(wire.HealthService, grpc_health_v1.HealthCheckResponse_SERVING)
	grpc_health_v1.RegisterHealthServer(s.grpc, h)
	return s
}

// stop ends the streams and the server: in good order, and after the wait without it.
func (s *server) stop(wait time.Duration) {
	s.end()
	timer := time.AfterFunc(wait, s.grpc.Stop)
	defer timer.Stop()
	s.grpc.GracefulStop()
}

// recovered turns a panic of a plugin into an error of the call. The stack goes to the log alone.
func recovered(err *error) {
	if v := recover(); v != nil {
		fmt.Fprintf(os.Stderr, "panic in the plugin: %v\n%s", v, debug.Stack())
		*err = status.Errorf(codes.Internal, "the plugin panicked: %v", v)
	}
}

// Describe implements the protocol.
func (s *server) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	d, err := s.plugin.Describe(ctx)
	if err != nil {
		return nil, wire.EncodeStatus(err)
	}
	return wire.EncodeDescription(d), nil
}

// Validate implements the protocol.
func (s *server) Validate(ctx context.Context, req *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	v, err := s.plugin.Validate(ctx, wire.DecodeValidateRequest(req))
	if err != nil {
		return nil, wire.EncodeStatus(err)
	}
	return wire.EncodeValidation(v), nil
}

// AlterOffsets implements the protocol.
func (s *server) AlterOffsets(ctx context.Context, req *pluginv1.AlterOffsetsRequest) (*pluginv1.AlterOffsetsResponse, error) {
	alterer, ok := s.plugin.(source.OffsetAlterer)
	if !ok {
		return nil, status.Error(codes.Unimplemented, "this plugin has nothing to say about offsets")
	}
	answer, err := alterer.AlterOffsets(ctx, wire.DecodeAlterRequest(req))
	if err != nil {
		return nil, wire.EncodeStatus(err)
	}
	return wire.EncodeAlterAnswer(answer), nil
}

// Shutdown implements the protocol: the process ends after the answer.
func (s *server) Shutdown(context.Context, *pluginv1.ShutdownRequest) (*pluginv1.ShutdownResponse, error) {
	s.shutdownOnce.Do(func() { close(s.shutdown) })
	return &pluginv1.ShutdownResponse{}, nil
}

// untilEnd returns a context that is done with ctx, or when the process is asked to end.
func (s *server) untilEnd(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	unlink := context.AfterFunc(s.ending, cancel)
	return ctx, func() {
		unlink()
		cancel()
	}
}
