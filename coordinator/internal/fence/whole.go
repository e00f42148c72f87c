package fence

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// proofParts is a proof, for people.
const proofParts = "what became of the other partitions of the same transaction"

// part is a partition of a transaction.
type part struct {
	topic     string
	partition int32
}

func (p part) String() string { return fmt.Sprintf("%s-%d", p.topic, p.partition) }

// direction is prove, and goes on where a transaction may have been torn. hangs are all of the id.
func (f *Fencer) direction(ctx context.Context, h state.Hang, hangs []state.Hang, past history, noted state.Decision) (proof, error) {
	p := prove(h, past, noted)
	if p.torn == nil {
		return p, nil
	}
	return f.whole(ctx, h, *p.torn, hangs, past.replicas)
}

// whole finds which way the other parts of a transaction went, so that what hangs of it goes the same: a transaction is atomic (I1), and its offsets are one of its parts. Where some were committed and others aborted nobody
// can make it whole any more, and nothing is proven.
//
// A part's own marker is the first of the producer that was written there after the decision. The decision has its time from the broker that coordinated the id, and the marker has its own from the leader that the partition had then, so
// this is told only where one broker must have set all of them: it alone has these partitions (a cluster of one, or a replication factor of 1). keepers are those that have the decision.
//
// With several replicas it can't be told soundly, whoever is asked. Clocks of two brokers differ by more than two transactions of a task are apart. Today's leaders are asked, and what was written before the broker died may be
// another's: the leader epoch of a batch names no broker, and a death is just what changes it. Counting the producer's markers in the order of its decisions, without any clock, fails as well: a skipped marker leaves no gap, since the
// next one ends both transactions, a coordinator that got no answer writes one again, which makes up for it, and retention and compaction take old ones. Epochs don't tell the two transactions apart (a client's next transaction has
// the same one), nor do sequence numbers, which run on. What is left then is named, and a person decides.
func (f *Fencer) whole(ctx context.Context, h state.Hang, d decided, hangs []state.Hang, keepers []int32) (proof, error) {
	admin := kadm.NewClient(f.direct.Client())
	one, err := f.oneClock(ctx, admin, d, keepers)
	if err != nil {
		return proof{}, err
	}
	if !one {
		return unproven("it was %s, and a later transaction of the id, which was not, may have decided its parts on other partitions", d.outcome), nil
	}
	fates := map[state.Outcome][]part{}
	for _, p := range d.parts() {
		if hanging(p, h.ProducerID, hangs) {
			continue
		}
		fate, err := f.fate(ctx, admin, p, h.ProducerID, d.at)
		if err != nil {
			return proof{}, err
		}
		fates[fate] = append(fates[fate], p)
	}
	committed, aborted := fates[state.OutcomeCommitted], fates[state.OutcomeAborted]
	switch {
	case len(fates[state.OutcomeUnknown]) > 0:
		return unproven("it was %s, a later transaction of the id may have decided its parts on other partitions, and what became of %v can't be seen any more", d.outcome, fates[state.OutcomeUnknown]), nil
	case len(committed) > 0 && len(aborted) > 0:
		return unproven("Kafka has torn it: its parts on %v were committed, those on %v aborted", committed, aborted), nil
	case len(aborted) > 0:
		return proof{outcome: state.OutcomeAborted, by: proofParts}, nil
	}
	return proof{outcome: d.outcome, by: proofState}, nil
}

// oneClock says whether one broker alone has what is compared, and so has set all times in it.
func (f *Fencer) oneClock(ctx context.Context, admin *kadm.Client, d decided, keepers []int32) (bool, error) {
	var names []string
	for _, t := range d.partitions {
		names = append(names, t.Topic)
	}
	topics, err := admin.ListTopicsWithInternal(ctx, names...)
	if err != nil {
		return false, fmt.Errorf("find who has %v: %w", names, err)
	}
	for _, p := range d.parts() {
		// What isn't known has no fate either.
		if detail, is := topics[p.topic].Partitions[p.partition]; is && !slices.Equal(detail.Replicas, keepers) {
			return false, nil
		}
	}
	return len(keepers) == 1, nil
}

func hanging(p part, producer int64, hangs []state.Hang) bool {
	for _, h := range hangs {
		if h.Topic == p.topic && h.Partition == p.partition && h.ProducerID == producer {
			return true
		}
	}
	return false
}

// fate is the first marker of a producer on a partition since a time; OutcomeUnknown where there is none.
func (f *Fencer) fate(ctx context.Context, admin *kadm.Client, p part, producer int64, since time.Time) (state.Outcome, error) {
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	starts, err := admin.ListOffsetsAfterMilli(ctx, since.UnixMilli(), p.topic)
	if err != nil {
		return "", fmt.Errorf("find %s since %s: %w", p, since, err)
	}
	ends, err := admin.ListEndOffsets(ctx, p.topic)
	if err != nil {
		return "", fmt.Errorf("find the end of %s: %w", p, err)
	}
	start, ok := starts.Lookup(p.topic, p.partition)
	end, there := ends.Lookup(p.topic, p.partition)
	if !ok || !there {
		if _, unknown := ends.Lookup(p.topic, -1); unknown { // It is gone, or only the broker that was asked doesn't know it.
			return state.OutcomeUnknown, f.gone(ctx, []string{p.topic})
		}
		return state.OutcomeUnknown, nil
	}
	if err := cmp.Or(start.Err, end.Err); err != nil {
		return "", fmt.Errorf("list offsets of %s: %w", p, err)
	}
	client, err := kgo.NewClient(append(f.direct.Client().Opts(), kgo.FetchMaxWait(250*time.Millisecond), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{p.topic: {p.partition: kgo.NewOffset().At(start.Offset)}}))...)
	if err != nil {
		return "", fmt.Errorf("read %s: %w", p, err)
	}
	defer client.Close()
	fate := state.OutcomeUnknown
	for at := start.Offset; at < end.Offset && fate == state.OutcomeUnknown; {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return "", fmt.Errorf("read %s: at offset %d of %d: %w", p, at, end.Offset, err)
		}
		for _, failed := range fetches.Errors() {
			return "", fmt.Errorf("read %s: %w", p, failed.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			if fate == state.OutcomeUnknown && r.Attrs.IsControl() && r.ProducerID == producer && !r.Timestamp.Before(since) {
				fate = marker(r.Key)
			}
		})
	}
	return fate, nil
}

// marker reads a control record's key: its version and its type, two bytes each, of which 0 is an abort and 1 a commit.
func marker(key []byte) state.Outcome {
	if len(key) < 4 {
		return state.OutcomeUnknown
	}
	switch binary.BigEndian.Uint16(key[2:]) {
	case 0:
		return state.OutcomeAborted
	case 1:
		return state.OutcomeCommitted
	}
	return state.OutcomeUnknown
}
