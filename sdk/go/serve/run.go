package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Run implements the protocol. Three goroutines: this one is the plugin's Run; receive takes what the runner sends and never waits for anything else; deliver hands signals on.
func (s *server) Run(stream pluginv1.Plugin_RunServer) error {
	open, err := receiveOpen(stream)
	if err != nil {
		return err
	}
	ctx, cancel := s.untilEnd(stream.Context())
	defer cancel()
	h := &runHost{stream: stream, mail: newMailbox()}
	// It ends with the stream, which ends when this method returns.
	go h.receive()
	delivered := make(chan struct{})
	go func() {
		defer close(delivered)
		h.mail.deliver(ctx)
	}()
	err = s.plugin.Run(ctx, open, h)
	ended := ctx.Err() != nil
	cancel()
	<-delivered
	if err != nil && !ended {
		return h.send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Error{Error: wire.EncodeError(err)}})
	}
	return nil
}

// receiveOpen reads the start of the stream, up to the last stored offsets.
func receiveOpen(stream pluginv1.Plugin_RunServer) (*source.RunOpen, error) {
	first, err := stream.Recv()
	if err != nil {
		return nil, err
	}
	if first.GetOpen() == nil {
		return nil, status.Error(codes.FailedPrecondition, "protocol: the first message of a Run stream is RunOpen")
	}
	open := wire.DecodeRunOpen(first.GetOpen())
	for {
		req, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		stored := req.GetStored()
		if stored == nil {
			return nil, status.Error(codes.FailedPrecondition, "protocol: StoredOffsets follow RunOpen, until one of them is the last")
		}
		open.Stored = append(open.Stored, wire.DecodeOffsets(stored.GetOffsets())...)
		if stored.GetLast() {
			return open, nil
		}
	}
}

// runHost implements source.RunHost over a stream.
type runHost struct {
	stream  grpc.BidiStreamingServer[pluginv1.RunRequest, pluginv1.RunResponse]
	mail    *mailbox
	lookups lookups
	sending sync.Mutex // gRPC takes one Send at a time, and look-ups come from any goroutine
}

// receive takes what the runner sends, until the end of the stream.
func (h *runHost) receive() {
	defer h.mail.close()
	for {
		req, err := h.stream.Recv()
		if err != nil {
			return
		}
		if a := req.GetLookupAnswer(); a != nil {
			h.lookups.answer(a)
		} else if s, ok := wire.DecodeSignal(req); ok {
			h.mail.put(s)
		}
	}
}

func (h *runHost) send(m *pluginv1.RunResponse) error {
	h.sending.Lock()
	defer h.sending.Unlock()
	return h.stream.Send(m)
}

// Send implements source.RunHost.
func (h *runHost) Send(ctx context.Context, m source.Message) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	encoded, err := wire.EncodeMessage(m)
	if err != nil {
		return err
	}
	return h.send(encoded)
}

// Copies implements source.Copier: the codec has made bytes of a message when Send returns. (gRPC's warning not to change a message after that is for stats handlers, and this server has none.)
func (*runHost) Copies() {}

// Lookup implements source.RunHost.
func (h *runHost) Lookup(ctx context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	return h.lookups.ask(ctx, partitions, func(l *pluginv1.Lookup) error {
		return h.send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Lookup{Lookup: l}})
	})
}

// Signals implements source.RunHost.
func (h *runHost) Signals() <-chan source.Signal { return h.mail.out }
