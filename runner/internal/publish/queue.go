package publish

/*
#include <stdlib.h>
#include "queue.h"
*/
import "C"

import (
	"fmt"
	"reflect"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

const (
	// pollMS bounds one wait for an event. Nothing depends on it: what ends the wait early is an event, or stop.
	pollMS = 5000
	// yieldPause is how long the binding's poller gets to see that it should end, before it is woken again.
	yieldPause = time.Millisecond
)

// queue takes a client's events from librdkafka, in place of the binding's own pollers. Those wake up ten times a second each, which keeps Go's scheduler thread awake and costs an idle producer 0.3 % of a
// processor, and they take every delivery report to Go. This one sleeps until there is something to say, and reports end in C.
type queue struct {
	client *kafka.Producer
	rk     *C.rd_kafka_t
	main   *C.rd_kafka_queue_t
	// poller takes one value and ends the binding's poller.
	poller chan bool
	// failures: failed deliveries are wanted.
	failures bool
	ending   atomic.Bool
	// ready is closed when the binding's poller has ended, done when run has.
	ready, done chan struct{}
}

// newQueue finds the channel that ends the binding's poller, by name and type as handleOf finds the handle. The binding's Close closes that channel; the poller being gone by then is the same to it.
func newQueue(client *kafka.Producer, rk *C.rd_kafka_t, failures bool) (*queue, error) {
	field := reflect.ValueOf(client).Elem().FieldByName("pollerTermChan")
	if !field.IsValid() || field.Type() != reflect.TypeFor[chan bool]() || field.IsNil() {
		return nil, fmt.Errorf("confluent-kafka-go has changed: kafka.Producer has no channel pollerTermChan")
	}
	poller := *(*chan bool)(field.Addr().UnsafePointer())
	return &queue{
		client: client, rk: rk, main: C.rd_kafka_queue_get_main(rk), poller: poller, failures: failures,
		ready: make(chan struct{}), done: make(chan struct{}),
	}, nil
}

// run hands events to e until stop is called.
func (q *queue) run(e *events) {
	defer close(q.done)
	q.takeOver(e)
	close(q.ready)
	var ev C.fp_event
	failures := C.int(0)
	if q.failures {
		failures = 1
	}
	for !q.ending.Load() {
		C.fp_next_event(q.main, pollMS, failures, &ev)
		if ev.event != nil {
			q.take(e, &ev)
			C.rd_kafka_event_destroy(ev.event)
		}
	}
}

// takeOver ends the binding's poller, and takes what it has handed on before. Only then do lines of the log come here: it doesn't know them.
func (q *queue) takeOver(e *events) {
	for ended := false; !ended; {
		C.rd_kafka_queue_yield(q.main)
		select {
		case q.poller <- true:
			ended = true
		case event := <-q.client.Events():
			e.hear(event)
		case <-time.After(yieldPause):
		}
	}
	for {
		select {
		case event := <-q.client.Events():
			e.hear(event)
			continue
		default:
		}
		C.rd_kafka_set_log_queue(q.rk, nil)
		return
	}
}

// stop ends run, waits for it, and lets go of the queue.
func (q *queue) stop() {
	q.ending.Store(true)
	C.rd_kafka_queue_yield(q.main)
	<-q.done
	C.rd_kafka_queue_destroy(q.main)
}

// take copies what an event says.
func (q *queue) take(e *events, ev *C.fp_event) {
	switch ev._type {
	case C.RD_KAFKA_EVENT_LOG:
		e.log(int(ev.level), C.GoString(ev.tag), C.GoString(ev.text))
	case C.RD_KAFKA_EVENT_ERROR:
		err := kafka.NewError(kafka.ErrorCode(ev.error), C.GoString(ev.text), false)
		if ev.fatal != 0 {
			// Such an event says only that there is a fatal error.
			if fatal, ok := q.client.GetFatalError().(kafka.Error); ok { //nolint:errorlint // it is one, or nil
				err = fatal
			}
		}
		e.hear(err)
	case C.RD_KAFKA_EVENT_DR:
		f := &Failure{Topic: C.GoString(ev.topic), Partition: int32(ev.partition), Key: "null", Err: kafka.NewError(kafka.ErrorCode(ev.error), "", false)}
		if ev.key != nil {
			f.Key = strconv.QuoteToASCII(string(C.GoBytes(ev.key, C.int(min(ev.key_size, maxKeyShown)))))
		}
		e.fail(f)
	}
}
