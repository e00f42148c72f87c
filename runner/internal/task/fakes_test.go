package task

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const offsetsTopic = "fencepost.offsets.c"

// record is what a reader sees.
type record struct {
	topic, key, value string
}

// kafkaModel is Kafka as far as a task can tell: what a read_committed reader sees, and what is stored. It outlives attempts.
type kafkaModel struct {
	mu      sync.Mutex
	visible []record
	stored  map[string]source.PartitionOffset // by canonical form
	epoch   int
	topics  map[string]publish.TopicInfo
	// events is what happened, in order.
	events []string
	start  time.Time
	// trouble may refuse a call; the name is that of the Publisher's or the Coordinator's method.
	trouble func(call string) error
	// slow is how long calls take.
	slow map[string]time.Duration
	// lost: a broker went away since that was last asked.
	lost bool
	// away: no broker answers.
	away bool
	// maxValue refuses larger records at the commit, as a broker does.
	maxValue int
}

func newKafka() *kafkaModel {
	return &kafkaModel{
		stored: map[string]source.PartitionOffset{}, start: time.Now(),
		topics: map[string]publish.TopicInfo{"t": {Exists: true, Partitions: 3}, "u": {Exists: true, Partitions: 1}, offsetsTopic: {Exists: true, Partitions: 1}},
		slow:   map[string]time.Duration{},
	}
}

// note writes an event down and says whether the call fails.
func (k *kafkaModel) note(ctx context.Context, call, format string, args ...any) error {
	k.mu.Lock()
	k.events = append(k.events, fmt.Sprintf("%-6s ", time.Since(k.start).Round(time.Millisecond))+call+fmt.Sprintf(format, args...))
	trouble, slow := k.trouble, k.slow[call]
	k.mu.Unlock()
	if slow > 0 {
		if err := pause(ctx, slow); err != nil {
			return err
		}
	}
	if trouble != nil {
		return trouble(call)
	}
	return nil
}

func (k *kafkaModel) log() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.events)
}

func (k *kafkaModel) reader() []record {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.Clone(k.visible)
}

func (k *kafkaModel) offset(partition string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	canonical, err := source.Canonical(source.JSON(partition))
	if err != nil {
		panic(err)
	}
	return string(k.stored[string(canonical)].Offset)
}

// verdictError is an error with a class, as those of the real publisher are.
type verdictError struct{ v publish.Verdict }

func (e verdictError) Error() string            { return e.v.Text }
func (e verdictError) Verdict() publish.Verdict { return e.v }

func refused(class publish.Class, cause string) error {
	return verdictError{publish.Verdict{Class: class, Cause: cause, Text: "kafka says " + cause}}
}

// fakePublisher is a producer of the model.
type fakePublisher struct {
	k      *kafkaModel
	epoch  int
	open   bool
	closed bool
	txn    []record
	stage  map[string]source.PartitionOffset
	// unknown: a commit got no answer.
	unknown bool
}

var (
	_ Publisher = (*fakePublisher)(nil)
	_ Publisher = (*publish.Producer)(nil)
)

