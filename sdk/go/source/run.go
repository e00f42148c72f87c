package source

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"
)

// errStop is the cause where a task was asked to stop, or its runner is gone.
var errStop = errors.New("the task was stopped")

// errDrain is the cause where a task was asked to drain.
var errDrain = errors.New("the task is drained")

const (
	// maxPause is the longest wait before a Read that follows one that gave nothing: it keeps a Reader that doesn't block from using a whole CPU.
	maxPause = 100 * time.Millisecond
	// maxDeclareBytes is about how much goes into one Declare; far below the 20 MiB of a message.
	maxDeclareBytes = 4 << 20
	// lastAcknowledgement is how long the last call of Committed may take after a stop; the runner waits 10 s for the end of the stream.
	lastAcknowledgement = 5 * time.Second
)

// taskRun is one Run of a Connector.
//
// Three goroutines: the caller's reads and sends; listen takes signals; acknowledge calls Committed. run starts the others and waits for them.
type taskRun struct {
	connector Connector
	task      *Task
	host      RunHost
	flow      *flow
	acks      *acknowledgements
	records   *Records
	reader    Reader

	// stop ends the task, drain ends its reading.
	stop, drain context.CancelCauseFunc
}

func runTask(parent context.Context, c Connector, t *Task, host RunHost) error {
	r := &taskRun{connector: c, task: t, host: host, flow: newFlow(), acks: newAcknowledgements()}
	ctx, stop := context.WithCancelCause(parent)
	r.stop = stop
	defer r.stop(nil)
	reading, drain := context.WithCancelCause(ctx)
	defer drain(nil)
	r.records = newRecords(t, func(o outgoing) error { return r.send(ctx, o) })
	_, r.records.reuse = host.(Copier)
	r.drain = func(cause error) {
		r.records.ending.Store(true)
		drain(cause)
	}
	var wg sync.WaitGroup
	wg.Go(func() { r.listen(ctx) })
	err := r.run(ctx, reading)
	cause := context.Cause(ctx)
	r.stop(errStop)
	wg.Wait()
	if cause == nil {
		return err
	}
	// The task was ended from outside: by its runner, which is no error, or by a failed Committed. What Read and Open said after that is a consequence.
	if parent.Err() != nil || errors.Is(cause, errStop) {
		return nil
	}
	return cause
}

// listen takes signals until the task ends.
func (r *taskRun) listen(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			r.drain(errStop)
			return
		case s, ok := <-r.host.Signals():
			if !ok {
				s.Kind = SignalStop
			}
			switch s.Kind {
			case SignalCredit:
				r.flow.grant(s.Bytes, s.MaxUncommitted)
			case SignalCommitted:
				// I5: only what is in a committed transaction reaches the source.
				r.flow.commit(s.Seq, r.acks.add)
			case SignalDrain:
				r.drain(errDrain)
			case SignalStop:
				r.drain(errStop)
				r.stop(errStop)
				return
			}
		}
	}
}

// run opens, reads until the task ends, and closes.
func (r *taskRun) run(ctx, reading context.Context) error {
	err := r.open(ctx, reading)
	if r.reader == nil {
		if reading.Err() != nil {
			return r.drained(ctx)
		}
		return err
	}
	defer r.close()
	stopAcks := r.acknowledge(ctx)
	defer stopAcks()
	if err := r.host.Send(ctx, Opened{}); err != nil {
		return fmt.Errorf("send that the source is open: %w", err)
	}
	if err := r.read(ctx, reading); err != nil {
		return err
	}
	return r.drained(ctx)
}

// open opens the source. A drain that comes meanwhile cancels Open, but a drain after it leaves Open's context alone: connections to the source may hang on it, and the last acknowledgements need them.
func (r *taskRun) open(ctx, reading context.Context) error {
	opening, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(reading, func() { cancel(context.Cause(reading)) })
	err := guard("Open", func() error {
		var err error
		r.reader, err = r.connector.Open(opening, r.task)
		if err == nil && r.reader == nil {
			err = Fatalf("Open returned neither a Reader nor an error")
		}
		return err
	})
	unlink()
	if err != nil {
		r.reader = nil
		cancel(err)
	}
	return err
}

