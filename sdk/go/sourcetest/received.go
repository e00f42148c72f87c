package sourcetest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// received is what a task has sent, checked by the rules of the protocol.
type received struct {
	claim  source.Claim
	limits source.Limits

	opened, drained, idle bool
	seq                   uint64
	credit                int64
	uncommitted           int
	partitions            []partition // by number; the first is unused
	topics                []string    // by number; the first is unused
	schemas               map[uint32]bool
	notice                []string
	dropped               map[string]uint64
	broken                error

	records []numbered          // not committed
	reached []reached           // not committed
	wholes  []uint64            // uncommitted messages after which a commit may come
	mark    uint64              // the last message with a mark
	known   map[string]struct{} // canonical partitions that were declared
}

type partition struct {
	canonical string
	json      source.JSON
}

// numbered is a record with the message that brought it.
type numbered struct {
	Record
	seq uint64
}

type reached struct {
	source.PartitionOffset
	seq uint64
}

func newReceived(claim source.Claim, limits source.Limits) received {
	return received{
		claim: claim, limits: limits, partitions: make([]partition, 1), topics: make([]string, 1), schemas: make(map[uint32]bool),
		dropped: make(map[string]uint64), known: make(map[string]struct{}),
	}
}

// take takes the next message.
func (s *received) take(m source.Message) error {
	switch m := m.(type) {
	case source.Opened:
		if s.opened {
			return errors.New("the message Opened was sent twice")
		}
		s.opened = true
	case *source.Declare:
		return s.declare(m)
	case *source.Batch:
		return s.batch(m)
	case *source.Idle:
		if err := s.number("an Idle", m.Seq); err != nil {
			return err
		}
		s.idle = true
	case *source.Dropped:
		return s.drop(m)
	case *source.Notice:
		s.notice = m.Texts
	case source.Drained:
		s.drained = true
	}
	return nil
}

// number checks what every numbered message must keep to.
func (s *received) number(what string, seq uint64) error {
	switch {
	case !s.opened:
		return fmt.Errorf("%s was sent before Opened", what)
	case s.drained:
		return fmt.Errorf("%s was sent after Drained", what)
	case seq != s.seq+1:
		return fmt.Errorf("%s has the number %d, %d is next", what, seq, s.seq+1)
	}
	s.seq = seq
	s.idle = false
	return nil
}

func (s *received) declare(d *source.Declare) error {
	for _, p := range d.Partitions {
		canonical, err := source.Canonical(p.Partition)
		if err != nil {
			return fmt.Errorf("declared partition %s %w", p.Partition, err)
		}
		if int(p.Number) != len(s.partitions) {
			return fmt.Errorf("partition %s was declared as %d, %d is next", canonical, p.Number, len(s.partitions))
		}
		if _, twice := s.known[string(canonical)]; twice {
			return fmt.Errorf("partition %s was declared twice", canonical)
		}
		if !s.claim.Has(canonical) {
			return fmt.Errorf("partition %s is outside the task's claim", canonical)
		}
		s.known[string(canonical)] = struct{}{}
		s.partitions = append(s.partitions, partition{string(canonical), p.Partition})
	}
	for _, t := range d.Topics {
		if int(t.Number) != len(s.topics) {
			return fmt.Errorf("topic %s was declared as %d, %d is next", t.Name, t.Number, len(s.topics))
		}
		s.topics = append(s.topics, t.Name)
	}
	for _, x := range d.Schemas {
		if x.Number < source.SchemaFirstDeclared || s.schemas[x.Number] {
			return fmt.Errorf("schema %d was declared twice, or is none", x.Number)
		}
		s.schemas[x.Number] = true
	}
	return nil
}

