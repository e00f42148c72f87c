package configlog

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	noBroker        = -1
	readUncommitted = 0
	readCommitted   = 1
	endOffset       = -1
	startOffset     = -2
)

// writer writes transactions under one epoch of the log's id. It is used by one goroutine at a time, and never again after an error: the transaction may still be open then, and only the next initialisation of the id
// ends it. Each request is sent as it is and repeated with the same content, which the broker recognises, so nothing happens behind the writer's back, a new initialisation least of all.
type writer struct {
	direct   *kafkaclient.Direct
	topic    string
	id       string
	producer int64
	epoch    int16
	sequence int32
	limit    int
	timeout  time.Duration
	leader   int32 // the partition's, or noBroker
}

// write is one transaction: partition added → records produced → committed → readable.
func (w *writer) write(ctx context.Context, records []state.Record) error {
	encoded, err := batches(records, w.limit, w.producer, w.epoch, w.sequence)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, w.timeout, fmt.Errorf("no answer within %v: %w", w.timeout, context.DeadlineExceeded))
	defer cancel()
	if err := w.repeat(ctx, "add the partition", w.add); err != nil {
		return err
	}
	var end int64
	for _, b := range encoded {
		if err := w.repeat(ctx, "produce", func(ctx context.Context) (err error) {
			end, err = w.produce(ctx, b)
			return err
		}); err != nil {
			return err
		}
		w.sequence += b.count
	}
	ctx, done := beforeCommit(ctx, records, w.timeout)
	defer done()
	if err := w.repeat(ctx, "commit", w.commit); err != nil {
		return err
	}
	return w.repeat(ctx, "wait for the commit to be readable", func(ctx context.Context) error { return w.readable(ctx, end) })
}

// repeat carries out a step until it succeeds, fails for good, or the write's time is over: the outcome isn't known then.
func (w *writer) repeat(ctx context.Context, step string, do func(context.Context) error) error {
	var last error
	for attempt := 0; ; attempt++ {
		err := do(ctx)
		if err == nil {
			return nil
		}
		if last == nil || ctx.Err() == nil { // A request that the deadline cut short says nothing of the cause.
			last = err
		}
		verdict := classify(err)
		if verdict.final {
			return fmt.Errorf("%s: %w", step, err)
		}
		if verdict.moved {
			w.direct.Forget(w.id)
			w.leader = noBroker
		}
		timer := time.NewTimer(verdict.delay(attempt))
		select {
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%s: %w", step, errors.Join(context.Cause(ctx), last))
		case <-timer.C:
		}
	}
}

func (w *writer) add(ctx context.Context) error {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = w.id, w.producer, w.epoch
	topic := kmsg.NewAddPartitionsToTxnRequestTopic()
	topic.Topic, topic.Partitions = w.topic, []int32{partition}
	req.Topics = append(req.Topics, topic)
	answer, err := w.direct.ToCoordinator(ctx, w.id, req)
	if err != nil {
		return err
	}
	resp, ok := answer.(*kmsg.AddPartitionsToTxnResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return fmt.Errorf("the broker answered with %T for one partition", answer)
	}
	return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
}

// produce returns the offset after the batch, or 0 where the broker had it already and doesn't say.
func (w *writer) produce(ctx context.Context, b batch) (int64, error) {
	leader, err := w.partitionLeader(ctx)
	if err != nil {
		return 0, err
	}
	req := kmsg.NewPtrProduceRequest()
	req.TransactionID, req.Acks, req.TimeoutMillis = &w.id, -1, int32(w.timeout.Milliseconds())
	topic, part := kmsg.NewProduceRequestTopic(), kmsg.NewProduceRequestTopicPartition()
	part.Partition, part.Records = partition, b.data
	topic.Topic, topic.Partitions = w.topic, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	answer, err := w.direct.ToBroker(ctx, leader, req)
	if err != nil {
		return 0, err
	}
	resp, ok := answer.(*kmsg.ProduceResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("the broker answered with %T for one partition", answer)
	}
	done := resp.Topics[0].Partitions[0]
	if done.ErrorCode == kerr.DuplicateSequenceNumber.Code {
		return 0, nil
	}
	return done.BaseOffset + int64(b.count), kerr.ErrorForCode(done.ErrorCode)
}

// commit may be repeated: the coordinator answers the same to the same epoch until the next transaction begins.
func (w *writer) commit(ctx context.Context) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = w.id, w.producer, w.epoch, true
	answer, err := w.direct.ToCoordinator(ctx, w.id, req)
	if err != nil {
		return err
	}
	resp, ok := answer.(*kmsg.EndTxnResponse)
	if !ok {
		return fmt.Errorf("the broker answered with %T", answer)
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// errNotReadable says that a commit's marker isn't in the partition yet.
var errNotReadable = errors.New("the partition's last stable offset is behind: its broker hasn't got the transaction's marker")

// readable checks that the last stable offset has passed end, or has reached the end of the partition where end is 0.
func (w *writer) readable(ctx context.Context, end int64) error {
	if end <= 0 {
		var err error
		if end, err = w.list(ctx, readUncommitted, endOffset); err != nil {
			return err
		}
	}
	stable, err := w.list(ctx, readCommitted, endOffset)
	if err != nil {
		return err
	}
	if stable < end {
		return errNotReadable
	}
	return nil
}

// span is what the log holds.
type span struct{ start, end int64 }

// ends finds what there is to read, and waits until all of it can be read.
func (w *writer) ends(ctx context.Context) (found span, err error) {
	err = w.repeat(ctx, "find the end", func(ctx context.Context) (err error) {
		if found.start, err = w.list(ctx, readUncommitted, startOffset); err != nil {
			return err
		}
		if found.end, err = w.list(ctx, readUncommitted, endOffset); err != nil {
			return err
		}
		return w.readable(ctx, found.end)
	})
	return found, err
}

func (w *writer) list(ctx context.Context, isolation int8, at int64) (int64, error) {
	leader, err := w.partitionLeader(ctx)
	if err != nil {
		return 0, err
	}
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID, req.IsolationLevel = noBroker, isolation
	topic, part := kmsg.NewListOffsetsRequestTopic(), kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition, part.Timestamp, part.CurrentLeaderEpoch = partition, at, -1
	topic.Topic, topic.Partitions = w.topic, append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	answer, err := w.direct.ToBroker(ctx, leader, req)
	if err != nil {
		return 0, err
	}
	resp, ok := answer.(*kmsg.ListOffsetsResponse)
	if !ok || len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
		return 0, fmt.Errorf("the broker answered with %T for one partition", answer)
	}
	listed := resp.Topics[0].Partitions[0]
	return listed.Offset, kerr.ErrorForCode(listed.ErrorCode)
}

func (w *writer) partitionLeader(ctx context.Context) (int32, error) {
	if w.leader != noBroker {
		return w.leader, nil
	}
	req := kmsg.NewPtrMetadataRequest()
	topic := kmsg.NewMetadataRequestTopic()
	topic.Topic = &w.topic
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, w.direct.Client())
	if err != nil {
		return noBroker, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			if p.Partition == partition && p.ErrorCode == 0 {
				w.leader = p.Leader
				return p.Leader, nil
			}
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return noBroker, err
			}
		}
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			return noBroker, err
		}
	}
	return noBroker, kerr.LeaderNotAvailable
}