// read reads and sends until the task ends or is drained, which is no error.
func (r *taskRun) read(ctx, reading context.Context) error {
	pause := time.Duration(0)
	for reading.Err() == nil {
		r.records.taken = false
		err := guard("Read", func() error { return r.reader.Read(reading, r.records) })
		// What was added before an error is sent first.
		if sendErr := r.records.flush(); sendErr != nil && err == nil {
			err = sendErr
		}
		if reading.Err() != nil {
			// An interrupted Read may say so in any way; what it read and didn't add is read again later.
			return nil
		}
		if err != nil {
			return err
		}
		if r.records.taken {
			pause = 0
			continue
		}
		pause = min(max(2*pause, time.Millisecond), maxPause)
		wait(reading, pause)
	}
	return nil
}

// drained answers a drain and waits for the stop, taking acknowledgements meanwhile.
func (r *taskRun) drained(ctx context.Context) error {
	if ctx.Err() != nil {
		return nil
	}
	if err := r.host.Send(ctx, Drained{}); err != nil {
		return fmt.Errorf("send that the task is drained: %w", err)
	}
	<-ctx.Done()
	return nil
}

func (r *taskRun) close() {
	if err := guard("Close", r.reader.Close); err != nil {
		// Everything that counts is committed or will be read again: a failed Close stops nothing.
		fmt.Fprintf(os.Stderr, "close task %d of %s: %v\n", r.task.Number(), r.task.Connector(), err)
	}
}

// send sends one message, with the declarations that it needs, when the runner lets it.
func (r *taskRun) send(ctx context.Context, o outgoing) error {
	if err := r.declare(ctx); err != nil {
		return err
	}
	if err := r.flow.take(ctx, o); err != nil {
		return err
	}
	if err := r.host.Send(ctx, o.message); err != nil {
		return fmt.Errorf("send message %d: %w", o.seq, err)
	}
	return nil
}

// declare sends the declarations that wait, in pieces that fit into messages.
func (r *taskRun) declare(ctx context.Context) error {
	all := r.task.pending
	r.task.pending = Declare{}
	for len(all.Partitions)+len(all.Topics)+len(all.Schemas) > 0 {
		var d Declare
		d.Topics, all.Topics = all.Topics, nil
		size := 0
		for len(all.Schemas) > 0 && size < maxDeclareBytes {
			d.Schemas = append(d.Schemas, all.Schemas[0])
			all.Schemas = all.Schemas[1:]
			size += maxDeclareBytes / 64
		}
		n := 0
		for n < len(all.Partitions) && size < maxDeclareBytes {
			size += len(all.Partitions[n].Partition) + offsetOverhead
			n++
		}
		d.Partitions, all.Partitions = all.Partitions[:n], all.Partitions[n:]
		if err := r.host.Send(ctx, &d); err != nil {
			return fmt.Errorf("declare %d partitions, %d topics, %d schemas: %w", len(d.Partitions), len(d.Topics), len(d.Schemas), err)
		}
	}
	return nil
}

// acknowledge starts the goroutine that calls Committed, and returns what ends it after the last call.
func (r *taskRun) acknowledge(ctx context.Context) (end func()) {
	a, ok := r.reader.(Acknowledger)
	if !ok {
		return func() {}
	}
	// The stored offsets come first, so that an acknowledgement that was lost reaches the source.
	for _, p := range r.task.stored {
		r.acks.add(Position{Partition: p, Offset: p.stored})
	}
	// Committed outlives the stop signal: the last position comes just before it.
	calling, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ending := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for last := false; !last; {
			select {
			case <-r.acks.ready:
			case <-ending:
				last = true
			}
			positions := r.acks.take()
			if len(positions) == 0 {
				continue
			}
			if err := guard("Committed", func() error { return a.Committed(calling, positions) }); err != nil {
				r.stop(fmt.Errorf("acknowledge %d positions: %w", len(positions), err))
				return
			}
		}
	})
	return func() {
		timer := time.AfterFunc(lastAcknowledgement, cancel)
		defer timer.Stop()
		close(ending)
		wg.Wait()
		cancel()
	}
}

// wait waits for d, or less where ctx is done.
func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// guard calls one of the author's methods. A panic there becomes an error that names the method; the stack goes to the log alone.
func guard(method string, call func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			fmt.Fprintf(os.Stderr, "panic in %s of the connector: %v\n%s", method, v, debug.Stack())
			err = Fatalf("the connector's method %s panicked: %v", method, v)
		}
	}()
	return call()
}
