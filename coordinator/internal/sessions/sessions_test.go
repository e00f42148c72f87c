package sessions_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/sessions"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// core is a loop that only takes notes.
type core struct {
	events chan state.Event
	ended  chan struct{}
}

var errCoreEnded = errors.New("ended")

func (c *core) Submit(ctx context.Context, e state.Event) error {
	select {
	case <-c.ended:
		return errCoreEnded
	default:
	}
	select {
	case c.events <- e:
		return nil
	case <-c.ended:
		return errCoreEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// bed is a server and a client of it.
type bed struct {
	*sessions.Server
	core   *core
	client runnerv1.CoordinatorClient
	stop   func()
}

func newBed(t *testing.T, config sessions.Config) *bed {
	t.Helper()
	if config.Leader == nil {
		config.Leader = func() string { return "leader:1" }
	}
	server := sessions.New(config)
	listener := bufconn.Listen(1 << 20)
	s := grpc.NewServer()
	runnerv1.RegisterCoordinatorServer(s, server)
	served := make(chan error, 1)
	go func() { served <- s.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///bed", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	b := &bed{Server: server, core: &core{events: make(chan state.Event, 1000), ended: make(chan struct{})}, client: runnerv1.NewCoordinatorClient(conn)}
	b.stop = func() {
		conn.Close()
		s.Stop()
		server.Close()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}
	return b
}

type stream = grpc.BidiStreamingClient[runnerv1.SessionRequest, runnerv1.SessionResponse]

func (b *bed) dial(t *testing.T) stream {
	t.Helper()
	s, err := b.client.Session(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func send(t *testing.T, s stream, m *runnerv1.SessionRequest) {
	t.Helper()
	if err := s.Send(m); err != nil {
		t.Fatal(err)
	}
}

func hello(name string) *runnerv1.SessionRequest {
	return &runnerv1.SessionRequest{Term: 3, Message: &runnerv1.SessionRequest_Hello{Hello: &runnerv1.Hello{Name: name, ProcessId: "p"}}}
}

func heartbeat(seq uint64) *runnerv1.SessionRequest {
	return &runnerv1.SessionRequest{Term: 4, Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: &runnerv1.Heartbeat{Seq: seq}}}
}

func welcome(heartbeat time.Duration) *runnerv1.SessionResponse {
	return &runnerv1.SessionResponse{Term: 4, Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{HeartbeatMs: uint64(heartbeat.Milliseconds())}}}
}

func answer(seq uint64) *runnerv1.SessionResponse {
	return &runnerv1.SessionResponse{Term: 4, Message: &runnerv1.SessionResponse_HeartbeatAnswer{HeartbeatAnswer: &runnerv1.HeartbeatAnswer{Seq: seq}}}
}

// opened waits for SessionOpened and welcomes the runner.
func (b *bed) opened(t *testing.T, l *sessions.Leadership, s stream, beat time.Duration) state.SessionID {
	t.Helper()
	e, ok := (<-b.core.events).(state.SessionOpened)
	if !ok {
		t.Fatalf("event %T", e)
	}
	l.Send(state.Send{Session: e.Session, Message: welcome(beat)})
	if m, err := s.Recv(); err != nil || m.GetWelcome() == nil || m.GetTerm() != 4 {
		t.Fatalf("%v, %v", m, err)
	}
	return e.Session
}

func TestRunnersAreRedirectedWhileNobodyLeads(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	s := b.dial(t)
	m, err := s.Recv()
	if err != nil || m.GetRedirect().GetLeader() != "leader:1" || m.GetRedirect().GetReason() == "" {
		t.Fatalf("%v, %v", m, err)
	}
	if _, err := s.Recv(); err == nil {
		t.Error("the stream goes on")
	}
}

func TestAStreamBecomesEventsAndMessages(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s := b.dial(t)
	send(t, s, hello("r"))
	e, ok := (<-b.core.events).(state.SessionOpened)
	if !ok || e.Term != 3 || e.Hello.GetName() != "r" || e.Session == 0 {
		t.Fatalf("event %+v", e)
	}
	send(t, s, heartbeat(1))
	if m, ok := (<-b.core.events).(state.FromRunner); !ok || m.Session != e.Session || m.Message.GetHeartbeat().GetSeq() != 1 || m.Message.GetTerm() != 4 {
		t.Fatalf("event %+v", m)
	}
	for i := range uint64(100) {
		l.Send(state.Send{Session: e.Session, Message: answer(i)})
	}
	for i := range uint64(100) {
		if m, err := s.Recv(); err != nil || m.GetHeartbeatAnswer().GetSeq() != i {
			t.Fatalf("message %d: %v, %v", i, m, err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if closed, ok := (<-b.core.events).(state.SessionClosed); !ok || closed.Session != e.Session || closed.Reason != "the runner closed the connection" {
		t.Fatalf("event %+v", closed)
	}
	second := b.dial(t)
	send(t, second, hello("r"))
	if again, ok := (<-b.core.events).(state.SessionOpened); !ok || again.Session == e.Session {
		t.Fatalf("a session id was used twice: %+v", again)
	}
}

func TestASessionThatTheCoreClosesSaysWhy(t *testing.T) {
	for why, want := range map[state.CloseReason]codes.Code{state.CloseExists: codes.AlreadyExists, state.CloseReplaced: codes.Aborted, state.CloseInvalid: codes.InvalidArgument} {
		b := newBed(t, sessions.Config{})
		l := b.Lead(b.core)
		s := b.dial(t)
		send(t, s, hello("r"))
		id := b.opened(t, l, s, time.Second)
		l.Send(state.Send{Session: id, Message: answer(7)})
		l.CloseSession(state.CloseSession{Session: id, Why: why, Text: "because"})
		if m, err := s.Recv(); err != nil || m.GetHeartbeatAnswer().GetSeq() != 7 {
			t.Fatalf("what was queued before: %v, %v", m, err)
		}
		if _, err := s.Recv(); status.Code(err) != want || status.Convert(err).Message() != "because" {
			t.Errorf("%v", err)
		}
		if closed, ok := (<-b.core.events).(state.SessionClosed); !ok || closed.Session != id || closed.Reason != "because" {
			t.Errorf("event %+v", closed)
		}
		l.End()
		b.stop()
	}
}

func TestALostLeadershipRedirectsEveryRunner(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	l := b.Lead(b.core)
	first, second := b.dial(t), b.dial(t)
	send(t, first, hello("a"))
	b.opened(t, l, first, time.Second)
	send(t, second, hello("b"))
	b.opened(t, l, second, time.Second)
	close(b.core.ended)
	l.End()
	for _, s := range []stream{first, second} {
		if m, err := s.Recv(); err != nil || m.GetRedirect() == nil || m.GetTerm() != 4 {
			t.Errorf("%v, %v", m, err)
		}
		if _, err := s.Recv(); err == nil {
			t.Error("the stream goes on")
		}
	}
	// The next leadership knows nothing of the last one's sessions.
	next := b.Lead(&core{events: make(chan state.Event, 1), ended: make(chan struct{})})
	next.Send(state.Send{Session: 1, Message: answer(1)})
	next.End()
}

func TestARunnerThatReadsNothingLosesItsSession(t *testing.T) {
	b := newBed(t, sessions.Config{Queue: 8})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s := b.dial(t)
	send(t, s, hello("r"))
	id := b.opened(t, l, s, time.Hour)
	big := &runnerv1.SessionResponse{Term: 4, Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{TaskConfig: map[string][]byte{"k": make([]byte, 1<<20)}}}}
	for range 50 { // More than the queue and every buffer on the way hold; never blocks.
		l.Send(state.Send{Session: id, Message: big})
	}
	if closed, ok := (<-b.core.events).(state.SessionClosed); !ok || closed.Reason != "the runner doesn't read its messages: 8 are waiting" {
		t.Fatalf("event %+v", closed)
	}
}

func TestOneStepMayGrantEveryLeaseOfARunner(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s := b.dial(t)
	send(t, s, hello("r"))
	id := b.opened(t, l, s, time.Hour)
	const leases = 10_000
	for task := range uint32(leases) {
		l.Send(state.Send{Session: id, Message: &runnerv1.SessionResponse{Term: 4, Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{Lease: &runnerv1.Lease{Task: task}}}}})
	}
	for task := range uint32(leases) {
		if m, err := s.Recv(); err != nil || m.GetGrant().GetLease().GetTask() != task {
			t.Fatalf("message %d: %v, %v", task, m, err)
		}
	}
}

func TestBrokenBeginningsAreRefused(t *testing.T) {
	b := newBed(t, sessions.Config{MaxSessions: 1})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s := b.dial(t)
	send(t, s, heartbeat(1))
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("without Hello: %v", err)
	}
	s = b.dial(t)
	send(t, s, hello("r"))
	b.opened(t, l, s, time.Second)
	over := b.dial(t)
	if _, err := over.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one session too many: %v", err)
	}
	send(t, s, hello("r"))
	if _, err := s.Recv(); status.Code(err) != codes.InvalidArgument {
		t.Errorf("second Hello: %v", err)
	}
	if _, ok := (<-b.core.events).(state.SessionClosed); !ok {
		t.Error("not told")
	}
}

// TestThreeHeartbeatsOfSilenceEndASession runs on a fake clock.
func TestThreeHeartbeatsOfSilenceEndASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, sessions.Config{})
		defer b.stop()
		l := b.Lead(b.core)
		defer l.End()
		s := b.dial(t)
		send(t, s, hello("r"))
		b.opened(t, l, s, 2*time.Second)
		for i := range uint64(5) {
			time.Sleep(5 * time.Second) //nolint:forbidigo // the bubble's clock
			send(t, s, heartbeat(i))
			if _, ok := (<-b.core.events).(state.FromRunner); !ok {
				t.Fatal("no message")
			}
		}
		began := time.Now()
		if _, err := s.Recv(); status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("silent: %v", err)
		}
		if took := time.Since(began); took < 6*time.Second || took > 7*time.Second {
			t.Errorf("ended after %v", took)
		}
		if closed, ok := (<-b.core.events).(state.SessionClosed); !ok || closed.Reason != "nothing came from the runner for 6s" {
			t.Errorf("event %+v", closed)
		}
	})
}

