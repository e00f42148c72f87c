package history

import (
	"context"
	"errors"
	"hash/maphash"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Keeper keeps a leader's history.
type Keeper struct {
	history *History
	core    Core
	wake    chan struct{} // one token: something has changed

	mu      sync.Mutex
	changed map[string]struct{} // connectors; never more than there are
	failed  []string            // those of which a record got no answer, for Run

	// Of Run's goroutine. known has a hash of the newest value of each key, by connector: what is equal isn't written again, and what is gone is deleted.
	known  map[string]map[string]uint64
	client *kgo.Client
}

// seed makes hashes of this process; nobody else sees one.
var seed = maphash.MakeSeed()

// Note says that a connector's happenings have changed. It never blocks.
func (k *Keeper) Note(connector string) {
	k.mu.Lock()
	k.changed[connector] = struct{}{}
	k.mu.Unlock()
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// Run reads what there is and then writes what changes, until ctx ends or the loop has; then it returns nil: whatever goes wrong here is no reason to stop leading.
func (k *Keeper) Run(ctx context.Context) error {
	if !k.recall(ctx) {
		return nil
	}
	client, err := k.history.config.Settings.NewClient(
		kgo.DefaultProduceTopic(k.history.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()),
		kgo.MaxBufferedRecords(mostBuffered), kgo.MaxBufferedBytes(mostBufferedBytes), kgo.RecordDeliveryTimeout(k.history.deliver), kgo.ProducerLinger(0), kgo.MetadataMinAge(metadataMinAge),
	)
	if err != nil {
		k.history.log.Warn("what happens to connectors isn't kept", "error", err)
		return nil
	}
	k.client = client
	defer k.end(ctx)
	for {
		select {
		case <-k.wake:
		case <-ctx.Done():
			return nil
		}
		for more := true; more; {
			var size int
			if size, more, err = k.write(ctx); err != nil {
				return nil //nolint:nilerr // the loop has ended, which says why
			}
			select {
			case <-time.After(max(k.history.pause, time.Duration(size)*time.Second/bytesPerSecond)):
			case <-ctx.Done():
				return nil
			}
		}
	}
}

// end lets go of the client once what is on its way has arrived, or has had its time.
func (k *Keeper) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrites)
	defer cancel()
	_ = k.client.Flush(ctx) // What didn't arrive is counted by its own callback.
	k.client.Close()
}

// recall reads the topic and hands it to the loop, and tries again where it can't: writing before would put the little that this leader has seen in the place of more. It is false where ctx or the loop has ended.
func (k *Keeper) recall(ctx context.Context) bool {
	for said := ""; ; {
		kept, err := k.history.read(ctx)
		if err == nil {
			return k.handOver(ctx, kept)
		}
		if ctx.Err() != nil {
			return false
		}
		if text := err.Error(); text != said {
			k.history.log.Warn("what happened to connectors lately can't be read, and isn't kept until it can", "topic", k.history.topic, "error", err, "next_try", readAgain)
			said = text
		}
		select {
		case <-time.After(readAgain):
		case <-ctx.Done():
			return false
		}
	}
}

func (k *Keeper) handOver(ctx context.Context, kept []entry) bool {
	for _, e := range kept {
		if k.known[e.connector] == nil {
			k.known[e.connector] = map[string]uint64{}
			k.Note(e.connector) // It may be gone, or have changed since.
		}
		k.known[e.connector][e.key] = maphash.Bytes(seed, e.value)
	}
	return k.core.Submit(ctx, state.Recalled{Connectors: lastKnown(kept)}) == nil
}

// take takes some of the connectors that have changed, and says whether there are more.
func (k *Keeper) take() (names []string, more bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	names = slices.Sorted(maps.Keys(k.changed))
	if len(names) > mostAtOnce {
		names, more = names[:mostAtOnce], true
	}
	for _, name := range names {
		delete(k.changed, name)
	}
	for _, name := range k.failed { // All of it is written again, with the next change at the latest.
		for key := range k.known[name] {
			k.known[name][key] = 0
		}
	}
	k.failed = k.failed[:0]
	return names, more
}

// write writes some of what has changed: how many bytes that was, and whether more is waiting. The error is that of a loop that has ended.
func (k *Keeper) write(ctx context.Context) (size int, more bool, err error) {
	names, more := k.take()
	for some := range slices.Chunk(names, lookAtOnce) {
		var kept []state.LastKnown
		var term uint64
		gone := map[string]bool{}
		err := k.core.View(ctx, func(st *state.State) {
			term = st.Term()
			for _, name := range some {
				last, there := st.LastKnown(name)
				if gone[name] = !there; there {
					kept = append(kept, last)
				}
			}
		})
		if err != nil {
			return size, false, err
		}
		for _, last := range kept {
			size += k.put(ctx, last.Name, records(&last, term))
		}
		for name := range gone {
			if gone[name] {
				size += k.put(ctx, name, nil)
			}
		}
	}
	return size, more, nil
}

// put writes what differs from the newest records of a connector, and deletes those that have no successor.
func (k *Keeper) put(ctx context.Context, connector string, now map[string][]byte) (size int) {
	before := k.known[connector]
	for _, key := range slices.Sorted(maps.Keys(before)) {
		if _, still := now[key]; !still {
			size += k.send(ctx, connector, key, nil)
		}
	}
	for _, key := range slices.Sorted(maps.Keys(now)) {
		if hash, known := before[key]; !known || hash != maphash.Bytes(seed, now[key]) {
			size += k.send(ctx, connector, key, now[key])
		}
	}
	return size
}

// send hands a record to the client, or drops it where too much is waiting.
func (k *Keeper) send(ctx context.Context, connector, key string, value []byte) (size int) {
	h := k.history
	if value == nil {
		delete(k.known[connector], key)
	} else {
		if k.known[connector] == nil {
			k.known[connector] = map[string]uint64{}
		}
		k.known[connector][key] = maphash.Bytes(seed, value)
	}
	if len(k.known[connector]) == 0 {
		delete(k.known, connector)
	}
	k.client.TryProduce(context.WithoutCancel(ctx), &kgo.Record{Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) {
		if err == nil {
			h.written.Add(1)
			return
		}
		h.dropped.Add(1)
		h.log.Debug("what happened to a connector wasn't kept", "connector", connector, "error", err)
		k.mu.Lock()
		if !slices.Contains(k.failed, connector) {
			k.failed = append(k.failed, connector)
		}
		k.mu.Unlock()
		if errors.Is(err, kgo.ErrRecordTimeout) || errors.Is(err, kgo.ErrMaxBuffered) {
			k.Note(connector) // What the broker refuses it would refuse again; what it had no time for it may take.
		}
	})
	return len(key) + len(value)
}

var _ loop.History = (*Keeper)(nil)
