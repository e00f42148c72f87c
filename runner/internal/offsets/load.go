package offsets

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// pollMS bounds one wait for a record, so that the end of a context is noticed.
const pollMS = 100

// Open is a task's start: it makes sure that the offsets topic is there and is the one that was used before, reads the connector's stored offsets, and gives the topic's id. The caller has initialised its transactional id
// before, so that no earlier producer of the id can add to them (I3).
//
// It reads committed records only, up to the high watermark that each partition has now. The last stable offset, which a read_committed reader is told as the end, won't do: a sibling's open transaction
// may hold it below this connector's own last offset.
func Open(ctx context.Context, cfg Config) (*Store, string, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	r, err := open(&cfg)
	if err != nil {
		return nil, "", err
	}
	defer r.close()
	topic, err := r.ensure(ctx)
	if err != nil {
		return nil, "", err
	}
	store, err := r.load(ctx, topic)
	return store, idOf(topic), err
}

// Peek reads the connector's stored offsets for somebody who only asks: a person, or a plan's look-up. Where there is no topic, nothing is stored. It never creates the topic: one that was deleted must stay so
// until its connector's next start, which sees that it is missing (I3).
func Peek(ctx context.Context, cfg Config) (*Store, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	r, err := open(&cfg)
	if err != nil {
		return nil, err
	}
	defer r.close()
	topic, exists, err := r.seek(ctx)
	switch {
	case err != nil:
		return nil, err
	case !exists:
		return newStore(&cfg, 0), nil
	case cfg.KnownID != "" && idOf(topic) != cfg.KnownID:
		return nil, &LostError{Topic: cfg.Topic, KnownID: cfg.KnownID, FoundID: idOf(topic)}
	}
	if err := allowed(topic, kafka.ACLOperationRead); err != nil {
		return nil, err
	}
	return r.load(ctx, topic)
}

// load reads what is stored.
func (r *reader) load(ctx context.Context, topic kafka.TopicDescription) (*Store, error) {
	if len(topic.Partitions) == 0 {
		return nil, fmt.Errorf("read offsets topic %q: %w", r.cfg.Topic, errNoPartitions)
	}
	targets, err := r.highWatermarks(ctx, len(topic.Partitions))
	if err != nil {
		return nil, fmt.Errorf("ends of offsets topic %q: %w", r.cfg.Topic, err)
	}
	store := newStore(r.cfg, int32(len(topic.Partitions)))
	if err := r.read(ctx, targets, store); err != nil {
		return nil, err
	}
	if err := store.settle(); err != nil {
		return nil, err
	}
	return store, nil
}

// highWatermarks returns each partition's end, open transactions included.
func (r *reader) highWatermarks(ctx context.Context, partitions int) (map[int32]int64, error) {
	specs := map[kafka.TopicPartition]kafka.OffsetSpec{}
	for i := range partitions {
		specs[kafka.TopicPartition{Topic: &r.cfg.Topic, Partition: int32(i)}] = kafka.LatestOffsetSpec
	}
	ends := map[int32]int64{}
	err := again(ctx, func() error {
		result, err := r.admin.ListOffsets(ctx, specs, kafka.SetAdminIsolationLevel(kafka.IsolationLevelReadUncommitted), kafka.SetAdminRequestTimeout(limitOf(ctx)))
		if err != nil {
			return err
		}
		for partition, info := range result.ResultInfos {
			if info.Error.Code() != kafka.ErrNoError {
				return info.Error
			}
			ends[partition.Partition] = int64(info.Offset)
		}
		if len(ends) != partitions {
			return kafka.NewError(kafka.ErrPartial, fmt.Sprintf("the broker named %d of %d partitions", len(ends), partitions), false)
		}
		return nil
	})
	return ends, err
}

