// Package task is the data path of one task: from a plugin's batches to committed transactions in Kafka.
//
// Run is one attempt: one producer, one reading of the stored offsets, one Run stream of the plugin. Whatever goes wrong ends it, and the supervisor begins the next one, through the whole order of a
// start; nothing is carried over in memory (I4). The stages overlap, and each is one goroutine:
//
//	plugin ──Send──▶ inlet ──▶ preparer ──▶ writer ──▶ Kafka
//	   ▲              check     claim,       begin, produce,
//	   └── signals ◀──────────  convert ───  offsets, commit
//
// Invariants enforced here: I1 (a record and its offset in one transaction, offsets last), I3 (the order of a start), I4, I5 (the plugin hears of a position after its commit), I8 (partitions inside
// the claim, unknown ones claimed before they are written), I10 (every queue, wait and size has a limit, see config.go).
//
// It never decides what an error of Kafka means (runner/internal/publish does), never retries an attempt (runner/internal/supervisor does), and never stores anything but through the publisher.
//
// Where to read next: this file from top to bottom, writer.go and commit.go for a transaction's life, boundary.go for when it ends, inlet.go and check.go for what a plugin may send.
package task

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Run is one attempt. It returns nil when it was drained: what was received is committed, the plugin has ended, the producer is closed. Any other end is a *Failure. When ctx is done, everything is
// left as it is: the plugin is cancelled and the open transaction dropped.
//
// On every path the producer is closed and the plugin's Run has returned (or was left behind after its deadline, which the error says), and no goroutine is left.
func Run(ctx context.Context, cfg Config) error {
	if err := cfg.check(); err != nil {
		return &Failure{Class: Fail, Cause: CauseBug, Err: err}
	}
	breakRule(&cfg)
	a := &attempt{cfg: &cfg, reporter: newReporter(cfg.Status)}
	var reporting sync.WaitGroup
	done := make(chan struct{})
	reporting.Go(func() { a.reporter.run(done) })
	defer reporting.Wait()
	defer close(done)

	err := a.start(ctx)
	if err == nil {
		err = a.stream(ctx)
	}
	return a.end(ctx, err)
}

// attempt is one life of a task.
type attempt struct {
	cfg      *Config
	reporter *reporter
	// What start makes, and end closes.
	pub   Publisher
	store *store
	// writer is nil before the stream.
	writer *writer
}

// errDrained ends a start that was asked to drain: nothing has begun.
var errDrained = errors.New("drained before the source was opened")

// start is the order of a start (I3). A failure between two steps leaves a producer to close, and nothing else.
func (a *attempt) start(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-a.cfg.Drain:
			cancel(errDrained)
		case <-ctx.Done():
		}
	})
	err := a.startSteps(ctx)
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, errDrained) {
		return abandoned(ctx)
	}
	return errDrained
}

func (a *attempt) startSteps(ctx context.Context) error {
	cfg := a.cfg
	var err error
	if a.pub, err = cfg.NewPublisher(); err != nil {
		return fromKafka(err)
	}
	// I3: the id's last decision noted, and the id fenced by the coordinator → the lease checked → the own id initialised.
	if err := a.initialise(ctx); err != nil {
		return err
	}
	fault("S2")
	// I3: the lease confirmed, by a question that is asked only now. A runner that slept before it initialised has taken the id back from its successor, and this alone stops it.
	a.reporter.phase(PhaseConfirming)
	if err := ask(ctx, func(ctx context.Context) error { return cfg.Coordinator.Confirm(ctx, cfg.Lease) }); err != nil {
		if errors.Is(err, lease.ErrRefused) {
			cfg.Logger.Warn("confirmation_refused", "error", err) // The id was initialised: whoever has the lease now has to rewind.
		}
		return err
	}
	fault("S3")
	// I3: no hanging transaction of the connector's own ids where it has written.
	a.reporter.phase(PhaseLooking)
	a.pub.BrokerLost() // Whatever was lost until now, this look comes after it.
	if err := look(ctx, cfg); err != nil {
		return err
	}
	// I3: stored offsets read, now that nobody else can commit one.
	a.reporter.phase(PhaseOffsets)
	if err := a.openOffsets(ctx); err != nil {
		return err
	}
	fault("S4")
	// I3: plugin opened, with what is stored.
	a.reporter.phase(PhaseOpening)
	return a.fillOpen()
}

