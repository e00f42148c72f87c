package soak

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
)

// watch follows all topics as a read_committed reader while the faults go on: it knows when records last came, and is the first to see one that is there twice or out of order. Its verdict stands
// beside that of Kafka's own consumer, which reads everything again in the end.
type watch struct {
	mu sync.Mutex
	// topics has the source partitions of each topic.
	topics map[string]map[string]*sequence
	// came is when the last record of a topic came.
	came map[string]time.Time
	// next is the offset after the last one that was read, of each Kafka partition.
	next map[string]map[int32]int64
	// wrong is what was found wrong, at most mostWrong texts.
	wrong []string
	bad   chan struct{} // closed with the first

	canary canary
}

const mostWrong = 10

// sequence is what came of one source partition.
type sequence struct {
	seen  bits
	count uint64
	last  uint64
	// lastIn is the last number in each Kafka partition.
	lastIn map[int32]uint64
	came   time.Time
}

// bits is a set of numbers.
type bits []uint64

func (b bits) has(n uint64) bool { return n/64 < uint64(len(b)) && b[n/64]&(1<<(n%64)) != 0 }

func (b *bits) add(n uint64) {
	for n/64 >= uint64(len(*b)) {
		*b = append(*b, 0)
	}
	(*b)[n/64] |= 1 << (n % 64)
}

func newWatch() *watch {
	w := &watch{topics: map[string]map[string]*sequence{}, came: map[string]time.Time{}, next: map[string]map[int32]int64{}, bad: make(chan struct{})}
	for i := range loads {
		w.topics[loads[i].name], w.next[loads[i].name] = map[string]*sequence{}, map[int32]int64{}
	}
	return w
}

// follow reads until the context ends. A broker that is away is waited for.
func (w *watch) follow(ctx context.Context, brokers []string) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumeTopics(slices.Collect(maps.Keys(w.topics))...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.FetchMaxWait(100*time.Millisecond), kgo.MetadataMaxAge(5*time.Second))
	if err != nil {
		return fmt.Errorf("watch: %w", err)
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		fetches.EachRecord(w.take)
	}
}

func (w *watch) take(r *kgo.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next[r.Topic][r.Partition] = r.Offset + 1
	if r.Attrs.IsControl() {
		return
	}
	source, number, _ := strings.Cut(strings.TrimRight(string(r.Value[:min(len(r.Value), 64)]), "."), ":")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n > 1<<32 {
		w.complain("%s/%d offset %d: %.40q is no numbered record", r.Topic, r.Partition, r.Offset, r.Value)
		return
	}
	s := w.topics[r.Topic][source]
	if s == nil {
		s = &sequence{lastIn: map[int32]uint64{}}
		w.topics[r.Topic][source] = s
	}
	if s.seen.has(n) {
		w.complain("%s: record %d of source partition %s is there twice, the second time in %d at offset %d", r.Topic, n, source, r.Partition, r.Offset)
	} else if last := s.lastIn[r.Partition]; n < last {
		w.complain("%s: record %d of source partition %s comes after %d, in %d at offset %d", r.Topic, n, source, last, r.Partition, r.Offset)
	}
	s.seen.add(n)
	s.count++
	s.last, s.lastIn[r.Partition] = max(s.last, n), n
	s.came = time.Now()
	w.came[r.Topic] = s.came
}

// complain needs the lock.
func (w *watch) complain(format string, args ...any) {
	if len(w.wrong) == 0 {
		close(w.bad)
	}
	if len(w.wrong) < mostWrong {
		w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
	}
}

// flows waits until every topic has a record that came after a moment. The error names those that don't.
func (w *watch) flows(ctx context.Context, since time.Time, within time.Duration) error {
	return w.canary.patience(ctx, within, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		var still []string
		for topic := range w.topics {
			if !w.came[topic].After(since) {
				still = append(still, topic)
			}
		}
		if len(still) > 0 {
			slices.Sort(still)
			return fmt.Errorf("nothing of %s", strings.Join(still, ", "))
		}
		return nil
	})
}

// allFlow waits until every source partition has a record that came after a moment.
func (w *watch) allFlow(ctx context.Context, since time.Time, within time.Duration) error {
	return w.canary.patience(ctx, within, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		var still []string
		for i := range loads {
			for source := range loads[i].sources {
				if s := w.topics[loads[i].name][strconv.Itoa(source)]; s == nil || !s.came.After(since) {
					still = append(still, fmt.Sprintf("%s/%d", loads[i].name, source))
				}
			}
		}
		if len(still) > 0 {
			return fmt.Errorf("nothing of %d source partitions: %s", len(still), strings.Join(still[:min(len(still), 8)], ", "))
		}
		return nil
	})
}

// reachEnd waits until everything up to the high watermarks has been read. Where that can't be, a transaction is open or hangs there.
func (w *watch) reachEnd(ctx context.Context, admin *kadm.Client, within time.Duration) error {
	ends, err := admin.ListEndOffsets(ctx, slices.Collect(maps.Keys(w.topics))...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("ends of the topics: %w", err)
	}
	return harness.Poll(ctx, within, func(context.Context) error {
		w.mu.Lock()
		defer w.mu.Unlock()
		var open []string
		ends.Each(func(o kadm.ListedOffset) {
			if w.next[o.Topic][o.Partition] < o.Offset {
				open = append(open, fmt.Sprintf("%s/%d at %d of %d", o.Topic, o.Partition, w.next[o.Topic][o.Partition], o.Offset))
			}
		})
		if len(open) > 0 {
			return fmt.Errorf("a read_committed reader can't reach the end: %s", strings.Join(open[:min(len(open), 5)], ", "))
		}
		return nil
	})
}

// said is what was found wrong so far.
func (w *watch) said() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wrong)
}

// counts is how many records came of each source partition, and the last number.
func (w *watch) counts() map[string]tally {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := map[string]tally{}
	for topic, sources := range w.topics {
		for source, s := range sources {
			all[topic+"/"+source] = tally{count: s.count, last: s.last}
		}
	}
	return all
}

// tally is what a reader counted of a source partition.
type tally struct{ count, last uint64 }
