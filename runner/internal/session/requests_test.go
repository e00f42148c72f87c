package session_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
)

func TestQuestionsAreAskedAgainOnTheNextStream(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		answers := make(chan error, 1)
		go func() { answers <- t.session.Confirm(t.Context(), orders) }() // Asked before there is a stream at all.
		p, _ := t.welcome("c1")
		first := until(p, true, (*runnerv1.SessionRequest).GetConfirm)
		p.end <- status.Error(codes.Unavailable, "going")
		p, _ = t.welcome("c1")
		again := until(p, true, (*runnerv1.SessionRequest).GetConfirm)
		if first.GetRequestId() != again.GetRequestId() || again.GetLease().GetEpoch() != orders.Epoch {
			t.Fatal(first, again)
		}
		select {
		case err := <-answers:
			t.Fatalf("answered from memory: %v", err)
		default:
		}
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ConfirmAnswer{ConfirmAnswer: &runnerv1.ConfirmAnswer{RequestId: again.GetRequestId()}}})
		if err := <-answers; err != nil {
			t.Fatal(err)
		}
		// The next one is a new question.
		go func() { answers <- t.session.Confirm(t.Context(), orders) }()
		if c := until(p, true, (*runnerv1.SessionRequest).GetConfirm); c.GetRequestId() == again.GetRequestId() {
			t.Fatal("the same question again")
		} else {
			p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ConfirmAnswer{ConfirmAnswer: &runnerv1.ConfirmAnswer{RequestId: c.GetRequestId(), Refused: "moved"}}})
		}
		if err := <-answers; !errors.Is(err, lease.ErrRefused) || !strings.Contains(err.Error(), "moved") {
			t.Fatal(err)
		}
	})
}

// TestAQuestionAboutALostLeaseIsRefused: a runner that comes back hears that its lease is over, by Revoke or by the answer to its heartbeat, before the leader has come to its questions. That is the answer to all of them, and is there before
// the task is told to end.
func TestAQuestionAboutALostLeaseIsRefused(t *testing.T) {
	for name, tell := range map[string]func(*peer){
		"revoked": func(p *peer) {
			p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Revoke{Revoke: &runnerv1.Revoke{Lease: toWire(orders), Reason: "the lease is over"}}})
		},
		"not renewed": func(p *peer) { p.renew(until(p, true, (*runnerv1.SessionRequest).GetHeartbeat), toWire(orders)) },
	} {
		t.Run(name, func(t *testing.T) {
			run(t, []string{"c1"}, func(t *bed) {
				p, _ := t.welcome("c1")
				t.grant(p, orders)
				ctx, cancel := context.WithCancel(t.Context())
				answers := make(chan error, 2)
				go func() { answers <- t.session.Confirm(ctx, orders) }()
				other := orders
				other.Task++
				go func() { answers <- t.session.Confirm(t.Context(), other) }()
				until(p, true, (*runnerv1.SessionRequest).GetConfirm)
				until(p, true, (*runnerv1.SessionRequest).GetConfirm)
				tell(p)
				t.event()
				cancel() // as the supervisor does then
				if err := <-answers; !errors.Is(err, lease.ErrRefused) || !strings.Contains(err.Error(), "is over") {
					t.Fatal(err)
				}
				wait(time.Millisecond)
				select {
				case err := <-answers:
					t.Fatalf("another lease's question was answered: %v", err)
				default:
				}
				t.stop()
			})
		})
	}
}

func TestAQuestionEndsWithItsContext(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := t.session.PrepareStart(ctx, orders); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		p, _ := t.welcome("c1")
		until(p, true, (*runnerv1.SessionRequest).GetHeartbeat)
		wait(100 * time.Millisecond)
		for {
			select {
			case m := <-p.in:
				if m.GetPrepareStart() != nil {
					t.Fatal("a question that nobody waits for was asked")
				}
				continue
			default:
			}
			return
		}
	})
}

