package publish

/*
#cgo noescape fp_produce
#cgo nocallback fp_produce
#include <stdlib.h>
#include "produce.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"unsafe"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// queueWaitMS bounds one wait for room in librdkafka's queue. It ends early when the queue is empty.
const queueWaitMS = 20

// Produce hands all records of b to librdkafka, in order, inside the transaction that Begin opened. topics has the names by declared number; element 0 isn't used.
// The memory of b is copied and free again when Produce returns.
//
// When librdkafka's queue is full, it waits and goes on with the same record. Every other refusal, and the end of ctx, is an error with which this transaction can only be aborted: Commit
// refuses it.
func (p *Producer) Produce(ctx context.Context, b *source.Batch, topics []string) error {
	if err := p.usable(opProduce); err != nil {
		return err
	}
	if b.Count == 0 {
		return nil
	}
	err := p.produce(ctx, b, topics)
	if err != nil {
		// I1: a record that wasn't taken is missing without a trace from a commit that succeeds, so from here on this transaction has no commit.
		p.refused = err
	}
	return err
}

func (p *Producer) produce(ctx context.Context, b *source.Batch, topics []string) error {
	if err := checkColumns(b); err != nil {
		return p.wrap(opProduce, err)
	}
	if cap(p.handles) < len(topics) {
		p.handles = make([]*C.rd_kafka_topic_t, len(topics))
	}
	handles := p.handles[:len(topics)]
	clear(handles)

	var at C.fp_cursor
	for {
		code := p.handOver(b, handles, &at)
		// I1: what the library took is checked on every call.
		if code == 0 && int(at.record) == b.Count {
			return nil
		}
		switch {
		case code == C.FP_NO_TOPIC && topics[at.topic] != "":
			handle, err := p.topic(topics[at.topic])
			if err != nil {
				return p.refusal(err, topics[at.topic], int(at.record))
			}
			handles[at.topic] = handle
		case kafka.ErrorCode(code) == kafka.ErrQueueFull:
			if ctx.Err() != nil {
				return p.refusal(context.Cause(ctx), topics[at.topic], int(at.record))
			}
			// Flush also sends what lingers. Messages that the broker doesn't take leave the queue at message.timeout.ms at the latest, so this ends without ctx as well.
			C.rd_kafka_flush(p.rk, queueWaitMS)
		default:
			return p.refusal(p.refusalCause(int(code)), nameOf(topics, uint32(at.topic)), int(at.record))
		}
	}
}

// handOver calls C once. Go memory is lent for the length of the call only.
func (p *Producer) handOver(b *source.Batch, handles []*C.rd_kafka_topic_t, at *C.fp_cursor) C.int {
	return C.fp_produce(p.rk, unsafe.SliceData(handles), C.uint32_t(len(handles)), C.uint32_t(b.DefaultTopic), C.uint32_t(b.Count),
		column(b.Arena), C.uint64_t(len(b.Arena)), column(b.KeyLen), column(b.ValueLen), column(b.Topic),
		column(b.KafkaPartition), column(b.TimestampMS), column(b.HeaderCount), column(b.HeaderNameLen),
		column(b.HeaderValueLen), C.uint32_t(b.HeaderNameLen.Len()), at)
}

// column is NULL where the column is left out.
func column[B ~[]byte](b B) *C.uint8_t {
	if len(b) == 0 {
		return nil
	}
	return (*C.uint8_t)(unsafe.Pointer(unsafe.SliceData(b)))
}

// checkColumns makes sure that C reads nothing beyond a column; lengths within the arena are checked there. Batch.Check, which says what is wrong with a plugin's batch, came before.
func checkColumns(b *source.Batch) error {
	for _, c := range [...]int{len(b.KeyLen), len(b.ValueLen), len(b.Topic), len(b.KafkaPartition), len(b.HeaderCount), len(b.TimestampMS) / 2} {
		if c != 0 && c != 4*b.Count {
			return fmt.Errorf("a column has %d bytes, %d records need %d", c, b.Count, 4*b.Count)
		}
	}
	if n := len(b.HeaderValueLen); n != 0 && n != len(b.HeaderNameLen) {
		return fmt.Errorf("column header_value_len has %d bytes, header_name_len %d", n, len(b.HeaderNameLen))
	}
	return nil
}

// topic returns the handle of a topic, which lives until Close.
func (p *Producer) topic(name string) (*C.rd_kafka_topic_t, error) {
	if handle, ok := p.topics[name]; ok {
		return handle, nil
	}
	text := C.CString(name)
	defer C.free(unsafe.Pointer(text))
	handle := C.rd_kafka_topic_new(p.rk, text, nil)
	if handle == nil {
		return nil, kafka.NewError(kafka.ErrorCode(C.rd_kafka_last_error()), "", false)
	}
	p.topics[name] = handle
	return handle, nil
}

// refusalCause puts a code of fp_produce in words. After a fatal error librdkafka refuses every record with ErrFatal alone; the error itself has to be asked for.
func (p *Producer) refusalCause(code int) error {
	switch code {
	case 0, C.FP_BAD_LAYOUT:
		return fmt.Errorf("the batch's columns don't fit together")
	case C.FP_BAD_TIMESTAMP:
		return fmt.Errorf("the timestamp is 0, which Kafka's client takes for the current time")
	case C.FP_BAD_PARTITION:
		return fmt.Errorf("the Kafka partition is below -1")
	case C.FP_NO_TOPIC:
		return fmt.Errorf("the record's topic is not declared")
	}
	switch kafka.ErrorCode(code) {
	case kafka.ErrFatal:
		if err := p.client.GetFatalError(); err != nil {
			return err
		}
	case kafka.ErrState:
		if err := p.failedBefore(); err != nil {
			return err
		}
	}
	return kafka.NewError(kafka.ErrorCode(code), "", false)
}

// failedBefore is why the open transaction takes no more records: a broker refused one while others were still handed over. librdkafka refuses those with ErrState alone. It says why to whoever begins a transaction, which in an open one
// does nothing else.
func (p *Producer) failedBefore() error {
	if p.begun.IsZero() {
		return nil
	}
	k, ok := errors.AsType[kafka.Error](p.client.BeginTransaction())
	if !ok || !k.TxnRequiresAbort() {
		return nil
	}
	return k
}

func (p *Producer) refusal(err error, topic string, record int) error {
	e := p.wrap(opProduce, err)
	e.Topic, e.Record = topic, record
	if p.queue.failures {
		e.Failure = p.events.failure()
	}
	return e
}

func nameOf(topics []string, number uint32) string {
	if uint64(number) < uint64(len(topics)) {
		return topics[number]
	}
	return ""
}
