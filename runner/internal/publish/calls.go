package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// op is what a Producer was doing.
type op string

const (
	opNew      op = "make a producer"
	opConnect  op = "connect to Kafka"
	opInit     op = "initialise the transactional id"
	opBegin    op = "begin a transaction"
	opProduce  op = "hand over a record"
	opCommit   op = "commit"
	opAbort    op = "abort"
	opClose    op = "close the producer"
	opDescribe op = "look up the topic"
)

// Error is an error of a Producer with what is known about it.
type Error struct {
	// Op is what was done.
	Op op
	// ID is the transactional id, Bootstrap the brokers' configured addresses.
	ID, Bootstrap string
	// Topic and Record name what librdkafka refused, Record within its batch; Topic is empty where it wasn't a record.
	Topic  string
	Record int
	// Open is how long the transaction was open by the producer's own clock; 0 where none was.
	Open time.Duration
	// Expired says that Open is past the transaction time-out: what looks like a fence is then most likely that.
	Expired bool
	// Unknown says that the broker may have committed the transaction, or not.
	Unknown bool
	// Report is what the client last reported while the call ran, such as a failed login.
	Report error
	// Failure is the first record of the transaction that a broker refused; nil without delivery reports.
	Failure *Failure
	// Err is the cause: a kafka.Error, a context's error, or what is wrong with a batch.
	Err error
}

// Error has everything on one line.
func (e *Error) Error() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s", e.Op)
	switch {
	case e.Op == opConnect:
		fmt.Fprintf(&s, " at %s", e.Bootstrap)
	case e.Op == opInit:
		fmt.Fprintf(&s, " %q at %s", e.ID, e.Bootstrap)
	case e.Topic != "" && e.Op == opProduce:
		fmt.Fprintf(&s, " (%d of its batch) for topic %q", e.Record, e.Topic)
	case e.Topic != "":
		fmt.Fprintf(&s, " %q", e.Topic)
	default:
		fmt.Fprintf(&s, " (transactional id %q)", e.ID)
	}
	fmt.Fprintf(&s, ": %v", e.Err)
	if f := e.Failure; f != nil {
		fmt.Fprintf(&s, "; first refused: topic %q, partition %d, key %s: %v", f.Topic, f.Partition, f.Key, f.Err)
	}
	if e.Report != nil {
		fmt.Fprintf(&s, "; the client reports: %v", e.Report)
	}
	return s.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// retriable says that the same call may be repeated. Looking up metadata isn't one of the calls that librdkafka marks, and harmless to repeat.
func (e *Error) retriable() bool {
	k, ok := errors.AsType[kafka.Error](e.Err)
	return ok && !k.IsFatal() && !k.TxnRequiresAbort() && (k.IsRetriable() || e.Op == opConnect)
}

// isAuthentication says whether the client reports that a broker refused its login.
func isAuthentication(report error) bool {
	k, ok := errors.AsType[kafka.Error](report)
	return ok && (k.Code() == kafka.ErrAuthentication || k.Code() == kafka.ErrSaslAuthenticationFailed)
}

// callSlice bounds each call into librdkafka, so that the end of a context is noticed; a call that timed out is repeated and goes on where it was.
const callSlice = time.Second

// callPause keeps a call that fails at once from being repeated in a tight loop.
const callPause = 50 * time.Millisecond

// repeat calls until there is an answer other than "again" or ctx has ended.
func (p *Producer) repeat(ctx context.Context, op op, call func(step context.Context, limit time.Duration) error) error {
	started := time.Now()
	for {
		step, cancel := context.WithTimeout(ctx, callSlice)
		limit := callSlice
		if deadline, ok := step.Deadline(); ok {
			limit = max(time.Until(deadline), time.Millisecond)
		}
		err := call(step, limit)
		cancel()
		if err == nil {
			return nil
		}
		e := p.wrap(op, err)
		e.Report = p.events.since(started)
		if !e.retriable() || ctx.Err() != nil {
			return e
		}
		// A failed login shows in a call only as a time-out. At the start, waiting for an answer is no use then.
		if (op == opConnect || op == opInit) && isAuthentication(e.Report) {
			return e
		}
		select {
		case <-ctx.Done():
			return e
		case <-time.After(callPause):
		}
	}
}

// wrap makes an error of this producer.
func (p *Producer) wrap(op op, err error) *Error {
	e := &Error{Op: op, ID: p.id, Bootstrap: p.bootstrap, Err: err, Failure: p.events.failure()}
	if !p.begun.IsZero() {
		e.Open = time.Since(p.begun)
		e.Expired = e.Open >= p.timeout
	}
	return e
}
