// Package publish writes records to Kafka through librdkafka, in transactions. A Producer is one transactional id's producer for one attempt of a task.
//
// It enforces I1 for what it was handed: a transaction of which librdkafka refused one record can't be committed, and a transaction whose commit got no answer can't be aborted.
// It never retries a transaction, never reads offsets and never decides what an error means for the task: Classify says it, the task acts on it.
//
// Threads: methods of a Producer, but for Queued and Reaches, are called by one goroutine at a time. Each Producer has one goroutine of its own, which drains events and logs from New until Close begins to end the client.
//
// Where to read next: produce.go and produce.c for the hot path, errors.go for what errors mean, close.go for how a producer ends, config.go for the client's settings.
// runner/internal/offsets is the only other package that uses librdkafka.
package publish

/*
#include "librdkafka.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/hashicorp/go-hclog"
)

// Config is what a Producer needs.
type Config struct {
	// TransactionalID is the producer's id. Required.
	TransactionalID string
	// Client has librdkafka's keys, bootstrap.servers among them. Required.
	Client map[string]string
	// Overrides has the connector's producer.override.* keys without that prefix; they win over Client.
	Overrides map[string]string
	// TransactionTimeout is how long the broker lets a transaction be open; 0 is 60 s. A key transaction.timeout.ms in Overrides or Client wins.
	TransactionTimeout time.Duration
	// DeliveryReports makes the error of a failed commit name the first record that failed, at some cost per record.
	DeliveryReports bool
	// Logger gets librdkafka's log; nil discards it.
	Logger hclog.Logger
}

// Producer is a transactional producer. A failed call names in its error what failed; see Classify.
type Producer struct {
	id        string
	bootstrap string
	timeout   time.Duration // the broker's, of a transaction
	logger    hclog.Logger

	client *kafka.Producer
	rk     *C.rd_kafka_t
	topics map[string]*C.rd_kafka_topic_t
	// handles is scratch space of Produce.
	handles []*C.rd_kafka_topic_t
	events  *events
	queue   *queue
	destroy func() // what Close runs; tests replace it

	// begun is when Begin was called for the open transaction; zero where none is open. The own clock is needed since the broker's answer is the same for an expired transaction and a fenced producer.
	begun time.Time
	// refused is the error with which the open transaction lost its commit.
	refused error
	// unanswered says that the last Commit ended without an answer.
	unanswered bool
	closed     bool

	// life guards closing for Queued, which may be called from anywhere.
	life    sync.Mutex
	closing bool
}

// New makes a producer. It connects to nothing yet: Init does. The caller closes it.
func New(cfg Config) (*Producer, error) {
	if err := roomForProducer(); err != nil {
		return nil, err
	}
	logger := cfg.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	settings, timeout, err := clientSettings(cfg)
	if err != nil {
		return nil, fmt.Errorf("settings of producer %q: %w", cfg.TransactionalID, err)
	}
	client, err := kafka.NewProducer(&settings)
	if err != nil {
		return nil, &Error{Op: opNew, ID: cfg.TransactionalID, Bootstrap: cfg.Client[keyBootstrap], Err: err}
	}
	rk, err := handleOf(client)
	if err != nil {
		client.Close()
		return nil, err
	}
	queue, err := newQueue(client, rk, cfg.DeliveryReports)
	if err != nil {
		client.Close()
		return nil, err
	}
	p := &Producer{
		id: cfg.TransactionalID, bootstrap: cfg.Client[keyBootstrap], timeout: timeout, logger: logger,
		client: client, rk: rk, topics: map[string]*C.rd_kafka_topic_t{}, events: &events{logger: logger, named: make(chan struct{}, 1)}, queue: queue,
	}
	p.destroy = p.destroyClient
	go queue.run(p.events)
	return p, nil
}

// Init connects and initialises the transactional id: the broker ends an open transaction of the id and fences its earlier producers. It repeats the same call until ctx ends; it never aborts. An error
// names the brokers' address and what the client had to say about it.
func (p *Producer) Init(ctx context.Context) error {
	if err := p.usable(opInit); err != nil {
		return err
	}
	<-p.queue.ready // a moment: from here on nothing that the client reports is lost
	// A client without a connection waits up to 500 ms before it looks for the transaction coordinator, so connecting comes first.
	err := p.repeat(ctx, opConnect, func(_ context.Context, limit time.Duration) error {
		_, err := p.client.GetMetadata(nil, false, int(limit.Milliseconds()))
		return err
	})
	if err != nil {
		return err
	}
	err = p.repeat(ctx, opInit, func(step context.Context, _ time.Duration) error {
		return p.client.InitTransactions(step)
	})
	if k, ok := errors.AsType[kafka.Error](err); ok && k.Code() == kafka.ErrInvalidTransactionTimeout {
		return p.nameLimit(ctx, err)
	}
	return err
}

// Reaches says whether any broker answers within a time. It may be called beside the other methods, but not beside Close.
func (p *Producer) Reaches(within time.Duration) bool {
	_, err := p.client.GetMetadata(nil, false, int(within.Milliseconds()))
	return err == nil
}

// maxTimeoutKey is the broker's key for the longest transaction time-out.
const maxTimeoutKey = "transaction.max.timeout.ms"

// nameLimit adds to a transaction time-out that was refused what the broker would take, where it tells: that needs a right which a runner doesn't need otherwise.
func (p *Producer) nameLimit(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	admin, adminErr := kafka.NewAdminClientFromProducer(p.client)
	if adminErr != nil {
		return err
	}
	defer admin.Close()
	brokers, askErr := p.client.GetMetadata(nil, false, int(callSlice.Milliseconds()))
	if askErr != nil || len(brokers.Brokers) == 0 {
		return err
	}
	name := strconv.Itoa(int(brokers.Brokers[0].ID))
	configs, askErr := admin.DescribeConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceBroker, Name: name}}, kafka.SetAdminRequestTimeout(requestTimeout(ctx)))
	if askErr != nil || len(configs) != 1 || configs[0].Config[maxTimeoutKey].Value == "" {
		return err
	}
	return fmt.Errorf("%w (%s is %s here, and the broker's %s is %s)", err, keyTransactionTimeout, milliseconds(p.timeout), maxTimeoutKey, configs[0].Config[maxTimeoutKey].Value)
}

// Begin opens a transaction. It asks nobody.
func (p *Producer) Begin() error {
	if err := p.usable(opBegin); err != nil {
		return err
	}
	if err := p.client.BeginTransaction(); err != nil {
		return p.wrap(opBegin, err)
	}
	p.begun, p.refused, p.unanswered = time.Now(), nil, false
	p.events.forgetFailure()
	return nil
}

// Commit sends what is queued and commits. Where the answer is only late, the same call is repeated until ctx ends; if it ends without one, nobody knows whether the transaction is committed (Error.Unknown):
// Commit may be called again, Abort not.
func (p *Producer) Commit(ctx context.Context) error {
	if err := p.usable(opCommit); err != nil {
		return err
	}
	// I1: every record that was handed over is in the transaction, or it isn't committed.
	if p.refused != nil {
		return fmt.Errorf("commit is refused: %w", p.refused)
	}
	err := p.repeat(ctx, opCommit, func(step context.Context, _ time.Duration) error {
		return p.client.CommitTransaction(step)
	})
	if err == nil {
		p.begun, p.unanswered = time.Time{}, false
		return nil
	}
	e, ok := errors.AsType[*Error](err)
	switch {
	case ok && e.retriable():
		p.unanswered, e.Unknown = true, true
	case ok && e.Failure == nil && p.queue.failures:
		e.Failure = p.events.await(ctx, reportWait)
	}
	return err
}

// Abort drops the open transaction. It is repeated until ctx ends. After a Commit without an answer it is refused: it could delete what was committed.
func (p *Producer) Abort(ctx context.Context) error {
	if err := p.usable(opAbort); err != nil {
		return err
	}
	if p.unanswered {
		e := p.wrap(opAbort, errors.New("the commit before it may have succeeded"))
		e.Unknown = true
		return e
	}
	err := p.repeat(ctx, opAbort, func(step context.Context, _ time.Duration) error {
		return p.client.AbortTransaction(step)
	})
	if err == nil {
		p.begun, p.refused = time.Time{}, nil
	}
	return err
}

// BrokerLost says whether a connection to a broker was lost, or couldn't be made, since it was last asked. Where that is so after a commit, Kafka may have left one of its partitions without a marker although
// Commit returned nil: nothing more is sent before somebody has looked. What happens just as Commit returns may show only the next time.
func (p *Producer) BrokerLost() bool { return p.events.takeLost() }

// Queued is how many records and requests the client still holds: handed over, and not answered by a broker. It may be called from any goroutine at any time; after Close it is 0.
func (p *Producer) Queued() int {
	p.life.Lock()
	defer p.life.Unlock()
	if p.closing {
		return 0
	}
	return p.client.Len()
}

func (p *Producer) usable(op op) error {
	if p.closed {
		return p.wrap(op, errors.New("the producer is closed"))
	}
	return nil
}
