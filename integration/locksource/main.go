// Command locksource is a plugin for tests: a source that only one process can read at a time, as one with a replication slot. Its task takes a lock on a file, says one record, and has nothing more to say.
package main

import (
	"context"
	"fmt"
	"os"
	"syscall"

	"github.com/fencepost-io/fencepost/sdk/go/serve"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func main() { serve.Serve(source.New("locksource", "0.1.0", connector{})) }

type connector struct{}

var partition = source.Fields{"source": "locked"}

// Type implements source.Connector.
func (connector) Type() source.Type {
	return source.Type{
		Name: "locksource", Summary: "A source that only one process can read at a time, for tests.",
		Config: []source.Key{
			{Name: "topic", Type: source.String, Required: true, Importance: source.High, Doc: "The topic of the one record."},
			{Name: "lock", Type: source.String, Required: true, Importance: source.High, Doc: "The file to lock."},
		},
		Example: map[string]string{"topic": "locked", "lock": "/tmp/locked"},
	}
}

// Plan implements source.Connector.
func (connector) Plan(ctx context.Context, p *source.Planning) error {
	claim, err := partition.JSON()
	if err != nil {
		return err
	}
	var task source.TaskSpec
	task.Claim.Set = []source.JSON{claim}
	return p.SetTasks(ctx, task)
}

// Open implements source.Connector: it takes the lock, or says that somebody else has it.
func (connector) Open(_ context.Context, t *source.Task) (source.Reader, error) {
	lock, err := os.OpenFile(t.Config().String("lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return nil, fmt.Errorf("somebody else reads %s: %w", lock.Name(), err)
	}
	p, err := t.Partition(partition)
	if err != nil {
		_ = lock.Close()
		return nil, err
	}
	_, said := p.Stored()
	return &reader{lock: lock, partition: p, topic: t.Config().String("topic"), said: said}, nil
}

type reader struct {
	lock      *os.File
	partition *source.Partition
	topic     string
	said      bool
}

// Read implements source.Reader.
func (r *reader) Read(ctx context.Context, out *source.Records) error {
	if !r.said {
		r.said = true
		return out.Add(source.Record{Partition: r.partition, Offset: source.Fields{"n": 1}, Topic: r.topic, Value: []byte("locked:1")})
	}
	if err := out.Idle(); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// Close implements source.Reader: the lock goes with the file.
func (r *reader) Close() error { return r.lock.Close() }
