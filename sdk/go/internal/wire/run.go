package wire

import (
	"math"
	"time"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// EncodeRunOpen makes the first message of a Run stream. Stored offsets aren't part of it, see EncodeStored.
func EncodeRunOpen(o *source.RunOpen) *pluginv1.RunOpen {
	return &pluginv1.RunOpen{
		Connector: o.Connector, Type: o.Type, Task: uint32(o.Task), Config: o.Config, TaskConfig: o.TaskConfig,
		Claim: EncodeClaim(o.Claim), Generation: o.Generation, Epoch: o.Epoch, Incarnation: o.Incarnation,
		Limits: &pluginv1.Limits{
			MaxRecordBytes:  uint64(max(o.Limits.MaxRecordBytes, 0)),
			MaxBatchBytes:   uint64(max(o.Limits.MaxBatchBytes, 0)),
			MaxBatchRecords: uint32(max(o.Limits.MaxBatchRecords, 0)),
		},
		Boundary: pluginv1.BoundaryRule(o.Boundary),
	}
}

// DecodeRunOpen reads the first message of a Run stream; Stored is filled from the messages that follow.
func DecodeRunOpen(o *pluginv1.RunOpen) *source.RunOpen {
	return &source.RunOpen{
		Connector: o.GetConnector(), Type: o.GetType(), Task: int(o.GetTask()), Config: o.GetConfig(), TaskConfig: o.GetTaskConfig(),
		Claim: DecodeClaim(o.GetClaim()), Generation: o.GetGeneration(), Epoch: o.GetEpoch(), Incarnation: o.GetIncarnation(),
		Limits: source.Limits{
			MaxRecordBytes:  clampInt(o.GetLimits().GetMaxRecordBytes()),
			MaxBatchBytes:   clampInt(o.GetLimits().GetMaxBatchBytes()),
			MaxBatchRecords: clampInt(uint64(o.GetLimits().GetMaxBatchRecords())),
		},
		Boundary: source.BoundaryRule(o.GetBoundary()),
	}
}

func clampInt(v uint64) int { return int(min(v, math.MaxInt)) }

// EncodeStored divides stored offsets into messages of at most MaxStoredOffsetsBytes (one offset alone may be larger); the last one has Last set.
// There is always at least one.
func EncodeStored(offsets []source.PartitionOffset) []*pluginv1.StoredOffsets {
	var out []*pluginv1.StoredOffsets
	from, bytes := 0, 0
	for i, o := range offsets {
		size := len(o.Partition) + len(o.Offset) + storedOverheadBytes
		if bytes+size > MaxStoredOffsetsBytes && i > from {
			out = append(out, &pluginv1.StoredOffsets{Offsets: EncodeOffsets(offsets[from:i])})
			from, bytes = i, 0
		}
		bytes += size
	}
	return append(out, &pluginv1.StoredOffsets{Offsets: EncodeOffsets(offsets[from:]), Last: true})
}

// storedOverheadBytes is the most that tags and lengths add to one stored offset.
const storedOverheadBytes = 24

// EncodeSignal makes the wire form of a signal. An unknown kind is an error.
func EncodeSignal(s source.Signal) (*pluginv1.RunRequest, error) {
	switch s.Kind {
	case source.SignalCredit:
		return &pluginv1.RunRequest{Message: &pluginv1.RunRequest_Credit{
			Credit: &pluginv1.Credit{Bytes: s.Bytes, UncommittedRecords: s.MaxUncommitted},
		}}, nil
	case source.SignalCommitted:
		return &pluginv1.RunRequest{Message: &pluginv1.RunRequest_Committed{Committed: &pluginv1.Committed{Seq: s.Seq}}}, nil
	case source.SignalDrain:
		return &pluginv1.RunRequest{Message: &pluginv1.RunRequest_Drain{
			Drain: &pluginv1.Drain{DeadlineMs: uint64(max(s.Within, 0).Milliseconds())},
		}}, nil
	case source.SignalStop:
		return &pluginv1.RunRequest{Message: &pluginv1.RunRequest_Stop{Stop: &pluginv1.Stop{Reason: ValidText(s.Reason)}}}, nil
	default:
		return nil, source.Fatalf("signal kind %d is not known", s.Kind)
	}
}

// DecodeSignal reads a signal; ok is false where the message is none (RunOpen, StoredOffsets, LookupAnswer, or something newer).
func DecodeSignal(r *pluginv1.RunRequest) (s source.Signal, ok bool) {
	switch m := r.GetMessage().(type) {
	case *pluginv1.RunRequest_Credit:
		return source.Signal{Kind: source.SignalCredit, Bytes: m.Credit.GetBytes(), MaxUncommitted: m.Credit.GetUncommittedRecords()}, true
	case *pluginv1.RunRequest_Committed:
		return source.Signal{Kind: source.SignalCommitted, Seq: m.Committed.GetSeq()}, true
	case *pluginv1.RunRequest_Drain:
		ms := min(m.Drain.GetDeadlineMs(), uint64(math.MaxInt64/time.Millisecond))
		return source.Signal{Kind: source.SignalDrain, Within: time.Duration(ms) * time.Millisecond}, true
	case *pluginv1.RunRequest_Stop:
		return source.Signal{Kind: source.SignalStop, Reason: m.Stop.GetReason()}, true
	default:
		return source.Signal{}, false
	}
}

// EncodeMessage makes the wire form of a task's message. It fails where a schema can't be encoded.
func EncodeMessage(m source.Message) (*pluginv1.RunResponse, error) {
	switch m := m.(type) {
	case source.Opened:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Opened{Opened: &pluginv1.Opened{}}}, nil
	case *source.Declare:
		d, err := encodeDeclare(m)
		if err != nil {
			return nil, err
		}
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Declare{Declare: d}}, nil
	case *source.Batch:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{Batch: EncodeBatch(m)}}, nil
	case *source.Idle:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Idle{Idle: &pluginv1.Idle{Seq: m.Seq}}}, nil
	case *source.Dropped:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Dropped{Dropped: &pluginv1.Dropped{
			Seq: m.Seq, Count: m.Count, Reason: ValidText(m.Reason), Offsets: encodeReached(m.Offsets),
		}}}, nil
	case *source.Metrics:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Metrics{Metrics: encodeMetrics(m)}}, nil
	case *source.Notice:
		texts := make([]string, 0, len(m.Texts))
		for _, text := range m.Texts {
			texts = append(texts, ValidText(text))
		}
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Notice{Notice: &pluginv1.Notice{Texts: texts}}}, nil
	case source.Drained:
		return &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Drained{Drained: &pluginv1.Drained{}}}, nil
	default:
		return nil, source.Fatalf("message type %T is not known", m)
	}
}

