// Command rogue is a plugin that misbehaves, for tests. The name of its file says how: rogue-disorder sends batches out of order. It speaks the protocol by itself, since an SDK would refuse to.
package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// records is how many records a rogue sends that does send some.
const records = 100

func main() {
	mode := strings.TrimPrefix(filepath.Base(os.Args[0]), "rogue-")
	if err := run(mode); err != nil {
		fmt.Fprintln(os.Stderr, "rogue:", err)
		os.Exit(1)
	}
}

func run(mode string) error {
	switch mode {
	case "exit":
		fmt.Fprintln(os.Stderr, "the licence has expired")
		os.Exit(3)
	case "silent":
		<-time.After(time.Hour)
	case "banner":
		fmt.Fprintln(os.Stdout, "Welcome to Rogue 1.0!")
	case "immortal":
		signal.Ignore(syscall.SIGTERM, syscall.SIGINT)
	}
	socket := filepath.Join(os.Getenv("PLUGIN_UNIX_SOCKET_DIR"), "rogue-"+mode)
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.MaxSendMsgSize(64<<20), grpc.MaxRecvMsgSize(64<<20))
	pluginv1.RegisterPluginServer(server, &rogue{mode: mode})
	alive := health.NewServer()
	alive.SetServingStatus("plugin", healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(server, alive)
	if mode != "immortal" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is what matters
			os.Exit(0)
		}()
	}
	fmt.Fprintf(os.Stdout, "1|1|unix|%s|grpc\n", socket)
	if mode == "flood" {
		go flood(os.Stdout)
		go flood(os.Stderr)
	}
	return server.Serve(listener)
}

// hang doesn't come back before its caller goes away, and has no answer then: one that still arrived in time would be a good one.
func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// flood writes 20 MB in lines, and a line of 2 MB.
func flood(w io.Writer) {
	line := []byte(strings.Repeat("flood ", 20) + "\n")
	for range 20 << 20 / len(line) {
		_, _ = w.Write(line)
	}
	_, _ = w.Write([]byte(strings.Repeat("x", 2<<20) + "\n"))
}

type rogue struct {
	pluginv1.UnimplementedPluginServer
	mode string
}

func (r *rogue) is(mode string) bool { return r.mode == mode }

// Describe names a type after the mode.
func (r *rogue) Describe(ctx context.Context, _ *pluginv1.DescribeRequest) (*pluginv1.DescribeResponse, error) {
	if r.is("hang-describe") {
		return nil, hang(ctx)
	}
	return &pluginv1.DescribeResponse{
		Name: "rogue-" + r.mode, Version: "1.0.0",
		Types: []*pluginv1.ConnectorType{{Name: "rogue-" + r.mode, Config: []*pluginv1.ConfigKey{
			{Name: "topic", Type: pluginv1.ConfigType_CONFIG_TYPE_STRING, Required: true},
			{Name: "lock", Type: pluginv1.ConfigType_CONFIG_TYPE_STRING},
		}}},
	}, nil
}

// Validate finds everything good.
func (r *rogue) Validate(ctx context.Context, _ *pluginv1.ValidateRequest) (*pluginv1.ValidateResponse, error) {
	if r.is("hang-validate") {
		return nil, hang(ctx)
	}
	return &pluginv1.ValidateResponse{ExactlyOnce: pluginv1.Possible_POSSIBLE_YES}, nil
}

// Plan sends one task, which claims one partition.
func (r *rogue) Plan(stream pluginv1.Plugin_PlanServer) error {
	if r.is("hang-plan") {
		return hang(stream.Context())
	}
	tasks := []*pluginv1.Task{{Claim: claim(`{"src":"a"}`)}}
	if r.is("overlap") {
		tasks = append(tasks, &pluginv1.Task{Claim: claim(`{"src":"a"}`)})
	}
	set := &pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_TaskSet{TaskSet: &pluginv1.TaskSet{Version: 1, Tasks: tasks}}}
	if err := stream.Send(set); err != nil {
		return err
	}
	for {
		req, err := stream.Recv()
		if err != nil || req.GetStop() != nil {
			return err
		}
		if refused := req.GetRefused(); refused != nil {
			return fmt.Errorf("the task set was refused: %s", refused.GetReason())
		}
	}
}

