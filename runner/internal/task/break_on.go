//go:build faults

package task

import (
	"context"
	"os"
	"slices"
	"sync"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Rules that are broken on purpose: what a harness can't find broken it doesn't prove whole. FENCEPOST_BREAK names one, for the life of the process. Each is what somebody might write in good faith, put
// around the parts that an attempt is given, so that the code under test stays as it is.
const (
	// breakApart stores offsets with every eighth commit only, and so apart from the records that they cover (I1).
	breakApart = "offsets-apart"
	// breakErrors takes a commit or a record that Kafka refused for done (I1).
	breakErrors = "errors-ignored"
	// breakConfirm doesn't ask whether the lease still holds after the initialisation (I3).
	breakConfirm = "no-confirmation"
	// breakMemory goes on from what it staged last, as it remembers it (I4).
	breakMemory = "from-memory"
	// breakEarly tells the source that a batch is safe as soon as it has been received (I5).
	breakEarly = "acknowledge-early"
)

var ruleToBreak = os.Getenv("FENCEPOST_BREAK")

// breakRule breaks the rule that this process is told to.
func breakRule(cfg *Config) {
	switch ruleToBreak {
	case breakApart, breakErrors:
		newPublisher, topic, rule := cfg.NewPublisher, cfg.OffsetsTopic, ruleToBreak
		cfg.NewPublisher = func() (Publisher, error) {
			p, err := newPublisher()
			switch {
			case err != nil:
				return nil, err
			case rule == breakErrors:
				return careless{p}, nil
			}
			return &apart{Publisher: p, topic: topic}, nil
		}
	case breakConfirm:
		cfg.Coordinator = unconfirmed{cfg.Coordinator}
	case breakMemory:
		openOffsets, connector := cfg.OpenOffsets, cfg.Lease.Connector
		cfg.OpenOffsets = func(ctx context.Context) (Offsets, string, error) {
			o, id, err := openOffsets(ctx)
			if err != nil {
				return nil, "", err
			}
			return &remembered{Offsets: o, connector: connector}, id, nil
		}
	case breakEarly:
		cfg.Plugin = early{cfg.Plugin}
	}
}

// apart leaves most offsets out of their transaction.
type apart struct {
	Publisher
	topic string
	count int
}

func (a *apart) Produce(ctx context.Context, b *source.Batch, topics []string) error {
	if slices.Contains(topics, a.topic) {
		if a.count++; a.count%8 != 0 {
			return nil
		}
	}
	return a.Publisher.Produce(ctx, b, topics)
}

// careless never hears of an error.
type careless struct{ Publisher }

func (c careless) Produce(ctx context.Context, b *source.Batch, topics []string) error {
	_ = c.Publisher.Produce(ctx, b, topics)
	return nil
}

func (c careless) Commit(ctx context.Context) error {
	_ = c.Publisher.Commit(ctx)
	return nil
}

// unconfirmed believes that it still has its lease.
type unconfirmed struct{ Coordinator }

func (unconfirmed) Confirm(context.Context, lease.Lease) error { return nil }

// memory has the offsets that were staged last in this process, by connector and source partition.
var memory sync.Map

// remembered answers from memory where there is one.
type remembered struct {
	Offsets
	connector string
}

func (r *remembered) All() []source.PartitionOffset {
	all := r.Offsets.All()
	for i, o := range all {
		if newer, ok := memory.Load(r.connector + string(o.Partition)); ok {
			all[i].Offset = newer.(source.JSON) //nolint:errcheck,forcetypeassert // it is what is stored below
		}
	}
	return all
}

func (r *remembered) Stage(offsets []source.PartitionOffset) (*source.Batch, []string, error) {
	for _, o := range offsets {
		memory.Store(r.connector+string(o.Partition), slices.Clone(o.Offset))
	}
	return r.Offsets.Stage(offsets)
}

// early is a plugin that hears that its batches are safe as soon as they have been received.
type early struct{ source.Plugin }

func (e early) Run(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
	return e.Plugin.Run(ctx, open, newHasty(ctx, host))
}

type hasty struct {
	source.RunHost
	received chan uint64 // room for one, the newest
	signals  chan source.Signal
}

func newHasty(ctx context.Context, host source.RunHost) *hasty {
	h := &hasty{RunHost: host, received: make(chan uint64, 1), signals: make(chan source.Signal)}
	go h.pump(ctx)
	return h
}

func (h *hasty) Signals() <-chan source.Signal { return h.signals }

func (h *hasty) Send(ctx context.Context, m source.Message) error {
	err := h.RunHost.Send(ctx, m)
	if b, ok := m.(*source.Batch); ok && err == nil {
		select {
		case <-h.received:
		default:
		}
		h.received <- b.Seq
	}
	return err
}

// pump hands on what the runner says, but for what it says of commits.
func (h *hasty) pump(ctx context.Context) {
	defer close(h.signals)
	for {
		var next source.Signal
		select {
		case signal, ok := <-h.RunHost.Signals():
			if !ok {
				return
			}
			if signal.Kind == source.SignalCommitted {
				continue
			}
			next = signal
		case seq := <-h.received:
			next = source.Signal{Kind: source.SignalCommitted, Seq: seq}
		case <-ctx.Done():
			return
		}
		select {
		case h.signals <- next:
		case <-ctx.Done():
			return
		}
	}
}
