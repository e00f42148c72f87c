package source

import "fmt"

// The largest limits that the protocol allows.
const (
	MaxRecordBytes  = 8 << 20
	MaxBatchBytes   = 16 << 20
	MaxBatchRecords = 100_000
	// MaxDeclaredPartitions, MaxDeclaredTopics and MaxDeclaredSchemas are per Run.
	MaxDeclaredPartitions = 1_000_000
	MaxDeclaredTopics     = 10_000
	MaxDeclaredSchemas    = 10_000
)

// ReservedField is a field that may not be the first, in the canonical form, of a source partition: Fencepost has keys of its own with it beside the stored offsets.
const ReservedField = "fencepost.task"

// MaxTimestampMS is the last timestamp that a record may have.
const MaxTimestampMS = 9_200_000_000_000

// orMax fills what isn't set, and cuts what is beyond the protocol's limits.
func (l Limits) orMax() Limits {
	limit := func(v, most int) int {
		if v <= 0 || v > most {
			return most
		}
		return v
	}
	return Limits{
		MaxRecordBytes:  limit(l.MaxRecordBytes, MaxRecordBytes),
		MaxBatchBytes:   limit(l.MaxBatchBytes, MaxBatchBytes),
		MaxBatchRecords: limit(l.MaxBatchRecords, MaxBatchRecords),
	}
}

// Check says whether the batch is well formed and within l, where 0 stands for the protocol's limit: every column has its size, the arena is used exactly, and numbers are in range.
// After it every other method of Batch is safe to call. Whether a number was declared, and an offset moves forward, only the receiver knows.
func (b *Batch) Check(l Limits) error {
	// I10: a plugin is hostile, so the count is checked before anything is multiplied by it.
	l = l.orMax()
	if b.Count < 0 || b.Count > l.MaxBatchRecords {
		return fmt.Errorf("count is %d records, the limit is %d", b.Count, l.MaxBatchRecords)
	}
	if size := b.Size(); size > l.MaxBatchBytes {
		return fmt.Errorf("the batch has %d bytes, the limit is %d", size, l.MaxBatchBytes)
	}
	if err := b.checkColumns(); err != nil {
		return err
	}
	if err := b.checkLengths(l.MaxRecordBytes); err != nil {
		return err
	}
	if err := b.checkNumbers(); err != nil {
		return err
	}
	return b.checkOffsets()
}

func (b *Batch) checkColumns() error {
	columns := [...]struct {
		name        string
		bytes, wide int
	}{
		{"key_len", len(b.KeyLen), 4},
		{"value_len", len(b.ValueLen), 4},
		{"partition", len(b.Partition), 4},
		{"topic", len(b.Topic), 4},
		{"kafka_partition", len(b.KafkaPartition), 4},
		{"timestamp_ms", len(b.TimestampMS), 8},
		{"key_schema", len(b.KeySchema), 4},
		{"value_schema", len(b.ValueSchema), 4},
		{"header_count", len(b.HeaderCount), 4},
	}
	for _, c := range columns {
		if c.bytes != 0 && c.bytes != b.Count*c.wide {
			return fmt.Errorf("column %s has %d bytes, %d records need %d", c.name, c.bytes, b.Count, b.Count*c.wide)
		}
	}
	headers := 0
	for i := range b.HeaderCount.Len() {
		headers += int(b.HeaderCount.At(i))
	}
	if len(b.HeaderNameLen) != headers*4 {
		return fmt.Errorf("column header_name_len has %d bytes, %d headers need %d", len(b.HeaderNameLen), headers, headers*4)
	}
	if n := len(b.HeaderValueLen); n != 0 && n != headers*4 {
		return fmt.Errorf("column header_value_len has %d bytes, %d headers need %d", n, headers, headers*4)
	}
	return nil
}

// checkLengths wants columns of the right size.
func (b *Batch) checkLengths(maxRecord int) error {
	total := 0
	c := cursor{batch: b}
	for i := range b.Count {
		size := c.skip(i)
		if size > maxRecord {
			return fmt.Errorf("record %d has %d bytes, the limit is %d", i, size, maxRecord)
		}
		total += size
	}
	if total != len(b.Arena) {
		return fmt.Errorf("the arena has %d bytes, the columns key_len, value_len and header_*_len say %d", len(b.Arena), total)
	}
	return nil
}