func (p *fakePublisher) Init(ctx context.Context) error {
	if err := p.k.note(ctx, "init", ""); err != nil {
		return err
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	p.k.epoch++
	p.epoch = p.k.epoch
	return nil
}

func (p *fakePublisher) Begin() error {
	if p.open || p.closed {
		panic("begin out of order")
	}
	if err := p.k.note(context.Background(), "begin", ""); err != nil {
		return err
	}
	p.open, p.txn, p.stage = true, nil, map[string]source.PartitionOffset{}
	return nil
}

func (p *fakePublisher) Produce(ctx context.Context, b *source.Batch, topics []string) error {
	if !p.open || p.closed {
		panic("produce outside of a transaction")
	}
	if err := b.Check(source.Limits{}); err != nil {
		panic(err)
	}
	call := "produce"
	if topics[b.DefaultTopic] == offsetsTopic {
		call = "offsets"
	}
	if err := p.k.note(ctx, call, " %s", short(b)); err != nil {
		return err
	}
	for _, r := range b.Records() {
		topic := topics[r.Topic]
		if topic == offsetsTopic && r.Value == nil {
			continue // it changes nothing
		}
		if topic == offsetsTopic {
			p.stage[string(r.Key)] = source.PartitionOffset{Partition: source.JSON(r.Key), Offset: source.JSON(r.Value)}
			continue
		}
		if len(p.stage) > 0 {
			panic("a record after the offsets")
		}
		p.txn = append(p.txn, record{topic, string(r.Key), string(r.Value)})
	}
	return nil
}

// short is a batch for the log: few records one by one, many as a number.
func short(b *source.Batch) string {
	if b.Count > 3 {
		return fmt.Sprintf("%d records", b.Count)
	}
	out := ""
	for _, r := range b.Records() {
		if out != "" {
			out += " "
		}
		out += string(r.Key) + "=" + string(r.Value)
	}
	return out
}

// commitFate is what trouble returns for a commit that reaches the broker and whose answer is lost.
var errAnswerLost = errors.New("the answer was lost")

func (p *fakePublisher) Commit(ctx context.Context) error {
	if !p.open || p.closed {
		panic("commit outside of a transaction")
	}
	err := p.k.note(ctx, "commit", "")
	if err != nil && !errors.Is(err, errAnswerLost) {
		return err
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	if p.epoch != p.k.epoch {
		return refused(publish.Ask, CauseFenced)
	}
	for _, r := range p.txn {
		if p.k.maxValue > 0 && len(r.value) > p.k.maxValue {
			return refused(publish.Fail, CauseRecord)
		}
	}
	p.k.visible = append(p.k.visible, p.txn...)
	maps.Copy(p.k.stored, p.stage)
	if err != nil {
		p.unknown = true
		return refused(publish.Ask, "unknown")
	}
	p.open = false
	return nil
}

func (p *fakePublisher) Abort(ctx context.Context) error {
	if p.unknown {
		panic("abort after a commit without an answer")
	}
	if !p.open {
		panic("abort of nothing")
	}
	if err := p.k.note(ctx, "abort", ""); err != nil {
		return err
	}
	p.open = false
	return nil
}

func (p *fakePublisher) Close(ctx context.Context) error {
	p.closed = true
	return p.k.note(ctx, "close", "")
}

func (p *fakePublisher) Topics(ctx context.Context, names []string) (map[string]publish.TopicInfo, error) {
	if err := p.k.note(ctx, "topics", " %v", names); err != nil {
		return nil, err
	}
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	return maps.Clone(p.k.topics), nil
}

func (p *fakePublisher) Reaches(within time.Duration) bool {
	p.k.mu.Lock()
	away := p.k.away
	p.k.mu.Unlock()
	if away {
		passes(within)
	}
	return !away
}

func (p *fakePublisher) BrokerLost() bool {
	p.k.mu.Lock()
	defer p.k.mu.Unlock()
	lost := p.k.lost
	p.k.lost = false
	return lost
}

// fakeOffsets are the stored offsets as one attempt read them.
type fakeOffsets struct {
	committed map[string]source.PartitionOffset
	staged    []source.PartitionOffset
}

func (o *fakeOffsets) Stored(canonical []byte) (source.PartitionOffset, bool) {
	p, ok := o.committed[string(canonical)]
	return p, ok
}

func (o *fakeOffsets) All() []source.PartitionOffset {
	return slices.Collect(maps.Values(o.committed))
}

func (o *fakeOffsets) Stage(offsets []source.PartitionOffset) (*source.Batch, []string, error) {
	var b source.Builder
	for _, p := range offsets {
		canonical, err := source.Canonical(p.Partition)
		if err != nil {
			return nil, nil, err
		}
		b.Add(source.RecordView{Key: canonical, Value: p.Offset, Partition: 1, Topic: 1, KafkaPartition: 0, TimestampMS: source.NoTimestamp})
	}
	o.staged = slices.Clone(offsets)
	return b.Batch(0), []string{"", offsetsTopic}, nil
}

func (o *fakeOffsets) Proof(task uint32) (*source.Batch, []string) {
	var b source.Builder
	b.Add(source.RecordView{Key: fmt.Appendf(nil, "proof-%d", task), Partition: 1, Topic: 1, TimestampMS: source.NoTimestamp})
	return b.Batch(0), []string{"", offsetsTopic}
}

func (o *fakeOffsets) Applied() {
	for _, p := range o.staged {
		canonical, _ := source.Canonical(p.Partition)
		o.committed[string(canonical)] = p
	}
	o.staged = nil
}

// fakeCoordinator says yes, unless the model's trouble says otherwise.
type fakeCoordinator struct {
	k       *kafkaModel
	invalid bool
	// cut is when the leader was heard of last; the zero time is now.
	cut time.Time
}

const leaseTTL = 10 * time.Second

func (c *fakeCoordinator) PrepareStart(ctx context.Context, _ lease.Lease) error {
	return c.k.note(ctx, "prepare", "")
}
func (c *fakeCoordinator) Valid(lease.Lease) bool { return !c.invalid }
func (c *fakeCoordinator) Trust(lease.Lease) (time.Time, time.Duration) {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	if !c.cut.IsZero() {
		return c.cut.Add(leaseTTL), leaseTTL
	}
	return time.Now().Add(leaseTTL), leaseTTL
}

// lose cuts the coordinator off; find brings it back.
func (c *fakeCoordinator) lose() { c.set(time.Now()) }
func (c *fakeCoordinator) find() { c.set(time.Time{}) }

func (c *fakeCoordinator) set(cut time.Time) {
	c.k.mu.Lock()
	defer c.k.mu.Unlock()
	c.cut = cut
}
func (c *fakeCoordinator) Confirm(ctx context.Context, _ lease.Lease) error {
	return c.k.note(ctx, "confirm", "")
}
func (c *fakeCoordinator) Look(ctx context.Context, _ lease.Lease) error {
	return c.k.note(ctx, "look", "")
}
func (c *fakeCoordinator) RecordTopics(ctx context.Context, _ lease.Lease, topics []string, offsetsTopic, id string) error {
	if offsetsTopic != "" {
		return c.k.note(ctx, "record", " %s %s", offsetsTopic, id)
	}
	return c.k.note(ctx, "record", " %v", topics)
}
func (c *fakeCoordinator) ClaimPartitions(ctx context.Context, _ lease.Lease, partitions [][]byte) error {
	return c.k.note(ctx, "claim", " %s", partitions)
}

// pluginFunc is a plugin in this process.
type pluginFunc func(ctx context.Context, open *source.RunOpen, host source.RunHost) error

func (pluginFunc) Describe(context.Context) (*source.Description, error) { return nil, nil }
func (pluginFunc) Validate(context.Context, *source.ValidateRequest) (*source.Validation, error) {
	return nil, nil
}
func (pluginFunc) Plan(context.Context, *source.PlanOpen, source.PlanHost) error { return nil }
func (f pluginFunc) Run(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
	return f(ctx, open, host)
}

// untilStopped takes signals until Stop, answers Drain, and gives each to see.
func untilStopped(ctx context.Context, host source.RunHost, see func(source.Signal)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case s, ok := <-host.Signals():
			if !ok || s.Kind == source.SignalStop {
				return nil
			}
			if see != nil {
				see(s)
			}
			if s.Kind == source.SignalDrain {
				if err := host.Send(ctx, source.Drained{}); err != nil {
					return err
				}
			}
		}
	}
}

