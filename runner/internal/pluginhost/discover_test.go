package pluginhost

import (
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

func TestDiscoverNamesWhatWorksAndWhatDoesNot(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"good", "banner", "exits"} {
		copyTo(t, filepath.Join(dir, name))
	}
	for name, mode := range map[string]os.FileMode{"README.md": 0o600, "norun": 0o600, "plugin.yaml": 0o600, ".hidden": 0o700} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	h := newHost(t, func(c *Config) { c.StartTimeout = 3 * time.Second })
	single := plugin(t, "good")
	found, broken := h.Discover(t.Context(), []string{dir, single, "/no/such/plugin", filepath.Join(dir, "README.md")})
	if len(found) != 2 || found[0].Path != filepath.Join(dir, "good") || found[1].Path != single || found[0].Name != "fake" || len(found[0].SHA256) != 64 {
		t.Errorf("found %+v", found)
	}
	reasons := map[string]string{}
	for _, b := range broken {
		reasons[filepath.Base(b.Path)] = b.Reason
	}
	for name, want := range map[string]string{
		"banner": "first line on stdout", "exits": "no licence found", "norun": "has no run bit: chmod +x", "plugin": "not found", "README.md": "has no run bit",
	} {
		if !strings.Contains(reasons[name], want) {
			t.Errorf("%s: got %q, want %q", name, reasons[name], want)
		}
	}
	if len(broken) != 5 {
		t.Errorf("broken: %v", reasons)
	}
}

func TestDialledPluginIsLetGoAndNotEnded(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	pluginv1.RegisterPluginServer(server, &fake{})
	checks := health.NewServer()
	checks.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, checks)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { server.Stop(); <-served }()

	h := newHost(t, func(c *Config) { c.StartTimeout = time.Second })
	for range 2 {
		p, err := h.Dial(t.Context(), "grpc://"+listener.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if d, err := p.Plugin().Describe(t.Context()); err != nil || d.Name != "fake" {
			t.Fatalf("got %v, %v", d, err)
		}
		if err := p.Stop(t.Context()); err != nil || p.PID() != 0 {
			t.Fatal(err)
		}
		<-p.Done()
	}
	if _, err := h.Dial(t.Context(), listener.Addr().String(), &tls.Config{MinVersion: tls.VersionTLS12}); err == nil || !strings.Contains(err.Error(), "tls") {
		t.Errorf("TLS to a plain port: %v", err)
	}
	if _, err := h.Dial(t.Context(), "127.0.0.1:9", nil); err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("got %v", err)
	}
}
