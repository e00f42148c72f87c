package pluginhost

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencepost-io/fencepost/sdk/go/host"
)

// Dial connects to a plugin that somebody else has started: a sidecar, or one under a debugger. address is HOST:PORT, with or without grpc:// before it. Without tls
// the connection is plain. It returns when the plugin's health check has been answered, within the time for a start; later the connection renews itself.
func (h *Host) Dial(ctx context.Context, address string, tls *tls.Config) (*Process, error) {
	if err := h.enter(); err != nil {
		return nil, err
	}
	defer h.leave()
	target := strings.TrimPrefix(address, "grpc://")
	security := insecure.NewCredentials()
	if tls != nil {
		security = credentials.NewTLS(tls)
	}
	conn, err := grpc.NewClient("dns:///"+target, append(host.DialOptions(), grpc.WithTransportCredentials(security))...)
	if err != nil {
		return nil, fmt.Errorf("plugin at %q: %w", address, err)
	}
	ctx, cancel := context.WithTimeout(ctx, h.cfg.StartTimeout)
	defer cancel()
	if err := checkHealth(ctx, conn); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("plugin at %q: no answer: %w", address, err)
	}
	return &Process{client: host.New(conn), conn: conn, ladder: h.cfg.Ladder, done: make(chan struct{})}, nil
}
