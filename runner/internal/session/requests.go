package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/sdk/go/host"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// maxAsks bounds the questions without an answer: a task asks one or two at a time.
const maxAsks = 4 * maxLeases

// answer is what the coordinator said to a question. At most one of the texts is set; none is yes.
type answer struct {
	refused, permanent, temporary string
	// hanging is what a look found.
	hanging []*runnerv1.HangingPartition
}

// err turns an answer into what callers see.
func (a answer) err(what string, l lease.Lease) error {
	switch {
	case a.refused != "":
		return fmt.Errorf("%s for %s: %w: %s", what, l, lease.ErrRefused, a.refused)
	case a.permanent != "":
		return fmt.Errorf("%s for %s: %w", what, l, &lease.PermanentError{Text: a.permanent})
	case a.temporary != "":
		return fmt.Errorf("%s for %s: %s", what, l, a.temporary)
	case len(a.hanging) == 0:
		return nil
	case ownHangs(l, a.hanging):
		return fmt.Errorf("%s for %s: %w", what, l, &lease.PermanentError{Text: hangingText(a.hanging)})
	}
	return fmt.Errorf("%s for %s: %s", what, l, hangingText(a.hanging))
}

// ownHangs says whether a transaction of the task's own id is among them. A sibling's may be gone soon: it hangs until the sibling's next commit there, which may be under way already, and until then
// it is the sibling that has to stop.
func ownHangs(l lease.Lease, hanging []*runnerv1.HangingPartition) bool {
	return slices.ContainsFunc(hanging, func(h *runnerv1.HangingPartition) bool {
		return strings.HasSuffix(h.GetTransactionalId(), fmt.Sprintf(".%d", l.Task))
	})
}

// PrepareStart asks the leader to fence the task's id, and returns when that is done. See the package for what errors mean: lease.ErrRefused, *lease.PermanentError, or the end of ctx.
func (s *Session) PrepareStart(ctx context.Context, l lease.Lease) error {
	return s.ask(ctx, "prepare the start", l, func(id uint64) *runnerv1.SessionRequest {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PrepareStart{PrepareStart: &runnerv1.PrepareStart{RequestId: id, Lease: leaseToWire(l)}}}
	})
}

// Confirm asks the leader whether the lease still holds (I3). The question leaves after this call began, whatever was asked or answered before.
func (s *Session) Confirm(ctx context.Context, l lease.Lease) error {
	return s.ask(ctx, "confirm the lease", l, func(id uint64) *runnerv1.SessionRequest {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Confirm{Confirm: &runnerv1.Confirm{RequestId: id, Lease: leaseToWire(l)}}}
	})
}

// Look asks the leader for hanging transactions of the connector's own ids. One of the task's own id is a *lease.PermanentError that names the partition; any other
// error, also that a sibling's transaction hangs, may be asked again.
func (s *Session) Look(ctx context.Context, l lease.Lease) error {
	return s.ask(ctx, "look for hanging transactions", l, func(id uint64) *runnerv1.SessionRequest {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Look{Look: &runnerv1.Look{RequestId: id, Lease: leaseToWire(l)}}}
	})
}

// RecordTopics notes topics before the first record goes there, and the offsets topic with its id as the broker gives it.
func (s *Session) RecordTopics(ctx context.Context, l lease.Lease, topics []string, offsetsTopic, offsetsTopicID string) error {
	return s.ask(ctx, "note the topics", l, func(id uint64) *runnerv1.SessionRequest {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_RecordTopics{RecordTopics: &runnerv1.RecordTopics{
			RequestId: id, Lease: leaseToWire(l), Topics: topics, OffsetsTopic: offsetsTopic, OffsetsTopicId: offsetsTopicID,
		}}}
	})
}

// ClaimPartitions claims partitions, in canonical form, for a task whose plan left its claim unknown. A partition of another task's is a *lease.PermanentError (I8).
func (s *Session) ClaimPartitions(ctx context.Context, l lease.Lease, partitions [][]byte) error {
	return s.ask(ctx, "claim partitions", l, func(id uint64) *runnerv1.SessionRequest {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ClaimPartitions{ClaimPartitions: &runnerv1.ClaimPartitions{RequestId: id, Lease: leaseToWire(l), Partitions: partitions}}}
	})
}

