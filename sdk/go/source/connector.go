package source

import (
	"context"
	"time"
)

// Connector is one connector type, as an author writes it.
type Connector interface {
	// Type says what it is and which keys it takes. Keys are checked against it before any other method sees them.
	Type() Type
	// Plan calls planning.SetTasks with the tasks. Where the tasks never change it returns nil then; a Connector that watches its source stays in Plan, calls SetTasks
	// again when the source has changed, and returns when ctx is done.
	Plan(ctx context.Context, planning *Planning) error
	// Open opens the source for one task, at the offsets that task.Partition(…).Stored gives.
	Open(ctx context.Context, task *Task) (Reader, error)
}

// Reader reads one task's records.
type Reader interface {
	// Read adds records to out until it makes sense to return: when nothing more is there (call out.Idle then), or out.Full is true. It blocks while there is nothing to read, and returns
	// nil promptly when ctx is done. What it added before it returned an error is sent first.
	// Where it returns without having added anything it is called again after a pause, which grows from 1 ms to 100 ms: a source that can only be polled needs no timer of its own.
	Read(ctx context.Context, out *Records) error
	// Close closes the source. No other method is called after it.
	Close() error
}

// Validator is a Connector that can check more than its keys' types: whether a file exists, a password works. No side effects. It is asked also where some keys have a mistake; those are left out
// of config, as if they weren't given, and what it says of them isn't shown.
type Validator interface {
	Validate(ctx context.Context, config Config) Validation
}

// Acknowledger is a Reader that wants to know what is committed: only then may the source forget it. It is called from a goroutine of its own, one call at a time, with the
// newest committed offset of each partition that moved.
type Acknowledger interface {
	Committed(ctx context.Context, positions []Position) error
}

// Position is a committed offset.
type Position struct {
	Partition *Partition
	Offset    JSON
}

// Fields is a small JSON object: source partitions and offsets. Values are string, bool, int, int64, uint64, float64, json.Number or nil. Keys are written in sorted order.
type Fields map[string]any

// Header is a record header. Value nil is null.
type Header struct {
	Name  string
	Value []byte
}

// Record is one record.
type Record struct {
	// Partition is where it comes from; required.
	Partition *Partition
	// Offset is the position after this record. Where it is nil the record waits until Records.Reach names the offset that covers it.
	Offset Fields
	// Topic is where it goes; required.
	Topic string
	// Key and Value: nil is null, empty is empty.
	Key, Value []byte
	// KeySchema and ValueSchema: SchemaBytes or SchemaText, or a number from Task.Schema.
	KeySchema, ValueSchema uint32
	// Timestamp: the zero time is none, and becomes the time of publishing.
	Timestamp time.Time
	Headers   []Header
	// KafkaPartition, where ToPartition is set; otherwise the key's hash decides.
	KafkaPartition int32
	ToPartition    bool
}
