package serve

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// TestMain is also the main function of a plugin: tests start their own binary with roleKey set.
func TestMain(m *testing.M) {
	switch os.Getenv(roleKey) {
	case "plugin":
		fmt.Fprintln(os.Stderr, "a plain line")
		Logger().Warn("a structured line", "answer", 42)
		Serve(source.New("counter", "1.2.3", &counter{}))
	case "parent":
		// A plugin with a child of its own, which holds stderr open.
		child := exec.Command(os.Args[0])
		child.Env, child.Stderr = []string{roleKey + "=child"}, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		fmt.Fprintln(os.Stderr, "child", child.Process.Pid)
		Serve(source.New("counter", "1.2.3", &counter{}))
	case "child":
		never := make(chan os.Signal, 1)
		signal.Notify(never, syscall.SIGUSR1)
		<-never
	case "broken":
		Serve(source.New("Not A Name", "1.2.3", &counter{}))
	}
	goleak.VerifyTestMain(m)
}

const roleKey = "SERVE_TEST_ROLE"

// counter gives numbers up to the configured count, each with an offset, and is idle then.
type counter struct{}

func (*counter) Type() source.Type {
	count := "5"
	return source.Type{Name: "counter", Config: []source.Key{
		{Name: "count", Type: source.Int, Default: &count},
		{Name: "mode", Type: source.String, Allowed: []string{"fail", "lookup", "plain error", "panic in plan", "hang"}},
	}}
}

func (*counter) Plan(ctx context.Context, p *source.Planning) error {
	switch p.Config().String("mode") {
	case "panic in plan":
		panic("boom")
	case "lookup":
		stored, err := p.Lookup(ctx, source.Fields{"counter": "a"})
		if err != nil {
			return err
		}
		n, _ := stored[0].Int("n")
		return p.SetTasks(ctx, source.TaskSpec{Config: map[string][]byte{"stored": fmt.Append(nil, n)}, Claim: source.One().Claim})
	}
	return p.SetTasks(ctx, source.One())
}

func (*counter) AlterOffsets(context.Context, source.Config, []source.PartitionOffset) (*source.AlterAnswer, error) {
	return &source.AlterAnswer{Veto: "no"}, nil
}

func (c *counter) Open(ctx context.Context, t *source.Task) (source.Reader, error) {
	switch t.Config().String("mode") {
	case "fail":
		return nil, &source.Error{Kind: source.Configuration, Key: "mode", Message: "asked to fail", Hint: "don't"}
	case "plain error":
		return nil, fmt.Errorf("connection refused")
	case "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	p, err := t.Partition(source.Fields{"counter": "a"})
	if err != nil {
		return nil, err
	}
	r := &countReader{count: t.Config().Int64("count"), part: p, next: 1}
	o, ok := p.Stored()
	if t.Config().String("mode") == "lookup" {
		answers, err := t.Lookup(ctx, source.Fields{"counter": "a"})
		if err != nil {
			return nil, err
		}
		o, ok = answers[0], answers[0] != nil
	}
	if ok {
		n, _ := o.Int("n")
		r.next = n + 1
	}
	return r, nil
}

type countReader struct {
	count, next int64
	part        *source.Partition
}

func (r *countReader) Read(ctx context.Context, out *source.Records) error {
	for ; r.next <= r.count && !out.Full(); r.next++ {
		err := out.Add(source.Record{
			Partition: r.part, Topic: "t", Key: []byte{}, Value: fmt.Append(nil, r.next), Offset: source.Fields{"n": r.next},
			Headers: []source.Header{{Name: "h", Value: nil}}, Timestamp: time.UnixMilli(1e12),
		})
		if err != nil {
			return err
		}
	}
	if r.next <= r.count {
		return nil
	}
	if err := out.Idle(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

func (*countReader) Close() error { return nil }
