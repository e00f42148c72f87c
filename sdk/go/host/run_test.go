package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

type runStream = grpc.BidiStreamingServer[pluginv1.RunRequest, pluginv1.RunResponse]

// runner is the RunHost of a test.
type runner struct {
	signals  chan source.Signal
	messages chan source.Message
	send     func(context.Context, source.Message) error
	lookup   func(context.Context, []source.JSON) ([]source.PartitionOffset, error)
}

func newRunner() *runner {
	return &runner{signals: make(chan source.Signal, 16), messages: make(chan source.Message, 1000)}
}

func (r *runner) Send(ctx context.Context, m source.Message) error {
	if r.send != nil {
		return r.send(ctx, m)
	}
	r.messages <- m
	return nil
}

func (r *runner) Lookup(ctx context.Context, p []source.JSON) ([]source.PartitionOffset, error) {
	return r.lookup(ctx, p)
}

func (r *runner) Signals() <-chan source.Signal { return r.signals }

func opened() *pluginv1.RunResponse {
	return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Opened{Opened: &pluginv1.Opened{}}}
}

func batch(seq uint64, arena string) *pluginv1.RunResponse {
	return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{Batch: &pluginv1.Batch{Seq: seq, Arena: []byte(arena)}}}
}

func lookup(id uint64) *pluginv1.RunResponse {
	return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Lookup{Lookup: &pluginv1.Lookup{Id: id, Partitions: [][]byte{[]byte(`{"a":1}`)}}}}
}

// until receives requests up to the first one for which stop is true.
func until(stream runStream, stop func(*pluginv1.RunRequest) bool) (*pluginv1.RunRequest, error) {
	for {
		req, err := stream.Recv()
		if err != nil || stop(req) {
			return req, err
		}
	}
}

func isStop(r *pluginv1.RunRequest) bool   { return r.GetStop() != nil }
func isCredit(r *pluginv1.RunRequest) bool { return r.GetCredit() != nil }

func TestRunSendsOpenThenStoredOffsetsInPiecesThenSignals(t *testing.T) {
	open := &source.RunOpen{Connector: "c", Task: 3, Epoch: 9}
	for i := range 3000 {
		open.Stored = append(open.Stored, source.PartitionOffset{
			Partition: source.JSON(fmt.Sprintf(`{"file":"%d"}`, i)), Offset: bytes.Repeat([]byte("x"), 1000),
		})
	}
	var pieces, offsets int
	c := start(t, &script{run: func(stream runStream) error {
		first, err := stream.Recv()
		if err != nil || first.GetOpen().GetTask() != 3 || first.GetOpen().GetEpoch() != 9 {
			return status.Errorf(codes.Internal, "first message: %v %v", first, err)
		}
		_, err = until(stream, func(r *pluginv1.RunRequest) bool {
			pieces++
			offsets += len(r.GetStored().GetOffsets())
			return r.GetStored().GetLast()
		})
		if err != nil {
			return err
		}
		next, err := stream.Recv()
		if err != nil || next.GetCredit().GetBytes() != 77 {
			return status.Errorf(codes.Internal, "after the offsets: %v %v", next, err)
		}
		_, err = until(stream, isStop)
		return err
	}})
	r := newRunner()
	r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 77}
	r.signals <- source.Signal{Kind: source.SignalCommitted, Seq: 5}
	r.signals <- source.Signal{Kind: source.SignalStop, Reason: "test"}
	if err := c.Run(t.Context(), open, r); err != nil {
		t.Fatal(err)
	}
	if pieces < 3 || offsets != 3000 {
		t.Fatalf("%d offsets in %d pieces", offsets, pieces)
	}
}

func TestEverythingBeforeAnErrorIsDelivered(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		if _, err := until(stream, isCredit); err != nil {
			return err
		}
		for _, m := range []*pluginv1.RunResponse{opened(), batch(1, "a"), batch(2, "b"), {Message: &pluginv1.RunResponse_Error{Error: &pluginv1.Error{
			Kind: pluginv1.ErrorKind_ERROR_KIND_CONFIGURATION, Message: "no such file", Key: "path", Hint: "check it",
		}}}} {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		<-stream.Context().Done()
		return nil
	}})
	r := newRunner()
	r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 1 << 20}
	err := c.Run(t.Context(), &source.RunOpen{}, r)
	wantError(t, err, source.Configuration, "path: no such file (check it)")
	if n := len(r.messages); n != 3 {
		t.Fatalf("%d messages delivered, want 3", n)
	}
}

