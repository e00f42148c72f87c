package fence

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
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
	return f.whole(ctx, h, *p.torn, hangs)
}

// whole finds which way the other parts of a transaction went, so that what hangs of it goes the same: a transaction is atomic (I1), and its offsets are one of its parts. Where some were committed and others aborted nobody
// can make it whole any more, and nothing is proven.
//
// A part's own marker is the first of the producer that was written there after the decision. That compares the clocks of the id's coordinator and of the partition's leader, so it is told only where both are one broker.
func (f *Fencer) whole(ctx context.Context, h state.Hang, d decided, hangs []state.Hang) (proof, error) {
	admin := kadm.NewClient(f.direct.Client())
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return proof{}, fmt.Errorf("list brokers: %w", err)
	}
	if len(brokers) != 1 {
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
	if !ok || !there { // The topic or the partition is gone, or only the broker that was asked doesn't know it.
		return state.OutcomeUnknown, f.gone(ctx, []string{p.topic})
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
