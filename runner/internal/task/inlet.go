package task

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// inlet is the RunHost of one Run: it takes what the plugin sends, checks it and queues it. Send never waits for anything: the queue is bounded by the credit that the plugin was given, and more than
// that is a broken protocol (I10).
type inlet struct {
	check    *checker // only Send uses it
	store    *store
	signals  *signals
	reporter *reporter
	log      hclog.Logger

	// wake has room for one wake-up; more would say nothing new.
	wake chan struct{}
	// waiting counts what is queued and not yet taken by the writer, arrived the records that were received, or dropped by a rule of the plugin.
	waiting atomic.Int64
	arrived atomic.Uint64
	// batches counts batches.
	batches atomic.Uint64
	// glued: no transaction ends after a batch below this number, because that one has a record with the same offset as one before it.
	glued atomic.Uint64
	// committed is the last number that is committed.
	committed atomic.Uint64
	draining  atomic.Bool

	mu    sync.Mutex
	queue []*entry
	ended bool
	// granted and received count bytes since the stream began, records those that are not committed, most their bound.
	granted, received uint64
	records, most     uint64
}

// entry is something numbered on its way to Kafka, or the end of it all.
type entry struct {
	seq uint64
	// batch is nil for Idle and Dropped; offsets are those of a batch or of Dropped.
	batch   *source.Batch
	offsets []source.Reached
	idle    bool
	dropped uint64
	reason  string
	// records and cost are what the plugin counts: records and bytes of credit, whatever converting makes of them.
	records, cost int
	// What the numbers in batch and offsets mean.
	names   []source.JSON
	topics  []string
	schemas []*source.Schema
	// end is set on the last entry.
	end *ending
}

// ending is why nothing follows; a nil error is a drain that is done.
type ending struct{ err error }

// errEnded is what a plugin gets that sends after the end.
var errEnded = errors.New("the runner takes no more messages")

func newInlet(a *attempt) *inlet {
	records := max(maxUncommittedRecords, 2*uint64(a.cfg.Settings.Boundary.MaxRecords))
	in := &inlet{
		check: newChecker(&a.cfg.Open), store: a.store, reporter: a.reporter, log: a.cfg.Logger,
		signals: newSignals(), wake: make(chan struct{}, 1), most: records,
	}
	in.grant(windowBytes)
	in.signals.limit(records)
	return in
}

// Send takes one message. An error is final.
func (in *inlet) Send(_ context.Context, msg source.Message) error {
	if err := in.take(msg); err != nil {
		// What came before it is good, and is committed first.
		in.end(err)
		return err
	}
	return nil
}

func (in *inlet) take(msg source.Message) error {
	switch m := msg.(type) {
	case source.Opened:
		if err := in.check.open(); err != nil {
			return err
		}
		if !in.draining.Load() {
			in.reporter.phase(PhaseRunning)
		}
		return nil
	case *source.Declare:
		return in.check.declare(m)
	case *source.Batch:
		return in.batch(m)
	case *source.Idle:
		if err := in.check.next("Idle", m.Seq); err != nil {
			return err
		}
		return in.push(&entry{seq: m.Seq, idle: true})
	case *source.Dropped:
		if err := in.check.dropped(m); err != nil {
			return err
		}
		in.arrived.Add(m.Count)
		return in.push(&entry{seq: m.Seq, offsets: m.Offsets, dropped: m.Count, reason: m.Reason})
	case *source.Metrics:
		if len(m.Metrics) > maxMetrics {
			return broken("%d metrics came at once, the limit is %d", len(m.Metrics), maxMetrics)
		}
		in.reporter.set(func(s *Status) { s.Metrics = m.Metrics })
		return nil
	case *source.Notice:
		if err := checkNotice(m); err != nil {
			return err
		}
		in.reporter.set(func(s *Status) { s.Notices = m.Texts })
		return nil
	case source.Drained:
		if !in.draining.Load() {
			return broken("Drained came without Drain")
		}
		in.end(nil)
		return nil
	}
	return broken("a message of type %T isn't known", msg)
}

func (in *inlet) batch(b *source.Batch) error {
	joins, err := in.check.batch(b)
	if err != nil {
		return err
	}
	if joins > in.committed.Load() {
		in.glued.Store(b.Seq)
	} else if joins > 0 {
		in.log.Warn("offset_repeated_after_commit", "batch", b.Seq, "first", joins)
	}
	in.arrived.Add(uint64(b.Count))
	in.batches.Add(1)
	return in.push(&entry{seq: b.Seq, batch: b, offsets: b.Offsets, records: b.Count, cost: b.Size()})
}

