package fence

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// maxHanging is how many partitions a look names; more say no more.
const maxHanging = 100

// open is an open transaction on a partition, as the partition's leader sees it.
type open struct {
	topic     string
	partition int32
	producer  int64
	epoch     int16
	start     int64
}

// Look finds the partitions of topics that a finished transaction of one of the ids still holds: no marker will ever come, readers wait for ever, and the id's next transaction there would decide the old one.
//
// A partition whose last stable offset is at the high watermark is free. Where it isn't, DescribeProducers names the producers with an open transaction. One of ours counts only if the transaction coordinator says that its
// id has none, and the partition's leader, asked again after that, still shows the same one: a transaction that was just being committed has its markers before the coordinator calls it complete.
// Open transactions of other producers are none of ours. Topics that don't exist any more hang nowhere.
func (f *Fencer) Look(ctx context.Context, topics []string, ids []string) ([]*runnerv1.HangingPartition, error) {
	if len(topics) == 0 || len(ids) == 0 {
		return nil, nil
	}
	admin := kadm.NewClient(f.direct.Client())
	behind, err := lagging(ctx, admin, topics)
	if err != nil || len(behind) == 0 {
		return nil, err
	}
	seen, err := openOn(ctx, admin, behind)
	if err != nil || len(seen) == 0 {
		return nil, err
	}
	finished, err := finishedProducers(ctx, admin, ids)
	if err != nil {
		return nil, err
	}
	suspects := kadm.TopicsSet{}
	for o := range seen {
		if _, ours := finished[o.producer]; ours {
			suspects.Add(o.topic, o.partition)
		}
	}
	if len(suspects) == 0 {
		return nil, nil
	}
	still, err := openOn(ctx, admin, suspects)
	if err != nil {
		return nil, err
	}
	var hanging []*runnerv1.HangingPartition
	for _, o := range slices.SortedFunc(maps.Keys(still), compareOpen) {
		id, ours := finished[o.producer]
		if _, same := seen[o]; ours && same && len(hanging) < maxHanging {
			hanging = append(hanging, &runnerv1.HangingPartition{Topic: o.topic, Partition: o.partition, TransactionalId: id, Advice: advice(o, id)})
		}
	}
	return hanging, nil
}

func advice(o open, id string) string {
	return fmt.Sprintf("partition %d of topic %q is held since offset %d by a transaction of %q (producer id %d, epoch %d) that the transaction coordinator calls finished. "+
		"Find out in __transaction_state whether it was committed or aborted, then write that marker; `kafka-transactions.sh abort` is right only where it was aborted, otherwise it deletes the records",
		o.partition, o.topic, o.start, id, o.producer, o.epoch)
}

func compareOpen(a, b open) int {
	if a.topic != b.topic {
		if a.topic < b.topic {
			return -1
		}
		return 1
	}
	return int(a.partition) - int(b.partition)
}

// lagging has the partitions whose last stable offset is behind the high watermark.
func lagging(ctx context.Context, admin *kadm.Client, topics []string) (kadm.TopicsSet, error) {
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list high watermarks: %w", err)
	}
	stable, err := admin.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list last stable offsets: %w", err)
	}
	behind := kadm.TopicsSet{}
	for _, listed := range []kadm.ListedOffsets{ends, stable} {
		if err := firstError(listed); err != nil {
			return nil, err
		}
	}
	ends.Each(func(end kadm.ListedOffset) {
		if lso, ok := stable.Lookup(end.Topic, end.Partition); ok && end.Err == nil && lso.Err == nil && lso.Offset < end.Offset {
			behind.Add(end.Topic, end.Partition)
		}
	})
	return behind, nil
}

func firstError(listed kadm.ListedOffsets) error {
	var err error
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err == nil || errors.Is(o.Err, kerr.UnknownTopicOrPartition) || err != nil {
			return
		}
		if errors.Is(o.Err, kerr.TopicAuthorizationFailed) {
			err = fmt.Errorf("the coordinator may not look at topic %q: grant its user the rights Describe and Read on it: %w", o.Topic, o.Err)
			return
		}
		err = fmt.Errorf("list offsets of partition %d of topic %q: %w", o.Partition, o.Topic, o.Err)
	})
	return err
}

// openOn has the open transactions on partitions.
func openOn(ctx context.Context, admin *kadm.Client, partitions kadm.TopicsSet) (map[open]struct{}, error) {
	described, err := admin.DescribeProducers(ctx, partitions)
	if err != nil {
		return nil, fmt.Errorf("describe producers: %w", err)
	}
	found := map[open]struct{}{}
	for _, topic := range described {
		for _, partition := range topic.Partitions {
			switch {
			case errors.Is(partition.Err, kerr.UnknownTopicOrPartition):
				continue
			case errors.Is(partition.Err, kerr.TopicAuthorizationFailed):
				return nil, fmt.Errorf("the coordinator may not see the producers of topic %q: grant its user the right Read on it: %w", partition.Topic, partition.Err)
			case partition.Err != nil:
				return nil, fmt.Errorf("describe producers of partition %d of topic %q: %w", partition.Partition, partition.Topic, partition.Err)
			}
			for _, p := range partition.ActiveProducers {
				if p.CurrentTxnStartOffset >= 0 {
					found[open{partition.Topic, partition.Partition, p.ProducerID, p.ProducerEpoch, p.CurrentTxnStartOffset}] = struct{}{}
				}
			}
		}
	}
	return found, nil
}

// finishedProducers maps the producer id of each id that has no transaction, as its coordinator says, to the id.
func finishedProducers(ctx context.Context, admin *kadm.Client, ids []string) (map[int64]string, error) {
	described, err := admin.DescribeTransactions(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("describe transactions: %w", err)
	}
	finished := map[int64]string{}
	for _, d := range described {
		switch {
		case errors.Is(d.Err, kerr.TransactionalIDNotFound):
		case d.Err != nil:
			return nil, fmt.Errorf("describe the transactions of %q: %w", d.TxnID, d.Err)
		case outcome(d.State) != state.OutcomeUnknown:
			finished[d.ProducerID] = d.TxnID
		}
	}
	return finished, nil
}
