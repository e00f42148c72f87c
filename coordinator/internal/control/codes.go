package control

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/sessions"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// All of this server's gRPC codes are set here.

// maxProblems bounds the details of one error: they travel in the trailer.
const maxProblems = 200

var codeOf = map[state.Code]codes.Code{
	state.CodeInvalid: codes.InvalidArgument, state.CodeNotFound: codes.NotFound, state.CodeExists: codes.AlreadyExists,
	state.CodeRefused: codes.FailedPrecondition, state.CodeSuperseded: codes.Aborted, state.CodeStuck: codes.FailedPrecondition,
}

// fault turns what the loop, a session or a context says into a status. nil stays nil.
func (s *Server) fault(err error) error {
	var refused *state.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &refused):
		code, known := codeOf[refused.Code]
		if !known {
			code = codes.Internal
		}
		return failure(code, refused.Text, &controlv1.ErrorDetail{Hint: refused.Hint, Problems: refused.Problems})
	case errors.Is(err, loop.ErrEnded):
		return s.lost()
	case errors.Is(err, sessions.ErrGone):
		return failure(codes.Unavailable, err.Error(), &controlv1.ErrorDetail{Hint: "ask again"})
	case errors.Is(err, context.DeadlineExceeded):
		return failure(codes.DeadlineExceeded, "it takes longer than the time given: "+err.Error(), &controlv1.ErrorDetail{Hint: "what was stored goes on; get shows how far it is"})
	case errors.Is(err, context.Canceled):
		return failure(codes.Canceled, "the caller gave up", &controlv1.ErrorDetail{})
	}
	if _, is := status.FromError(err); is {
		return err
	}
	return failure(codes.Internal, err.Error(), &controlv1.ErrorDetail{})
}

func failure(code codes.Code, text string, detail *controlv1.ErrorDetail) error {
	if len(detail.GetProblems()) > maxProblems {
		detail.Problems = detail.GetProblems()[:maxProblems]
	}
	st, err := status.New(code, text).WithDetails(detail)
	if err != nil {
		return status.Error(code, text)
	}
	return st.Err()
}

// notLeading says who leads or, where that is why nobody does, what keeps this coordinator from it.
func (s *Server) notLeading() error {
	leader, absent := s.config.Leader(), s.config.Absent()
	switch {
	case absent != "" && leader != "": // It may lead yet: perhaps this coordinator alone is cut off.
		return failure(codes.Unavailable, fmt.Sprintf("%s; the coordinator at %s led when it was heard of last", absent, leader), &controlv1.ErrorDetail{Leader: leader, Hint: "ask that one, and see to what is said here"})
	case absent != "":
		return failure(codes.Unavailable, absent, &controlv1.ErrorDetail{Hint: "see to it; the coordinator goes on trying by itself"})
	case leader == "":
		return failure(codes.Unavailable, "this coordinator doesn't lead, and no leader is known yet", &controlv1.ErrorDetail{Hint: "ask again in a few seconds"})
	}
	return failure(codes.Unavailable, fmt.Sprintf("this coordinator doesn't lead; the coordinator at %s does", leader), &controlv1.ErrorDetail{Leader: leader, Hint: "ask the leader"})
}

// lost says that this coordinator stopped leading before it knew the answer, and where to ask again. Nothing is claimed of what was asked: its transaction may be readable or not.
func (s *Server) lost() error {
	detail := &controlv1.ErrorDetail{Leader: s.config.Leader(), Hint: "ask again in a moment: what was asked is safe to repeat"}
	text := "this coordinator stopped leading before it could answer: what was asked may be stored already, or not"
	if detail.GetLeader() != "" {
		text += fmt.Sprintf("; the coordinator at %s leads", detail.GetLeader())
	}
	return failure(codes.Unavailable, text, detail)
}

func invalid(problems []*pluginv1.Problem) error {
	text := "the configuration has problems"
	for _, p := range problems {
		if !p.GetWarning() {
			text = fmt.Sprintf("the configuration has problems: %s: %s", p.GetKey(), p.GetMessage())
			break
		}
	}
	return failure(codes.InvalidArgument, text, &controlv1.ErrorDetail{Problems: problems})
}

func noConnector(name string) error {
	return failure(codes.NotFound, fmt.Sprintf("there is no connector %q", name), &controlv1.ErrorDetail{})
}

func nameTaken(name string) error {
	return failure(codes.AlreadyExists, fmt.Sprintf("there is a connector %q already", name), &controlv1.ErrorDetail{Hint: "use apply to change it"})
}

func unknownTarget(t controlv1.TargetState) error {
	return failure(codes.InvalidArgument, fmt.Sprintf("target state %d is not known", t), &controlv1.ErrorDetail{Hint: "one of running, paused, stopped"})
}

func noLevel() error {
	return failure(codes.InvalidArgument, "no level is given", &controlv1.ErrorDetail{Hint: "fencepost cluster level shows the levels"})
}

func rosterUnknown(err error) error {
	return failure(codes.Unavailable, err.Error(), &controlv1.ErrorDetail{Hint: "ask again"})
}

func noRunner(text string) error {
	return failure(codes.Unavailable, text, &controlv1.ErrorDetail{Hint: "start a runner that has the plugin"})
}

func notValidated(text string) error {
	return failure(codes.Unavailable, "the configuration could not be checked: "+text, &controlv1.ErrorDetail{Hint: "see the runner's log, then ask again"})
}

func notRead(connector, text string) error {
	return failure(codes.Unavailable, fmt.Sprintf("the offsets of connector %q could not be read: %s", connector, text), &controlv1.ErrorDetail{Hint: "see the runner's log, then ask again"})
}

func wrongAnswer(m *runnerv1.SessionRequest) error {
	return failure(codes.Internal, fmt.Sprintf("the runner answered with %T", m.GetMessage()), &controlv1.ErrorDetail{})
}

func notListed(err error) error {
	return failure(codes.Unavailable, "the transactions could not be listed: "+err.Error(), &controlv1.ErrorDetail{Hint: "ask again; the coordinator's user needs the right Describe on the transactional ids"})
}

func notKnown() error {
	return failure(codes.InvalidArgument, "a direction that isn't proven is asked for", &controlv1.ErrorDetail{Hint: "the wrong one deletes records that were committed, or publishes records that were aborted: set i_know where you know how the transaction ended"})
}