func TestBatchPointsIntoTheMessageAndCountsItsBytes(t *testing.T) {
	sent := batch(1, "hello").GetBatch()
	c := start(t, &script{run: func(stream runStream) error {
		if _, err := until(stream, isCredit); err != nil {
			return err
		}
		_ = stream.Send(opened())
		_ = stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{Batch: sent}})
		_, err := until(stream, isStop)
		return err
	}})
	r := newRunner()
	var got *source.Batch
	r.send = func(_ context.Context, m source.Message) error {
		if b, ok := m.(*source.Batch); ok {
			got = b
			r.signals <- source.Signal{Kind: source.SignalStop}
		}
		return nil
	}
	r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 10}
	if err := c.Run(t.Context(), &source.RunOpen{}, r); err != nil {
		t.Fatal(err)
	}
	if string(got.Arena) != "hello" || got.WireBytes != 9 {
		t.Fatalf("got %+v", got)
	}
}

// TestForbiddenMessagesAreFatalAndNameTheRule sends each sequence after the first credit of 10 bytes.
func TestForbiddenMessagesAreFatalAndNameTheRule(t *testing.T) {
	idle := func(seq uint64) *pluginv1.RunResponse {
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Idle{Idle: &pluginv1.Idle{Seq: seq}}}
	}
	drained := &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Drained{Drained: &pluginv1.Drained{}}}
	many := &pluginv1.Lookup{Partitions: make([][]byte, 10_001)}
	deep := &pluginv1.Schema{}
	for range 200 {
		deep = &pluginv1.Schema{Type: pluginv1.Schema_TYPE_ARRAY, Value: deep}
	}
	notice := &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Notice{Notice: &pluginv1.Notice{Texts: make([]string, 21)}}}
	metrics := &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Metrics{Metrics: &pluginv1.Metrics{Metrics: make([]*pluginv1.Metric, 1001)}}}
	for i := range metrics.GetMetrics().GetMetrics() {
		metrics.GetMetrics().GetMetrics()[i] = &pluginv1.Metric{}
	}
	topics := &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Declare{Declare: &pluginv1.Declare{}}}
	for i := range 6000 {
		d := topics.GetDeclare()
		d.Topics = append(d.Topics, &pluginv1.DeclaredTopic{Number: uint32(i + 1), Name: "t"})
	}
	cases := map[string]struct {
		send []*pluginv1.RunResponse
		want string
	}{
		"batch before opened": {[]*pluginv1.RunResponse{batch(1, "a")}, "Batch before Opened"},
		"idle before opened":  {[]*pluginv1.RunResponse{idle(1)}, "Idle before Opened"},
		"opened twice":        {[]*pluginv1.RunResponse{opened(), opened()}, "Opened twice"},
		"unknown message":     {[]*pluginv1.RunResponse{{}}, "none of the messages that this version knows"},
		"sequence gap":        {[]*pluginv1.RunResponse{opened(), idle(2)}, "seq 2 where 1 comes next"},
		"sequence repeated":   {[]*pluginv1.RunResponse{opened(), idle(1), batch(1, "a")}, "seq 1 where 2 comes next"},
		"no credit left":      {[]*pluginv1.RunResponse{opened(), batch(1, "0123456789"), batch(2, "a")}, "without credit"},
		"drained unasked":     {[]*pluginv1.RunResponse{opened(), drained}, "without having been sent Drain"},
		"too many look-ups":   {[]*pluginv1.RunResponse{{Message: &pluginv1.RunResponse_Lookup{Lookup: many}}}, "the limit is 10000"},
		"too many topics":     {[]*pluginv1.RunResponse{topics, topics}, "declared 12000 topics on one stream; the limit is 10000"},
		"too many notices":    {[]*pluginv1.RunResponse{notice}, "Notice of 21 texts"},
		"too many metrics":    {[]*pluginv1.RunResponse{metrics}, "the limit is 1000"},
		"schema too deep":     {[]*pluginv1.RunResponse{{Message: &pluginv1.RunResponse_Declare{Declare: &pluginv1.Declare{Schemas: []*pluginv1.DeclaredSchema{{Number: 16, Schema: deep}}}}}}, "nested deeper"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := start(t, &script{run: func(stream runStream) error {
				if _, err := until(stream, isCredit); err != nil {
					return err
				}
				for _, m := range tc.send {
					if err := stream.Send(m); err != nil {
						return err
					}
				}
				<-stream.Context().Done()
				return nil
			}})
			r := newRunner()
			r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 10}
			wantError(t, c.Run(t.Context(), &source.RunOpen{}, r), source.Fatal, tc.want)
		})
	}
}

func TestBatchAfterDrainedIsFatal(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		if _, err := until(stream, func(r *pluginv1.RunRequest) bool { return r.GetDrain() != nil }); err != nil {
			return err
		}
		_ = stream.Send(opened())
		_ = stream.Send(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Drained{Drained: &pluginv1.Drained{}}})
		_ = stream.Send(batch(1, "a"))
		<-stream.Context().Done()
		return nil
	}})
	r := newRunner()
	r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 10}
	r.signals <- source.Signal{Kind: source.SignalDrain, Within: time.Second}
	wantError(t, c.Run(t.Context(), &source.RunOpen{}, r), source.Fatal, "Batch after Drained")
}

