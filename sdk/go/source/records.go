package source

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
)

// Records takes what a Reader reads, and sends it on in batches: when Read returns, at every mark, and before a batch would be larger than the limits. Its methods are for Read alone, and for
// one goroutine at a time. They copy what they are given. An error from them means that the record is not taken, or that the task ends: return it.
//
// Records of one partition with equal offsets are one unit, an event of the source: no transaction ends between them. They are recognised within one Read only. So are records without an offset, up
// to the next Reach of their partition, also over several Reads. Such records wait here until Reach names the offset that covers them, since every batch that goes out says how far it reaches:
// what takes more than 64 MiB should have its offset on each record instead.
type Records struct {
	task   *Task
	limits Limits
	send   func(outgoing) error
	reuse  bool // what was sent is copied
	// ending is set when the task is about to end, so that Full ends loops.
	ending atomic.Bool

	builder     Builder
	touched     []*Partition // with a record or an offset in the open batch
	offsetBytes int          // what the offsets of touched need in the batch, at most
	uncovered   int          // partitions with records that no offset covers yet
	held        []heldBatch  // full, and waiting until uncovered is 0
	heldBytes   int
	dropped     Dropped      // not sent yet; Count 0 is none
	dropping    []*Partition // of dropped
	dropBytes   int

	seq       uint64
	idle      bool // the last message was an Idle
	sinceMark bool // something was sent since the last mark
	taken     bool // something was taken since the run loop looked
	notice    []string
	lastTopic string
	lastNum   uint32
	scratch   []byte
	err       error
}

// A Read should return when its batch has as much: a batch of this size costs next to nothing per record, and larger ones only cost memory.
const (
	fullBytes   = 1 << 20
	fullRecords = 10_000
)

// The limits of the protocol for a Notice.
const (
	maxNotices     = 20
	maxNoticeBytes = 500
)

func newRecords(t *Task, send func(outgoing) error) *Records {
	return &Records{task: t, limits: t.Limits(), send: send}
}

// Full says that Read should return: the batch is large enough, or the task is about to end.
func (r *Records) Full() bool {
	n := r.builder.Len()
	return n >= fullRecords || n >= r.limits.MaxBatchRecords || r.builder.Bytes()+r.offsetBytes >= min(fullBytes, r.limits.MaxBatchBytes/2) || r.ending.Load()
}

// Add adds a record. Where the batch is at its limit it sends it first, and waits for the runner's leave.
func (r *Records) Add(rec Record) error {
	if r.err != nil {
		return r.err
	}
	v := RecordView{Key: rec.Key, Value: rec.Value, KeySchema: rec.KeySchema, ValueSchema: rec.ValueSchema, KafkaPartition: -1, TimestampMS: NoTimestamp}
	size, err := r.check(&rec, &v)
	if err != nil {
		return err
	}
	p := rec.Partition
	var offset []byte
	if rec.Offset != nil {
		if offset, err = r.encode(p, rec.Offset); err != nil {
			return err
		}
	}
	if r.dropped.Count > 0 || r.builder.Len() >= r.limits.MaxBatchRecords || !r.fits(size, len(rec.Headers), p, offset) {
		// Equal offsets stay together: the offset of the batch that ends here covers this record too.
		if err := r.split(offset != nil && bytes.Equal(offset, p.offset)); err != nil {
			return err
		}
		if !r.fits(size, len(rec.Headers), p, offset) {
			return recordError(p, "a record for topic %q, of %d bytes, doesn't fit into a batch of %d", rec.Topic, size, r.limits.MaxBatchBytes)
		}
	}
	r.taken = true
	v.Partition = p.number
	r.builder.add(&v)
	for i := range rec.Headers {
		r.builder.Header(rec.Headers[i].Name, rec.Headers[i].Value)
	}
	if offset != nil {
		r.reach(p, offset)
	} else if !p.uncovered {
		r.touch(p)
		p.uncovered = true
		r.uncovered++
	}
	return nil
}

