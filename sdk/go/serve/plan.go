package serve

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// The protocol's limits of a task set and of one task's configuration.
const (
	maxTaskSetBytes    = 16 << 20
	maxTaskConfigBytes = 1 << 20
)

// Plan implements the protocol.
func (s *server) Plan(stream pluginv1.Plugin_PlanServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	open := first.GetOpen()
	if open == nil {
		return status.Error(codes.FailedPrecondition, "protocol: the first message of a Plan stream is PlanOpen")
	}
	ctx, cancel := s.untilEnd(stream.Context())
	defer cancel()
	h := &planHost{stream: stream}
	// It ends with the stream, which ends when this method returns.
	go h.receive(cancel)
	if err := s.plugin.Plan(ctx, wire.DecodePlanOpen(open), h); err != nil && ctx.Err() == nil {
		return h.send(&pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_Error{Error: wire.EncodeError(err)}})
	}
	return nil
}

// planHost implements source.PlanHost over a stream.
type planHost struct {
	stream  grpc.BidiStreamingServer[pluginv1.PlanRequest, pluginv1.PlanResponse]
	lookups lookups

	sending sync.Mutex // gRPC takes one Send at a time

	mu      sync.Mutex
	version uint64
	refused error // of a task set, for the next call of SetTasks
}

// receive takes what the runner sends, until Stop or the end of the stream.
func (h *planHost) receive(stop context.CancelFunc) {
	defer stop()
	for {
		req, err := h.stream.Recv()
		if err != nil {
			return
		}
		switch m := req.GetMessage().(type) {
		case *pluginv1.PlanRequest_LookupAnswer:
			h.lookups.answer(m.LookupAnswer)
		case *pluginv1.PlanRequest_Refused:
			h.mu.Lock()
			h.refused = errors.New(m.Refused.GetReason())
			h.mu.Unlock()
		case *pluginv1.PlanRequest_Stop:
			return
		}
	}
}

func (h *planHost) send(m *pluginv1.PlanResponse) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	return h.stream.Send(m)
}

// SetTasks implements source.PlanHost. A refusal of the set before is the error of this call.
func (h *planHost) SetTasks(ctx context.Context, tasks []source.TaskSpec) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	for i, t := range tasks {
		n := 0
		for k, v := range t.Config {
			n += len(k) + len(v)
		}
		if n > maxTaskConfigBytes {
			return source.Fatalf("the configuration of task %d has %d bytes, the limit is %d", i, n, maxTaskConfigBytes)
		}
	}
	h.mu.Lock()
	err := h.refused
	h.refused = nil
	h.version++
	set := wire.EncodeTasks(h.version, tasks)
	h.mu.Unlock()
	if err != nil {
		return err
	}
	if n := proto.Size(set); n > maxTaskSetBytes {
		return source.Fatalf("the task set has %d bytes, the limit is %d", n, maxTaskSetBytes)
	}
	return h.send(&pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_TaskSet{TaskSet: set}})
}

// Lookup implements source.PlanHost.
func (h *planHost) Lookup(ctx context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	return h.lookups.ask(ctx, partitions, func(l *pluginv1.Lookup) error {
		return h.send(&pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_Lookup{Lookup: l}})
	})
}
