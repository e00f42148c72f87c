package source

import (
	"encoding/binary"
	"math"
)

// NoTimestamp in a Timestamps column means that the record has none: it gets the time of publishing.
const NoTimestamp = math.MinInt64

// Numbers of schemas that need no declaration; the layout of each is in proto/fencepost/plugin/v1/value.proto.
const (
	SchemaBytes   uint32 = 0
	SchemaText    uint32 = 1
	SchemaAny     uint32 = 2
	SchemaBoolean uint32 = 3
	SchemaInt64   uint32 = 4
	SchemaFloat64 uint32 = 5
	// SchemaFirstDeclared is the first number that Declare may use.
	SchemaFirstDeclared uint32 = 16
)

// Mark is a boundary after a batch; the numbers are those of the protocol.
type Mark int32

// The marks.
const (
	NoMark     Mark = 0
	MarkSource Mark = 1
	MarkCommit Mark = 2
	MarkAbort  Mark = 3
)

// U32 is a column of little-endian 32-bit numbers in raw bytes, as on the wire. An empty column stands for its default.
type U32 []byte

// Len is the number of elements.
func (c U32) Len() int { return len(c) / 4 }

// At returns element i; the caller knows that it exists.
func (c U32) At(i int) uint32 { return binary.LittleEndian.Uint32(c[i*4:]) }

// Append adds an element.
func (c U32) Append(v uint32) U32 { return binary.LittleEndian.AppendUint32(c, v) }

// I64 is a column of little-endian 64-bit numbers in raw bytes, as on the wire.
type I64 []byte

// Len is the number of elements.
func (c I64) Len() int { return len(c) / 8 }

// At returns element i; the caller knows that it exists.
func (c I64) At(i int) int64 { return int64(binary.LittleEndian.Uint64(c[i*8:])) }

// Append adds an element.
func (c I64) Append(v int64) I64 { return binary.LittleEndian.AppendUint64(c, uint64(v)) }

// Batch is records in columns, and the offsets that they reach. The layout is that of the Batch message in
// proto/fencepost/plugin/v1/plugin.proto, field by field: decoding is slicing.
//
// The arena has, record after record, the key, the value, and of each header its name and value.
// Lengths in KeyLen, ValueLen and HeaderValueLen are 0 for null and n+1 for n bytes.
type Batch struct {
	Seq   uint64
	Count int
	Arena []byte

	KeyLen         U32
	ValueLen       U32
	Partition      U32
	Topic          U32
	KafkaPartition U32 // int32 in two's complement; −1 is "by the key's hash"
	TimestampMS    I64
	KeySchema      U32
	ValueSchema    U32
	HeaderCount    U32
	HeaderNameLen  U32
	HeaderValueLen U32

	DefaultPartition   uint32
	DefaultTopic       uint32
	DefaultKeySchema   uint32
	DefaultValueSchema uint32

	Offsets   []Reached
	Continues bool
	Boundary  Mark

	// WireBytes is the size of the encoded message where it came over a wire, for credits; 0 elsewhere: use Size.
	WireBytes int
}

// Reached is the offset that a declared source partition reaches.
type Reached struct {
	Partition uint32
	Offset    JSON
}
