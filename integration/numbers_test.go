package integration

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/reader"
)

// numbers is a load of the generator plugin: source partition i counts from 1, the value of record k is "i:k" and dots, and the offset {"n":k} says that k was the last.
type numbers struct {
	topic string
	// count is how many records there are of all partitions together, a multiple of their number; 0 is no end.
	count      int
	partitions int
	tasks      int
	// transaction is the most records of a transaction.
	transaction int
	// rate is records a second and task; 0 is as fast as possible.
	rate int
}

func (n numbers) config() map[string]string {
	return map[string]string{
		"connector.class": "generator", "tasks.max": strconv.Itoa(n.tasks), "topic": n.topic, "partitions": strconv.Itoa(n.partitions),
		"count": strconv.Itoa(n.count / n.tasks), "rate": strconv.Itoa(n.rate), "batch.records": strconv.Itoa(max(1, n.transaction/5)),
		"transaction.boundary.max.records": strconv.Itoa(n.transaction),
	}
}

// endless is a connector that goes on for as long as it is let.
func endless(topic string) map[string]string {
	return numbers{topic: topic, partitions: 1, tasks: 1, transaction: 100, rate: 200}.config()
}

// arrived waits until a read_committed reader has seen as many records as there are. A source with a rate has caught up after every record.
func (n numbers) arrived(t *testing.T, bootstrap string) {
	t.Helper()
	all := make(chan struct{})
	seen := 0
	follow(t, bootstrap, n.topic, func(*kgo.Record) {
		if seen++; seen == n.count {
			close(all)
		}
	})
	select {
	case <-all:
	case <-time.After(2 * time.Minute):
		t.Fatalf("%d records have not arrived", n.count)
	}
}

// exact is the verdict: every number once and in order, and the stored offset the last readable one's.
func (n numbers) exact(t *testing.T, bootstrap, offsetsTopic, connector string) {
	t.Helper()
	want := reader.Expect{Topic: n.topic, OffsetsTopic: offsetsTopic, Connector: connector, First: 1, Last: map[string]uint64{}}
	for i := range n.partitions {
		want.Last[strconv.Itoa(i)] = uint64(n.count / n.partitions)
	}
	if err := reader.Exact(t.Context(), bootstrap, reader.Generated{}, want); err != nil {
		t.Errorf("not exact:\n%v", err)
	}
}

// soFar is the verdict on a source without an end, once its connector has been stopped: every number up to the stored offset once and in order, and nothing after it.
func (n numbers) soFar(ctx context.Context, bootstrap, offsetsTopic, connector string) error {
	stored, err := reader.Stored(ctx, bootstrap, offsetsTopic, connector)
	if err != nil {
		return err
	}
	if len(stored) != n.partitions {
		return fmt.Errorf("offsets of %d source partitions are stored, want %d", len(stored), n.partitions)
	}
	last := map[string]uint64{}
	for _, o := range stored {
		place, err := reader.Generated{}.Covered(o.Partition, o.Offset)
		if err != nil {
			return err
		}
		last[place.Partition] = place.Number
	}
	return reader.Exact(ctx, bootstrap, reader.Generated{}, reader.Expect{Topic: n.topic, OffsetsTopic: offsetsTopic, Connector: connector, First: 1, Last: last})
}
