package host

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Run is one task, see source.Plugin. Three goroutines: this one receives and never waits for anything else; one sends RunOpen, the stored offsets and then the
// signals; one hands messages to host.Send. All have ended when Run returns. When ctx is done the stream is cancelled at once; SignalStop is the polite way.
//
// Messages wait for host.Send in a queue that credit bounds, so a slow host never keeps a look-up from being answered. host.Send gets everything that came before the
// end of the stream, also where the end is an error.
func (c *Client) Run(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
	opening := wire.EncodeRunOpen(open)
	if err := checkSize("Run", opening); err != nil {
		return err
	}
	streamCtx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, err := c.rpc.Run(streamCtx, grpc.ForceCodecV2(codec{}))
	if err != nil {
		return explain("Run", err)
	}
	r := &run{
		host: host, queue: newQueue(), cancel: cancel, within: c.within,
		out: &sender[pluginv1.RunRequest]{stream: stream, within: c.within.send, cancel: cancel},
	}
	r.lookups = &lookups{lookup: host.Lookup, answer: r.answer, within: c.within.lookup}

	var others sync.WaitGroup
	others.Go(func() { r.tell(streamCtx, opening, wire.EncodeStored(open.Stored)) })
	var refused error
	others.Go(func() { refused = r.deliver(ctx) })

	err = r.receive(streamCtx, stream)
	cancel(nil) // ends tell and the look-ups; deliver goes on to the end of the queue
	r.queue.close()
	others.Wait()
	r.lookups.wait()
	switch {
	case ctx.Err() != nil || errors.Is(err, errRunnerGone):
		return nil
	case refused != nil:
		return refused
	}
	return err
}

// Causes with which run ends its own stream.
var (
	errRefused    = errors.New("the runner takes no more messages")
	errRunnerGone = errors.New("the runner gives no more signals")
)

// run is the state of one Run stream.
type run struct {
	host    source.RunHost
	out     *sender[pluginv1.RunRequest]
	lookups *lookups
	queue   *queue
	cancel  context.CancelCauseFunc
	within  deadlines

	// draining and stopping are set before Drain and Stop are sent.
	draining, stopping atomic.Bool
	// The rest is the receive loop's alone.
	opened, drained bool
	seq             uint64
	// declared counts what the stream has declared.
	declared struct{ partitions, topics, schemas int }
}

// tell sends the start of the stream, then each signal. After Stop the plugin has some time to end the stream.
func (r *run) tell(ctx context.Context, open *pluginv1.RunOpen, stored []*pluginv1.StoredOffsets) {
	// Where a send fails the stream is over, and the receive loop knows why.
	if r.out.send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Open{Open: open}}) != nil {
		return
	}
	for _, s := range stored {
		if r.out.send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_Stored{Stored: s}}) != nil {
			return
		}
	}
	for {
		select {
		case <-ctx.Done():
			return
		case s, ok := <-r.host.Signals():
			if !ok {
				r.cancel(errRunnerGone)
				return
			}
			if !r.signal(s) {
				return
			}
			if s.Kind == source.SignalStop {
				r.awaitEnd(ctx)
				return
			}
		}
	}
}

// signal sends one signal and says whether the stream goes on. What a signal permits is noted before the plugin can know of it.
func (r *run) signal(s source.Signal) bool {
	message, err := wire.EncodeSignal(s)
	if err != nil {
		r.cancel(err)
		return false
	}
	switch s.Kind {
	case source.SignalCredit:
		r.queue.grant(s.Bytes)
	case source.SignalDrain:
		r.draining.Store(true)
	case source.SignalStop:
		r.stopping.Store(true)
	}
	return r.out.send(message) == nil
}

func (r *run) awaitEnd(ctx context.Context) {
	late := time.NewTimer(r.within.afterStop)
	defer late.Stop()
	select {
	case <-ctx.Done():
	case <-late.C:
		r.cancel(source.Retryf("Run: the plugin didn't end its stream within %s of Stop", r.within.afterStop))
	}
}

func (r *run) answer(a *pluginv1.LookupAnswer) error {
	return r.out.send(&pluginv1.RunRequest{Message: &pluginv1.RunRequest_LookupAnswer{LookupAnswer: a}})
}

// deliver hands messages to the host, in order, until the queue is closed and empty.
func (r *run) deliver(ctx context.Context) error {
	for {
		m, ok := r.queue.next(ctx)
		if !ok {
			return nil
		}
		if err := r.host.Send(ctx, m); err != nil {
			r.cancel(errRefused)
			return err
		}
	}
}

