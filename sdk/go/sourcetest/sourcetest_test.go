package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter gives 1 to 5 and is idle then. Its fields spoil it.
type counter struct {
	// forget makes it begin at the offset and not after it; skip makes it lose one record after a start.
	forget, skip bool
	fail         error
}

func (*counter) Type() source.Type { return source.Type{Name: "counter"} }

func (*counter) Plan(ctx context.Context, p *source.Planning) error {
	return p.SetTasks(ctx, source.One())
}

func (c *counter) Open(_ context.Context, t *source.Task) (source.Reader, error) {
	p, err := t.Partition(source.Fields{"counter": "a"})
	if err != nil {
		return nil, err
	}
	r := &countReader{counter: c, part: p, next: 1}
	if o, ok := p.Stored(); ok {
		n, _ := o.Int("n")
		r.next = n + 1
		if c.forget {
			r.next--
		}
		if c.skip {
			r.next++
		}
	}
	return r, nil
}

type countReader struct {
	*counter
	part *source.Partition
	next int64
}

func (r *countReader) Read(ctx context.Context, out *source.Records) error {
	for ; r.next <= 5; r.next++ {
		if err := out.Add(source.Record{Partition: r.part, Topic: "t", Value: []byte(fmt.Sprint(r.next)), Offset: source.Fields{"n": r.next}}); err != nil {
			return err
		}
	}
	if r.fail != nil {
		return r.fail
	}
	if err := errors.Join(out.Notice("all done"), out.Idle()); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (*countReader) Close() error { return nil }

func config(c source.Connector) Config {
	return Config{Plugin: source.New("test", "1.0.0", c), Limits: source.Limits{MaxBatchRecords: 2}}
}

var five = []string{"1", "2", "3", "4", "5"}

func TestExactConnectorPasses(t *testing.T) { Exact(t, config(&counter{}), five) }

// recorder is a testing.TB that keeps the failure.
type recorder struct {
	testing.TB
	failure string
}

func (r *recorder) Failed() bool                 { return r.failure != "" }
func (r *recorder) Errorf(f string, args ...any) { r.failure = fmt.Sprintf(f, args...) }
func (r *recorder) Fatalf(f string, args ...any) { r.Errorf(f, args...); runtime.Goexit() }

// failure runs f and returns how it failed.
func failure(t *testing.T, f func(tb testing.TB)) string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.failure
}