// push queues an entry. An Idle that something follows says nothing any more, and Dropped may be told as one: what costs no credit takes no room.
func (in *inlet) push(e *entry) error {
	e.names, e.topics, e.schemas = in.check.names, in.check.topics, in.check.schemas
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return errEnded
	}
	if e.batch != nil {
		if in.received >= in.granted {
			return broken("batch %d came without credit: %d bytes were granted and %d used before it", e.seq, in.granted, in.received)
		}
		if e.records > 0 && in.records >= in.most {
			return broken("batch %d came while %d records were not committed, and %d is the limit", e.seq, in.records, in.most)
		}
		in.received += uint64(e.cost)
		in.records += uint64(e.records)
	}
	n := len(in.queue)
	if n > 0 && in.queue[n-1].idle {
		n--
		in.queue = in.queue[:n]
		in.waiting.Add(-1)
	}
	if n > 0 && e.dropped > 0 && in.queue[n-1].dropped > 0 {
		last := in.queue[n-1]
		e.dropped += last.dropped
		e.offsets = merge(last.offsets, e.offsets)
		in.queue[n-1] = e
		return nil
	}
	if in.waiting.Load() >= maxWaiting {
		return broken("more than %d messages wait to be published", maxWaiting)
	}
	in.add(e)
	return nil
}

// merge gives the newer offset of each partition.
func merge(old, newer []source.Reached) []source.Reached {
	if len(old) == 0 {
		return newer
	}
	out := append([]source.Reached(nil), old...)
	place := make(map[uint32]int, len(old))
	for i, o := range old {
		place[o.Partition] = i
	}
	for _, o := range newer {
		if i, ok := place[o.Partition]; ok {
			out[i] = o
			continue
		}
		place[o.Partition] = len(out)
		out = append(out, o)
	}
	return out
}

// add appends and wakes next; the caller holds the lock.
func (in *inlet) add(e *entry) {
	in.queue = append(in.queue, e)
	in.waiting.Add(1)
	select {
	case in.wake <- struct{}{}:
	default:
	}
}

// end lets nothing more in. The first end counts; what was received before it is still worked on.
func (in *inlet) end(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.ended {
		return
	}
	in.ended = true
	in.add(&entry{end: &ending{err}})
}

// next waits for entries and gives all there are; nil is the end of ctx.
func (in *inlet) next(ctx context.Context) []*entry {
	for {
		in.mu.Lock()
		queue := in.queue
		in.queue = nil
		in.mu.Unlock()
		if len(queue) > 0 {
			return queue
		}
		select {
		case <-in.wake:
		case <-ctx.Done():
			return nil
		}
	}
}

// sample adds what came in to a status.
func (in *inlet) sample(s *Status) {
	in.mu.Lock()
	defer in.mu.Unlock()
	s.Polled, s.Batches, s.Uncommitted = in.arrived.Load(), in.batches.Load(), in.records
}

// grant gives credit. It is counted before the plugin can know of it.
func (in *inlet) grant(bytes uint64) {
	in.mu.Lock()
	in.granted += bytes
	in.mu.Unlock()
	in.signals.credit(bytes)
}

// settled says that everything up to seq is committed, or was dropped on the plugin's word, and with it so many records.
func (in *inlet) settled(seq uint64, records int) {
	in.committed.Store(seq)
	in.mu.Lock()
	in.records -= uint64(records)
	in.mu.Unlock()
	in.signals.committed(seq)
}

// raise lets more records be uncommitted where the plugin has sent as many as it may, and a transaction that can't end yet holds them: it could never go on otherwise.
func (in *inlet) raise() {
	in.mu.Lock()
	if in.records < in.most {
		in.mu.Unlock()
		return
	}
	in.most += maxUncommittedRecords
	most := in.most
	in.mu.Unlock()
	in.signals.limit(most)
}

// drain asks the plugin to stop reading.
func (in *inlet) drain(s source.Signal) {
	in.draining.Store(true)
	in.signals.drain(s)
}

// Signals is what the plugin hears.
func (in *inlet) Signals() <-chan source.Signal { return in.signals.out }

// Lookup answers from what is committed, and nothing else.
func (in *inlet) Lookup(_ context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	if len(partitions) > maxLookup {
		return nil, source.Fatalf("a look-up names %d partitions, the limit is %d", len(partitions), maxLookup)
	}
	out := make([]source.PartitionOffset, len(partitions))
	for i, p := range partitions {
		canonical, err := source.Canonical(p)
		if err != nil {
			return nil, &source.Error{Kind: source.Fatal, Message: fmt.Sprintf("look-up of source partition %s: %v", clip(p), err)}
		}
		out[i] = source.PartitionOffset{Partition: p, Offset: in.store.stored(canonical)}
	}
	return out, nil
}

// store lets look-ups and the writer share the offsets.
type store struct {
	mu      sync.Mutex
	offsets Offsets
}

func (s *store) stored(canonical []byte) source.JSON {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o, ok := s.offsets.Stored(canonical); ok {
		return o.Offset
	}
	return nil
}

func (s *store) stage(offsets []source.PartitionOffset) (*source.Batch, []string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offsets.Stage(offsets)
}

func (s *store) applied() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.offsets.Applied()
}

func (s *store) proof(task uint32) (*source.Batch, []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.offsets.Proof(task)
}