// receive takes messages until the stream ends, and returns why it did: nil only after Stop.
func (r *run) receive(ctx context.Context, stream grpc.BidiStreamingClient[pluginv1.RunRequest, pluginv1.RunResponse]) error {
	for {
		res, err := stream.Recv()
		if err != nil {
			return streamEnd(ctx, "Run", err, r.stopping.Load())
		}
		switch m := res.GetMessage().(type) {
		case *pluginv1.RunResponse_Lookup:
			err = r.lookups.ask(ctx, m.Lookup)
		case *pluginv1.RunResponse_Error:
			return wire.DecodeError(m.Error)
		default:
			err = r.take(res)
		}
		if err != nil {
			return err
		}
	}
}

// take checks the order of messages and queues one for the host.
func (r *run) take(res *pluginv1.RunResponse) error {
	m, err := wire.DecodeMessage(res)
	if err != nil {
		return err
	}
	if err := r.check(m); err != nil {
		return err
	}
	if b, ok := m.(*source.Batch); ok {
		return r.queue.putBatch(b)
	}
	return r.queue.put(m, proto.Size(res))
}

// check enforces the order that plugin.proto gives to a Run stream.
func (r *run) check(m source.Message) error {
	switch m := m.(type) {
	case source.Opened:
		if r.opened {
			return source.Fatalf("protocol: the plugin sent Opened twice")
		}
		r.opened = true
	case *source.Batch:
		if r.drained {
			return source.Fatalf("protocol: the plugin sent a Batch after Drained")
		}
		return r.numbered("Batch", m.Seq)
	case *source.Idle:
		return r.numbered("Idle", m.Seq)
	case *source.Dropped:
		return r.numbered("Dropped", m.Seq)
	case *source.Declare:
		return r.count(m)
	case *source.Metrics:
		if len(m.Metrics) > maxMetrics {
			return source.Fatalf("protocol: the plugin sent %d metrics; the limit is %d", len(m.Metrics), maxMetrics)
		}
	case *source.Notice:
		return checkNotice(m)
	case source.Drained:
		if !r.draining.Load() {
			return source.Fatalf("protocol: the plugin sent Drained without having been sent Drain")
		}
		r.drained = true
	}
	return nil
}

// Limits of what one stream may declare.
const (
	maxPartitions = 1_000_000
	maxTopics     = 10_000
	maxSchemas    = 10_000
)

// count bounds what is declared.
func (r *run) count(d *source.Declare) error {
	for _, c := range []struct {
		name         string
		total        *int
		added, limit int
	}{
		{"partitions", &r.declared.partitions, len(d.Partitions), maxPartitions},
		{"topics", &r.declared.topics, len(d.Topics), maxTopics},
		{"schemas", &r.declared.schemas, len(d.Schemas), maxSchemas},
	} {
		if *c.total += c.added; *c.total > c.limit {
			return source.Fatalf("protocol: the plugin declared %d %s on one stream; the limit is %d", *c.total, c.name, c.limit)
		}
	}
	return nil
}

// Limits of messages that are shown to people.
const (
	maxMetrics     = 1_000
	maxNotices     = 20
	maxNoticeBytes = 500
)

func checkNotice(n *source.Notice) error {
	if len(n.Texts) > maxNotices {
		return source.Fatalf("protocol: the plugin sent a Notice of %d texts; the limit is %d", len(n.Texts), maxNotices)
	}
	for _, t := range n.Texts {
		if !printable(t, maxNoticeBytes) {
			return source.Fatalf("protocol: the plugin sent a Notice with control characters or over %d bytes", maxNoticeBytes)
		}
	}
	return nil
}

// numbered checks a message that takes the next sequence number.
func (r *run) numbered(name string, seq uint64) error {
	if !r.opened {
		return source.Fatalf("protocol: the plugin sent %s before Opened", name)
	}
	if seq != r.seq+1 {
		return source.Fatalf("protocol: the plugin sent %s with seq %d where %d comes next", name, seq, r.seq+1)
	}
	r.seq = seq
	return nil
}

// streamEnd says why a stream ended: nil only where it was asked to and did so with status OK.
func streamEnd(ctx context.Context, name string, err error, asked bool) error {
	if cause := context.Cause(ctx); cause != nil {
		return cause // ended from this side, for a reason
	}
	if errors.Is(err, io.EOF) {
		if asked {
			return nil
		}
		return source.Retryf("%s: the plugin ended its stream without having been asked to", name)
	}
	return explain(name, err)
}
