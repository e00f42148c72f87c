package sessions

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// session is one stream of one runner.
type session struct {
	id         state.SessionID
	leadership *Leadership
	stream     grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]
	queue      *mail
	heard      chan struct{} // one token: something came
	term       atomic.Uint64 // of the last message sent
	silence    atomic.Int64  // nanoseconds; set by Welcome
	runner     atomic.Value  // the runner's name, from Hello
	closed     chan struct{} // closed once last and why are set
	once       sync.Once
	last       *runnerv1.SessionResponse // sent before the end, where set
	why        error
}

func newSession(l *Leadership, stream grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]) *session {
	s := &session{
		id: l.server.nextID(), leadership: l, stream: stream, queue: newMail(l.server.config.Queue), heard: make(chan struct{}, 1), closed: make(chan struct{}),
	}
	s.silence.Store(int64(l.server.config.HelloTimeout))
	s.runner.Store("")
	return s
}

func (s *session) name() string {
	name, _ := s.runner.Load().(string) // Always a string.
	return name
}

// close ends the session once: after what is queued, last is sent, and the stream ends with why.
func (s *session) close(last *runnerv1.SessionResponse, why error) {
	s.once.Do(func() {
		s.last, s.why = last, why
		close(s.closed)
	})
}

// send queues a message, or ends the session.
func (s *session) send(m *runnerv1.SessionResponse) {
	if w := m.GetWelcome(); w != nil {
		s.silence.Store(int64(silentHeartbeats * time.Duration(w.GetHeartbeatMs()) * time.Millisecond))
	}
	s.term.Store(m.GetTerm())
	if !s.queue.put(m) {
		s.close(nil, errSlow(s.queue.limit))
	}
}

// run supervises the session until one of its parts ends it. When it returns, gRPC ends the stream, and with it the reader and the writer.
func (s *session) run() error {
	read, written := make(chan error, 1), make(chan error, 1)
	wait := &s.leadership.server.wait
	wait.Go(func() { read <- s.read() })
	wait.Go(func() { written <- s.write() })
	silence := time.NewTimer(time.Duration(s.silence.Load()))
	defer silence.Stop()
	for {
		select {
		case <-s.heard:
			silence.Reset(time.Duration(s.silence.Load()))
		case <-silence.C:
			s.close(nil, errSilent(time.Duration(s.silence.Load())))
		case err := <-read:
			s.close(nil, err)
		case err := <-written:
			s.close(nil, err)
			return s.why
		case <-s.closed:
			return s.finish(written)
		}
	}
}

// finish gives the writer a moment for what is queued.
func (s *session) finish(written <-chan error) error {
	timer := time.NewTimer(goodbye)
	defer timer.Stop()
	select {
	case <-written: //nolint:errcheck // the reason of the end counts, not how far its last messages came
	case <-timer.C:
	}
	return s.why
}

// read turns messages into events until the stream ends; the last event is SessionClosed, where there was a first one.
func (s *session) read() error {
	hello, err := s.stream.Recv()
	if err != nil {
		return ended(err)
	}
	s.hear()
	if hello.GetHello() == nil {
		return errNoHello
	}
	s.runner.Store(hello.GetHello().GetName())
	if !s.submit(s.stream.Context(), state.SessionOpened{Session: s.id, Term: hello.GetTerm(), Hello: hello.GetHello()}) {
		return s.discard()
	}
	err = s.messages()
	// The loop is told whatever becomes of the stream; it takes the event, or has ended.
	s.submit(context.Background(), state.SessionClosed{Session: s.id, Reason: s.reason(err)})
	return err
}

// submit hands an event to the loop; false where that has ended, or ctx has.
func (s *session) submit(ctx context.Context, e state.Event) bool {
	return s.leadership.core.Submit(ctx, e) == nil
}

// discard listens on, to a runner that Leadership.End will send away: the loop has ended.
func (s *session) discard() error {
	for {
		if _, err := s.stream.Recv(); err != nil {
			return ended(err)
		}
		s.hear()
	}
}

// reason says why a session ended, for people.
func (s *session) reason(err error) string {
	select {
	case <-s.closed:
		err = s.why
	default:
	}
	if err == nil {
		return "the runner closed the connection"
	}
	return status.Convert(err).Message()
}

func (s *session) messages() error {
	for {
		m, err := s.stream.Recv()
		if err != nil {
			return ended(err)
		}
		s.hear()
		if request, ours := asked(m); ours {
			s.leadership.answered(s, request, m)
			continue
		}
		if m.GetHello() != nil {
			return errSecondHello
		}
		if !s.submit(s.stream.Context(), state.FromRunner{Session: s.id, Message: m}) {
			return s.discard()
		}
	}
}

// asked says whether a message answers a question of the control service, and which.
func asked(m *runnerv1.SessionRequest) (request uint64, ours bool) {
	switch a := m.GetMessage().(type) {
	case *runnerv1.SessionRequest_ValidateAnswer:
		return a.ValidateAnswer.GetRequestId(), true
	case *runnerv1.SessionRequest_ReadOffsetsAnswer:
		return a.ReadOffsetsAnswer.GetRequestId(), true
	case *runnerv1.SessionRequest_AlterOffsetsAnswer:
		return a.AlterOffsetsAnswer.GetRequestId(), true
	}
	return 0, false
}

func (s *session) hear() {
	select {
	case s.heard <- struct{}{}:
	default:
	}
}

// write sends what is queued until the session is closed, then the rest and the last message.
func (s *session) write() error {
	for {
		select {
		case <-s.queue.wake:
			if err := s.deliver(); err != nil {
				return err
			}
		case <-s.stream.Context().Done():
			return ended(s.stream.Context().Err())
		case <-s.closed:
			return s.flush()
		}
	}
}

// deliver sends what waits.
func (s *session) deliver() error {
	for _, m := range s.queue.take() {
		if err := s.stream.Send(m); err != nil {
			return ended(err)
		}
	}
	return nil
}

func (s *session) flush() error {
	if err := s.deliver(); err != nil || s.last == nil {
		return err
	}
	s.last.Term = s.term.Load()
	return ended(s.stream.Send(s.last))
}

// ended reads the end of a stream: a runner that closed it, or went away, did nothing wrong.
func ended(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, context.Canceled) || status.Code(err) == codes.Canceled {
		return nil
	}
	return err
}
