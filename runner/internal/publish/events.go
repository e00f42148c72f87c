package publish

import (
	"context"
	"sync"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/hashicorp/go-hclog"
)

// Capacities of the binding's channels, of which only the first is ever used, and for a moment: see queue. The binding's defaults cost 24 MB a channel.
const (
	eventsCapacity  = 64
	produceCapacity = 1 // can't be 0
)

// reportWait is how long the error of a commit waits for the delivery report that names its cause.
const reportWait = time.Second

// events keeps what a client reports outside of any call.
type events struct {
	logger hclog.Logger

	mu     sync.Mutex
	last   error // the newest error event
	lastAt time.Time
	lost   bool     // a broker went away since takeLost
	failed *Failure // the first failed delivery of the open transaction
	// named has a value when failed is set, for whoever waits for it.
	named chan struct{}
}

// brokerFailed is the tag of lines about a broker that went away. A connection on which nothing was asked is closed without an error event, and is missed only when something is sent there the next time: a broker that
// dies between the last record and the commit shows in the log alone.
const brokerFailed = "FAIL"

func (e *events) log(syslog int, tag, text string) {
	if tag == brokerFailed {
		e.mu.Lock()
		e.lost = true
		e.mu.Unlock()
	}
	e.logger.Log(level(syslog), "librdkafka", "tag", tag, "text", text)
}

// hear takes an error event. Others say nothing that is needed.
func (e *events) hear(event kafka.Event) {
	err, ok := event.(kafka.Error)
	if !ok {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	switch err.Code() {
	case kafka.ErrTransport, kafka.ErrAllBrokersDown, kafka.ErrTimedOut, kafka.ErrResolve:
		e.lost = true
	}
	// "All brokers are down" says less than the reason that came just before it.
	if err.Code() != kafka.ErrAllBrokersDown || e.last == nil {
		e.last, e.lastAt = err, time.Now()
	}
}

// fail takes a failed delivery. The first one counts.
func (e *events) fail(f *Failure) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.failed == nil {
		e.failed = f
		select {
		case e.named <- struct{}{}:
		default: // nobody took the one before
		}
	}
}

// await waits for the first failed delivery: the report of one may come a moment after the commit that it made fail.
func (e *events) await(ctx context.Context, limit time.Duration) *Failure {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for e.failure() == nil {
		select {
		case <-e.named:
		case <-timer.C:
			return nil
		case <-ctx.Done():
			return nil
		}
	}
	return e.failure()
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
