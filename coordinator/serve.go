package coordinator

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

const (
	// maxMessage is the protocols' limit.
	maxMessage = 20 << 20
	// A peer that vanished is noticed by pings. Clients may ping as often as every second, also without a call.
	pingEvery   = 10 * time.Second
	pingTimeout = 5 * time.Second
	pingMinimum = time.Second
	// maxStreams bounds the calls of one connection that are being answered.
	maxStreams = 1000
	// graceful is how long they may take when the coordinator stops.
	graceful = 2 * time.Second
)

// newServer is the gRPC server with all that it serves.
func (c *Coordinator) newServer() *grpc.Server {
	opts := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage), grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingEvery, Timeout: pingTimeout}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingMinimum, PermitWithoutStream: true}),
		grpc.UnaryInterceptor(c.recoverUnary), grpc.StreamInterceptor(c.recoverStream),
	}
	if c.config.TLS != nil {
		opts = append(opts, grpc.Creds(credentials.NewTLS(c.config.TLS)))
	}
	server := grpc.NewServer(opts...)
	controlv1.RegisterControlServer(server, c.control)
	runnerv1.RegisterCoordinatorServer(server, c.sessions)
	healthv1.RegisterHealthServer(server, c.health)
	reflection.Register(server)
	c.healthy(false)
	c.elects(false)
	return server
}

// serve serves gRPC until ctx ends.
func (c *Coordinator) serve(ctx context.Context) error {
	server := c.newServer()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(c.config.Listener); !errors.Is(err, grpc.ErrServerStopped) && err != nil {
			return fmt.Errorf("serve gRPC at %s: %w", c.config.Listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		c.health.Shutdown()
		hard := time.AfterFunc(graceful, server.Stop) // Stop ends a GracefulStop that waits.
		defer hard.Stop()
		server.GracefulStop()
		return nil
	})
	return group.Wait()
}

// electionService is the service under which health checks learn whether this coordinator takes part in the election: it leads, or would at once where the leader goes.
const electionService = "fencepost.coordinator.election"

// elects tells health checks whether this coordinator takes part in the election.
func (c *Coordinator) elects(does bool) { c.setHealth(does, electionService) }

// healthy tells health checks whether this coordinator leads.
func (c *Coordinator) healthy(leads bool) {
	c.setHealth(leads, "", controlv1.Control_ServiceDesc.ServiceName, runnerv1.Coordinator_ServiceDesc.ServiceName)
}

func (c *Coordinator) setHealth(good bool, services ...string) {
	is := healthv1.HealthCheckResponse_NOT_SERVING
	if good {
		is = healthv1.HealthCheckResponse_SERVING
	}
	for _, service := range services {
		c.health.SetServingStatus(service, is)
	}
}

// A bug that panics costs one call, and not every lease.

func (c *Coordinator) recoverUnary(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
	defer func() { err = c.recovered(recover(), info.FullMethod, err) }()
	return handler(ctx, req)
}

func (c *Coordinator) recoverStream(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
	defer func() { err = c.recovered(recover(), info.FullMethod, err) }()
	return handler(srv, stream)
}

func (c *Coordinator) recovered(panicked any, method string, err error) error {
	if panicked == nil {
		return err
	}
	c.log.Error("a call panicked", "method", method, "panic", panicked, "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "the coordinator has a bug: see its log")
}