// DecodeMessage reads a task's message. Lookup and Error aren't messages of source; they, and a message without known content, are errors here.
func DecodeMessage(r *pluginv1.RunResponse) (source.Message, error) {
	switch m := r.GetMessage().(type) {
	case *pluginv1.RunResponse_Opened:
		return source.Opened{}, nil
	case *pluginv1.RunResponse_Declare:
		return decodeDeclare(m.Declare)
	case *pluginv1.RunResponse_Batch:
		return DecodeBatch(m.Batch), nil
	case *pluginv1.RunResponse_Idle:
		return &source.Idle{Seq: m.Idle.GetSeq()}, nil
	case *pluginv1.RunResponse_Dropped:
		return &source.Dropped{
			Seq: m.Dropped.GetSeq(), Count: m.Dropped.GetCount(), Reason: m.Dropped.GetReason(), Offsets: decodeReached(m.Dropped.GetOffsets()),
		}, nil
	case *pluginv1.RunResponse_Metrics:
		return decodeMetrics(m.Metrics), nil
	case *pluginv1.RunResponse_Notice:
		return &source.Notice{Texts: m.Notice.GetTexts()}, nil
	case *pluginv1.RunResponse_Drained:
		return source.Drained{}, nil
	case nil:
		return nil, source.Fatalf("protocol: RunResponse has none of the messages that this version knows")
	default:
		return nil, source.Fatalf("protocol: RunResponse has a %T where a task's message belongs", m)
	}
}

func encodeDeclare(d *source.Declare) (*pluginv1.Declare, error) {
	out := &pluginv1.Declare{}
	for _, p := range d.Partitions {
		out.Partitions = append(out.Partitions, &pluginv1.DeclaredPartition{Number: p.Number, Partition: p.Partition})
	}
	for _, t := range d.Topics {
		out.Topics = append(out.Topics, &pluginv1.DeclaredTopic{Number: t.Number, Name: t.Name})
	}
	for _, s := range d.Schemas {
		schema, err := EncodeSchema(s.Schema)
		if err != nil {
			return nil, source.Fatalf("schema %d: %w", s.Number, err)
		}
		out.Schemas = append(out.Schemas, &pluginv1.DeclaredSchema{Number: s.Number, Schema: schema})
	}
	return out, nil
}

