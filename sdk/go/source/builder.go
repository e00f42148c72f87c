package source

import "slices"

// Builder builds batches record by record. The zero value is ready. It copies what it is given, and leaves a column out where its default holds for every record.
type Builder struct {
	batch   Batch
	headers int
	// like is the batch before, whose sizes the next one is likely to need; spare says that its memory may be used again.
	like  *Batch
	spare bool
}

// Len is the number of records.
func (b *Builder) Len() int { return b.batch.Count }

// Bytes is the size of keys, values and headers together.
func (b *Builder) Bytes() int { return len(b.batch.Arena) }

// recordOverhead is what all columns together need for one record: eight of four bytes, and the timestamps.
const recordOverhead = 8*4 + 8

// Bound is never less than what Size will be, and is quick to compute.
func (b *Builder) Bound() int {
	n := len(b.batch.Arena) + b.batch.Count*recordOverhead + b.headers*8 + 256
	for _, o := range b.batch.Offsets {
		n += len(o.Offset) + offsetOverhead
	}
	return n
}

// offsetOverhead is the most that the protocol adds to an offset: two tags, two lengths, and the partition's number.
const offsetOverhead = 20

// Add adds a record, with its headers. Beware of zero values: a RecordView without a timestamp has NoTimestamp, and one without a Kafka partition −1.
func (b *Builder) Add(v RecordView) {
	b.add(&v)
	if n := v.Headers.Len(); n > 0 {
		b.startHeaders(n)
		t := &b.batch
		t.HeaderNameLen = append(t.HeaderNameLen, v.Headers.names...)
		if len(v.Headers.values) > 0 {
			t.HeaderValueLen = append(t.HeaderValueLen, v.Headers.values...)
		} else {
			t.HeaderValueLen = append(t.HeaderValueLen, make([]byte, 4*n)...)
		}
		t.Arena = append(t.Arena, v.Headers.arena...)
	}
}

// Header adds a header to the record that was added last. A nil value is null.
func (b *Builder) Header(name string, value []byte) {
	b.startHeaders(1)
	t := &b.batch
	t.Arena = append(append(t.Arena, name...), value...)
	t.HeaderNameLen = t.HeaderNameLen.Append(uint32(len(name)))
	t.HeaderValueLen = t.HeaderValueLen.Append(length(value))
}

// startHeaders counts n more headers for the last record.
func (b *Builder) startHeaders(n int) {
	t := &b.batch
	if len(t.HeaderCount) == 0 {
		t.HeaderCount = fill(t.HeaderCount, 0, t.Count)
	}
	last := t.Count - 1
	count := t.HeaderCount.At(last) + uint32(n)
	t.HeaderCount = t.HeaderCount[:last*4].Append(count)
	b.headers += n
}

// Reach says how far a partition has come; the latest call counts. It keeps offset.
func (b *Builder) Reach(partition uint32, offset JSON) {
	for i := range b.batch.Offsets {
		if b.batch.Offsets[i].Partition == partition {
			b.batch.Offsets[i].Offset = offset
			return
		}
	}
	b.batch.Offsets = append(b.batch.Offsets, Reached{Partition: partition, Offset: offset})
}

// Batch hands the batch out, and starts the next one in memory of its own, about as large.
func (b *Builder) Batch(seq uint64) *Batch {
	done := b.batch
	done.Seq = seq
	b.batch, b.headers = Batch{}, 0
	b.like, b.spare = &done, false
	return &done
}

// maxReusedBytes is the largest arena that is kept for the next batch.
const maxReusedBytes = 4 << 20

// Reuse says that nobody looks at done any more, a batch that this builder made, so that its memory can serve the next one.
func (b *Builder) Reuse(done *Batch) {
	if cap(done.Arena) <= maxReusedBytes && !b.spare {
		b.like, b.spare = done, true
	}
}

// begin makes room for a batch of the size of the one before.
func (b *Builder) begin() {
	l := b.like
	if l == nil {
		return
	}
	t := &b.batch
	offsets := t.Offsets // may come before the first record
	*t = Batch{
		Arena:  again(l.Arena, b.spare),
		KeyLen: again(l.KeyLen, b.spare), ValueLen: again(l.ValueLen, b.spare), Partition: again(l.Partition, b.spare), Topic: again(l.Topic, b.spare),
		KafkaPartition: again(l.KafkaPartition, b.spare), TimestampMS: again(l.TimestampMS, b.spare),
		KeySchema: again(l.KeySchema, b.spare), ValueSchema: again(l.ValueSchema, b.spare),
		HeaderCount: again(l.HeaderCount, b.spare), HeaderNameLen: again(l.HeaderNameLen, b.spare), HeaderValueLen: again(l.HeaderValueLen, b.spare),
	}
	t.Offsets = offsets
	b.like, b.spare = nil, false
}

// again returns an empty column with the memory of c, or new memory for as much and an eighth more; nil where c is empty.
func again[C ~[]byte](c C, reuse bool) C {
	switch {
	case reuse:
		return c[:0]
	case len(c) == 0:
		return nil
	}
	return make(C, 0, len(c)+len(c)/8)
}

// add adds the record without its headers.
func (b *Builder) add(v *RecordView) {
	t := &b.batch
	n := t.Count
	if n == 0 {
		b.begin()
	}
	t.Arena = append(append(t.Arena, v.Key...), v.Value...)
	t.KeyLen = grow(t.KeyLen, n, length(v.Key), 0)
	t.ValueLen = grow(t.ValueLen, n, length(v.Value), 0)
	t.KafkaPartition = grow(t.KafkaPartition, n, uint32(v.KafkaPartition), ^uint32(0))
	if n == 0 {
		t.DefaultPartition, t.DefaultTopic = v.Partition, v.Topic
		t.DefaultKeySchema, t.DefaultValueSchema = v.KeySchema, v.ValueSchema
	} else {
		t.Partition = grow(t.Partition, n, v.Partition, t.DefaultPartition)
		t.Topic = grow(t.Topic, n, v.Topic, t.DefaultTopic)
		t.KeySchema = grow(t.KeySchema, n, v.KeySchema, t.DefaultKeySchema)
		t.ValueSchema = grow(t.ValueSchema, n, v.ValueSchema, t.DefaultValueSchema)
	}
	if len(t.TimestampMS) > 0 || v.TimestampMS != NoTimestamp {
		for t.TimestampMS.Len() < n {
			t.TimestampMS = t.TimestampMS.Append(NoTimestamp)
		}
		t.TimestampMS = t.TimestampMS.Append(v.TimestampMS)
	}
	if len(t.HeaderCount) > 0 {
		t.HeaderCount = t.HeaderCount.Append(0)
	}
	t.Count++
}

// grow adds v as element n of a column that is left out while every element is other.
func grow(c U32, n int, v, other uint32) U32 {
	if len(c) == 0 {
		if v == other {
			return c
		}
		c = fill(c, other, n)
	}
	return c.Append(v)
}

// fill adds n elements to an empty column.
func fill(c U32, v uint32, n int) U32 {
	c = slices.Grow(c, 4*(n+1))
	for range n {
		c = c.Append(v)
	}
	return c
}

// length is how a column says it: 0 for null, n+1 for n bytes.
func length(b []byte) uint32 {
	if b == nil {
		return 0
	}
	return uint32(len(b)) + 1
}