func ask(id uint64) *runnerv1.SessionResponse {
	return &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Validate{Validate: &runnerv1.Validate{RequestId: id, Connector: "c"}}}
}

func validated(id uint64, text string) *runnerv1.SessionRequest {
	return &runnerv1.SessionRequest{Term: 4, Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{RequestId: id, Error: text}}}
}

func TestAnAnswerGoesToWhoeverAskedThatRunner(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s, other := b.dial(t), b.dial(t)
	send(t, s, hello("r"))
	id := b.opened(t, l, s, time.Second)
	send(t, other, hello("other"))
	b.opened(t, l, other, time.Second)
	done := make(chan string, 1)
	go func() {
		m, err := l.Ask(context.Background(), id, ask)
		if err != nil {
			t.Error(err)
		}
		done <- m.GetValidateAnswer().GetError()
	}()
	m, err := s.Recv()
	if err != nil || m.GetValidate().GetRequestId() == 0 || m.GetTerm() != 4 {
		t.Fatalf("%v, %v", m, err)
	}
	request := m.GetValidate().GetRequestId()
	send(t, other, validated(request, "forged"))
	send(t, other, heartbeat(1)) // Taken after the forged answer.
	if m, ok := (<-b.core.events).(state.FromRunner); !ok || m.Message.GetHeartbeat() == nil {
		t.Fatalf("event %+v", m)
	}
	send(t, s, validated(request+1, "to nobody"))
	send(t, s, validated(request, "right"))
	if got := <-done; got != "right" {
		t.Errorf("answer %q", got)
	}
}

func TestAQuestionEndsWithItsSessionOrItsContext(t *testing.T) {
	b := newBed(t, sessions.Config{})
	defer b.stop()
	l := b.Lead(b.core)
	defer l.End()
	s := b.dial(t)
	send(t, s, hello("r"))
	id := b.opened(t, l, s, time.Second)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := l.Ask(ctx, id, ask); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	gone := make(chan error, 1)
	go func() {
		_, err := l.Ask(context.Background(), id, ask)
		gone <- err
	}()
	for range 2 {
		if _, err := s.Recv(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := <-gone; !errors.Is(err, sessions.ErrGone) {
		t.Errorf("session gone: %v", err)
	}
	if _, err := l.Ask(t.Context(), id, ask); !errors.Is(err, sessions.ErrGone) {
		t.Errorf("no such session: %v", err)
	}
}