func decodeDeclare(d *pluginv1.Declare) (*source.Declare, error) {
	out := &source.Declare{}
	for _, p := range d.GetPartitions() {
		out.Partitions = append(out.Partitions, source.DeclaredPartition{Number: p.GetNumber(), Partition: p.GetPartition()})
	}
	for _, t := range d.GetTopics() {
		out.Topics = append(out.Topics, source.DeclaredTopic{Number: t.GetNumber(), Name: t.GetName()})
	}
	for _, s := range d.GetSchemas() {
		schema, err := DecodeSchema(s.GetSchema())
		if err != nil {
			return nil, source.Fatalf("protocol: schema %d: %w", s.GetNumber(), err)
		}
		out.Schemas = append(out.Schemas, source.DeclaredSchema{Number: s.GetNumber(), Schema: schema})
	}
	return out, nil
}

// EncodeBatch makes the wire form of a batch by slicing.
func EncodeBatch(b *source.Batch) *pluginv1.Batch {
	return &pluginv1.Batch{
		Seq: b.Seq, Count: uint32(b.Count), Arena: b.Arena,
		KeyLen: b.KeyLen, ValueLen: b.ValueLen, Partition: b.Partition, Topic: b.Topic, KafkaPartition: b.KafkaPartition,
		TimestampMs: b.TimestampMS, KeySchema: b.KeySchema, ValueSchema: b.ValueSchema,
		HeaderCount: b.HeaderCount, HeaderNameLen: b.HeaderNameLen, HeaderValueLen: b.HeaderValueLen,
		DefaultPartition: b.DefaultPartition, DefaultTopic: b.DefaultTopic,
		DefaultKeySchema: b.DefaultKeySchema, DefaultValueSchema: b.DefaultValueSchema,
		Offsets: encodeReached(b.Offsets), Continues: b.Continues, Boundary: pluginv1.Boundary(b.Boundary),
	}
}

// DecodeBatch reads a batch by slicing. WireBytes is the size of the encoded Batch message, which is what credit counts.
func DecodeBatch(b *pluginv1.Batch) *source.Batch {
	if b == nil {
		return &source.Batch{}
	}
	return &source.Batch{
		Seq: b.Seq, Count: int(b.Count), Arena: b.Arena,
		KeyLen: b.KeyLen, ValueLen: b.ValueLen, Partition: b.Partition, Topic: b.Topic, KafkaPartition: b.KafkaPartition,
		TimestampMS: b.TimestampMs, KeySchema: b.KeySchema, ValueSchema: b.ValueSchema,
		HeaderCount: b.HeaderCount, HeaderNameLen: b.HeaderNameLen, HeaderValueLen: b.HeaderValueLen,
		DefaultPartition: b.DefaultPartition, DefaultTopic: b.DefaultTopic,
		DefaultKeySchema: b.DefaultKeySchema, DefaultValueSchema: b.DefaultValueSchema,
		Offsets: decodeReached(b.Offsets), Continues: b.Continues, Boundary: source.Mark(b.Boundary),
		WireBytes: proto.Size(b),
	}
}

func encodeReached(offsets []source.Reached) []*pluginv1.Reached {
	if len(offsets) == 0 {
		return nil
	}
	out := make([]*pluginv1.Reached, len(offsets))
	for i, o := range offsets {
		out[i] = &pluginv1.Reached{Partition: o.Partition, Offset: o.Offset}
	}
	return out
}

func decodeReached(offsets []*pluginv1.Reached) []source.Reached {
	if len(offsets) == 0 {
		return nil
	}
	out := make([]source.Reached, len(offsets))
	for i, o := range offsets {
		out[i] = source.Reached{Partition: o.GetPartition(), Offset: o.GetOffset()}
	}
	return out
}

func encodeMetrics(m *source.Metrics) *pluginv1.Metrics {
	out := &pluginv1.Metrics{}
	for _, f := range m.Metrics {
		out.Metrics = append(out.Metrics, &pluginv1.Metric{Name: f.Name, Labels: f.Labels, Value: f.Value, Counter: f.Counter})
	}
	return out
}

func decodeMetrics(m *pluginv1.Metrics) *source.Metrics {
	out := &source.Metrics{}
	for _, f := range m.GetMetrics() {
		out.Metrics = append(out.Metrics, source.Metric{Name: f.GetName(), Labels: f.GetLabels(), Value: f.GetValue(), Counter: f.GetCounter()})
	}
	return out
}
