package source

import "iter"

// RecordView is one record of a batch. Its bytes belong to the batch.
type RecordView struct {
	// Key and Value: nil is null, empty is empty.
	Key, Value []byte
	Headers    HeaderView
	// Partition, Topic and the schemas are the numbers that Declare gave.
	Partition, Topic       uint32
	KeySchema, ValueSchema uint32
	// KafkaPartition is −1 where the key's hash decides.
	KafkaPartition int32
	// TimestampMS is NoTimestamp where the record has none.
	TimestampMS int64
}

// HeaderView is the headers of one record. The zero value has none.
type HeaderView struct {
	// names and values are the lengths as in the batch's columns; values is empty where every value is null.
	names, values U32
	arena         []byte
}

// Len is the number of headers.
func (h HeaderView) Len() int { return h.names.Len() }

// All gives name and value of each header in order; a nil value is null.
func (h HeaderView) All() iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		at := 0
		for i := range h.names.Len() {
			name := part(h.arena, at, h.names.At(i)+1)
			at += len(name)
			var value []byte
			if len(h.values) > 0 {
				value = part(h.arena, at, h.values.At(i))
				at += len(value)
			}
			if !yield(name, value) {
				return
			}
		}
	}
}

// Records gives the records in order. The batch must have passed Check, or come from a Builder.
func (b *Batch) Records() iter.Seq2[int, RecordView] {
	return func(yield func(int, RecordView) bool) {
		c := cursor{batch: b}
		for i := range b.Count {
			if !yield(i, c.take(i)) {
				return
			}
		}
	}
}

// cursor walks over a batch: the place of a record follows from the lengths of all before it.
type cursor struct {
	batch      *Batch
	at, header int
}

// skip moves over record i and returns its size.
func (c *cursor) skip(i int) int {
	b := c.batch
	size := 0
	if len(b.KeyLen) > 0 {
		size += bytesIn(b.KeyLen.At(i))
	}
	if len(b.ValueLen) > 0 {
		size += bytesIn(b.ValueLen.At(i))
	}
	if len(b.HeaderCount) > 0 {
		for range b.HeaderCount.At(i) {
			size += int(b.HeaderNameLen.At(c.header))
			if len(b.HeaderValueLen) > 0 {
				size += bytesIn(b.HeaderValueLen.At(c.header))
			}
			c.header++
		}
	}
	c.at += size
	return size
}

// take returns record i and moves over it.
func (c *cursor) take(i int) RecordView {
	b := c.batch
	at, header := c.at, c.header
	size := c.skip(i)
	v := RecordView{
		Partition: orDefault(b.Partition, i, b.DefaultPartition), Topic: orDefault(b.Topic, i, b.DefaultTopic),
		KeySchema: orDefault(b.KeySchema, i, b.DefaultKeySchema), ValueSchema: orDefault(b.ValueSchema, i, b.DefaultValueSchema),
		KafkaPartition: -1, TimestampMS: NoTimestamp,
	}
	if len(b.KafkaPartition) > 0 {
		v.KafkaPartition = int32(b.KafkaPartition.At(i))
	}
	if len(b.TimestampMS) > 0 {
		v.TimestampMS = b.TimestampMS.At(i)
	}
	end := at + size
	if len(b.KeyLen) > 0 {
		v.Key = part(b.Arena, at, b.KeyLen.At(i))
		at += len(v.Key)
	}
	if len(b.ValueLen) > 0 {
		v.Value = part(b.Arena, at, b.ValueLen.At(i))
		at += len(v.Value)
	}
	if c.header > header {
		v.Headers = HeaderView{names: b.HeaderNameLen[header*4 : c.header*4], arena: b.Arena[at:end:end]}
		if len(b.HeaderValueLen) > 0 {
			v.Headers.values = b.HeaderValueLen[header*4 : c.header*4]
		}
	}
	return v
}

func orDefault(c U32, i int, other uint32) uint32 {
	if len(c) > 0 {
		return c.At(i)
	}
	return other
}

// bytesIn is the number of bytes that a length stands for: 0 is null, n+1 is n bytes.
func bytesIn(length uint32) int {
	if length == 0 {
		return 0
	}
	return int(length) - 1
}

// part cuts a key, a value or a header out of an arena. An empty part isn't nil, also where the arena is.
func part(arena []byte, at int, length uint32) []byte {
	if length == 0 {
		return nil
	}
	if length == 1 {
		return []byte{}
	}
	end := at + int(length) - 1
	return arena[at:end:end]
}