// TestLookupIsAnsweredWhileTheHostIsSlow: a plugin may wait for an answer before it frees what the host waits for.
func TestLookupIsAnsweredWhileTheHostIsSlow(t *testing.T) {
	release := make(chan struct{})
	c := start(t, &script{run: func(stream runStream) error {
		if _, err := until(stream, isCredit); err != nil {
			return err
		}
		for _, m := range []*pluginv1.RunResponse{opened(), batch(1, "a"), batch(2, "b"), lookup(7)} {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		answer, err := until(stream, func(r *pluginv1.RunRequest) bool { return r.GetLookupAnswer() != nil })
		if err != nil || answer.GetLookupAnswer().GetId() != 7 || string(answer.GetLookupAnswer().GetOffsets()[0].GetOffset()) != `{"n":1}` {
			return status.Errorf(codes.Internal, "answer: %v %v", answer, err)
		}
		close(release)
		_, err = until(stream, isStop)
		return err
	}})
	r := newRunner()
	r.lookup = func(_ context.Context, p []source.JSON) ([]source.PartitionOffset, error) {
		return []source.PartitionOffset{{Partition: p[0], Offset: source.JSON(`{"n":1}`)}}, nil
	}
	r.send = func(_ context.Context, m source.Message) error {
		<-release
		if b, ok := m.(*source.Batch); ok && b.Seq == 2 {
			r.signals <- source.Signal{Kind: source.SignalStop}
		}
		return nil
	}
	r.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 1000}
	if err := c.Run(t.Context(), &source.RunOpen{}, r); err != nil {
		t.Fatal(err)
	}
}

func TestFailedLookupIsAnAnswer(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		_ = stream.Send(lookup(1))
		answer, err := until(stream, func(r *pluginv1.RunRequest) bool { return r.GetLookupAnswer() != nil })
		if err != nil || answer.GetLookupAnswer().GetError() != "offsets are gone" {
			return status.Errorf(codes.Internal, "answer: %v %v", answer, err)
		}
		_, err = until(stream, isStop)
		return err
	}})
	r := newRunner()
	r.lookup = func(context.Context, []source.JSON) ([]source.PartitionOffset, error) {
		r.signals <- source.Signal{Kind: source.SignalStop}
		return nil, errors.New("offsets are gone")
	}
	if err := c.Run(t.Context(), &source.RunOpen{}, r); err != nil {
		t.Fatal(err)
	}
}

func TestLookupsWithoutAnEndAreFatal(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		for i := uint64(1); ; i++ {
			if err := stream.Send(lookup(i)); err != nil {
				return err
			}
		}
	}})
	r := newRunner()
	r.lookup = func(ctx context.Context, _ []source.JSON) ([]source.PartitionOffset, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	wantError(t, c.Run(t.Context(), &source.RunOpen{}, r), source.Fatal, "more than 256 look-ups")
}

func TestErrorOfTheHostEndsTheRun(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		_ = stream.Send(opened())
		<-stream.Context().Done()
		return nil
	}})
	r := newRunner()
	refused := errors.New("outside the claim")
	r.send = func(context.Context, source.Message) error { return refused }
	if err := c.Run(t.Context(), &source.RunOpen{}, r); !errors.Is(err, refused) {
		t.Fatalf("got %v", err)
	}
}

func TestPluginThatIgnoresStopIsCutOff(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		<-stream.Context().Done()
		return nil
	}})
	r := newRunner()
	r.signals <- source.Signal{Kind: source.SignalStop}
	wantError(t, c.Run(t.Context(), &source.RunOpen{}, r), source.Retriable, "didn't end its stream within 250ms of Stop")
}

func TestPluginThatDoesNotReadIsCutOff(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		<-stream.Context().Done()
		return nil
	}})
	c.within.send = 200 * time.Millisecond
	open := &source.RunOpen{}
	for range 20_000 {
		open.Stored = append(open.Stored, source.PartitionOffset{Partition: source.JSON("{}"), Offset: bytes.Repeat([]byte("x"), 1000)})
	}
	wantError(t, c.Run(t.Context(), open, newRunner()), source.Retriable, "hasn't read what was sent to it for 200ms")
}

func TestStreamThatEndsUnaskedIsRetriable(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error { return nil }})
	wantError(t, c.Run(t.Context(), &source.RunOpen{}, newRunner()), source.Retriable, "without having been asked")
}

func TestRunEndsWithItsContextOrItsSignals(t *testing.T) {
	c := start(t, &script{run: func(stream runStream) error {
		_ = stream.Send(opened())
		<-stream.Context().Done()
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	r := newRunner()
	r.send = func(context.Context, source.Message) error { cancel(); return nil }
	if err := c.Run(ctx, &source.RunOpen{}, r); err != nil {
		t.Fatal(err)
	}
	r = newRunner()
	close(r.signals)
	if err := c.Run(t.Context(), &source.RunOpen{}, r); err != nil {
		t.Fatal(err)
	}
}
