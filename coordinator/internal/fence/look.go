package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// maxHanging is how many partitions a look names; more say no more.
const maxHanging = 100

// open is an open transaction on a partition, as the partition's leader sees it.
type open struct {
	topic       string
	partition   int32
	producer    int64
	epoch       int16
	coordinator int32
	start       int64
}

func (o open) hang(id string) state.Hang {
	return state.Hang{ID: id, Topic: o.topic, Partition: o.partition, ProducerID: o.producer, ProducerEpoch: o.epoch, CoordinatorEpoch: o.coordinator, Start: o.start}
}

// owners has the ids of one name, and the producer ids that are known to have been theirs beside those that they have now.
type owners struct {
	ids   []string
	known map[int64]string
}

func ownersOf(ids map[uint32]string, producers map[uint32]int64) owners {
	o := owners{known: map[int64]string{}}
	for _, task := range slices.Sorted(maps.Keys(ids)) {
		o.ids = append(o.ids, ids[task])
		if producer, ok := producers[task]; ok {
			o.known[producer] = ids[task]
		}
	}
	return o
}

// Look finds the partitions of topics that a finished transaction of one of the ids still holds: no marker will ever come, readers wait for ever, and the id's next transaction there would decide the old one. producers are the
// producer ids that the ids are known to have had, by task like the ids.
//
// A partition whose last stable offset is at the high watermark is free. Where it isn't, DescribeProducers names the producers with an open transaction. One of ours counts only if the transaction coordinator says that its
// id has none, and the partition's leader, asked again after that, still shows the same one: a transaction that was just being committed has its markers before the coordinator calls it complete.
// Open transactions of other producers are none of ours. Topics that don't exist any more hang nowhere. With an error, what was found is true, and there may be more.
func (f *Fencer) Look(ctx context.Context, topics []string, ids map[uint32]string, producers map[uint32]int64) ([]state.Hang, error) {
	if len(topics) == 0 || len(ids) == 0 {
		return nil, nil
	}
	admin := kadm.NewClient(f.direct.Client())
	behind, trouble := f.lagging(ctx, topics)
	if len(behind) == 0 {
		return nil, trouble
	}
	seen, err := openOn(ctx, admin, behind)
	trouble = errors.Join(trouble, err)
	if len(seen) == 0 {
		return nil, trouble
	}
	finished, err := finishedProducers(ctx, admin, ownersOf(ids, producers))
	if err != nil {
		return nil, errors.Join(trouble, err)
	}
	suspects := kadm.TopicsSet{}
	for o := range seen {
		if _, ours := finished[o.producer]; ours {
			suspects.Add(o.topic, o.partition)
		}
	}
	if len(suspects) == 0 {
		return nil, trouble
	}
	still, err := openOn(ctx, admin, suspects)
	trouble = errors.Join(trouble, err)
	var hanging []state.Hang
	for o := range still {
		id, ours := finished[o.producer]
		if _, same := seen[o]; ours && same {
			hanging = append(hanging, o.hang(id))
		}
	}
	state.SortHangs(hanging)
	return hanging[:min(len(hanging), maxHanging)], trouble
}

// lagging has the partitions whose last stable offset is behind the high watermark. With an error there may be more.
func (f *Fencer) lagging(ctx context.Context, topics []string) (kadm.TopicsSet, error) {
	admin := kadm.NewClient(f.direct.Client())
	ends, err := admin.ListEndOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list high watermarks: %w", err)
	}
	stable, err := admin.ListCommittedOffsets(ctx, topics...)
	if err != nil {
		return nil, fmt.Errorf("list last stable offsets: %w", err)
	}
	behind := kadm.TopicsSet{}
	ends.Each(func(end kadm.ListedOffset) {
		if lso, ok := stable.Lookup(end.Topic, end.Partition); ok && end.Err == nil && lso.Err == nil && lso.Offset < end.Offset {
			behind.Add(end.Topic, end.Partition)
		}
	})
	var missing []string
	trouble := firstError(ends, &missing)
	if trouble == nil {
		trouble = firstError(stable, &missing)
	}
	return behind, cmp.Or(trouble, f.gone(ctx, missing))
}

// gone is nil where no broker knows any of the topics: nothing hangs there. That one doesn't says little: it may be behind.
func (f *Fencer) gone(ctx context.Context, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	known, err := kafkaclient.Known(ctx, f.direct.Client(), topics)
	if err != nil {
		return err
	}
	for topic := range known {
		return fmt.Errorf("look up topic %q: a broker doesn't know it yet, and another one does: %w", topic, kerr.UnknownTopicOrPartition)
	}
	return nil
}

// firstError leaves out topics that the broker doesn't know, and adds them to missing. A partition that isn't known of a topic that is there has no leader just now, whatever the broker calls it: nobody can say what hangs on it.
func firstError(listed kadm.ListedOffsets, missing *[]string) error {
	var err error
	listed.Each(func(o kadm.ListedOffset) {
		if o.Partition < 0 && errors.Is(o.Err, kerr.UnknownTopicOrPartition) {
			*missing = append(*missing, o.Topic)
			return
		}
		if o.Err == nil || err != nil {
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

// openOn has the open transactions on partitions. With an error there may be more.
func openOn(ctx context.Context, admin *kadm.Client, partitions kadm.TopicsSet) (map[open]struct{}, error) {
	described, err := admin.DescribeProducers(ctx, partitions)
	if err != nil {
		return nil, fmt.Errorf("describe producers: %w", err)
	}
	found := map[open]struct{}{}
	var trouble error
	for _, topic := range described {
		for _, partition := range topic.Partitions {
			switch {
			case errors.Is(partition.Err, kerr.TopicAuthorizationFailed):
				trouble = fmt.Errorf("the coordinator may not see the producers of topic %q: grant its user the right Read on it: %w", partition.Topic, partition.Err)
			case partition.Err != nil:
				trouble = fmt.Errorf("describe producers of partition %d of topic %q: %w", partition.Partition, partition.Topic, partition.Err)
			}
			for _, p := range partition.ActiveProducers {
				if p.CurrentTxnStartOffset >= 0 {
					found[open{partition.Topic, partition.Partition, p.ProducerID, p.ProducerEpoch, p.CoordinatorEpoch, p.CurrentTxnStartOffset}] = struct{}{}
				}
			}
		}
	}
	return found, trouble
}

// finishedProducers maps each producer id to the id whose it is or was, where that has no transaction now, as its coordinator says. A producer id that the id doesn't have any more is finished for good.
func finishedProducers(ctx context.Context, admin *kadm.Client, o owners) (map[int64]string, error) {
	described, err := admin.DescribeTransactions(ctx, o.ids...)
	if err != nil {
		return nil, fmt.Errorf("describe transactions: %w", err)
	}
	finished := maps.Clone(o.known)
	for _, d := range described {
		switch {
		case errors.Is(d.Err, kerr.TransactionalIDNotFound):
		case d.Err != nil:
			return nil, fmt.Errorf("describe the transactions of %q: %w", d.TxnID, d.Err)
		case outcome(d.State) != state.OutcomeUnknown:
			finished[d.ProducerID] = d.TxnID
		default:
			delete(finished, d.ProducerID)
		}
	}
	return finished, nil
}
