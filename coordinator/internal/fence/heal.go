package fence

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// healBudget is how long a heal may take until it says that it can't be done now. What has a note in the log is done to its end.
	healBudget = 90 * time.Second
	// freeBudget is how long a partition may take to be free once its marker is written: other replicas have to have it.
	freeBudget = 10 * time.Second
)

// Ways of writing a marker, for people.
const (
	wayMarker = "a marker written to the partition"
	wayEmpty  = "an empty transaction of the id"
)

// longest are the time-outs of an empty transaction, the longest that the broker takes: where it ran out before the transaction is ended, Kafka would abort it.
var longest = []time.Duration{15 * time.Minute, 5 * time.Minute, time.Minute}

// errNoRight says that the coordinator's user may not write markers.
var errNoRight = errors.New("no right to write markers")

// errTaken says that somebody else has initialised the id.
var errTaken = errors.New("the id was initialised by somebody else meanwhile")

// still has those of the hangs that are as they were.
func (f *Fencer) still(ctx context.Context, hangs []state.Hang) ([]state.Hang, error) {
	partitions := kadm.TopicsSet{}
	for _, h := range hangs {
		partitions.Add(h.Topic, h.Partition)
	}
	seen, err := openOn(ctx, kadm.NewClient(f.direct.Client()), partitions)
	if err != nil {
		return nil, err
	}
	var left []state.Hang
	for _, h := range hangs {
		// A broker that came back shows another coordinator epoch: the hang is the same, and the marker needs what is shown now.
		for o := range seen {
			if now := o.hang(h.ID); now.Topic == h.Topic && now.Partition == h.Partition && now.ProducerID == h.ProducerID && now.Start == h.Start {
				left = append(left, now)
			}
		}
	}
	return left, nil
}

// free waits until none of the hangs is there any more, and the last stable offsets say so: only they prove that it is ended.
func (f *Fencer) free(ctx context.Context, hangs []state.Hang) error {
	ctx, cancel := context.WithTimeout(ctx, freeBudget)
	defer cancel()
	for attempt := 0; ; attempt++ {
		left, err := f.still(ctx, hangs)
		if err == nil && len(left) == 0 {
			left, err = f.behind(ctx, hangs)
		}
		if err == nil && len(left) == 0 {
			return nil
		}
		if wait(ctx, busy.delay(attempt)) != nil {
			return fmt.Errorf("wait for the marker to be seen: still held: %v: %w", left, cmp.Or[error](err, ctx.Err()))
		}
	}
}

// behind has the hangs whose partition's last stable offset hasn't passed them, with nobody else to hold it there.
func (f *Fencer) behind(ctx context.Context, hangs []state.Hang) ([]state.Hang, error) {
	admin := kadm.NewClient(f.direct.Client())
	partitions := kadm.TopicsSet{}
	for _, h := range hangs {
		partitions.Add(h.Topic, h.Partition)
	}
	stable, err := admin.ListCommittedOffsets(ctx, partitions.Topics()...)
	if err != nil {
		return nil, fmt.Errorf("list last stable offsets: %w", err)
	}
	others, err := openOn(ctx, admin, partitions)
	if err != nil {
		return nil, err
	}
	var left []state.Hang
	for _, h := range hangs {
		lso, ok := stable.Lookup(h.Topic, h.Partition)
		if !ok || lso.Err != nil {
			return nil, fmt.Errorf("list the last stable offset of %s: %w", h, cmp.Or[error](lso.Err, kerr.UnknownTopicOrPartition))
		}
		held := false
		for o := range others {
			held = held || o.topic == h.Topic && o.partition == h.Partition && o.start <= h.Start
		}
		if lso.Offset <= h.Start && !held {
			left = append(left, h)
		}
	}
	return left, nil
}

// mark writes a marker to the partition's leader, with the very values that it shows, until the hang is gone. A value that is too high heals as well, and poisons the partition for the id. errNoRight where the user may not.
func (f *Fencer) mark(ctx context.Context, h state.Hang, commit bool) error {
	for attempt := 0; ; attempt++ {
		left, err := f.still(ctx, []state.Hang{h})
		if err == nil && len(left) == 0 {
			return f.free(ctx, []state.Hang{h})
		}
		if err == nil {
			err = f.sendMarker(ctx, left[0], commit)
		}
		if errors.Is(err, errNoRight) {
			return err
		}
		if wait(ctx, away.delay(attempt)) != nil {
			return fmt.Errorf("write the marker of %s: %w", h, cmp.Or[error](err, ctx.Err()))
		}
	}
}