// initialise goes through the first three steps until the id is initialised. Each try begins with the coordinator: it notes the id's last decision before each initialisation, and fences it. A try that
// found no broker is no failed transaction: nothing is aborted, and the status says what is waited for.
func (a *attempt) initialise(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		a.reporter.set(func(s *Status) { s.Phase = PhaseFencing })
		if err := a.cfg.Coordinator.PrepareStart(ctx, a.cfg.Lease); err != nil {
			return fromCoordinator(err)
		}
		if !a.cfg.Coordinator.Valid(a.cfg.Lease) {
			return failure(Again, CauseCoordinator, "the lease %s ran out while the start was prepared", a.cfg.Lease)
		}
		fault("S1")
		a.reporter.set(func(s *Status) { s.Phase = PhaseInitialising })
		try, cancelTry := context.WithTimeout(ctx, initTimeout)
		err := a.watched(try, func() error { return a.pub.Init(try) })
		cancelTry()
		if err == nil {
			return nil
		}
		f := fromKafka(err)
		if publish.Classify(err).Class != publish.RetryCall {
			return f
		}
		a.reporter.set(func(s *Status) { s.Waiting = f.Error() })
		if pause(ctx, retryPause) != nil {
			return f
		}
	}
}

// ask asks the coordinator within the time that a step of the start has.
func ask(ctx context.Context, question func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := question(ctx); err != nil {
		return fromCoordinator(err)
	}
	return nil
}

// look has the leader look for hanging transactions.
func look(ctx context.Context, cfg *Config) error {
	return ask(ctx, func(ctx context.Context) error { return cfg.Coordinator.Look(ctx, cfg.Lease) })
}

// openOffsets reads what is stored, and has the topic's identity noted: one that was replaced since it was last used stops the start.
func (a *attempt) openOffsets(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	offsets, id, err := a.cfg.OpenOffsets(limited)
	if err != nil {
		return fromKafka(err)
	}
	a.store = &store{offsets: offsets}
	return ask(ctx, func(ctx context.Context) error {
		return a.cfg.Coordinator.RecordTopics(ctx, a.cfg.Lease, nil, a.cfg.OffsetsTopic, id)
	})
}

// fillOpen completes what the plugin is opened with: the stored offsets inside the claim are its committed positions, so that an acknowledgement that was lost reaches it now.
func (a *attempt) fillOpen() error {
	open := &a.cfg.Open
	open.Limits = source.Limits{MaxRecordBytes: source.MaxRecordBytes, MaxBatchBytes: source.MaxBatchBytes, MaxBatchRecords: source.MaxBatchRecords}
	open.Boundary = a.cfg.Settings.Boundary.Rule
	open.Stored = nil
	claim := newChecker(open)
	for _, o := range a.store.offsets.All() {
		canonical, err := source.Canonical(o.Partition)
		if err != nil {
			return failure(Fail, CauseConfig, "offsets topic %q has a source partition that can't be read: %s: %w", a.cfg.OffsetsTopic, clip(o.Partition), err)
		}
		if claim.inside(canonical) {
			open.Stored = append(open.Stored, o)
		}
	}
	return nil
}

// stream runs the plugin and the stages until the last transaction. The writer works here; this is the one place that starts the others and waits for them.
func (a *attempt) stream(parent context.Context) error {
	ctx, cancel := context.WithCancelCause(parent)
	defer cancel(nil)
	in := newInlet(a)
	a.reporter.follow(in.sample)
	p, err := newPreparer(a.cfg, in)
	if err != nil {
		return err
	}
	a.writer = newWriter(a, in, p.out)

	pluginDone := make(chan struct{})
	go func() {
		defer close(pluginDone)
		in.end(fromPlugin(a.runPlugin(ctx, in)))
	}()
	var stages sync.WaitGroup
	stages.Go(func() { in.signals.pump(ctx) })
	stages.Go(func() {
		if err := a.guard(func() error { p.run(ctx); return nil }); err != nil {
			cancel(err)
		}
	})
	stages.Go(func() { a.drain(ctx, in) })
	stages.Go(func() { a.watchTrust(ctx, a.writer.prover, cancel) })

	err = a.fencedAlone(becauseOf(ctx, a.guard(func() error { return a.writer.run(ctx) })))
	left := a.stopPlugin(parent, in, pluginDone, cancel, err)
	stages.Wait()
	return errors.Join(err, left)
}

