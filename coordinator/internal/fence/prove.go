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
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// transactionState is the topic in which Kafka's transaction coordinators keep every step of every transaction, until it is compacted.
const transactionState = "__transaction_state"

// readBudget is how long the reading of one of its partitions may take.
const readBudget = 30 * time.Second

// Proofs, for people.
const (
	proofState = "Kafka's own record of the transaction (" + transactionState + ")"
	proofNoted = "the id's last decision, noted before the id was taken"
	proofUser  = "a user's word"
)

// proof is a direction and how it is known. Without an outcome, why says why it isn't.
type proof struct {
	outcome state.Outcome
	by      string
	why     string
	// torn, where set, is the decision that was made, and that a later one may have turned round on other partitions of the transaction: the proof holds only if it didn't, see whole.
	torn *decided
}

// unproven is the outcome of what isn't known. The broker never objects to the wrong direction: committed records that are aborted are deleted, aborted ones that are committed are published.
func unproven(format string, args ...any) proof { return proof{why: fmt.Sprintf(format, args...)} }

// history is what the transaction coordinator decided about one id, in order.
type history struct {
	decided []decided
	// replicas are the brokers that have it: one of them has set the times of the decisions.
	replicas []int32
	// none says why there is no history; empty where it could be read.
	none string
}

// decided is one decision, whether or not its markers were written.
type decided struct {
	outcome  state.Outcome
	producer int64
	// epoch is that of the records. An abort by the coordinator itself, and any end of a client with the newer protocol, is decided under the next one.
	epoch      int16
	partitions []kmsg.TxnMetadataValueTopic
	// at is when, by the clock of the broker that coordinates the id.
	at time.Time
	// unsure: the step before it is gone, and the records' epoch may be one less.
	unsure bool
}

func (d decided) names(h state.Hang) bool {
	return slices.ContainsFunc(d.partitions, func(t kmsg.TxnMetadataValueTopic) bool {
		return t.Topic == h.Topic && slices.Contains(t.Partitions, h.Partition)
	})
}

// parts are the partitions of the transaction.
func (d decided) parts() []part {
	var parts []part
	for _, t := range d.partitions {
		for _, p := range t.Partitions {
			parts = append(parts, part{t.Topic, p})
		}
	}
	return parts
}

// shares says that two transactions have a partition in common beside the one that hangs: there nothing came after.
func (d decided) shares(other decided, hangs part) bool {
	return slices.ContainsFunc(d.parts(), func(p part) bool { return p != hangs && slices.Contains(other.parts(), p) })
}

// prove finds the direction of a hang.
//
// The strongest proof is Kafka's own: the last PrepareCommit or PrepareAbort of the very producer id and epoch that names the partition. (An earlier one of the same epoch had its marker there: nothing of ours writes to a partition
// on which its last transaction hangs, see I3 and the look after a lost broker.) Where it can't be read, or was compacted, the noted decision counts, if it is of the very producer id and epoch, see state's Heal. Two proofs that
// contradict each other are none.
//
// A later decision in the other direction is a danger where it names another partition of the same transaction: if the marker was left out there as well, the later one decided that part. (Seen when a broker is stopped: a commit
// returned without any marker, the next transaction had begun, and its abort deleted the committed offsets.) What is left must then go the way of the other parts, and whole looks which that is.
func prove(h state.Hang, past history, noted state.Decision) proof {
	var exact *decided
	turned := false
	for i, d := range past.decided {
		switch {
		case d.producer != h.ProducerID || !d.names(h):
		case d.unsure && (d.epoch == h.ProducerEpoch || d.epoch-1 == h.ProducerEpoch):
			exact = nil
		case !d.unsure && d.epoch == h.ProducerEpoch:
			exact, turned = &past.decided[i], false
		}
		turned = turned || exact != nil && d.producer == exact.producer && d.outcome != exact.outcome && d.shares(*exact, part{h.Topic, h.Partition})
	}
	byNote := noted.Outcome == state.OutcomeCommitted && noted.ProducerID == h.ProducerID && noted.ProducerEpoch == h.ProducerEpoch
	switch {
	case exact != nil && byNote && exact.outcome != noted.Outcome:
		return unproven("%s says %s, and the coordinator noted %s", transactionState, exact.outcome, noted.Outcome)
	case exact != nil && turned:
		return proof{torn: exact}
	case exact != nil:
		return proof{outcome: exact.outcome, by: proofState}
	case byNote:
		return proof{outcome: noted.Outcome, by: proofNoted}
	case past.none != "":
		return unproven("%s, and the coordinator's own note doesn't say", past.none)
	}
	return unproven("%s has no decision about it any more, and the coordinator's own note doesn't say", transactionState)
}