// read takes every record below the targets.
func (r *reader) read(ctx context.Context, targets map[int32]int64, store *Store) error {
	positions := map[int32]int64{} // of partitions that aren't done
	var from []kafka.TopicPartition
	for partition, target := range targets {
		if target > 0 {
			positions[partition] = 0
			from = append(from, kafka.TopicPartition{Topic: &r.cfg.Topic, Partition: partition, Offset: kafka.OffsetBeginning})
		}
	}
	if len(from) == 0 {
		return nil
	}
	if err := r.consumer.Assign(from); err != nil {
		return fmt.Errorf("read offsets topic %q: %w", r.cfg.Topic, err)
	}
	reached := func(partition int32, position int64) {
		if _, open := positions[partition]; open {
			positions[partition] = position
			if position >= targets[partition] {
				delete(positions, partition)
			}
		}
	}
	var last error
	seen := newest{}
	for len(positions) > 0 {
		if ctx.Err() != nil {
			return r.late(ctx, positions, targets, last)
		}
		switch event := r.consumer.Poll(pollMS).(type) {
		case *kafka.Message:
			if event.TopicPartition.Error != nil {
				return fmt.Errorf("read offsets topic %q, partition %d: %w", r.cfg.Topic, event.TopicPartition.Partition, event.TopicPartition.Error)
			}
			seen.see(event, r.cfg.Connector)
			reached(event.TopicPartition.Partition, int64(event.TopicPartition.Offset)+1)
			last = nil
		case kafka.PartitionEOF:
			reached(event.Partition, int64(event.Offset))
			last = nil
		case kafka.Error:
			if err := permanent(event); err != nil {
				return fmt.Errorf("read offsets topic %q: %w", r.cfg.Topic, err)
			}
			last = event
		}
	}
	for _, m := range seen.inOrder() {
		if err := r.take(m, store); err != nil {
			return err
		}
	}
	return nil
}

// newest has the newest record of each key of this connector in each partition. Before it is compacted a topic has a record of the same few keys for every commit, and only the newest is worth a look into it.
type newest map[keyed]*kafka.Message

type keyed struct {
	partition int32
	key       string
}

func (n newest) see(m *kafka.Message, connector string) {
	at := keyed{m.TopicPartition.Partition, string(m.Key)}
	if _, known := n[at]; !known {
		if name, _, ok := splitKey(m.Key); !ok || name != connector {
			return // somebody else's, of which nothing is kept
		}
	}
	n[at] = m
}

// inOrder has them partition by partition, in the order of the log.
func (n newest) inOrder() []*kafka.Message {
	return slices.SortedFunc(maps.Values(n), func(a, b *kafka.Message) int {
		return cmp.Or(cmp.Compare(a.TopicPartition.Partition, b.TopicPartition.Partition), cmp.Compare(a.TopicPartition.Offset, b.TopicPartition.Offset))
	})
}

// permanent returns the errors that waiting doesn't help with. The group is never used, so what the broker thinks of it doesn't matter.
func permanent(err kafka.Error) error {
	switch err.Code() {
	case kafka.ErrTopicAuthorizationFailed, kafka.ErrUnknownTopicOrPart, kafka.ErrUnknownTopic, kafka.ErrUnknownPartition, kafka.ErrAutoOffsetReset, kafka.ErrAuthentication:
		return err
	}
	if err.IsFatal() {
		return err
	}
	return nil
}

// late says why the time was too short: an open transaction, unless the client reported something else.
func (r *reader) late(ctx context.Context, positions, targets map[int32]int64, last error) error {
	if last != nil {
		return fmt.Errorf("read offsets topic %q: %w (%w)", r.cfg.Topic, last, context.Cause(ctx))
	}
	for partition, position := range positions {
		return &HeldError{Topic: r.cfg.Topic, Partition: partition, Position: position, Target: targets[partition]}
	}
	return context.Cause(ctx)
}

// take adds one record to the store, where it is this connector's.
func (r *reader) take(m *kafka.Message, store *Store) error {
	partition, ours, err := parseKey(m.Key, r.cfg.Connector)
	if !ours {
		return nil
	}
	if err != nil {
		// No plugin can ask for such a partition, so nothing starts from nothing because of it.
		r.cfg.warn("offsets topic %q, partition %d, record %d is left out: %v", r.cfg.Topic, m.TopicPartition.Partition, m.TopicPartition.Offset, err)
		return nil
	}
	offset, damaged := parseValue(m.Value)
	canonical, err := source.Canonical(partition)
	if err != nil {
		return err
	}
	next := spelling{key: m.Key, partition: m.TopicPartition.Partition, source: partition, offset: offset, damaged: damaged, at: int64(m.TopicPartition.Offset)}
	if m.TimestampType != kafka.TimestampNotAvailable {
		next.timestamp = m.Timestamp.UnixMilli()
	}
	store.add(string(canonical), next)
	return nil
}