func (b *Batch) checkNumbers() error {
	if b.Boundary < NoMark || b.Boundary > MarkAbort {
		return fmt.Errorf("boundary %d is unknown", b.Boundary)
	}
	if b.Continues && b.Boundary != NoMark {
		return fmt.Errorf("boundary %d after a batch whose last event goes on", b.Boundary)
	}
	if b.Count == 0 {
		return nil
	}
	if len(b.Partition) == 0 && b.DefaultPartition == 0 {
		return fmt.Errorf("the records have neither a column partition nor a default_partition")
	}
	if len(b.Topic) == 0 && b.DefaultTopic == 0 {
		return fmt.Errorf("the records have neither a column topic nor a default_topic")
	}
	for i := range b.Partition.Len() {
		if b.Partition.At(i) == 0 {
			return fmt.Errorf("column partition: record %d has the number 0", i)
		}
	}
	for i := range b.Topic.Len() {
		if b.Topic.At(i) == 0 {
			return fmt.Errorf("column topic: record %d has the number 0", i)
		}
	}
	for i := range b.KafkaPartition.Len() {
		if p := int32(b.KafkaPartition.At(i)); p < -1 {
			return fmt.Errorf("column kafka_partition: record %d has %d", i, p)
		}
	}
	for i := range b.TimestampMS.Len() {
		if t := b.TimestampMS.At(i); t != NoTimestamp && (t < 1 || t > MaxTimestampMS) {
			return fmt.Errorf("column timestamp_ms: record %d has %d, allowed is 1 to %d", i, t, int64(MaxTimestampMS))
		}
	}
	return nil
}

func (b *Batch) checkOffsets() error {
	var seen map[uint32]bool
	if len(b.Offsets) > 1 {
		seen = make(map[uint32]bool, len(b.Offsets))
	}
	for _, o := range b.Offsets {
		if o.Partition == 0 {
			return fmt.Errorf("an offset has the partition number 0")
		}
		if len(o.Offset) == 0 || len(o.Offset) > MaxJSONBytes {
			return fmt.Errorf("the offset of partition %d has %d bytes, allowed is 1 to %d", o.Partition, len(o.Offset), MaxJSONBytes)
		}
		if seen[o.Partition] {
			return fmt.Errorf("partition %d has two offsets", o.Partition)
		}
		if seen != nil {
			seen[o.Partition] = true
		}
	}
	return nil
}

// Size is the size of the batch as an encoded message, in bytes: what it costs of the credit. It is exact, because both ends count on their own.
func (b *Batch) Size() int {
	if b.WireBytes > 0 {
		return b.WireBytes
	}
	n := numberSize(1, b.Seq) + numberSize(1, uint64(b.Count)) + bytesSize(1, len(b.Arena))
	n += bytesSize(1, len(b.KeyLen)) + bytesSize(1, len(b.ValueLen)) + bytesSize(1, len(b.Partition)) + bytesSize(1, len(b.Topic))
	n += bytesSize(1, len(b.KafkaPartition)) + bytesSize(1, len(b.TimestampMS)) + bytesSize(1, len(b.KeySchema)) + bytesSize(1, len(b.ValueSchema))
	n += bytesSize(1, len(b.HeaderCount)) + bytesSize(1, len(b.HeaderNameLen)) + bytesSize(1, len(b.HeaderValueLen))
	n += numberSize(1, uint64(b.DefaultPartition)) + numberSize(2, uint64(b.DefaultTopic))
	n += numberSize(2, uint64(b.DefaultKeySchema)) + numberSize(2, uint64(b.DefaultValueSchema))
	for _, o := range b.Offsets {
		inner := numberSize(1, uint64(o.Partition)) + bytesSize(1, len(o.Offset))
		n += 2 + varintSize(uint64(inner)) + inner
	}
	if b.Continues {
		n += 3
	}
	return n + numberSize(2, uint64(b.Boundary))
}

// numberSize is the size of a protobuf number with its tag; 0 isn't written.
func numberSize(tag int, v uint64) int {
	if v == 0 {
		return 0
	}
	return tag + varintSize(v)
}

// bytesSize is the size of a protobuf bytes field with its tag; an empty one isn't written.
func bytesSize(tag, n int) int {
	if n == 0 {
		return 0
	}
	return tag + varintSize(uint64(n)) + n
}

func varintSize(v uint64) int {
	n := 1
	for v >= 0x80 {
		v >>= 7
		n++
	}
	return n
}