// runPlugin runs the plugin. One in this process may panic; that is the plugin's affair.
func (a *attempt) runPlugin(ctx context.Context, in *inlet) (err error) {
	defer func() {
		if r := recover(); r != nil {
			a.cfg.Logger.Error("plugin_panicked", "panic", r, "stack", string(debug.Stack()))
			err = fmt.Errorf("it panicked: %v", r)
		}
	}()
	return a.cfg.Plugin.Run(ctx, &a.cfg.Open, in)
}

// guard turns a panic of a stage into the end of the attempt.
func (a *attempt) guard(stage func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			a.cfg.Logger.Error("task_panicked", "panic", r, "stack", string(debug.Stack()))
			err = failure(Fail, CauseBug, "the task's code panicked: %v", r)
		}
	}()
	return stage()
}

// drain waits until it is asked to drain, has the plugin stop reading, and ends the stream where the plugin doesn't answer in time: what was received by then is committed, the rest is read again later.
func (a *attempt) drain(ctx context.Context, in *inlet) {
	select {
	case <-a.cfg.Drain:
	case <-ctx.Done():
		return
	}
	a.reporter.phase(PhaseDraining)
	in.drain(source.Signal{Kind: source.SignalDrain, Within: a.cfg.DrainTimeout})
	if pause(ctx, a.cfg.DrainTimeout) == nil {
		a.cfg.Logger.Warn("drain_deadline_passed", "within", a.cfg.DrainTimeout)
		in.end(nil)
	}
}

// stopPlugin ends the plugin's stream: Stop, then its context. Where the task isn't this runner's any more, somebody else waits for the source, and nobody for the plugin. A plugin that ignores both is left
// behind, and the error says so.
func (a *attempt) stopPlugin(ctx context.Context, in *inlet, done <-chan struct{}, cancel context.CancelCauseFunc, why error) error {
	reason := "drained"
	if why != nil {
		reason = why.Error()
	}
	in.end(why)
	in.signals.stop(reason)
	var f *Failure
	if atOnce := errors.As(why, &f) && f.Class == Stop; !atOnce && waitFor(ctx, done, stopTimeout) {
		cancel(nil)
		return nil
	}
	cancel(errors.New("the attempt is over"))
	if waitFor(context.WithoutCancel(ctx), done, cancelTimeout) {
		return nil
	}
	return errPluginLeft
}

// errPluginLeft says that a plugin's stream goes on although it was told to end.
var errPluginLeft = &Failure{Class: Again, Cause: CausePlugin, PluginLeft: true, Err: fmt.Errorf("the plugin did not end its stream within %s", stopTimeout+cancelTimeout)}

// waitFor waits for done, and says whether it came.
func waitFor(ctx context.Context, done <-chan struct{}, limit time.Duration) bool {
	t := time.NewTimer(limit)
	defer t.Stop()
	select {
	case <-done:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// end closes the producer, whatever happened, and says how the attempt ended.
func (a *attempt) end(ctx context.Context, err error) error {
	if a.pub != nil {
		if closed := a.closePublisher(context.WithoutCancel(ctx)); closed != nil && err == nil {
			// Everything is committed; only memory is left behind.
			a.cfg.Logger.Warn("producer_left_behind", "error", closed)
		}
	}
	if err == nil || errors.Is(err, errDrained) {
		return nil
	}
	var f *Failure
	if !errors.As(err, &f) {
		f = &Failure{Class: Fail, Cause: CauseBug, Err: err}
	}
	out := *f
	if ctx.Err() != nil && out.Class != Fail {
		// What went wrong after the context was done, went wrong because of it.
		out.Class, out.Cause = Stop, CauseAbandoned
	}
	out.Progress = a.writer != nil && a.writer.commits > 0
	out.PluginLeft = errors.Is(err, errPluginLeft)
	return &out
}

// closePublisher drops the open transaction, where that is safe, and closes the producer.
func (a *attempt) closePublisher(ctx context.Context) error {
	if w := a.writer; w != nil && w.mayAbort() {
		limited, cancel := context.WithTimeout(ctx, abortTimeout)
		if err := a.pub.Abort(limited); err != nil {
			// The next start of the id ends it, or the broker when it expires.
			a.cfg.Logger.Debug("abort_failed", "error", err)
		}
		cancel()
	}
	limited, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	return a.pub.Close(limited)
}