// ask sends a question and waits for its answer. Where the stream ends first, the next one carries the question again.
func (s *Session) ask(ctx context.Context, what string, l lease.Lease, message func(id uint64) *runnerv1.SessionRequest) error {
	id, a, err := s.box.addAsk(l, message)
	if err != nil {
		return fmt.Errorf("%s for %s: %w", what, l, err)
	}
	defer s.box.removeAsk(id)
	select {
	case <-ctx.Done():
	case got := <-a.answer:
		return got.err(what, l)
	}
	select {
	case got := <-a.answer: // It came first: what ended ctx may have come of it.
		return got.err(what, l)
	default:
		return fmt.Errorf("%s for %s: no answer from the coordinator: %w", what, l, context.Cause(ctx))
	}
}

// addAsk queues a question.
func (b *outbox) addAsk(l lease.Lease, message func(id uint64) *runnerv1.SessionRequest) (id uint64, a *ask, err error) {
	b.change(func() {
		if len(b.asks) >= maxAsks {
			err = errors.New("too many questions wait for the coordinator")
			return
		}
		b.lastID++
		id = b.lastID
		a = &ask{lease: l, message: message(id), answer: make(chan answer, 1)}
		b.asks[id] = a
		b.unasked = append(b.unasked, id)
	})
	return id, a, err
}

func (b *outbox) removeAsk(id uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.asks, id)
}

// answered hands an answer to whoever asked. One that nobody waits for any more is dropped.
func (b *outbox) answered(id uint64, got answer) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if a := b.asks[id]; a != nil {
		delete(b.asks, id)
		a.answer <- got
	}
}

// refuse answers every question about a lease that the leader says is over: it says so of its own accord to a runner that comes back, before it has come to the questions.
func (b *outbox) refuse(l lease.Lease, reason string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for id, a := range b.asks {
		if a.lease == l {
			delete(b.asks, id)
			a.answer <- answer{refused: reason}
		}
	}
}

// hangingText says what hangs, for users.
func hangingText(hanging []*runnerv1.HangingPartition) string {
	var b strings.Builder
	for i, h := range hanging {
		if i > 0 {
			b.WriteString("; ")
		}
		fmt.Fprintf(&b, "partition %d of topic %q is held by a transaction of %s that never ended: %s", h.GetPartition(), h.GetTopic(), h.GetTransactionalId(), h.GetAdvice())
	}
	return b.String()
}

// AnswerValidate answers a Validate: with every problem, or with why there is no answer. ofHost says that another runner is to be asked.
func (s *Session) AnswerValidate(id RequestID, problems []source.Problem, ofHost bool, err error) {
	s.box.addAnswer(id, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{
		RequestId: id.id, Problems: host.EncodeProblems(problems), Host: ofHost, Error: errorText(err),
	}}})
}

// AnswerReadOffsets answers a ReadOffsets.
func (s *Session) AnswerReadOffsets(id RequestID, offsets []source.PartitionOffset, err error) {
	s.box.addAnswer(id, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ReadOffsetsAnswer{ReadOffsetsAnswer: &runnerv1.ReadOffsetsAnswer{
		RequestId: id.id, Offsets: host.EncodeOffsets(offsets), Error: errorText(err),
	}}})
}

// AnswerAlterOffsets answers an AlterOffsets; nil is done.
func (s *Session) AnswerAlterOffsets(id RequestID, err error) {
	s.box.addAnswer(id, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_AlterOffsetsAnswer{AlterOffsetsAnswer: &runnerv1.AlterOffsetsAnswer{
		RequestId: id.id, Error: errorText(err),
	}}})
}

// AnswerWarmUp answers a WarmUp; nil is that the plugin runs.
func (s *Session) AnswerWarmUp(id RequestID, err error) {
	s.box.addAnswer(id, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_WarmedUp{WarmedUp: &runnerv1.WarmedUp{RequestId: id.id, Error: errorText(err)}}})
}

// errorText is an error for a text field, empty for nil.
func errorText(err error) string {
	if err == nil {
		return ""
	}
	return validText(err.Error())
}
