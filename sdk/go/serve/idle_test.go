package serve

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// idle is longer than the five minutes that servers of gRPC want between pings, unless they are told otherwise: three pings that come too soon end a connection.
const idle = 12 * time.Minute

// TestAnIdlePluginKeepsItsConnection: a plugin may be quiet for long. The runner's pings, with streams and without, never make the server end the connection with ENHANCE_YOUR_CALM. A server that doesn't permit them does, so that this
// test can fail.
func TestAnIdlePluginKeepsItsConnection(t *testing.T) {
	for _, c := range []struct {
		name   string
		stream bool
		server func() *grpc.Server
		dials  int64
	}{
		{"with a stream", true, func() *grpc.Server { return newServer(quiet{}).grpc }, 1},
		{"without a stream", false, func() *grpc.Server { return newServer(quiet{}).grpc }, 1},
		{"a server that permits no pings", true, func() *grpc.Server {
			s := grpc.NewServer()
			pluginv1.RegisterPluginServer(s, newServer(quiet{}))
			return s
		}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				server, listener := c.server(), bufconn.Listen(1<<20)
				go func() { _ = server.Serve(listener) }()
				defer server.Stop()
				var dials atomic.Int64
				conn, err := grpc.NewClient("passthrough:///plugin", append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
					grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
						dials.Add(1)
						return listener.DialContext(ctx)
					}))...)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				plugin := pluginv1.NewPluginClient(conn)
				ended := make(chan error, 1)
				if c.stream {
					stream, err := plugin.Plan(ctx)
					if err != nil {
						t.Fatal(err)
					}
					if err := stream.Send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Open{Open: &pluginv1.PlanOpen{}}}); err != nil {
						t.Fatal(err)
					}
					go func() {
						_, err := stream.Recv()
						ended <- err
					}()
				} else {
					conn.Connect()
				}
				<-time.After(idle)
				if c.dials == 1 {
					select {
					case err := <-ended:
						t.Errorf("the stream ended: %v", err)
					default:
					}
				} else if err := <-ended; status.Code(err) != codes.Unavailable {
					t.Errorf("the stream ended with %v", err)
				}
				if _, err := plugin.Describe(t.Context(), &pluginv1.DescribeRequest{}); err != nil {
					t.Error(err)
				}
				if n := dials.Load(); n < c.dials || c.dials == 1 && n != 1 {
					t.Errorf("dialled %d times", n)
				}
			})
		})
	}
}

// TestAPluginThatIsStoppedLosesItsStreams: a process that hangs answers no ping. Its streams end within the half minute that the runner's pings take, although nothing is closed and nothing is sent.
func TestAPluginThatIsStoppedLosesItsStreams(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server, listener := newServer(quiet{}).grpc, bufconn.Listen(1<<20)
		go func() { _ = server.Serve(listener) }()
		defer server.Stop()
		var stopped atomic.Bool
		conn, err := grpc.NewClient("passthrough:///plugin", append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
				c, err := listener.DialContext(ctx)
				return &muted{Conn: c, muted: &stopped}, err
			}))...)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		plugin := pluginv1.NewPluginClient(conn)
		stream, err := plugin.Plan(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Open{Open: &pluginv1.PlanOpen{}}}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		stopped.Store(true)
		began := time.Now()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable {
			t.Errorf("the stream ended with %v", err)
		}
		if took := time.Since(began); took > 31*time.Second {
			t.Errorf("it took %s", took)
		}
	})
}

// muted is a connection whose other side may stop: what is written goes nowhere.
type muted struct {
	net.Conn
	muted *atomic.Bool
}

func (m *muted) Write(b []byte) (int, error) {
	if m.muted.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// quiet is a plugin whose plan waits.
type quiet struct{ source.Plugin }

func (quiet) Describe(context.Context) (*source.Description, error) {
	return &source.Description{}, nil
}

func (quiet) Plan(ctx context.Context, _ *source.PlanOpen, _ source.PlanHost) error {
	<-ctx.Done()
	return nil
}
