// Package serve makes a plugin binary of a source.Plugin: a main function is serve.Serve(source.New(…)).
//
// It owns the process: the handshake on stdout, the gRPC server on a private socket, the health service, signals, and the end of the process when its runner is gone. It follows
// proto/fencepost/plugin/v1/plugin.proto to the letter and adds nothing of its own. It never looks into records.
//
// Where to read next: rpc.go for the calls, run.go for the stream of a task.
package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// ListenVariable is the environment variable that makes a plugin serve at an address, HOST:PORT on this host, instead of being started by a runner: under a debugger, for example. A runner, or
// `fencepost dev`, dials it with --plugin-address NAME=HOST:PORT.
const ListenVariable = "FENCEPOST_PLUGIN_LISTEN"

// maxSocketPath is the longest path of a Unix socket that every system takes.
const maxSocketPath = 103

// shutdownWait is how long streams may take to end after Shutdown or SIGTERM; the protocol allows 5 s until the process is gone.
const shutdownWait = 3 * time.Second

// Serve serves p until the runner ends the process. It doesn't return. Where a person has started the binary by hand it says what to do instead, and exits with 1.
//
// What the program prints to os.Stdout from now on goes to its log, as what it prints to os.Stderr does.
func Serve(p source.Plugin) {
	handshake := os.Stdout
	// The first line of stdout is the handshake, and what follows isn't read: a stray print belongs into the log.
	os.Stdout = os.Stderr
	if err := serve(p, handshake); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// Logger returns a logger whose lines keep their level and fields in the runner's log. Plain lines on os.Stderr are logged too.
func Logger() hclog.Logger {
	return hclog.New(&hclog.LoggerOptions{Output: os.Stderr, JSONFormat: true, Level: hclog.Debug})
}

func serve(p source.Plugin, handshake io.Writer) error {
	d, err := p.Describe(context.Background())
	address := os.Getenv(ListenVariable)
	if os.Getenv(wire.CookieKey) != wire.CookieValue && (address == "" || err != nil) {
		return byHand(d, err)
	}
	if err != nil {
		return fmt.Errorf("describe the plugin: %w", err)
	}
	if address != "" {
		return serveAt(p, d, address)
	}
	if versions := os.Getenv("PLUGIN_PROTOCOL_VERSIONS"); !slices.Contains(strings.Split(versions, ","), strconv.Itoa(wire.ProtocolVersion)) {
		return fmt.Errorf("the runner speaks the protocol versions %q, this plugin speaks %d", versions, wire.ProtocolVersion)
	}
	// Ctrl-C in a terminal reaches every process there: the runner decides what it means.
	signal.Ignore(syscall.SIGINT)
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)

	listener, err := listen()
	if err != nil {
		return err
	}
	s := newServer(p)
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(listener) }()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		// The listener stays open: closing it would end serve, and with it the process before its children.
		if a := listener.Addr(); a.Network() == "unix" {
			_ = os.Remove(a.String())
		}
		endGroup()
	}()
	addr := listener.Addr()
	if _, err := fmt.Fprintf(handshake, "1|%d|%s|%s|grpc\n", wire.ProtocolVersion, addr.Network(), addr); err != nil {
		return fmt.Errorf("write the handshake: %w", err)
	}
	select {
	case err := <-failed:
		return fmt.Errorf("serve on %s: %w", addr, err)
	case <-terminate:
	case <-s.shutdown:
	}
	s.stop(shutdownWait)
	return nil
}

// serveAt serves at an address, until SIGINT or SIGTERM: for a debugger, or beside a runner that dials. The connection is in the clear, so the address has to be one of this host's own.
func serveAt(p source.Plugin, d *source.Description, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%s: %q is not HOST:PORT", ListenVariable, address)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("%s: %q is reached from other hosts, and the connection isn't encrypted; use 127.0.0.1", ListenVariable, address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%s: %w", ListenVariable, err)
	}
	interrupted, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	s := newServer(p)
	failed := make(chan error, 1)
	go func() { failed <- s.grpc.Serve(listener) }()
	fmt.Fprintf(os.Stderr, "%s %s serves at %s; attach it with --plugin-address %s=%s\n", d.Name, d.Version, listener.Addr(), d.Name, listener.Addr())
	select {
	case err := <-failed:
		return fmt.Errorf("serve at %s: %w", address, err)
	case <-interrupted.Done():
	case <-s.shutdown:
	}
	s.stop(shutdownWait)
	return nil
}

// listen listens on a socket in the runner's private folder, or, where it names none, on a port of its range.
func listen() (net.Listener, error) {
	if dir := os.Getenv("PLUGIN_UNIX_SOCKET_DIR"); dir != "" {
		path := filepath.Join(dir, fmt.Sprintf("p%d", os.Getpid()))
		if len(path) > maxSocketPath {
			return nil, fmt.Errorf("the path of the socket %s has %d bytes, allowed are %d: the runner needs a shorter socket folder", path, len(path), maxSocketPath)
		}
		l, err := net.Listen("unix", path)
		if err != nil {
			return nil, fmt.Errorf("listen on the socket %s: %w", path, err)
		}
		return l, nil
	}
	from, err := strconv.ParseUint(os.Getenv("PLUGIN_MIN_PORT"), 10, 16)
	to, err2 := strconv.ParseUint(os.Getenv("PLUGIN_MAX_PORT"), 10, 16)
	if err != nil || err2 != nil {
		from, to = 0, 0
	}
	for port := from; port <= to; port++ {
		l, listenErr := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.FormatUint(port, 10)))
		if listenErr == nil {
			return l, nil
		}
		err = listenErr
	}
	return nil, fmt.Errorf("listen on 127.0.0.1, ports %d to %d: %w", from, to, err)
}

// endGroup ends the process and its children: its runner is gone, and nobody else will.
func endGroup() {
	if pid := os.Getpid(); syscall.Getpgrp() == pid {
		_ = syscall.Kill(-pid, syscall.SIGKILL)
	}
	os.Exit(0)
}

// byHand is what a person sees who starts a plugin in a shell.
func byHand(d *source.Description, err error) error {
	if err != nil {
		return fmt.Errorf("this plugin is broken: %w", err)
	}
	var types []string
	for _, t := range d.Types {
		types = append(types, t.Name)
	}
	return errors.New(strings.Join([]string{
		fmt.Sprintf("This is %s %s, a Fencepost plugin with the connector types: %s.", d.Name, d.Version, strings.Join(types, ", ")),
		"A runner starts it; by itself it does nothing. Put it into a folder, and look at what it offers with",
		"",
		"    fencepost plugins --plugin-path FOLDER",
		"",
		"or run it, with a broker in memory, with",
		"",
		"    fencepost dev --plugin-path FOLDER -f CONNECTOR.yaml",
	}, "\n"))
}
