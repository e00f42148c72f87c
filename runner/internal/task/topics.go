package task

import (
	"context"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
)

// targets are the topics that records go to. Before the first record goes to one it is looked up (a record for a topic that doesn't exist fails only when it times out), and the coordinator notes it:
// what a connector has written must be known when hanging transactions are looked for.
type targets struct {
	cfg *Config
	// partitions is how many each topic has, by its number; 0 is not known yet.
	partitions []int
}

func newTargets(cfg *Config) targets { return targets{cfg: cfg} }

// unknown gives the topics of a batch that are new.
func (t *targets) unknown(e *entry) (numbers []uint32) {
	b := e.batch
	if len(b.Topic) == 0 {
		if n, _ := at(t.partitions, b.DefaultTopic); n == 0 {
			numbers = append(numbers, b.DefaultTopic)
		}
		return numbers
	}
	last := uint32(0)
	for i := range b.Count {
		number := b.Topic.At(i)
		if number == last {
			continue
		}
		last = number
		if n, _ := at(t.partitions, number); n == 0 {
			// Not known until learn has been called; a number that comes twice is asked for once.
			numbers = append(numbers, number)
			t.partitions = put(t.partitions, number, -1)
		}
	}
	for _, number := range numbers {
		t.partitions[number] = 0
	}
	return numbers
}

// learn looks topics up and has them noted.
func (t *targets) learn(ctx context.Context, w *writer, e *entry, numbers []uint32) error {
	names := make([]string, len(numbers))
	for i, n := range numbers {
		names[i] = e.topics[n]
		if t.own(names[i]) {
			return failure(Fail, CauseTopic, "topic %q is one of Fencepost's own: records can't go there; choose another topic in the connector's configuration", names[i])
		}
	}
	if err := t.lookUp(ctx, w, numbers, names, 1); err != nil {
		return err
	}
	if w.txn.open {
		// A transaction that may not end yet doesn't wait for the coordinator for longer than it lives.
		limited, cancel := context.WithDeadline(ctx, w.expiry())
		defer cancel()
		ctx = limited
	}
	if err := t.cfg.Coordinator.RecordTopics(ctx, t.cfg.Lease, names, "", ""); err != nil {
		return fromCoordinator(err)
	}
	return nil
}

// lookUp asks Kafka for topics with at least so many partitions, within its own limit and the open transaction's.
func (t *targets) lookUp(ctx context.Context, w *writer, numbers []uint32, names []string, partitions int) error {
	until := time.Now().Add(topicsTimeout)
	if w.txn.open {
		until = earlier(until, w.expiry())
	}
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	missing := ""
	_, err := publish.Known(ctx, func(ctx context.Context) (bool, error) {
		infos, err := w.pub.Topics(ctx, names)
		if err != nil {
			return false, err
		}
		known := true
		missing = ""
		for i, name := range names {
			info := infos[name]
			switch {
			case info.Err != nil:
				return false, info.Err
			case !info.Exists || info.Partitions == 0:
				missing = name
			default:
				t.partitions = put(t.partitions, numbers[i], info.Partitions)
			}
			known = known && info.Partitions >= partitions
		}
		return known, nil
	}, nil)
	if err != nil {
		return w.failed(err)
	}
	if missing != "" {
		return failure(Fail, CauseTopic, "topic %q does not exist: create it, or set the topic right in the connector's configuration", missing)
	}
	return nil
}

// check checks the Kafka partitions that the plugin chose. A topic may have grown since it was looked up.
func (t *targets) check(ctx context.Context, w *writer, e *entry) error {
	b := e.batch
	for i := range b.KafkaPartition.Len() {
		p := int32(b.KafkaPartition.At(i))
		number := b.DefaultTopic
		if len(b.Topic) > 0 {
			number = b.Topic.At(i)
		}
		if int(p) < t.partitions[number] {
			continue
		}
		if err := t.lookUp(ctx, w, []uint32{number}, []string{e.topics[number]}, int(p)+1); err != nil {
			return err
		}
		if int(p) >= t.partitions[number] {
			return failure(Fail, CauseTopic, "topic %q has %d partitions, and the plugin wants to write to partition %d: %s", e.topics[number], t.partitions[number], p, origin(e, i))
		}
	}
	return nil
}

// own says whether a topic is Fencepost's own: its offsets, its log, its statuses. A record there would be read as something else, or wait for its own transaction.
func (t *targets) own(name string) bool {
	c := t.cfg.Cluster
	return name == t.cfg.OffsetsTopic || name == c+".config" || name == c+".status" || strings.HasPrefix(name, c+".offsets.")
}
