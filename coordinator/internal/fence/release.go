package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// emptyBudget is how long an empty transaction without a note may take, well within its time-out, after which Kafka would abort it.
const emptyBudget = 20 * time.Second

// Single is a partition on which only one id writes, which the caller has taken, each of whose transactions has that partition alone and begins when the one before is readable: the config log.
type Single struct {
	ID        string
	Topic     string
	Partition int32
	// Taken is how the caller holds the id.
	Taken Taken
	// Noted is the last decision that the caller knows of, where Taken's is none.
	Noted state.Decision
}

// HeldError says that a partition is held by what can't be ended here.
type HeldError struct {
	// Holder is what holds it.
	Holder Holder
	// Reason says all of it, and what a person can do.
	Reason string
}

// Error is the reason.
func (e *HeldError) Error() string { return e.Reason }

// Release frees a partition from what finished transactions of its id hold there, each ended in the direction that is proven. It returns nil when nothing holds the partition any more; a *HeldError where something does that isn't the
// id's, or whose direction isn't proven, or that this user has no right to end.
func (f *Fencer) Release(ctx context.Context, s Single) error {
	for {
		held, err := f.Holding(ctx, s.Topic, s.Partition)
		if err != nil || held == nil {
			return err
		}
		past, err := f.history(ctx, s.ID)
		if err != nil {
			return err
		}
		if held.ProducerID != s.Taken.ProducerID && !slices.ContainsFunc(past.decided, func(d decided) bool { return d.producer == held.ProducerID }) {
			return foreign(*held, s.ID)
		}
		held.Hang.ID = s.ID
		// Seen on the partition, then called finished, and mark looks again: as in Look, nothing that is just being ended is taken for a hang.
		if err := f.mine(ctx, s, *held); err != nil {
			return err
		}
		if err := f.release(ctx, s, *held, past); err != nil {
			return err
		}
	}
}

// mine checks that the id is as the caller took it.
func (f *Fencer) mine(ctx context.Context, s Single, held Holder) error {
	last, err := f.describe(ctx, s.ID)
	switch {
	case err != nil:
		return err
	case last.ProducerID != s.Taken.ProducerID, last.ProducerEpoch != s.Taken.Epoch, last.Outcome == state.OutcomeUnknown,
		held.ProducerID == s.Taken.ProducerID && held.ProducerEpoch >= s.Taken.Epoch:
		return fmt.Errorf("free %s: %w", held.Hang, errTaken)
	}
	return nil
}

// release ends one hang.
func (f *Fencer) release(ctx context.Context, s Single, held Holder, past history) error {
	noted := s.Taken.Last
	if noted.Outcome != state.OutcomeCommitted && noted.Outcome != state.OutcomeAborted {
		noted = s.Noted
	}
	p, err := f.direction(ctx, held.Hang, []state.Hang{held.Hang}, past, noted)
	if err != nil {
		return err
	}
	if p.outcome == "" && p.torn == nil && abortedBy(noted, held.Hang) {
		p = proof{outcome: state.OutcomeAborted, by: proofNoted}
	}
	if p.outcome == "" {
		return unproved(held, p.why)
	}
	m := state.Mended{Hang: held.Hang, Outcome: wrongWay(p.outcome), Proof: p.by, Way: wayMarker}
	err = f.mark(ctx, m.Hang, m.Outcome == state.OutcomeCommitted)
	if errors.Is(err, errNoRight) {
		m.Way = wayEmpty
		err = f.releaseEmpty(ctx, s, held, m.Outcome)
	}
	if err != nil {
		return err
	}
	f.log.Warn("Kafka had left a transaction hanging; it is ended as it was decided, and the partition is free again", "topic", m.Topic, "partition", m.Partition, "from_offset", m.Start, "transactional_id", m.ID,
		"producer_id", m.ProducerID, "producer_epoch", m.ProducerEpoch, "decided", m.Outcome, "proof", m.Proof, "way", m.Way)
	return nil
}

// abortedBy says that a noted decision is that of the hang, and an abort. Kafka aborts under the next epoch what somebody else's initialisation, or the time-out, ends. A task's note can't prove so much: here whoever has the id writes
// one transaction after the other, each only when the one before is readable, and aborts none but what hangs, so the transaction of the epoch before is the one that hangs.
func abortedBy(noted state.Decision, h state.Hang) bool {
	return noted.Outcome == state.OutcomeAborted && noted.ProducerID == h.ProducerID && noted.ProducerEpoch == h.ProducerEpoch+1
}

// releaseEmpty ends a hang by an empty transaction of the id, under the epoch that the caller has. It needs no note, unlike a task's: a coordinator that died between adding and ending would have it aborted by its successor, and what
// hangs in the log was never reported as written (see configlog): nobody was told of what an abort deletes.
func (f *Fencer) releaseEmpty(ctx context.Context, s Single, held Holder, outcome state.Outcome) error {
	if held.ProducerID != s.Taken.ProducerID {
		return refusedMarker(held, outcome, "the id has another producer id since, so only a marker frees it")
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), emptyBudget) // What is added must be ended.
	defer cancel()
	e := empty{s.ID, state.HealNote{ProducerID: s.Taken.ProducerID, ProducerEpoch: s.Taken.Epoch, Outcome: outcome, Hanging: []state.Hang{held.Hang}}}
	var refused *Refused
	switch err := f.add(ctx, e); {
	case errors.As(err, &refused):
		return refusedMarker(held, outcome, refused.Reason)
	case err != nil:
		return fmt.Errorf("free %s by an empty transaction: %w", held.Hang, err)
	}
	if err := f.end(ctx, e); err != nil {
		return fmt.Errorf("free %s by an empty transaction: %w", held.Hang, err)
	}
	return f.free(ctx, e.note.Hanging)
}