func claim(partition string) *pluginv1.Claim {
	return &pluginv1.Claim{Rule: &pluginv1.Claim_Set{Set: &pluginv1.Claim_PartitionSet{Partitions: [][]byte{[]byte(partition)}}}}
}

// Shutdown ends the process, unless it is immortal.
func (r *rogue) Shutdown(ctx context.Context, _ *pluginv1.ShutdownRequest) (*pluginv1.ShutdownResponse, error) {
	if r.is("immortal") || r.is("hang-shutdown") {
		return nil, hang(ctx)
	}
	time.AfterFunc(100*time.Millisecond, func() { os.Exit(0) })
	return &pluginv1.ShutdownResponse{}, nil
}

// Run sends a hundred records, ten a batch, in its own way.
func (r *rogue) Run(stream pluginv1.Plugin_RunServer) error {
	if r.is("lock") || r.is("lock-silent") {
		return r.runLocked(stream)
	}
	next, _, err := r.open(stream)
	if err != nil {
		return err
	}
	if r.is("immortal") {
		<-time.After(time.Hour)
	}
	if r.is("hang-run") {
		return hang(stream.Context())
	}
	seq := uint64(1)
	for n := next; n < records; n += 10 {
		if err := r.send(stream, r.batch(seq, n)); err != nil {
			return err
		}
		if seq++; r.is("disorder") {
			seq++
		}
	}
	return r.untilStopped(stream)
}

func (r *rogue) untilStopped(stream pluginv1.Plugin_RunServer) error {
	for {
		req, err := stream.Recv()
		if err != nil || req.GetStop() != nil {
			return err
		}
		if req.GetDrain() != nil {
			if err := stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Drained{Drained: &pluginv1.Drained{}}}); err != nil {
				return err
			}
		}
	}
}

// open reads up to the first credit, and declares.
func (r *rogue) open(stream pluginv1.Plugin_RunServer) (next int, open *pluginv1.RunOpen, err error) {
	for {
		req, err := stream.Recv()
		if err != nil {
			return 0, nil, err
		}
		if o := req.GetOpen(); o != nil {
			open = o
		}
		for _, stored := range req.GetStored().GetOffsets() {
			if _, err := fmt.Sscanf(string(stored.GetOffset()), `{"n":%d}`, &next); err != nil {
				return 0, nil, fmt.Errorf("stored offset %s: %w", stored.GetOffset(), err)
			}
			next++
		}
		if req.GetCredit() != nil {
			break
		}
	}
	partition := `{"src":"a"}`
	if r.is("outside") {
		partition = `{"src":"somebody else's"}`
	}
	declare := &pluginv1.Declare{
		Partitions: []*pluginv1.DeclaredPartition{{Number: 1, Partition: []byte(partition)}},
		Topics:     []*pluginv1.DeclaredTopic{{Number: 1, Name: open.GetConfig()["topic"]}},
	}
	if err := stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Declare{Declare: declare}}); err != nil {
		return 0, nil, err
	}
	return next, open, stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Opened{Opened: &pluginv1.Opened{}}})
}

func (r *rogue) send(stream pluginv1.Plugin_RunServer, b *pluginv1.Batch) error {
	return stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{Batch: b}})
}

// batch has ten records, n to n+9.
func (r *rogue) batch(seq uint64, n int) *pluginv1.Batch {
	b := &pluginv1.Batch{Seq: seq, DefaultPartition: 1, DefaultTopic: 1}
	for i := n; i < n+10; i++ {
		value := fmt.Sprintf("v%d", i)
		b.Arena = append(b.Arena, value...)
		b.ValueLen = binary.LittleEndian.AppendUint32(b.ValueLen, uint32(len(value)+1))
		b.Count++
	}
	b.Offsets = []*pluginv1.Reached{{Partition: 1, Offset: fmt.Appendf(nil, `{"n":%d}`, n+9)}}
	if n < records/2 {
		return b // the first half is good everywhere but in disorder
	}
	switch r.mode {
	case "giant":
		b.Arena = append(b.Arena, make([]byte, 40<<20)...)
		b.ValueLen = binary.LittleEndian.AppendUint32(b.ValueLen, 40<<20+1)
		b.Count++
	case "no-offsets":
		b.Offsets = nil
	case "empty-offset":
		b.Offsets[0].Offset = []byte("{}")
	case "short-arena":
		b.Arena = b.Arena[:len(b.Arena)-1]
	case "undeclared":
		b.DefaultPartition = 7
	}
	return b
}
