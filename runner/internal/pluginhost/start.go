package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"time"

	"github.com/hashicorp/go-hclog"
	goplugin "github.com/hashicorp/go-plugin"
	"github.com/hashicorp/go-plugin/runner"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/fencepost-io/fencepost/sdk/go/host"
)

// Spec is a plugin to start.
type Spec struct {
	// Path of the executable.
	Path string
	// SHA256 in hex, where the file must be that one.
	SHA256 string
	// Label is shown in logs and errors: what the process is for. Default: the path.
	Label string
	// MemoryLimitBytes, where not 0, bounds the memory that the process may write to (Linux' RLIMIT_DATA). It holds for the plugin's process and for each process that it
	// starts later, one by one and not for their sum: for that, put the runner into a control group. What happens at the limit is the plugin's: most runtimes end.
	MemoryLimitBytes int64
}

// Start starts a plugin and returns when it answers. Where it doesn't, nothing of it is left. ctx bounds the start, not the process.
//
// The order: open and hash the file → run it, in a group of its own, with its stdin held open → record it on disk → its handshake line → a connection → its health.
func (h *Host) Start(ctx context.Context, spec Spec) (*Process, error) {
	if err := h.enter(); err != nil {
		return nil, err
	}
	defer h.leave()
	p, err := h.start(ctx, spec)
	h.count(err)
	return p, err
}

func (h *Host) start(ctx context.Context, spec Spec) (*Process, error) {
	if spec.Label == "" {
		spec.Label = spec.Path
	}
	// The answer to a missing file needs no process and no folder.
	if err := checkProgram(spec.Path); err != nil {
		return nil, hostFault(err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.StartTimeout)
	defer cancel()
	c, address, err := h.shakeHands(ctx, spec)
	if err != nil {
		return nil, err
	}
	p, err := h.connect(ctx, c, address)
	if err != nil {
		return nil, c.startError(h.cfg.Ladder.Kill, err)
	}
	return p, nil
}

// shakeHands runs the plugin and lets go-plugin negotiate. Of go-plugin's Client only Start is ever called: Client would open streams for its broker and its
// stdio, which plugins in other languages don't have, and Kill waits for ever on a process that was stopped.
func (h *Host) shakeHands(ctx context.Context, spec Spec) (*child, net.Addr, error) {
	var c *child
	giveUp := func() bool { return true }
	client := goplugin.NewClient(&goplugin.ClientConfig{
		HandshakeConfig: goplugin.HandshakeConfig{
			ProtocolVersion: host.ProtocolVersion, MagicCookieKey: host.CookieKey, MagicCookieValue: host.CookieValue,
		},
		Plugins:          goplugin.PluginSet{},
		AllowedProtocols: []goplugin.Protocol{goplugin.ProtocolGRPC},
		RunnerFunc: func(_ hclog.Logger, cmd *exec.Cmd, socketDir string) (runner.Runner, error) {
			c = newChild(h, spec, cmd.Env, socketDir)
			giveUp = context.AfterFunc(ctx, func() { c.abort(c.late(ctx, h.cfg.StartTimeout)) })
			return c, nil
		},
		SkipHostEnv:      true, // else the runner's whole environment would come before ours
		UnixSocketConfig: &goplugin.UnixSocketConfig{TempDir: h.folder.path},
		StartTimeout:     h.cfg.StartTimeout + 5*time.Second, // ours comes first and knows more
		Logger:           hclog.NewNullLogger(),
	})
	address, err := client.Start()
	giveUp()
	if c == nil {
		return nil, nil, hostFault(fmt.Errorf("plugin %q: make its socket folder in %q: %w", spec.Path, h.folder.path, err))
	}
	if err != nil && c.stdin == nil {
		_ = os.RemoveAll(c.socketDir)
		return nil, nil, hostFault(err) // nothing was started, and the error is our own
	}
	if err != nil {
		// Whatever go-plugin says of it, the line that it waited for never came.
		return nil, nil, c.startError(h.cfg.Ladder.Kill, errors.New("it closed its stdout without having written the handshake line"))
	}
	return c, address, nil
}

// late says what is missing where the time for the start ran out.
func (c *child) late(ctx context.Context, within time.Duration) error {
	if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return ctx.Err()
	}
	if err := c.out.silence(within); err != nil {
		return err
	}
	return fmt.Errorf("it didn't start within %s", within)
}

// exitNotice is how long a process that broke off its start may take to end by itself, which says more than what is seen of it from outside.
const exitNotice = 500 * time.Millisecond

// startError makes the error of a start that failed, after the process is gone: from the way it ended by itself, or else from the reason why it was given up.
func (c *child) startError(within time.Duration, err error) error {
	if c.why() == nil && !waitFor(context.Background(), c.gone, exitNotice) {
		c.abort(err)
	}
	if !waitFor(context.Background(), c.gone, within+pipeGrace) {
		return fmt.Errorf("plugin %q: %w, and process %d didn't end within %s of SIGKILL", c.spec.Path, err, c.cmd.Process.Pid, within)
	}
	reason := c.why()
	switch {
	case reason == nil || c.exit.Class != ExitAsked:
		err := fmt.Errorf("plugin %q didn't start: %w", c.spec.Path, c.exit)
		if c.host.ofHost(c.exit) {
			return hostFault(err)
		}
		return err
	case len(c.exit.Stderr) > 0:
		return fmt.Errorf("plugin %q didn't start: %w; %s", c.spec.Path, reason, c.exit.tail())
	}
	return fmt.Errorf("plugin %q didn't start: %w", c.spec.Path, reason)
}

// connect makes the connection and asks for the plugin's health: a handshake may name a port behind which nobody is.
func (h *Host) connect(ctx context.Context, c *child, address net.Addr) (*Process, error) {
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, address.Network(), address.String())
	}
	options := append(host.DialOptions(), grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	conn, err := grpc.NewClient("passthrough:///plugin", options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s %s: %w", address.Network(), address, err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	h.running.Go(func() { // a process that dies needs no more waiting; ends with this function
		select {
		case <-c.gone:
			cancel()
		case <-ctx.Done():
		}
	})
	if err := checkHealth(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("no answer on %s %s: %w", address.Network(), address, err)
	}
	return newProcess(h, c, conn), nil
}

// checkHealth asks whether the plugin serves.
func checkHealth(ctx context.Context, conn *grpc.ClientConn) error {
	res, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{Service: host.HealthService}, grpc.WaitForReady(true))
	switch status.Code(err) {
	case codes.OK:
	case codes.NotFound, codes.Unimplemented:
		return fmt.Errorf("it doesn't report the health of the service %q", host.HealthService)
	default:
		return fmt.Errorf("its health check: %s", status.Convert(err).Message())
	}
	if res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		return fmt.Errorf("it reports its health as %s and not as SERVING", res.GetStatus())
	}
	return nil
}
