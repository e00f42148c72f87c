package sessions

import (
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// ErrGone says that a runner's session ended before it answered.
var ErrGone = errors.New("the runner's connection ended before it answered")

// All of this server's gRPC codes are set here.
var (
	errBusy        = status.Error(codes.ResourceExhausted, "too many questions to runners are waiting: try again later")
	errNoHello     = status.Error(codes.InvalidArgument, "a session begins with Hello")
	errSecondHello = status.Error(codes.InvalidArgument, "Hello is sent once, at the beginning of a session")
)

func errTooMany(limit int) error {
	return status.Errorf(codes.ResourceExhausted, "this coordinator has %d sessions, which is its limit", limit)
}

func errSlow(queue int) error {
	return status.Errorf(codes.ResourceExhausted, "the runner doesn't read its messages: %d are waiting", queue)
}

func errSilent(d time.Duration) error {
	return status.Errorf(codes.DeadlineExceeded, "nothing came from the runner for %v", d)
}

// closing is how a session ends that the core closes.
func closing(e state.CloseSession) (last *runnerv1.SessionResponse, err error) {
	switch e.Why {
	case state.CloseExists:
		return nil, status.Error(codes.AlreadyExists, e.Text)
	case state.CloseReplaced:
		return nil, status.Error(codes.Aborted, e.Text)
	case state.CloseStale:
		return redirect("", nil, e.Text), nil
	}
	return nil, status.Error(codes.InvalidArgument, e.Text)
}
