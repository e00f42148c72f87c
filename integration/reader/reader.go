// Package reader is the one verdict of every test: what a read_committed reader sees of a numbered source, and whether the stored offset says the same.
//
// Exact means: of each source partition every number once and in order and nothing else, and the stored offset is that of the last readable record.
// The package reads with a client of its own (franz-go), so that it shares no code and no mistake with what it judges.
package reader

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Timeout bounds one reading of a topic.
const Timeout = 2 * time.Minute

// ErrOpen says that a transaction was still open on a partition when the time was up, so that nobody can say what the end is.
var ErrOpen = errors.New("a transaction is open")

// Topic reads a topic from its beginning to its end as a read_committed reader, and calls take for each record: in order within a Kafka partition.
// The end is the high watermark. Where the last stable offset stays behind it, a transaction hangs: Topic waits for it until the context or Timeout ends.
func Topic(ctx context.Context, bootstrap, topic string, take func(*kgo.Record) error) error {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	// Control records are kept to see the end: it lies behind a commit marker.
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.FetchMaxWait(100*time.Millisecond))
	if err != nil {
		return fmt.Errorf("reader: %w", err)
	}
	defer client.Close()
	starts, ends, err := bounds(ctx, kadm.NewClient(client), topic)
	if err != nil {
		return err
	}
	assign := map[int32]kgo.Offset{}
	for partition, end := range ends {
		if starts[partition] < end {
			assign[partition] = kgo.NewOffset().At(starts[partition])
		}
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{topic: maps.Clone(assign)})
	for len(assign) > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return fmt.Errorf("read %s: %w; not read to the end: %v", topic, errors.Join(err, ErrOpen), assign)
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("read %s/%d: %w", topic, e.Partition, e.Err)
		}
		var failed error
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset >= ends[r.Partition] || failed != nil {
				return // written after the end was taken
			}
			if !r.Attrs.IsControl() {
				failed = take(r)
			}
			if r.Offset+1 >= ends[r.Partition] {
				delete(assign, r.Partition)
			}
		})
		if failed != nil {
			return failed
		}
	}
	return nil
}

// bounds are a topic's log start offsets and high watermarks.
func bounds(ctx context.Context, admin *kadm.Client, topic string) (starts, ends map[int32]int64, err error) {
	listedStarts, err := admin.ListStartOffsets(ctx, topic)
	if err == nil {
		err = listedStarts.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("start of %s: %w", topic, err)
	}
	listedEnds, err := admin.ListEndOffsets(ctx, topic)
	if err == nil {
		err = listedEnds.Error()
	}
	if err != nil {
		return nil, nil, fmt.Errorf("end of %s: %w", topic, err)
	}
	starts, ends = map[int32]int64{}, map[int32]int64{}
	listedStarts.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
	listedEnds.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	return starts, ends, nil
}

// Follow reads a topic from its beginning as a read_committed reader until the context ends, and calls take for each record. It returns nil then.
func Follow(ctx context.Context, bootstrap, topic string, take func(*kgo.Record)) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchMaxWait(50*time.Millisecond))
	if err != nil {
		return fmt.Errorf("reader: %w", err)
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			return nil
		}
		for _, e := range fetches.Errors() {
			return fmt.Errorf("follow %s/%d: %w", topic, e.Partition, e.Err)
		}
		fetches.EachRecord(take)
	}
}