func (f *Fencer) sendMarker(ctx context.Context, h state.Hang, commit bool) error {
	topics, err := kadm.NewClient(f.direct.Client()).ListTopicsWithInternal(ctx, h.Topic)
	if err != nil {
		return fmt.Errorf("find the leader of %s: %w", h, err)
	}
	leader := topics[h.Topic].Partitions[h.Partition]
	if leader.Err != nil || leader.Leader < 0 {
		return fmt.Errorf("find the leader of %s: %w", h, cmp.Or[error](leader.Err, kerr.LeaderNotAvailable))
	}
	req := kmsg.NewPtrWriteTxnMarkersRequest()
	marker := kmsg.NewWriteTxnMarkersRequestMarker()
	marker.ProducerID, marker.ProducerEpoch, marker.CoordinatorEpoch, marker.Committed = h.ProducerID, h.ProducerEpoch, max(0, h.CoordinatorEpoch), commit
	topic := kmsg.NewWriteTxnMarkersRequestMarkerTopic()
	topic.Topic, topic.Partitions = h.Topic, []int32{h.Partition}
	marker.Topics = append(marker.Topics, topic)
	req.Markers = append(req.Markers, marker)
	answer, err := f.direct.ToBroker(ctx, leader.Leader, req)
	if err != nil {
		return fmt.Errorf("write a marker to %s: %w", h, err)
	}
	resp, ok := answer.(*kmsg.WriteTxnMarkersResponse)
	if !ok || len(resp.Markers) != 1 || len(resp.Markers[0].Topics) != 1 || len(resp.Markers[0].Topics[0].Partitions) != 1 {
		return fmt.Errorf("write a marker to %s: the broker answered with %T", h, answer)
	}
	err = kerr.ErrorForCode(resp.Markers[0].Topics[0].Partitions[0].ErrorCode)
	if errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return errNoRight
	}
	if err != nil {
		return fmt.Errorf("write a marker to %s: %w", h, err)
	}
	return nil
}

// takeLong takes an id for an empty transaction.
func (f *Fencer) takeLong(ctx context.Context, id string) (Taken, error) {
	var taken Taken
	err := error(kerr.InvalidTransactionTimeout)
	for _, timeout := range longest {
		if errors.Is(err, kerr.InvalidTransactionTimeout) {
			taken, err = f.take(ctx, id, timeout)
		}
	}
	return taken, err
}

// empty is an empty transaction of an id, as its note in the log says.
type empty struct {
	id   string
	note state.HealNote
}

// add adds the partitions. A *Refused says that nothing was added.
func (f *Fencer) add(ctx context.Context, e empty) error {
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = e.id, e.note.ProducerID, e.note.ProducerEpoch
	for _, h := range e.note.Hanging {
		topic := kmsg.NewAddPartitionsToTxnRequestTopic()
		topic.Topic, topic.Partitions = h.Topic, []int32{h.Partition}
		at := slices.IndexFunc(req.Topics, func(t kmsg.AddPartitionsToTxnRequestTopic) bool { return t.Topic == h.Topic })
		if at < 0 {
			req.Topics = append(req.Topics, topic)
		} else {
			req.Topics[at].Partitions = append(req.Topics[at].Partitions, h.Partition)
		}
	}
	return f.untilDone(ctx, e.id, func() error {
		answer, err := f.direct.ToCoordinator(ctx, e.id, req)
		if err != nil {
			return err
		}
		resp, ok := answer.(*kmsg.AddPartitionsToTxnResponse)
		if !ok {
			return fmt.Errorf("the broker answered with %T", answer)
		}
		for _, topic := range resp.Topics {
			for _, partition := range topic.Partitions {
				err := kerr.ErrorForCode(partition.ErrorCode)
				if errors.Is(err, kerr.TopicAuthorizationFailed) {
					return &Refused{ID: e.id, cause: err, Reason: fmt.Sprintf("the coordinator's user may neither write markers nor write to topic %q: grant it ClusterAction (or Alter) on the cluster, or Write on that topic", topic.Topic)}
				}
				if err != nil && !errors.Is(err, kerr.OperationNotAttempted) {
					return err
				}
			}
		}
		return nil
	})
}

