package offsets

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Store has a connector's stored offsets as they are committed, and changes that are on their way. It belongs to one goroutine.
type Store struct {
	topic      string
	connector  string
	partitions int32 // of the topic
	committed  map[string]*entry
	// staged has what Stage wrote since the last Applied or Discard; a nil entry is a tombstone.
	staged map[string]*entry
}

// entry is one source partition. Its canonical form may have several spellings, each a key of its own to Kafka: a connector that came from Kafka Connect, or changed the order of its fields.
type entry struct {
	spelling
	// older are other spellings that still have an offset. They are tombstoned with the next change: compaction removes the tombstone of a newer spelling in time, and an older one would come back.
	older []spelling
}

// spelling is one key of the topic.
type spelling struct {
	key       []byte
	partition int32 // of the topic
	source    source.JSON
	// offset is nil where the newest record is a tombstone.
	offset source.JSON
	// damaged is why the newest record's value can't be understood.
	damaged error
	// at and timestamp are of the newest record.
	at, timestamp int64
}

func newStore(cfg *Config, partitions int32) *Store {
	return &Store{topic: cfg.Topic, connector: cfg.Connector, partitions: partitions, committed: map[string]*entry{}, staged: map[string]*entry{}}
}

// Stored returns the committed offset of a source partition by its canonical form. Staged changes don't show before Applied (I4).
func (s *Store) Stored(canonical []byte) (source.PartitionOffset, bool) {
	e, ok := s.committed[string(canonical)]
	if !ok || e.offset == nil {
		return source.PartitionOffset{}, false
	}
	return source.PartitionOffset{Partition: e.source, Offset: e.offset}, true
}

// All returns every committed offset, in the order of the canonical forms.
func (s *Store) All() []source.PartitionOffset {
	keys := make([]string, 0, len(s.committed))
	for key, e := range s.committed {
		if e.offset != nil {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	all := make([]source.PartitionOffset, len(keys))
	for i, key := range keys {
		all[i] = source.PartitionOffset{Partition: s.committed[key].source, Offset: s.committed[key].offset}
	}
	return all
}

// Stage makes the records that store positions, to be produced last in their transaction; topics is for publish.Producer.Produce. A nil offset removes what is stored. The changes show after Applied.
//
// A key that exists is written with its own bytes to its own partition. A new one keeps the field order given and goes where the Java client would put it.
func (s *Store) Stage(positions []source.PartitionOffset) (batch *source.Batch, topics []string, err error) {
	b := &source.Batch{DefaultTopic: 1}
	for _, position := range positions {
		if err := s.stage(b, position); err != nil {
			return nil, nil, fmt.Errorf("offset of source partition %s: %w", position.Partition, err)
		}
	}
	return b, []string{"", s.topic}, nil
}

func (s *Store) stage(b *source.Batch, position source.PartitionOffset) error {
	canonical, err := source.Canonical(position.Partition)
	if err != nil {
		return fmt.Errorf("the partition %w", err)
	}
	var value []byte
	if position.Offset != nil {
		if _, err := source.Canonical(position.Offset); err != nil {
			return fmt.Errorf("the offset %w", err)
		}
		if value, err = compactJSON(position.Offset); err != nil {
			return err
		}
	}
	current, known := s.staged[string(canonical)]
	if !known {
		current = s.committed[string(canonical)]
	}
	if current != nil {
		for _, old := range current.older {
			appendRecord(b, old.key, nil, old.partition)
		}
	}
	switch {
	case current != nil && current.offset != nil:
		appendRecord(b, current.key, value, current.partition)
		s.staged[string(canonical)] = &entry{spelling: spelling{key: current.key, partition: current.partition, source: current.source, offset: value}}
	case value != nil:
		key, err := newKey(s.connector, position.Partition)
		if err != nil {
			return err
		}
		to := partitionOf(key, s.partitions)
		appendRecord(b, key, value, to)
		s.staged[string(canonical)] = &entry{spelling: spelling{key: key, partition: to, source: bytes.Clone(position.Partition), offset: value}}
	case current != nil:
		s.staged[string(canonical)] = nil
	}
	return nil
}

// Proof makes one record that changes nothing, for a task that asks whether its producer still owns its transactional id: the tombstone of a key that no source partition has. Every reader skips it, Kafka Connect's too.
func (s *Store) Proof(task uint32) (batch *source.Batch, topics []string) {
	key := append(append([]byte{'['}, quote(s.connector)...), fmt.Sprintf(`,{%q:%d}]`, source.ReservedField, task)...)
	b := &source.Batch{DefaultTopic: 1}
	appendRecord(b, key, nil, partitionOf(key, s.partitions))
	return b, []string{"", s.topic}
}

func appendRecord(b *source.Batch, key, value []byte, partition int32) {
	b.Count++
	b.Arena = append(append(b.Arena, key...), value...)
	b.KeyLen = b.KeyLen.Append(uint32(len(key)) + 1)
	if value == nil {
		b.ValueLen = b.ValueLen.Append(0)
	} else {
		b.ValueLen = b.ValueLen.Append(uint32(len(value)) + 1)
	}
	b.KafkaPartition = b.KafkaPartition.Append(uint32(partition))
}

// Applied says that the transaction with the staged records is committed (I5: a source may be told now).
func (s *Store) Applied() {
	for canonical, e := range s.staged {
		if e == nil || e.offset == nil {
			delete(s.committed, canonical)
		} else {
			s.committed[canonical] = e
		}
	}
	clear(s.staged)
}

// Discard says that the transaction was aborted.
func (s *Store) Discard() { clear(s.staged) }

// add takes a record while loading, partition by partition in the order of the log.
func (s *Store) add(canonical string, next spelling) {
	e := s.committed[canonical]
	if e == nil {
		s.committed[canonical] = &entry{spelling: next}
		return
	}
	// The spelling's record before this one is overtaken.
	same := func(o spelling) bool { return o.partition == next.partition && bytes.Equal(o.key, next.key) }
	if same(e.spelling) {
		e.spelling = next
		return
	}
	if i := slices.IndexFunc(e.older, same); i >= 0 {
		e.older[i] = next
		return
	}
	e.older = append(e.older, next)
}

// settle decides between spellings when everything is read: the newest record wins, also when it is a tombstone. It fails where the newest record can't be understood.
func (s *Store) settle() error {
	for canonical, e := range s.committed {
		newest := e.spelling
		var older []spelling
		for _, other := range e.older {
			if compareAge(other, newest) > 0 {
				newest, other = other, newest
			}
			if other.offset != nil || other.damaged != nil {
				older = append(older, other)
			}
		}
		switch {
		case newest.damaged != nil:
			return &DamagedError{Topic: s.topic, Partition: newest.partition, Offset: newest.at, Err: newest.damaged}
		case newest.offset == nil && len(older) == 0:
			delete(s.committed, canonical)
		default:
			s.committed[canonical] = &entry{spelling: newest, older: older}
		}
	}
	return nil
}

// compareAge orders by place in the log where it can, and else by time.
func compareAge(a, b spelling) int {
	if a.partition != b.partition && a.timestamp != b.timestamp {
		return int(min(max(a.timestamp-b.timestamp, -1), 1))
	}
	return int(min(max(a.at-b.at, -1), 1))
}