// Holder is a transaction that holds a partition's last stable offset back.
type Holder struct {
	state.Hang // with its id only where Kafka lists it
	// State is as the id's coordinator calls it; empty where it names none. Since is when the transaction began or, where that isn't known, when its last record was written; zero where that isn't either.
	State string
	Since time.Time
}

// String says what is known of it.
func (h Holder) String() string {
	text := fmt.Sprintf("a transaction of producer id %d, epoch %d", h.ProducerID, h.ProducerEpoch)
	if h.ID != "" {
		text += fmt.Sprintf(" (transactional id %q", h.ID)
		if h.State != "" {
			text += ", " + h.State
		}
		text += ")"
	}
	if !h.Since.IsZero() {
		text += " since " + h.Since.UTC().Format(time.RFC3339)
	}
	return text
}

// Holding is the oldest open transaction of a partition, which holds its last stable offset back; nil where there is none.
func (f *Fencer) Holding(ctx context.Context, topic string, partition int32) (*Holder, error) {
	admin := kadm.NewClient(f.direct.Client())
	described, err := admin.DescribeProducers(ctx, kadm.TopicsSet{topic: {partition: {}}})
	if err != nil {
		return nil, fmt.Errorf("describe producers: %w", err)
	}
	var oldest *Holder
	described.EachProducer(func(p kadm.DescribedProducer) {
		if p.CurrentTxnStartOffset < 0 || oldest != nil && oldest.Start <= p.CurrentTxnStartOffset {
			return
		}
		oldest = &Holder{Hang: state.Hang{Topic: topic, Partition: partition, ProducerID: p.ProducerID, ProducerEpoch: p.ProducerEpoch, CoordinatorEpoch: p.CoordinatorEpoch, Start: p.CurrentTxnStartOffset}}
		if p.LastTimestamp > 0 {
			oldest.Since = time.UnixMilli(p.LastTimestamp)
		}
	})
	if oldest != nil {
		f.identify(ctx, admin, oldest)
		return oldest, nil
	}
	_, err = openOn(ctx, admin, kadm.TopicsSet{topic: {partition: {}}}) // it says what is wrong with an answer of nothing
	return nil, err
}

// identify finds whose a transaction is, as far as this user may see it: for people only.
func (f *Fencer) identify(ctx context.Context, admin *kadm.Client, h *Holder) {
	listed, err := admin.ListTransactions(ctx, []int64{h.ProducerID}, nil)
	if err != nil {
		return
	}
	for _, txn := range listed.Sorted() {
		if txn.ProducerID != h.ProducerID {
			continue
		}
		h.Hang.ID, h.State = txn.TxnID, txn.State
		described, err := admin.DescribeTransactions(ctx, txn.TxnID)
		if d, ok := described[txn.TxnID]; err == nil && ok && d.Err == nil && d.StartTimestamp > 0 && d.State == stateOngoing {
			h.Since = time.UnixMilli(d.StartTimestamp)
		}
	}
}

// abortCommand ends what holds a partition, always by an abort.
func abortCommand(h Holder) string {
	return fmt.Sprintf("kafka-transactions.sh --bootstrap-server HOST:PORT abort --topic %s --partition %d --start-offset %d", h.Topic, h.Partition, h.Start)
}

const noOwnCommand = "fencepost transactions end can't do it: it asks the leader"

func foreign(h Holder, id string) *HeldError {
	end := "stop that program; Kafka aborts its transaction when that expires"
	if h.State != stateOngoing {
		end = "see that nothing but coordinators writes there, then, where it isn't being ended just now: " + abortCommand(h)
	}
	return &HeldError{Holder: h, Reason: fmt.Sprintf("%s is held since offset %d by %s, which isn't known to be of %q, so nothing is done about it: %s (%s)", h.Hang, h.Start, h, id, end, noOwnCommand)}
}

func unproved(h Holder, why string) *HeldError {
	return &HeldError{Holder: h, Reason: fmt.Sprintf("%s is held since offset %d by a transaction of %q (producer id %d, epoch %d) that the transaction coordinator calls finished, and whether it was committed or aborted isn't proven: %s. "+
		"Grant the right that is missing, or find out how it ended, for example in %s. Nobody was told that it is written, unless a broker has lost what was on its disk: where it was aborted, or none has, end it by: %s (%s)",
		h.Hang, h.Start, h.ID, h.ProducerID, h.ProducerEpoch, why, transactionState, abortCommand(h), noOwnCommand)}
}

func refusedMarker(h Holder, o state.Outcome, reason string) *HeldError {
	text := fmt.Sprintf("%s is held since offset %d by a transaction of %q (producer id %d, epoch %d) that was %s: its marker can't be written: %s: grant the coordinator's user ClusterAction (or Alter) on the cluster",
		h.Hang, h.Start, h.ID, h.ProducerID, h.ProducerEpoch, o, reason)
	if o == state.OutcomeAborted {
		text += ", or end it by: " + abortCommand(h)
	}
	return &HeldError{Holder: h, Reason: text + " (" + noOwnCommand + ")"}
}