// end ends the transaction as the note says. It may be asked again after it was done. kerr.InvalidTxnState says that nothing is open.
func (f *Fencer) end(ctx context.Context, e empty) error {
	req := kmsg.NewPtrEndTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = e.id, e.note.ProducerID, e.note.ProducerEpoch, e.note.Outcome == state.OutcomeCommitted
	return f.untilDone(ctx, e.id, func() error {
		answer, err := f.direct.ToCoordinator(ctx, e.id, req)
		if err != nil {
			return err
		}
		resp, ok := answer.(*kmsg.EndTxnResponse)
		if !ok {
			return fmt.Errorf("the broker answered with %T", answer)
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// untilDone repeats what can be repeated. An id that somebody else has initialised is errTaken.
func (f *Fencer) untilDone(ctx context.Context, id string, do func() error) error {
	warned := time.Now()
	for attempt := 0; ; attempt++ {
		err := do()
		var refused *Refused
		switch {
		case err == nil, errors.As(err, &refused), errors.Is(err, kerr.InvalidTxnState):
			return err
		case errors.Is(err, kerr.ProducerFenced), errors.Is(err, kerr.InvalidProducerEpoch), errors.Is(err, kerr.InvalidProducerIDMapping):
			return errors.Join(errTaken, err)
		}
		// Whatever else it is, a right that was taken away for example, it is tried again: an empty transaction must not be left open.
		verdict := classify(err)
		if verdict.final {
			verdict = away
		}
		if verdict.moved {
			f.direct.Forget(id)
		}
		if time.Since(warned) >= f.warn {
			warned = time.Now()
			f.log.Warn("ending a transaction takes long", "transactional_id", id, "attempts", attempt+1, "error", err)
		}
		if waited := wait(ctx, verdict.delay(attempt)); waited != nil {
			return fmt.Errorf("%w: %w", waited, err)
		}
	}
}

// Proven is a hang with what is known of its direction.
type Proven struct {
	state.Hang
	// Outcome is OutcomeCommitted, OutcomeAborted or OutcomeUnknown.
	Outcome state.Outcome
	// Proof says how it is known, or why it isn't.
	Proof string
}

// Prove finds the directions of one id's hangs, and changes nothing.
func (f *Fencer) Prove(ctx context.Context, id string, hangs []state.Hang, noted state.Decision) ([]Proven, error) {
	past, err := f.history(ctx, id)
	if err != nil {
		return nil, err
	}
	var all []Proven
	for _, h := range hangs {
		p, err := f.direction(ctx, h, hangs, past, noted)
		if err != nil {
			return nil, err
		}
		if p.outcome == "" {
			all = append(all, Proven{Hang: h, Outcome: state.OutcomeUnknown, Proof: p.why})
			continue
		}
		all = append(all, Proven{Hang: h, Outcome: p.outcome, Proof: p.by})
	}
	return all, nil
}

// advice says what a person can do about a hang.
func advice(h state.Hang, why string) string {
	return fmt.Sprintf("%s is held since offset %d by a transaction of %q (producer id %d, epoch %d) that the transaction coordinator calls finished, and whether it was committed or aborted isn't proven: %s. "+
		"Readers with read_committed stand still there, and the wrong direction deletes or publishes records. Find out how it ended, for example in %s, then: fencepost transactions end %s --partition %s-%d --commit (or --abort) --i-know",
		h, h.Start, h.ID, h.ProducerID, h.ProducerEpoch, why, transactionState, h.ID, h.Topic, h.Partition)
}

// stuck says that a hang's direction is known, and a right is missing.
func stuck(h state.Hang, o state.Outcome, reason string) string {
	return fmt.Sprintf("%s is held since offset %d by a transaction of %q that was %s: its marker can't be written: %s. Then: fencepost transactions end %s --partition %s-%d", h, h.Start, h.ID, o, reason, h.ID, h.Topic, h.Partition)
}
