package publish

/*
#include "librdkafka.h"
*/
import "C"

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// closeLimit bounds Close, whatever its context says.
const closeLimit = 10 * time.Second

// maxLeaked is how many producers of this process may fail to close before it has to end: each keeps its memory and threads.
const maxLeaked = 4

// leaked counts producers whose Close passed its deadline and hasn't ended since.
var leaked atomic.Int32

// ErrMustExit says that more producers than may be leaked don't close. The process can't free them: it should end, and what it ran goes on elsewhere.
var ErrMustExit = errors.New("too many Kafka producers of this process don't close: it must be restarted")

// Leaked is how many producers of this process have passed the deadline of their Close and not ended since.
func Leaked() int { return int(leaked.Load()) }

func roomForProducer() error {
	if leaked.Load() > maxLeaked {
		return ErrMustExit
	}
	return nil
}

// Close drops what is queued and frees the producer. It doesn't abort an open transaction: the id's next Init does, or the broker when it expires.
// When ctx has ended, after 10 s at most, the producer is left behind with its memory, and the error says so; past four of them the error is ErrMustExit.
// No other method works after it.
func (p *Producer) Close(ctx context.Context) error {
	if p.closed {
		return nil
	}
	p.closed = true
	p.life.Lock()
	p.closing = true // From here on Queued doesn't touch the client.
	p.life.Unlock()
	ctx, cancel := context.WithTimeout(ctx, closeLimit)
	defer cancel()

	done := make(chan struct{})
	// Who comes second, the end of the close or of the wait, knows of the other: a late end takes the producer off the count again.
	var second atomic.Bool
	go func() {
		defer close(done)
		p.destroy()
		if second.Swap(true) {
			leaked.Add(-1)
		}
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	n := leaked.Add(1)
	if second.Swap(true) {
		leaked.Add(-1)
		return nil
	}
	if n > maxLeaked {
		return fmt.Errorf("close producer %q: %w", p.id, ErrMustExit)
	}
	return p.wrap(opClose, fmt.Errorf("it doesn't end: left behind, %d of at most %d (%w)", n, maxLeaked, context.Cause(ctx)))
}

// destroyClient returns when librdkafka has let go of everything and nobody listens to it any more.
func (p *Producer) destroyClient() {
	// Without the purge, closing waits for deliveries. An error means that there is nothing to purge.
	_ = p.client.Purge(kafka.PurgeQueue | kafka.PurgeInFlight | kafka.PurgeNonBlocking)
	for _, handle := range p.topics {
		C.rd_kafka_topic_destroy(handle)
	}
	p.queue.stop()
	p.client.Close()
}
