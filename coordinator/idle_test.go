package coordinator

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"
)

// TestIdleClientsKeepTheirConnection: runners and tools may be quiet for long, longer than the five minutes that servers of gRPC want between pings unless they are told otherwise. However often a client pings (gRPC for Go does at most every
// ten seconds, whatever it is told), with streams and without, the server never ends the connection with ENHANCE_YOUR_CALM. The other sides of this hop: session.TestAnIdleSessionKeepsItsConnection; commands make calls that end.
func TestIdleClientsKeepTheirConnection(t *testing.T) {
	for name, streams := range map[string]bool{"with a stream": true, "without a stream": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				listener := bufconn.Listen(1 << 20)
				c, err := New(Config{Bootstrap: "127.0.0.1:1", Listener: listener, Advertise: "here:1"})
				if err != nil {
					t.Fatal(err)
				}
				defer c.client.Close() // as Run does
				server := c.newServer()
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
				var dials atomic.Int64
				conn, err := grpc.NewClient("passthrough:///c", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithIdleTimeout(0),
					grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: time.Second, Timeout: 10 * time.Second, PermitWithoutStream: true}),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						dials.Add(1)
						return listener.DialContext(ctx)
					}))
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				health := healthv1.NewHealthClient(conn)
				ended := make(chan error, 1)
				conn.Connect()
				if streams {
					stream, err := health.Watch(ctx, &healthv1.HealthCheckRequest{})
					if err == nil {
						_, err = stream.Recv()
					}
					if err != nil {
						t.Fatal(err)
					}
					go func() {
						_, err := stream.Recv() // Nothing changes.
						ended <- err
					}()
				}
				<-time.After(12 * time.Minute)
				select {
				case err := <-ended:
					t.Errorf("the stream ended: %v", err)
				default:
				}
				if _, err := health.Check(ctx, &healthv1.HealthCheckRequest{}); err != nil || dials.Load() != 1 {
					t.Errorf("dialled %d times; %v", dials.Load(), err)
				}
			})
		})
	}
}
