package source

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
)

// fakeRunner is a RunHost that keeps what a task sends.
type fakeRunner struct {
	t        *testing.T
	signals  chan Signal
	messages chan Message
	done     chan error
	stored   map[string]JSON
}

// startRun runs one task of c.
func startRun(t *testing.T, c Connector, open RunOpen) *fakeRunner {
	t.Helper()
	r := &fakeRunner{t: t, signals: make(chan Signal, 100), messages: make(chan Message, 1000), done: make(chan error, 1)}
	open.Connector, open.Type = "c", c.Type().Name
	ctx, cancel := context.WithCancel(t.Context())
	go func() { r.done <- New("test", "1.0.0", c).Run(ctx, &open, r) }()
	t.Cleanup(cancel)
	return r
}

func (r *fakeRunner) Send(_ context.Context, m Message) error { r.messages <- m; return nil }
func (r *fakeRunner) Signals() <-chan Signal                  { return r.signals }
func (r *fakeRunner) Lookup(_ context.Context, partitions []JSON) ([]PartitionOffset, error) {
	out := make([]PartitionOffset, len(partitions))
	for i, p := range partitions {
		out[i] = PartitionOffset{p, r.stored[string(p)]}
	}
	return out, nil
}

func (r *fakeRunner) credit(bytes, records uint64) {
	r.signals <- Signal{Kind: SignalCredit, Bytes: bytes, MaxUncommitted: records}
}

// quiet returns what was sent by the time that everything waits. In a bubble only.
func (r *fakeRunner) quiet() []Message {
	synctest.Wait()
	var out []Message
	for {
		select {
		case m := <-r.messages:
			out = append(out, m)
		default:
			return out
		}
	}
}

// stop ends the run and returns its error.
func (r *fakeRunner) stop() error {
	r.t.Helper()
	r.signals <- Signal{Kind: SignalStop}
	synctest.Wait()
	select {
	case err := <-r.done:
		return err
	default:
		r.t.Fatal("the run didn't end")
		return nil
	}
}

// summary is a message in one short text.
func summary(m Message) string {
	switch m := m.(type) {
	case Opened:
		return "opened"
	case Drained:
		return "drained"
	case *Idle:
		return fmt.Sprintf("idle %d", m.Seq)
	case *Notice:
		return fmt.Sprintf("notice %q", m.Texts)
	case *Declare:
		s := "declare"
		for _, p := range m.Partitions {
			s += fmt.Sprintf(" p%d=%s", p.Number, p.Partition)
		}
		for _, t := range m.Topics {
			s += fmt.Sprintf(" t%d=%s", t.Number, t.Name)
		}
		for _, x := range m.Schemas {
			s += fmt.Sprintf(" s%d", x.Number)
		}
		return s
	case *Dropped:
		return fmt.Sprintf("dropped %d count %d %s%s", m.Seq, m.Count, m.Reason, reachedText(m.Offsets))
	case *Batch:
		s := fmt.Sprintf("batch %d", m.Seq)
		for _, v := range m.Records() {
			s += " " + string(v.Value)
		}
		s += reachedText(m.Offsets)
		if m.Continues {
			s += " continues"
		}
		if m.Boundary != NoMark {
			s += fmt.Sprintf(" mark %d", m.Boundary)
		}
		return s
	}
	return fmt.Sprintf("%T", m)
}

func reachedText(offsets []Reached) string {
	s := ""
	for _, o := range offsets {
		s += fmt.Sprintf(" %d@%s", o.Partition, o.Offset)
	}
	return s
}

func (r *fakeRunner) expect(want ...string) {
	r.t.Helper()
	var got []string
	for _, m := range r.quiet() {
		got = append(got, summary(m))
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		r.t.Fatalf("the task sent\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// scripted is a Connector whose methods are functions.
type scripted struct {
	OneTask
	open      func(ctx context.Context, t *Task) error
	read      func(ctx context.Context, t *Task, out *Records) error
	committed func(ctx context.Context, p []Position) error
	closed    func() error
	task      *Task
}

func (s *scripted) Type() Type { return Type{Name: "scripted"} }

func (s *scripted) Open(ctx context.Context, t *Task) (Reader, error) {
	s.task = t
	if s.open != nil {
		if err := s.open(ctx, t); err != nil {
			return nil, err
		}
	}
	if s.committed != nil {
		return acknowledging{s}, nil
	}
	return s, nil
}

func (s *scripted) Read(ctx context.Context, out *Records) error { return s.read(ctx, s.task, out) }

func (s *scripted) Close() error {
	if s.closed != nil {
		return s.closed()
	}
	return nil
}

type acknowledging struct{ *scripted }

func (a acknowledging) Committed(ctx context.Context, p []Position) error { return a.committed(ctx, p) }

// once makes a read that runs its steps in order, one a call, and then blocks.
func once(steps ...func(t *Task, out *Records) error) func(context.Context, *Task, *Records) error {
	return func(ctx context.Context, t *Task, out *Records) error {
		if len(steps) == 0 {
			<-ctx.Done()
			return ctx.Err()
		}
		step := steps[0]
		steps = steps[1:]
		return step(t, out)
	}
}

func part1(t *testing.T, task *Task, f string) *Partition {
	t.Helper()
	p, err := task.Partition(Fields{"f": f})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// add adds records "value@n", or "value" without an offset.
func add(t *testing.T, task *Task, out *Records, f string, records ...string) error {
	t.Helper()
	for _, rec := range records {
		value, n, has := strings.Cut(rec, "@")
		r := Record{Partition: part1(t, task, f), Topic: "t", Value: []byte(value)}
		if has {
			r.Offset = Fields{"n": n}
		}
		if err := out.Add(r); err != nil {
			return err
		}
	}
	return nil
}
