package host

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// maxTaskConfigBytes is the limit of one task's configuration.
const maxTaskConfigBytes = 1 << 20

// Plan is one connector's plan, see source.Plugin. When ctx is done the plugin is sent Stop and has 10 s to end the stream. The first task set must come within 5 minutes.
//
// host.SetTasks is called from a goroutine of its own, one set at a time; a set that arrives meanwhile replaces one that still waits.
func (c *Client) Plan(ctx context.Context, open *source.PlanOpen, host source.PlanHost) error {
	opening := wire.EncodePlanOpen(open)
	if err := checkSize("Plan", opening); err != nil {
		return err
	}
	streamCtx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	stream, err := c.rpc.Plan(streamCtx)
	if err != nil {
		return explain("Plan", err)
	}
	p := &plan{
		host: host, within: c.within, cancel: cancel, waiting: make(chan taskSet, 1),
		out: &sender[pluginv1.PlanRequest]{stream: stream, within: c.within.send, cancel: cancel},
	}
	p.lookups = &lookups{lookup: host.Lookup, answer: p.answer, within: c.within.lookup}

	var others sync.WaitGroup
	others.Go(func() { p.tell(ctx, streamCtx, opening) })
	others.Go(func() { p.setTasks(streamCtx) })
	err = p.receive(streamCtx, stream)
	cancel(nil)
	others.Wait()
	p.lookups.wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// plan is the state of one Plan stream.
type plan struct {
	host    source.PlanHost
	out     *sender[pluginv1.PlanRequest]
	lookups *lookups
	cancel  context.CancelCauseFunc
	within  deadlines
	// waiting holds the newest set that SetTasks hasn't seen: an older one no longer matters.
	waiting chan taskSet
	planned atomic.Bool
	// version is the receive loop's alone.
	version uint64
}

type taskSet struct {
	version uint64
	tasks   []source.TaskSpec
}

// tell opens the stream, watches the time to the first task set, and sends Stop when ctx is done.
func (p *plan) tell(ctx, stream context.Context, open *pluginv1.PlanOpen) {
	if p.out.send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Open{Open: open}}) != nil {
		return // the stream is over, and the receive loop knows why
	}
	late := time.AfterFunc(p.within.firstTasks, func() {
		if !p.planned.Load() {
			p.cancel(source.Retryf("Plan: the plugin sent no task set within %s", p.within.firstTasks))
		}
	})
	defer late.Stop()
	select {
	case <-stream.Done():
		return
	case <-ctx.Done():
	}
	if p.out.send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Stop{Stop: &pluginv1.Stop{Reason: "the plan is no longer needed"}}}) != nil {
		return
	}
	end := time.NewTimer(p.within.afterStop)
	defer end.Stop()
	select {
	case <-stream.Done():
	case <-end.C:
		p.cancel(source.Retryf("Plan: the plugin didn't end its stream within %s of Stop", p.within.afterStop))
	}
}

func (p *plan) answer(a *pluginv1.LookupAnswer) error {
	return p.out.send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_LookupAnswer{LookupAnswer: a}})
}

// setTasks hands task sets to the host and refusals to the plugin.
func (p *plan) setTasks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case set := <-p.waiting:
			err := p.host.SetTasks(ctx, set.tasks)
			if err == nil || ctx.Err() != nil {
				continue
			}
			refused := &pluginv1.TaskSetRefused{Version: set.version, Reason: wire.ValidText(err.Error())}
			if p.out.send(&pluginv1.PlanRequest{Message: &pluginv1.PlanRequest_Refused{Refused: refused}}) != nil {
				return
			}
		}
	}
}

// receive takes messages until the stream ends, and returns why it did.
func (p *plan) receive(ctx context.Context, stream grpc.BidiStreamingClient[pluginv1.PlanRequest, pluginv1.PlanResponse]) error {
	for {
		res, err := stream.Recv()
		if err != nil {
			return streamEnd(ctx, "Plan", err, false)
		}
		switch m := res.GetMessage().(type) {
		case *pluginv1.PlanResponse_TaskSet:
			err = p.take(m.TaskSet)
		case *pluginv1.PlanResponse_Lookup:
			err = p.lookups.ask(ctx, m.Lookup)
		case *pluginv1.PlanResponse_Error:
			return wire.DecodeError(m.Error)
		default:
			err = source.Fatalf("protocol: PlanResponse has none of the messages that this version knows")
		}
		if err != nil {
			return err
		}
	}
}

// take checks a task set and lets it wait for SetTasks.
func (p *plan) take(set *pluginv1.TaskSet) error {
	if set.GetVersion() <= p.version {
		return source.Fatalf("protocol: the plugin sent task set version %d after version %d", set.GetVersion(), p.version)
	}
	for i, t := range set.GetTasks() {
		size := 0
		for k, v := range t.GetConfig() {
			size += len(k) + len(v)
		}
		if size > maxTaskConfigBytes {
			return source.Fatalf("protocol: the configuration of task %d has %d bytes; the limit is %d (1 MiB)", i, size, maxTaskConfigBytes)
		}
	}
	p.version = set.GetVersion()
	p.planned.Store(true)
	next := taskSet{version: p.version, tasks: wire.DecodeTasks(set)}
	select { // only this goroutine puts sets in, so there is room after the older one is out
	case <-p.waiting:
	default:
	}
	p.waiting <- next
	return nil
}
