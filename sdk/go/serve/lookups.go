package serve

import (
	"context"
	"sync"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// lookups matches the answers of one stream with its questions.
type lookups struct {
	mu      sync.Mutex
	last    uint64
	waiting map[uint64]chan *pluginv1.LookupAnswer // each with room for its answer
}

// ask sends a question and waits for its answer.
func (l *lookups) ask(ctx context.Context, partitions []source.JSON, send func(*pluginv1.Lookup) error) ([]source.PartitionOffset, error) {
	if len(partitions) > wire.MaxLookupPartitions {
		return nil, source.Fatalf("a look-up names %d partitions, the limit is %d", len(partitions), wire.MaxLookupPartitions)
	}
	id, answer := l.begin()
	defer l.end(id)
	if err := send(wire.EncodeLookup(id, partitions)); err != nil {
		return nil, err
	}
	select {
	case a := <-answer:
		return wire.DecodeLookupAnswer(a, len(partitions))
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *lookups) begin() (uint64, chan *pluginv1.LookupAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.waiting == nil {
		l.waiting = make(map[uint64]chan *pluginv1.LookupAnswer)
	}
	l.last++
	answer := make(chan *pluginv1.LookupAnswer, 1)
	l.waiting[l.last] = answer
	return l.last, answer
}

func (l *lookups) end(id uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, id)
}

// answer hands an answer to whoever asked; it never waits.
func (l *lookups) answer(a *pluginv1.LookupAnswer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if waiting, ok := l.waiting[a.GetId()]; ok {
		delete(l.waiting, a.GetId())
		waiting <- a
	}
}