func (s *received) batch(b *source.Batch) error {
	if err := s.number("a batch", b.Seq); err != nil {
		return err
	}
	if s.credit <= 0 || s.uncommitted >= maxUncommitted {
		return fmt.Errorf("batch %d was sent without credit", b.Seq)
	}
	s.credit -= int64(b.Size())
	if err := b.Check(s.limits); err != nil {
		return fmt.Errorf("batch %d: %w", b.Seq, err)
	}
	if err := s.reach(b.Seq, b.Offsets); err != nil {
		return fmt.Errorf("batch %d: %w", b.Seq, err)
	}
	covered := make(map[uint32]bool, len(b.Offsets))
	for _, o := range b.Offsets {
		covered[o.Partition] = true
	}
	for i, v := range b.Records() {
		if int(v.Partition) >= len(s.partitions) || int(v.Topic) >= len(s.topics) || !s.knows(v.KeySchema) || !s.knows(v.ValueSchema) {
			return fmt.Errorf("batch %d: record %d uses a partition, topic or schema that wasn't declared", b.Seq, i)
		}
		// I1: an offset covers every record.
		if !covered[v.Partition] {
			return fmt.Errorf("batch %d: the source partition %s has records, but no offset that covers them", b.Seq, s.partitions[v.Partition].canonical)
		}
		s.records = append(s.records, numbered{s.record(v), b.Seq})
	}
	s.uncommitted += b.Count
	if b.Continues {
		return nil
	}
	s.wholes = append(s.wholes, b.Seq)
	switch b.Boundary {
	case source.MarkAbort:
		s.records = slices.DeleteFunc(s.records, func(r numbered) bool { return r.seq > s.mark })
		s.mark = b.Seq
	case source.MarkSource, source.MarkCommit:
		s.mark = b.Seq
	}
	return nil
}

func (s *received) drop(d *source.Dropped) error {
	if err := s.number("a Dropped", d.Seq); err != nil {
		return err
	}
	if d.Reason == "" || d.Count == 0 {
		return fmt.Errorf("drop %d has no reason or no count", d.Seq)
	}
	s.dropped[d.Reason] += d.Count
	if err := s.reach(d.Seq, d.Offsets); err != nil {
		return fmt.Errorf("drop %d: %w", d.Seq, err)
	}
	s.wholes = append(s.wholes, d.Seq)
	return nil
}

func (s *received) reach(seq uint64, offsets []source.Reached) error {
	for _, o := range offsets {
		if int(o.Partition) >= len(s.partitions) {
			return fmt.Errorf("an offset is of partition %d, which wasn't declared", o.Partition)
		}
		if _, err := source.Canonical(o.Offset); err != nil {
			return fmt.Errorf("the offset %s %w", o.Offset, err)
		}
		p := s.partitions[o.Partition]
		s.reached = append(s.reached, reached{source.PartitionOffset{Partition: p.json, Offset: o.Offset}, seq})
	}
	return nil
}

func (s *received) knows(schema uint32) bool {
	return schema < source.SchemaFirstDeclared || s.schemas[schema]
}

func (s *received) record(v source.RecordView) Record {
	r := Record{
		Topic: s.topics[v.Topic], Partition: s.partitions[v.Partition].canonical, Key: v.Key, Value: v.Value,
		KeySchema: v.KeySchema, ValueSchema: v.ValueSchema, KafkaPartition: v.KafkaPartition,
	}
	if v.TimestampMS != source.NoTimestamp {
		r.Timestamp = time.UnixMilli(v.TimestampMS)
	}
	for name, value := range v.Headers.All() {
		r.Headers = append(r.Headers, source.Header{Name: string(name), Value: value})
	}
	return r
}

// commit takes out everything up to a message after which a commit may come: the last one, or the first.
func (s *received) commit(all bool) (seq uint64, records []Record, offsets []source.PartitionOffset) {
	if len(s.wholes) == 0 {
		return 0, nil, nil
	}
	at := 0
	if all {
		at = len(s.wholes) - 1
	}
	seq = s.wholes[at]
	s.wholes = slices.Clone(s.wholes[at+1:])
	n := 0
	for n < len(s.records) && s.records[n].seq <= seq {
		records = append(records, s.records[n].Record)
		n++
	}
	s.records = slices.Clone(s.records[n:])
	s.uncommitted = len(s.records)
	n = 0
	for n < len(s.reached) && s.reached[n].seq <= seq {
		offsets = append(offsets, s.reached[n].PartitionOffset)
		n++
	}
	s.reached = slices.Clone(s.reached[n:])
	return seq, records, offsets
}
