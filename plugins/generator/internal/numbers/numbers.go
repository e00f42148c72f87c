// Package numbers is the connector type "generator": numbered records of a set size, rate and count, for tests, demonstrations and benchmarks.
//
// Each source partition {"generator":"i"} counts from 1, and the offset {"n":k} says that record k was the last. The value of a record is its partition and its number, "i:k", filled up with
// dots, so that a reader can tell for each source partition whether every record is there once and in order. Nothing depends on a clock but the rate and the timestamps, so a task that starts
// again makes the same records.
//
// It owns no state beyond a task's. Where to read next: reader.go.
package numbers

import (
	"context"
	"fmt"
	"strconv"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Connector is the connector type.
type Connector struct{}

const (
	keyTopic        = "topic"
	keyRate         = "rate"
	keyBurst        = "burst"
	keyCount        = "count"
	keySize         = "size"
	keySizeMax      = "size.max"
	keyKeySpace     = "key.space"
	keyPartitions   = "partitions"
	keyBatchRecords = "batch.records"
	keyTimestamps   = "timestamps"
	keyHeaders      = "headers"
	keyForget       = "forget.dir"
)

// maxSize is the largest value.
const maxSize = 4 << 20

// Type implements source.Connector.
func (Connector) Type() source.Type {
	number := func(n float64) *float64 { return &n }
	return source.Type{
		Name:    "generator",
		Summary: "Numbered records of a set size, rate and count, for tests, demonstrations and benchmarks.",
		Config: []source.Key{
			{Name: keyTopic, Type: source.String, Required: true, Importance: source.High, Doc: "The topic that the records go to."},
			{Name: keyRate, Type: source.Double, Default: source.Default("0"), Min: number(0), Max: number(1e9), Importance: source.High,
				Doc: "Records a second of each task, each sent when it is due. 0 is as fast as possible."},
			{Name: keyBurst, Type: source.Duration, Default: source.Default("0"), Importance: source.Low,
				Doc: "With a rate: what falls due is held back and sent together, once in this time. 0 is at once."},
			{Name: keyCount, Type: source.Long, Default: source.Default("0"), Min: number(0), Importance: source.High,
				Doc: "How many records each task makes; it stays open after them. 0 is no end."},
			{Name: keySize, Type: source.Size, Default: source.Default("100B"), Min: number(1), Max: number(maxSize), Importance: source.Medium,
				Doc: "Bytes of a value. A value is never shorter than its partition and number."},
			{Name: keySizeMax, Type: source.Size, Default: source.Default("0"), Min: number(0), Max: number(maxSize), Importance: source.Low,
				Doc: "Where it is larger than size, values have from size to size.max bytes, each the same whenever it is made."},
			{Name: keyKeySpace, Type: source.Long, Default: source.Default("1000"), Min: number(0), Max: number(maxKeys), Importance: source.Medium,
				Doc: "How many different keys there are; a key has 8 bytes. 0 is no keys."},
			{Name: keyPartitions, Type: source.Int, Default: source.Default("1"), Min: number(1), Max: number(10_000), Importance: source.Medium,
				Doc: "How many source partitions there are. They are divided among the tasks, and each task takes its own in turn, a batch from each."},
			{Name: keyBatchRecords, Type: source.Int, Default: source.Default("1000"), Min: number(1), Max: number(source.MaxBatchRecords), Importance: source.Low,
				Doc: "The most records in a batch."},
			{Name: keyTimestamps, Type: source.Bool, Default: source.Default("false"), Importance: source.Low,
				Doc: "Whether a record has the time at which it was made as its timestamp. Otherwise Kafka gets the time of publishing."},
			{Name: keyHeaders, Type: source.Int, Default: source.Default("0"), Min: number(0), Max: number(100), Importance: source.Low,
				Doc: "How many headers of 8 bytes a record has."},
			{Name: keyForget, Type: source.String, Importance: source.Low,
				Doc: "A folder, the same on all hosts, in which the connector notes what it was told is committed, and never makes it again: a source that deletes what was read. Left out: everything can be made again."},
		},
		Example: map[string]string{keyTopic: "numbers", keyCount: "1000"},
	}
}

// Plan implements source.Connector: partition i belongs to task i mod n.
func (Connector) Plan(ctx context.Context, p *source.Planning) error {
	partitions := p.Config().Int(keyPartitions)
	n := min(p.TasksMax(), partitions)
	tasks := make([]source.TaskSpec, n)
	for i := range partitions {
		j, err := fields(i).JSON()
		if err != nil {
			return fmt.Errorf("source partition %d: %w", i, err)
		}
		tasks[i%n].Claim.Set = append(tasks[i%n].Claim.Set, j)
	}
	return p.SetTasks(ctx, tasks...)
}

// Validate implements source.Validator.
func (Connector) Validate(_ context.Context, c source.Config) source.Validation {
	var v source.Validation
	if wrong := source.CheckTopic(c.String(keyTopic)); c.Has(keyTopic) && wrong != nil {
		v.Problems = append(v.Problems, source.Problem{Key: keyTopic, Message: wrong.Error()})
	}
	return v
}

// fields are those of source partition i.
func fields(i int) source.Fields { return source.Fields{"generator": strconv.Itoa(i)} }

// Open implements source.Connector.
func (Connector) Open(_ context.Context, t *source.Task) (source.Reader, error) {
	c := t.Config()
	r := &reader{
		topic: c.String(keyTopic), rate: c.Float64(keyRate), burst: c.Duration(keyBurst), batch: c.Int64(keyBatchRecords), timestamps: c.Bool(keyTimestamps), keys: c.Int64(keyKeySpace),
	}
	for i := range c.Int(keyHeaders) {
		r.headers = append(r.headers, source.Header{Name: "header-" + strconv.Itoa(i), Value: []byte("01234567")})
	}
	for i := range c.Int(keyPartitions) {
		if !t.Has(fields(i)) {
			continue
		}
		p, err := newPartition(t, i, int(c.Size(keySize)), int(c.Size(keySizeMax)))
		if err != nil {
			return nil, err
		}
		r.partitions = append(r.partitions, p)
	}
	r.share(c.Int64(keyCount))
	if dir := c.String(keyForget); dir != "" {
		return newForgetful(r, dir)
	}
	return r, nil
}

// newPartition begins after what is stored.
func newPartition(t *source.Task, i, size, largest int) (*partition, error) {
	p, err := t.Partition(fields(i))
	if err != nil {
		return nil, err
	}
	out := &partition{source: p, next: 1, value: newValue(i, size, largest)}
	if stored, ok := p.Stored(); ok {
		n, isNumber := stored.Int("n")
		if !isNumber || n < 0 {
			return nil, source.Fatalf("source partition %s: the stored offset %v has no whole number n of 0 or more", p.Canonical(), stored)
		}
		out.next = n + 1
	}
	return out, nil
}