// opened declares partitions 1 {"p":"a"} and 2 {"p":"b"} and topics 1 t and 2 u, and opens.
func opened(ctx context.Context, host source.RunHost) error {
	err := host.Send(ctx, &source.Declare{
		Partitions: []source.DeclaredPartition{{Number: 1, Partition: source.JSON(`{"p":"a"}`)}, {Number: 2, Partition: source.JSON(`{"p":"b"}`)}},
		Topics:     []source.DeclaredTopic{{Number: 1, Name: "t"}, {Number: 2, Name: "u"}},
	})
	if err != nil {
		return err
	}
	return host.Send(ctx, source.Opened{})
}

// numbered is a batch of partition a (1) or b (2) with records first to last, reaching the last.
func numbered(seq uint64, partition uint32, first, last int) *source.Batch {
	var b source.Builder
	for n := first; n <= last; n++ {
		b.Add(source.RecordView{Key: fmt.Appendf(nil, "%d/%d", partition, n), Value: fmt.Appendf(nil, "v%d", n), Partition: partition, Topic: 1, KafkaPartition: -1, TimestampMS: source.NoTimestamp})
	}
	b.Reach(partition, source.JSON(fmt.Sprintf(`{"n":%d}`, last)))
	return b.Batch(seq)
}

// bench is one task in a test.
type bench struct {
	k     *kafkaModel
	coord *fakeCoordinator
	cfg   Config
	drain chan struct{}

	mu       sync.Mutex
	statuses []Status
}

func newBench(plugin pluginFunc) *bench {
	k := newKafka()
	b := &bench{k: k, coord: &fakeCoordinator{k: k}, drain: make(chan struct{})}
	set, _, _ := settings.Parse(map[string]string{"connector.class": "x"})
	b.cfg = Config{
		Lease: lease.Lease{Connector: "c", Generation: 1, Epoch: 1}, Cluster: "fencepost", Settings: set,
		Open:         source.RunOpen{Connector: "c", Claim: source.Claim{Prefix: []byte("{")}},
		Plugin:       plugin,
		Coordinator:  b.coord,
		NewPublisher: func() (Publisher, error) { return &fakePublisher{k: k}, nil },
		OffsetsTopic: offsetsTopic,
		OpenOffsets: func(ctx context.Context) (Offsets, string, error) {
			if err := k.note(ctx, "load", ""); err != nil {
				return nil, "", err
			}
			k.mu.Lock()
			defer k.mu.Unlock()
			return &fakeOffsets{committed: maps.Clone(k.stored)}, "id1", nil
		},
		Status: func(s Status) {
			b.mu.Lock()
			b.statuses = append(b.statuses, s)
			b.mu.Unlock()
		},
		Drain: b.drain,
	}
	return b
}

// passes lets the bubble's time pass.
func passes(d time.Duration) { <-time.After(d) }

// start runs an attempt; the channel gives its end.
func (b *bench) start(ctx context.Context) <-chan error {
	end := make(chan error, 1)
	go func() { end <- Run(ctx, b.cfg) }()
	return end
}

func (b *bench) status() Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.statuses) == 0 {
		return Status{}
	}
	return b.statuses[len(b.statuses)-1]
}

// fails checks the end of an attempt.
func fails(t *testing.T, err error, class Class, cause string) *Failure {
	t.Helper()
	var f *Failure
	if !errors.As(err, &f) || f.Class != class || f.Cause != cause {
		t.Fatalf("the attempt ended with %v (%+v), want class %s and cause %s", err, f, class, cause)
	}
	return f
}
