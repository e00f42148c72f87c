package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// sender serialises what goes to the plugin on one stream, since gRPC allows one Send at a time, and ends the stream where the plugin stops reading it.
type sender[T any] struct {
	mu     sync.Mutex
	stream interface{ Send(*T) error }
	within time.Duration
	// cancel ends the stream with a cause.
	cancel context.CancelCauseFunc
}

// send hands one message to gRPC. Its error says only that the stream is over: why is the receive loop's to find out.
func (s *sender[T]) send(m *T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	stuck := time.AfterFunc(s.within, func() {
		s.cancel(source.Retryf("the plugin hasn't read what was sent to it for %s", s.within))
	})
	defer stuck.Stop()
	return s.stream.Send(m)
}

// Limits of the look-ups that one stream may have open: a plugin that asks for more without waiting for answers is broken.
const (
	maxLookups     = 256
	maxLookupBytes = 64 << 20
)

// lookups answers a stream's look-ups beside its receive loop, so that a question never waits behind a batch.
type lookups struct {
	lookup func(context.Context, []source.JSON) ([]source.PartitionOffset, error)
	// answer sends an answer; its error is dropped, since a stream that is over needs none.
	answer func(*pluginv1.LookupAnswer) error
	within time.Duration

	running sync.WaitGroup
	mu      sync.Mutex
	open    int
	bytes   int
}

// ask starts to answer q. An error is a rule that the plugin broke.
func (l *lookups) ask(ctx context.Context, q *pluginv1.Lookup) error {
	if n := len(q.GetPartitions()); n > wire.MaxLookupPartitions {
		return source.Fatalf("protocol: Lookup names %d partitions; the limit is %d", n, wire.MaxLookupPartitions)
	}
	size := proto.Size(q)
	if !l.take(size) {
		return source.Fatalf("protocol: more than %d look-ups, or %d MiB of them, wait for an answer", maxLookups, maxLookupBytes>>20)
	}
	l.running.Go(func() {
		defer l.release(size)
		_ = l.answer(l.find(ctx, q)) // the stream is over: nobody waits for it
	})
	return nil
}

// wait returns when every look-up has been answered or given up; the context given to ask must be done.
func (l *lookups) wait() { l.running.Wait() }

func (l *lookups) find(ctx context.Context, q *pluginv1.Lookup) *pluginv1.LookupAnswer {
	ctx, cancel := context.WithTimeout(ctx, l.within)
	defer cancel()
	offsets, err := l.lookup(ctx, wire.DecodeLookup(q))
	if err == nil && len(offsets) != len(q.GetPartitions()) {
		err = fmt.Errorf("%d partitions were asked for and %d offsets found", len(q.GetPartitions()), len(offsets))
	}
	answer := wire.EncodeLookupAnswer(q.GetId(), offsets, err)
	if size := proto.Size(answer); size > wire.MaxMessageBytes-messageOverhead {
		err = fmt.Errorf("the answer has %d bytes and the limit of a message is 20 MiB: ask for fewer partitions at once", size)
		answer = wire.EncodeLookupAnswer(q.GetId(), nil, err)
	}
	return answer
}

// messageOverhead is the most that the message around an answer adds to it.
const messageOverhead = 16

func (l *lookups) take(size int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.open >= maxLookups || l.open > 0 && l.bytes+size > maxLookupBytes {
		return false
	}
	l.open++
	l.bytes += size
	return true
}

func (l *lookups) release(size int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.bytes -= size
}