func TestInexactConnectorFails(t *testing.T) {
	for want, c := range map[string]*counter{
		`too often ["2"`:     {forget: true},
		`missing ["3"`:       {skip: true},
		"the disk is broken": {fail: errors.New("the disk is broken")},
	} {
		if got := failure(t, func(tb testing.TB) { Exact(tb, config(c), five) }); !strings.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := failure(t, func(tb testing.TB) { CheckExact(tb, "x", []string{"2", "1"}, []string{"1", "2"}) }); !strings.Contains(got, "out of order") {
		t.Errorf("got %q", got)
	}
}

func TestOnlyCommittedRecordsSurviveAKill(t *testing.T) {
	r := New(t, config(&counter{}))
	task := r.Start(r.Plan(1)[0])
	if got := Values(task.WaitIdle()); fmt.Sprint(got) != fmt.Sprint(five) {
		t.Fatalf("got %v", got)
	}
	task.WaitNotice("all done")
	task.Kill()
	if n := len(r.Committed()); n != 0 {
		t.Fatalf("%d records after a kill without a commit", n)
	}
	task = r.Start(r.Plan(1)[0])
	task.Wait(5)
	if n := task.Commit(); n != 5 {
		t.Fatalf("%d records committed", n)
	}
	task.Stop()
	if o := r.Offset(source.Fields{"counter": "a"}); o["n"] != int64(5) || len(r.Offsets()) != 1 {
		t.Fatalf("offset %v of %v", o, r.Offsets())
	}
}

// raw is a plugin that sends what it likes.
type raw struct {
	source.Plugin
	run func(ctx context.Context, host source.RunHost) error
}

func (r raw) Run(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
	return r.run(ctx, host)
}

func TestBrokenRulesAreFound(t *testing.T) {
	declare := &source.Declare{
		Partitions: []source.DeclaredPartition{{Number: 1, Partition: source.JSON(`{"f":"a"}`)}},
		Topics:     []source.DeclaredTopic{{Number: 1, Name: "t"}},
	}
	batch := func(seq uint64, offset string) *source.Batch {
		b := &source.Batch{Seq: seq, Count: 1, DefaultPartition: 1, DefaultTopic: 1}
		if offset != "" {
			b.Offsets = []source.Reached{{Partition: 1, Offset: source.JSON(offset)}}
		}
		return b
	}
	for want, messages := range map[string][]source.Message{
		"before Opened":                {declare, batch(1, `{"n":1}`)},
		"Opened was sent twice":        {source.Opened{}, source.Opened{}},
		"the number 2, 1 is next":      {source.Opened{}, declare, batch(2, `{"n":1}`)},
		"that wasn't declared":         {source.Opened{}, batch(1, "")},
		"which wasn't declared":        {source.Opened{}, &source.Dropped{Seq: 1, Count: 1, Reason: "x", Offsets: []source.Reached{{Partition: 1, Offset: source.JSON(`{"n":1}`)}}}},
		"no offset that covers":        {source.Opened{}, declare, batch(1, "")},
		"is an empty object":           {source.Opened{}, declare, batch(1, "{}")},
		"after Drained":                {source.Opened{}, declare, source.Drained{}, batch(1, `{"n":1}`)},
		"declared twice":               {declare, &source.Declare{Partitions: []source.DeclaredPartition{{Number: 2, Partition: source.JSON(`{"f": "a"}`)}}}},
		"2 is next":                    {declare, declare},
		"outside the task's claim":     {&source.Declare{Partitions: []source.DeclaredPartition{{Number: 1, Partition: source.JSON(`{"f":"b"}`)}}}},
		"is 3 records, the limit is 2": {source.Opened{}, declare, &source.Batch{Seq: 1, Count: 3, DefaultPartition: 1, DefaultTopic: 1}},
		"has no reason":                {source.Opened{}, &source.Dropped{Seq: 1}},
		"the arena has 1":              {source.Opened{}, declare, &source.Batch{Seq: 1, Arena: []byte("x")}},
	} {
		cfg := config(&counter{})
		cfg.Plugin = raw{cfg.Plugin, func(ctx context.Context, host source.RunHost) error {
			for _, m := range messages {
				if err := host.Send(ctx, m); err != nil {
					return err
				}
			}
			<-ctx.Done()
			return nil
		}}
		claim := source.Claim{Prefix: []byte(`{"f":"a"`)}
		if err := New(t, cfg).Start(source.TaskSpec{Claim: claim}).End(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestAbortDropsRecordsAndKeepsOffsets(t *testing.T) {
	cfg := config(&counter{})
	cfg.Boundary = source.ByConnector
	add := func(seq uint64, n int, m source.Mark) *source.Batch {
		var b source.Builder
		b.Add(source.RecordView{Value: []byte(fmt.Sprint(n)), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: source.NoTimestamp})
		b.Reach(1, source.JSON(fmt.Sprintf(`{"n":%d}`, n)))
		out := b.Batch(seq)
		out.Boundary = m
		return out
	}
	cfg.Plugin = raw{cfg.Plugin, func(ctx context.Context, host source.RunHost) error {
		err := errors.Join(
			host.Send(ctx, source.Opened{}),
			host.Send(ctx, &source.Declare{Partitions: []source.DeclaredPartition{{Number: 1, Partition: source.JSON(`{"f":"a"}`)}}, Topics: []source.DeclaredTopic{{Number: 1, Name: "t"}}}),
			host.Send(ctx, add(1, 1, source.MarkCommit)), host.Send(ctx, add(2, 2, source.NoMark)), host.Send(ctx, add(3, 3, source.MarkAbort)), host.Send(ctx, add(4, 4, source.MarkCommit)),
			host.Send(ctx, &source.Idle{Seq: 5}))
		<-ctx.Done()
		return err
	}}
	r := New(t, cfg)
	task := r.Start(source.TaskSpec{})
	task.WaitIdle()
	task.Commit()
	if got := Values(r.Committed()); fmt.Sprint(got) != "[1 4]" || r.Offset(source.Fields{"f": "a"})["n"] != int64(4) {
		t.Fatalf("committed %v, offset %v", got, r.Offsets())
	}
}