// check checks a record before anything is changed, fills in the numbers, and returns the record's size.
func (r *Records) check(rec *Record, v *RecordView) (int, error) {
	p := rec.Partition
	if p == nil || p.task != r.task {
		return 0, Fatalf("a record needs a source partition, from Task.Partition of its own task")
	}
	if rec.Topic != r.lastTopic || r.lastNum == 0 {
		n, err := r.task.topic(rec.Topic)
		if err != nil {
			return 0, err
		}
		r.lastTopic, r.lastNum = rec.Topic, n
	}
	v.Topic = r.lastNum
	if p.number == 0 {
		if err := r.task.declare(p); err != nil {
			return 0, err
		}
	}
	size := len(rec.Key) + len(rec.Value)
	for i := range rec.Headers {
		size += len(rec.Headers[i].Name) + len(rec.Headers[i].Value)
	}
	if size > r.limits.MaxRecordBytes {
		return 0, recordError(p, "a record for topic %q has %d bytes of key, value and headers, the limit is %d", rec.Topic, size, r.limits.MaxRecordBytes)
	}
	if !rec.Timestamp.IsZero() {
		v.TimestampMS = rec.Timestamp.UnixMilli()
		if v.TimestampMS < 1 || v.TimestampMS > MaxTimestampMS {
			return 0, recordError(p, "a record has the timestamp %d ms since 1970, allowed is 1 to %d", v.TimestampMS, int64(MaxTimestampMS))
		}
	}
	if rec.ToPartition {
		if v.KafkaPartition = rec.KafkaPartition; v.KafkaPartition < 0 {
			return 0, recordError(p, "a record goes to the Kafka partition %d", v.KafkaPartition)
		}
	}
	if !r.knows(rec.KeySchema) || !r.knows(rec.ValueSchema) {
		return 0, recordError(p, "a record has the schemas %d and %d, but a schema is one of the constants, or comes from Task.Schema", rec.KeySchema, rec.ValueSchema)
	}
	return size, nil
}

func (r *Records) knows(schema uint32) bool {
	return schema <= SchemaFloat64 || schema >= SchemaFirstDeclared && schema < SchemaFirstDeclared+uint32(len(r.task.schemas))
}

// fits says whether the open batch can take size more bytes in a record of p, and an offset.
func (r *Records) fits(size, headers int, p *Partition, offset []byte) bool {
	// What p has in the batch already is counted again: a bound is enough.
	more := size + recordOverhead + 8*headers + len(offset) + len(p.offset) + offsetOverhead
	return r.builder.Bound()+r.offsetBytes+more <= r.limits.MaxBatchBytes
}

// Reach says how far a partition has come: the offset covers every record of it so far. An offset without a record moves the stored position too.
func (r *Records) Reach(p *Partition, offset Fields) error {
	if r.err != nil {
		return r.err
	}
	if p == nil || p.task != r.task {
		return Fatalf("Reach needs a source partition, from Task.Partition of its own task")
	}
	encoded, err := r.encode(p, offset)
	if err != nil {
		return err
	}
	if !p.uncovered && !p.touched && bytes.Equal(encoded, p.offset) {
		return nil
	}
	if err := r.task.declare(p); err != nil {
		return err
	}
	if r.dropped.Count > 0 || !r.fits(0, 0, p, encoded) {
		if err := r.split(false); err != nil {
			return err
		}
	}
	r.taken = true
	r.reach(p, encoded)
	return nil
}

// encode returns offset in canonical form, in memory that the next call uses again.
func (r *Records) encode(p *Partition, offset Fields) ([]byte, error) {
	encoded, err := appendFields(r.scratch[:0], offset)
	if err != nil {
		return nil, recordError(p, "an offset %v", err)
	}
	r.scratch = encoded
	return encoded, nil
}

// reach notes a new offset, which covers the records of p.
func (r *Records) reach(p *Partition, offset []byte) {
	r.touch(p)
	r.offsetBytes += len(offset) - len(p.offset)
	p.offset = append(p.offset[:0], offset...)
	if p.uncovered {
		p.uncovered = false
		r.uncovered--
	}
}

func (r *Records) touch(p *Partition) {
	if !p.touched {
		p.touched = true
		r.touched = append(r.touched, p)
		r.offsetBytes += len(p.offset) + offsetOverhead
	}
}