// history reads what was decided about an id. A topic that isn't there, or mustn't be read, is no error: there is another proof.
func (f *Fencer) history(ctx context.Context, id string) (history, error) {
	ctx, cancel := context.WithTimeout(ctx, readBudget)
	defer cancel()
	admin := kadm.NewClient(f.direct.Client())
	topics, err := admin.ListTopicsWithInternal(ctx, transactionState)
	topic := topics[transactionState]
	if err == nil { // the client answers a refusal of the one topic that is asked for with an error of its own
		err = topic.Err
	}
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition):
		return history{none: "this broker keeps no " + transactionState}, f.gone(ctx, []string{transactionState})
	case forbidden(err):
		return history{none: mayNotRead}, nil
	case err != nil || len(topic.Partitions) == 0:
		return history{}, fmt.Errorf("describe %s: %w", transactionState, cmp.Or(err, errors.New("it has no partitions")))
	}
	partition := partitionOf(id, len(topic.Partitions))
	past, err := f.read(ctx, admin, id, partition)
	if forbidden(err) {
		return history{none: mayNotRead}, nil
	}
	past.replicas = topic.Partitions[partition].Replicas
	return past, err
}

const mayNotRead = "the coordinator's user may not read " + transactionState + " (the right Read on that topic would let it)"

func forbidden(err error) bool { return errors.Is(err, kerr.TopicAuthorizationFailed) }

// partitionOf is where the decisions about an id are: Java's abs(hashCode(id)) % partitions.
func partitionOf(id string, partitions int) int32 {
	var hash int32
	for _, r := range []byte(id) { // Ids are ASCII, so bytes are Java's characters.
		hash = 31*hash + int32(r)
	}
	if hash < 0 {
		hash = max(-hash, 0) // -(-2³¹) is itself, and 0 there
	}
	return hash % int32(partitions) //nolint:gosec // a broker has at most thousands
}

// read reads one partition from its beginning to its end, and keeps what is about the id.
func (f *Fencer) read(ctx context.Context, admin *kadm.Client, id string, partition int32) (history, error) {
	end, err := bound(ctx, admin.ListEndOffsets, partition)
	if err != nil {
		return history{}, err
	}
	start, err := bound(ctx, admin.ListStartOffsets, partition)
	if err != nil || start >= end {
		return history{}, err
	}
	client, err := kgo.NewClient(append(f.direct.Client().Opts(), kgo.FetchMaxWait(250*time.Millisecond), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{transactionState: {partition: kgo.NewOffset().At(start)}}))...)
	if err != nil {
		return history{}, fmt.Errorf("read %s: %w", transactionState, err)
	}
	defer client.Close()
	var replay replay
	for at := start; at < end; {
		fetches := client.PollFetches(ctx)
		if err := ctx.Err(); err != nil {
			return history{}, fmt.Errorf("read partition %d of %s: at offset %d of %d: %w", partition, transactionState, at, end, err)
		}
		for _, failed := range fetches.Errors() {
			return history{}, fmt.Errorf("read partition %d of %s: %w", partition, transactionState, failed.Err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			at = r.Offset + 1
			var key kmsg.TxnMetadataKey
			if key.ReadFrom(r.Key) == nil && key.TransactionalID == id && r.Offset < end {
				replay.take(r.Value, r.Timestamp)
			}
		})
	}
	return history{decided: replay.decided}, nil
}

func bound(ctx context.Context, list func(context.Context, ...string) (kadm.ListedOffsets, error), partition int32) (int64, error) {
	listed, err := list(ctx, transactionState)
	if err != nil {
		return 0, fmt.Errorf("list offsets of %s: %w", transactionState, err)
	}
	offset, ok := listed.Lookup(transactionState, partition)
	if !ok || offset.Err != nil {
		return 0, fmt.Errorf("list offsets of partition %d of %s: %w", partition, transactionState, cmp.Or[error](offset.Err, kerr.UnknownTopicOrPartition))
	}
	return offset.Offset, nil
}

// replay goes through the steps of one id.
type replay struct {
	decided []decided
	// ongoing: a transaction of this producer and epoch is open, as far as is known.
	ongoing  bool
	producer int64
	epoch    int16
}

// newerProtocol is from which version on a client's every end of a transaction raises the epoch (KIP-890).
const newerProtocol = 2

func (r *replay) take(value []byte, at time.Time) {
	var step kmsg.TxnMetadataValue
	if len(value) == 0 || step.ReadFrom(value) != nil {
		r.ongoing = false // the id has expired, or a later version of Kafka wrote this: what follows begins anew
		return
	}
	switch step.State.String() {
	case stateOngoing:
		r.ongoing, r.producer, r.epoch = true, step.ProducerID, step.ProducerEpoch
	case statePrepareCommit, statePrepareAbort:
		r.decide(&step, at)
	default:
		r.ongoing = false
	}
}

// decide keeps a decision whose records' epoch is known: that of the open transaction before it, or, where compaction has taken that step, that of the decision itself where nothing could have raised it.
func (r *replay) decide(step *kmsg.TxnMetadataValue, at time.Time) {
	d := decided{outcome: state.OutcomeAborted, producer: step.ProducerID, epoch: step.ProducerEpoch, partitions: step.Topics, at: at}
	if step.State.String() == statePrepareCommit {
		d.outcome = state.OutcomeCommitted
	}
	d.unsure = d.outcome == state.OutcomeAborted || step.ClientTransactionVersion >= newerProtocol
	if r.ongoing {
		d.unsure = r.producer != step.ProducerID || r.epoch != step.ProducerEpoch && r.epoch != step.ProducerEpoch-1
	}
	if r.ongoing && !d.unsure {
		d.epoch = r.epoch
	}
	r.ongoing = false
	r.decided = append(r.decided, d)
}
