package pluginhost

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// The test binary is also the plugin: a link to it is run under the name of a misbehaviour, and finds the cookie in its environment.

// pluginMain is the plugin.
func pluginMain(mode string) int {
	switch mode {
	case "banner":
		fmt.Println("Starting up… " + strings.Repeat("x", 1000))
	case "bom":
		fmt.Print("\xef\xbb\xbf1|1|unix|/tmp/x|grpc\n")
	case "emptyline":
		fmt.Println()
	case "nonewline":
		fmt.Print("1|1|unix|/tmp/x|grpc")
	case "silent":
	case "closed":
		_ = os.Stdout.Close()
	case "deadport":
		fmt.Println("1|1|tcp|127.0.0.1:9|grpc")
	case "remote":
		fmt.Println("1|1|tcp|192.0.2.1:80|grpc")
	case "oldcore":
		fmt.Println("2|1|tcp|127.0.0.1:9|grpc")
	case "oldprotocol":
		fmt.Println("1|7|tcp|127.0.0.1:9|grpc")
	case "netrpc":
		fmt.Println("1|1|tcp|127.0.0.1:9|netrpc")
	case "cert":
		fmt.Println("1|1|tcp|127.0.0.1:9|grpc|" + strings.Repeat("A", 60))
	case "exits":
		fmt.Fprintln(os.Stderr, "no licence found")
		return 3
	case "panicline":
		fmt.Fprintln(os.Stderr, `{"@message": 1}`)
		fmt.Fprintln(os.Stderr, `{"@level": {}, "@message": "x", "@timestamp": 7}`)
		return serve()
	case "floods":
		flood()
		return serve()
	case "crlf":
		return serveAs("\r\n", true)
	case "unhealthy":
		return serveAs("\n", false)
	case "grandchild", "escapee", "orphan":
		stubborn = mode == "orphan"
		child := exec.Command("sleep", "1000")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: mode == "escapee"}
		if err := child.Start(); err != nil {
			return 1
		}
		description = fmt.Sprint(child.Process.Pid)
		return serve()
	case "stubborn":
		signal.Ignore(syscall.SIGTERM, syscall.SIGPIPE)
		stubborn = true
		return serve()
	default:
		return serve()
	}
	select {} // until it is killed
}

var (
	// description is what Describe says of the type.
	description = "a test"
	// stubborn plugins end by SIGKILL alone.
	stubborn bool
)

// flood writes far more than anybody would read, with and without line ends, to both streams.
func flood() {
	chunk := strings.Repeat("x", 1<<20)
	for range 10 {
		_, _ = os.Stderr.WriteString(chunk)
	}
	_, _ = os.Stderr.WriteString("\n")
	line := strings.Repeat("y", 99) + "\n"
	lines := strings.Repeat(line, 10_000)
	for range 100 {
		_, _ = os.Stderr.WriteString(lines)
	}
	fmt.Fprintln(os.Stderr, "last \xe2 words")
}

func serve() int { return serveAs("\n", true) }

// serveAs serves until the plugin is told to end.
func serveAs(lineEnd string, healthy bool) int {
	path := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "plugin.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		fmt.Fprintln(os.Stderr, "listen:", err)
		return 1
	}
	server := grpc.NewServer(grpc.MaxRecvMsgSize(20 << 20))
	pluginv1.RegisterPluginServer(server, &fake{})
	if healthy {
		checks := health.NewServer()
		checks.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
		healthpb.RegisterHealthServer(server, checks)
	}
	if !stubborn {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(0)
		}()
	}
	fmt.Printf("1|1|unix|%s|grpc%s", path, lineEnd)
	if filepath.Base(os.Args[0]) == "floods" {
		go func() { // after the handshake, for as long as it lasts
			chunk := []byte(strings.Repeat("z", 1<<20))
			for range 100 {
				_, _ = os.Stdout.Write(chunk)
			}
		}()
	}
	if err := server.Serve(listener); err != nil {
		return 1
	}
	return 0
}

// fake is what the plugin serves. The name of the connector says what Run does.
type fake struct {
	pluginv1.UnimplementedPluginServer
}

func (*fake) Describe(context.Context, *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	return &pluginv1.DescribeResponse{Name: "fake", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: "fake", Summary: description}}}, nil
}

// Validate answers with the environment.
func (*fake) Validate(context.Context, *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	res := &pluginv1.ValidateResponse{}
	for _, v := range os.Environ() {
		res.Problems = append(res.Problems, &pluginv1.Problem{Message: v})
	}
	return res, nil
}

func (*fake) Run(stream grpc.BidiStreamingServer[pluginv1.RunRequest, pluginv1.RunResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	for i := range 30 {
		fmt.Fprintf(os.Stderr, "line %d\n", i)
	}
	if err := stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Opened{Opened: &pluginv1.Opened{}}}); err != nil {
		return err
	}
	switch first.GetOpen().GetConnector() {
	case "exit":
		os.Exit(4)
	case "crash":
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM) // one that Go lets end the process
		select {}
	case "panic":
		fmt.Fprintln(os.Stderr, "panic: index out of range")
		for i := range 30 { // a dump that is longer than what is kept
			fmt.Fprintln(os.Stderr, "goroutine", i)
		}
		os.Exit(2)
	case "killed":
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case "eat":
		var all [][]byte
		for range 4096 {
			piece := make([]byte, 1<<20)
			for i := 0; i < len(piece); i += 4096 {
				piece[i] = 1
			}
			all = append(all, piece)
		}
		fmt.Fprintln(os.Stderr, len(all))
	case "unavailable":
		return status.Error(codes.Unavailable, "the database is away")
	}
	<-stream.Context().Done()
	return nil
}

func (*fake) Shutdown(ctx context.Context, _ *pluginv1.ShutdownRequest) (*pluginv1.ShutdownResponse, error) {
	if stubborn {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	time.AfterFunc(10*time.Millisecond, func() { os.Exit(0) })
	return &pluginv1.ShutdownResponse{}, nil
}