// Idle says that the source has nothing more to give for now, so that the runner need not wait for more before it commits.
func (r *Records) Idle() error {
	if err := r.flush(); err != nil {
		return err
	}
	if r.uncovered > 0 {
		return Fatalf("Idle was called after records that no offset covers yet: call Reach first")
	}
	if r.idle {
		return nil
	}
	r.seq++
	if err := r.emit(outgoing{message: &Idle{Seq: r.seq}, seq: r.seq}); err != nil {
		return err
	}
	r.idle = true
	return nil
}

// Drop says that count records of p were left out by a rule that the configuration asked for, up to offset. The reason names the rule, in one line for users.
func (r *Records) Drop(p *Partition, offset Fields, count uint64, reason string) error {
	if r.err != nil {
		return r.err
	}
	if p == nil || p.task != r.task {
		return Fatalf("Drop needs a source partition, from Task.Partition of its own task")
	}
	if count == 0 || reason == "" || len(reason) > 1000 || !utf8.ValidString(reason) {
		return recordError(p, "Drop needs a count above 0 and a reason of 1 to 1000 bytes of UTF-8")
	}
	if r.uncovered > 0 {
		return recordError(p, "Drop was called between records that no offset covers yet: call Reach first")
	}
	encoded, err := r.encode(p, offset)
	if err != nil {
		return err
	}
	encoded = bytes.Clone(encoded)
	if err := r.task.declare(p); err != nil {
		return err
	}
	if err := r.seal(false, NoMark); err != nil {
		return err
	}
	if r.dropped.Count > 0 && (r.dropped.Reason != reason || r.dropBytes+len(encoded) > fullBytes) {
		if err := r.sendDropped(); err != nil {
			return err
		}
	}
	r.taken = true
	if !p.touched {
		p.touched = true
		r.dropping = append(r.dropping, p)
		r.dropBytes += offsetOverhead
	}
	r.dropBytes += len(encoded)
	p.offset = encoded
	r.dropped.Count += count
	r.dropped.Reason = reason
	return nil
}

// Notice says what people should know although the task goes on: a file that can't be read while others can. It replaces the notice before; without texts it takes it back. At most 20 texts of
// 500 bytes, one line each. Saying the same again costs nothing.
func (r *Records) Notice(texts ...string) error {
	if r.err != nil || slices.Equal(texts, r.notice) {
		return r.err
	}
	if len(texts) > maxNotices {
		return Fatalf("a notice has %d texts, the limit is %d", len(texts), maxNotices)
	}
	for _, t := range texts {
		if len(t) > maxNoticeBytes || !utf8.ValidString(t) || strings.ContainsFunc(t, unicode.IsControl) {
			return Fatalf("the notice %.600q is not one line of at most %d bytes of UTF-8", t, maxNoticeBytes)
		}
	}
	r.notice = slices.Clone(texts)
	if err := r.send(outgoing{message: &Notice{Texts: r.notice}}); err != nil {
		r.err = err
	}
	return r.err
}

// EndSource marks that a transaction or event of the source is whole here: for transaction.boundary=source.
func (r *Records) EndSource() error { return r.mark(MarkSource, "EndSource") }

// Commit asks the runner to commit here. Only where Task.Boundary is ByConnector.
func (r *Records) Commit() error { return r.mark(MarkCommit, "Commit") }

// Abort drops the records since the last mark, and keeps their offsets. Only where Task.Boundary is ByConnector.
func (r *Records) Abort() error { return r.mark(MarkAbort, "Abort") }

func (r *Records) mark(m Mark, method string) error {
	if r.err != nil {
		return r.err
	}
	if m != MarkSource && r.task.open.Boundary != ByConnector {
		return Fatalf("%s was called, but transaction.boundary isn't connector", method)
	}
	if r.uncovered > 0 {
		return Fatalf("%s was called after records that no offset covers yet: call Reach first", method)
	}
	if err := r.sendDropped(); err != nil {
		return err
	}
	if !r.sinceMark && r.builder.Len() == 0 && len(r.touched) == 0 {
		return nil
	}
	r.taken = true
	return r.seal(false, m)
}

// recordError is a Fatal error of one partition.
func recordError(p *Partition, format string, args ...any) error {
	return &Error{Kind: Fatal, Partition: p.json, Message: fmt.Sprintf(format, args...)}
}