func TestAnswersToQuestions(t *testing.T) {
	type answers = runnerv1.SessionResponse
	id := func(m *runnerv1.SessionRequest) uint64 {
		return max(m.GetPrepareStart().GetRequestId(), m.GetLook().GetRequestId(), m.GetRecordTopics().GetRequestId(), m.GetClaimPartitions().GetRequestId())
	}
	for _, c := range []struct {
		name   string
		ask    func(context.Context, *session.Session) error
		answer func(id uint64) *answers
		refuse bool
		fail   string
	}{
		{"fencing failed for good", func(ctx context.Context, s *session.Session) error { return s.PrepareStart(ctx, orders) },
			func(id uint64) *answers {
				return &answers{Message: &runnerv1.SessionResponse_PrepareStartAnswer{PrepareStartAnswer: &runnerv1.PrepareStartAnswer{RequestId: id, Error: "no right on the id"}}}
			}, false, "no right on the id"},
		{"start refused", func(ctx context.Context, s *session.Session) error { return s.PrepareStart(ctx, orders) },
			func(id uint64) *answers {
				return &answers{Message: &runnerv1.SessionResponse_PrepareStartAnswer{PrepareStartAnswer: &runnerv1.PrepareStartAnswer{RequestId: id, Refused: "moved"}}}
			}, true, ""},
		{"hanging", func(ctx context.Context, s *session.Session) error { return s.Look(ctx, orders) },
			func(id uint64) *answers {
				return &answers{Message: &runnerv1.SessionResponse_LookAnswer{LookAnswer: &runnerv1.LookAnswer{RequestId: id, Hanging: []*runnerv1.HangingPartition{
					{Topic: "orders", Partition: 3, TransactionalId: "fencepost.c.orders.1", Advice: "ask"}}}}}
			}, false, `partition 3 of topic "orders" is held by a transaction of fencepost.c.orders.1 that never ended: ask`},
		{"replaced topic", func(ctx context.Context, s *session.Session) error {
			return s.RecordTopics(ctx, orders, []string{"a"}, "o", "00")
		},
			func(id uint64) *answers {
				return &answers{Message: &runnerv1.SessionResponse_RecordTopicsAnswer{RecordTopicsAnswer: &runnerv1.RecordTopicsAnswer{RequestId: id, Error: "replaced"}}}
			}, false, "replaced"},
		{"claimed twice", func(ctx context.Context, s *session.Session) error {
			return s.ClaimPartitions(ctx, orders, [][]byte{[]byte(`{"a":1}`)})
		},
			func(id uint64) *answers {
				return &answers{Message: &runnerv1.SessionResponse_ClaimPartitionsAnswer{ClaimPartitionsAnswer: &runnerv1.ClaimPartitionsAnswer{RequestId: id, Conflict: "task 2 has it"}}}
			}, false, "task 2 has it"},
	} {
		t.Run(c.name, func(t *testing.T) {
			run(t, []string{"c1"}, func(t *bed) {
				got := make(chan error, 1)
				go func() { got <- c.ask(t.Context(), t.session) }()
				p, _ := t.welcome("c1")
				var m *runnerv1.SessionRequest
				for m = p.next(); id(m) == 0; m = p.next() {
				}
				p.send(c.answer(id(m)))
				err := <-got
				var permanent *lease.PermanentError
				if errors.Is(err, lease.ErrRefused) != c.refuse || errors.As(err, &permanent) != (c.fail != "") || c.fail != "" && permanent.Text != c.fail {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestASiblingsHangMayBeAskedAgain(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		got := make(chan error, 1)
		go func() { got <- t.session.Look(t.Context(), orders) }()
		p, _ := t.welcome("c1")
		l := until(p, true, (*runnerv1.SessionRequest).GetLook)
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_LookAnswer{LookAnswer: &runnerv1.LookAnswer{RequestId: l.GetRequestId(), Hanging: []*runnerv1.HangingPartition{
			{Topic: "orders", Partition: 3, TransactionalId: "fencepost.c.orders.11", Advice: "ask"}}}}})
		err := <-got
		var permanent *lease.PermanentError
		if err == nil || errors.As(err, &permanent) || !strings.Contains(err.Error(), `partition 3 of topic "orders"`) {
			t.Fatal(err)
		}
	})
}

func TestALookThatFailedMayBeAskedAgain(t *testing.T) {
	run(t, []string{"c1"}, func(t *bed) {
		got := make(chan error, 1)
		go func() { got <- t.session.Look(t.Context(), orders) }()
		p, _ := t.welcome("c1")
		l := until(p, true, (*runnerv1.SessionRequest).GetLook)
		p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_LookAnswer{LookAnswer: &runnerv1.LookAnswer{RequestId: l.GetRequestId(), Error: "a broker is away"}}})
		err := <-got
		var permanent *lease.PermanentError
		if err == nil || errors.Is(err, lease.ErrRefused) || errors.As(err, &permanent) {
			t.Fatal(err)
		}
	})
}
