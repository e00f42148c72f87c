package publish

import (
	"strconv"
	"sync"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/hashicorp/go-hclog"
)

// Capacities of the binding's channels. They only smooth: the drain never waits for anything. The binding's defaults cost 24 MB a channel.
const (
	eventsCapacity  = 64
	logsCapacity    = 16
	produceCapacity = 1 // not used, and can't be 0
)

// events takes what a client reports outside of any call. An undrained channel would stop the client's polling, and with it commits.
type events struct {
	logger hclog.Logger
	logs   chan kafka.LogEvent
	done   chan struct{} // closed when the drain has ended

	mu     sync.Mutex
	last   error // the newest error event
	lastAt time.Time
	lost   bool     // a broker went away since takeLost
	failed *Failure // the first failed delivery of the open transaction
}

func newEvents(logger hclog.Logger) *events {
	return &events{logger: logger, logs: make(chan kafka.LogEvent, logsCapacity), done: make(chan struct{})}
}

// drain ends when the client's Close has closed the channel of events.
func (e *events) drain(from <-chan kafka.Event) {
	defer close(e.done)
	for {
		select {
		case event, ok := <-from:
			if !ok {
				return
			}
			e.take(event)
		case line := <-e.logs:
			e.logger.Log(level(line.Level), "librdkafka", "tag", line.Tag, "text", line.Message)
		}
	}
}

func (e *events) take(event kafka.Event) {
	switch event := event.(type) {
	case kafka.Error:
		e.mu.Lock()
		defer e.mu.Unlock()
		switch event.Code() {
		case kafka.ErrTransport, kafka.ErrAllBrokersDown, kafka.ErrTimedOut, kafka.ErrResolve:
			e.lost = true
		}
		// "All brokers are down" says less than the reason that came just before it.
		if event.Code() != kafka.ErrAllBrokersDown || e.last == nil {
			e.last, e.lastAt = event, time.Now()
		}
	case *kafka.Message:
		if event.TopicPartition.Error == nil {
			return
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.failed == nil {
			e.failed = failureOf(event)
		}
	}
}

// since returns the newest error event, where there is one since t.
func (e *events) since(t time.Time) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.last == nil || e.lastAt.Before(t) {
		return nil
	}
	return e.last
}

func (e *events) takeLost() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	lost := e.lost
	e.lost = false
	return lost
}

func (e *events) failure() *Failure {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.failed
}

func (e *events) forgetFailure() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.failed = nil
}

// Failure is a record that the broker refused, known only with delivery reports on.
type Failure struct {
	Topic     string
	Partition int32
	// Key is quoted, and cut after 100 bytes.
	Key string
	Err error
}

const maxKeyShown = 100

func failureOf(m *kafka.Message) *Failure {
	f := &Failure{Partition: m.TopicPartition.Partition, Key: "null", Err: m.TopicPartition.Error}
	if m.TopicPartition.Topic != nil {
		f.Topic = *m.TopicPartition.Topic
	}
	if m.Key != nil {
		f.Key = strconv.QuoteToASCII(string(m.Key[:min(len(m.Key), maxKeyShown)]))
	}
	return f
}

// level maps syslog's. librdkafka reports each failed connection as an error; what it means for a task comes back as that task's error, so nothing here is more than a warning.
func level(syslog int) hclog.Level {
	switch {
	case syslog <= 4:
		return hclog.Warn
	case syslog <= 6:
		return hclog.Debug
	default:
		return hclog.Trace
	}
}
