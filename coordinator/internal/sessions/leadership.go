package sessions

import (
	"context"
	"fmt"
	"sync"

	"google.golang.org/grpc"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// maxAsks is how many questions may be open at once.
const maxAsks = 1000

// Leadership is the sessions of one leading loop. Its Send and CloseSession are what the loop sends through.
type Leadership struct {
	server *Server
	core   Core

	mu       sync.Mutex
	ended    bool
	sessions map[state.SessionID]*session
	asks     map[uint64]*ask
	lastAsk  uint64
}

// ask is a question to a runner that the control service waits for.
type ask struct {
	session *session
	answer  chan *runnerv1.SessionRequest // holds one answer
}

func (l *Leadership) serve(stream grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]) error {
	s := newSession(l, stream)
	if !l.add(s) {
		return stream.Send(l.server.redirect("this coordinator doesn't lead any more"))
	}
	defer l.remove(s)
	return s.run()
}

func (l *Leadership) add(s *session) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return false
	}
	l.sessions[s.id] = s
	return true
}

// remove forgets a session and tells whoever still waits for its answers.
func (l *Leadership) remove(s *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.sessions, s.id)
	for id, a := range l.asks {
		if a.session == s {
			delete(l.asks, id)
			close(a.answer)
		}
	}
}

func (l *Leadership) session(id state.SessionID) *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sessions[id]
}

// Send queues a message for a runner. It never blocks: where the queue is full, the session ends.
func (l *Leadership) Send(e state.Send) {
	if s := l.session(e.Session); s != nil {
		s.send(e.Message)
	}
}

// CloseSession ends a session after what is queued for it.
func (l *Leadership) CloseSession(e state.CloseSession) {
	if s := l.session(e.Session); s != nil {
		last, err := closing(e)
		s.close(last, err)
	}
}

// Ask sends a question to a runner and waits for its answer. The function makes the message with the request id that it is given. The error is ErrGone where the session ended first.
func (l *Leadership) Ask(ctx context.Context, id state.SessionID, question func(requestID uint64) *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
	request, a, err := l.open(id)
	if err != nil {
		return nil, err
	}
	defer l.forget(request)
	message := question(request)
	message.Term = a.session.term.Load()
	a.session.send(message)
	select {
	case answer, ok := <-a.answer:
		if !ok {
			return nil, ErrGone
		}
		return answer, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("runner %q hasn't answered: %w", a.session.name(), context.Cause(ctx))
	}
}

func (l *Leadership) open(id state.SessionID) (uint64, *ask, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sessions[id]
	if s == nil {
		return 0, nil, ErrGone
	}
	if len(l.asks) >= maxAsks {
		return 0, nil, errBusy
	}
	l.lastAsk++
	a := &ask{session: s, answer: make(chan *runnerv1.SessionRequest, 1)}
	l.asks[l.lastAsk] = a
	return l.lastAsk, a, nil
}

func (l *Leadership) forget(request uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.asks, request)
}

// answered hands an answer to whoever asked; an answer that nobody waits for any more, or from another runner than was asked, is dropped.
func (l *Leadership) answered(s *session, request uint64, message *runnerv1.SessionRequest) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.asks[request]; a != nil && a.session == s {
		delete(l.asks, request)
		a.answer <- message // Room for the only answer.
	}
}

// Over lets no more sessions begin: the loop has ended. Those that there are stay open, so that End can tell their runners where to go.
func (l *Leadership) Over() {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.server.leading == l {
		l.server.leading = nil
	}
}

// End sends every runner to whoever is known to lead by now. The sessions end by themselves within a second or so; the loop must have ended.
func (l *Leadership) End() {
	l.Over()
	l.mu.Lock()
	l.ended = true
	open := make([]*session, 0, len(l.sessions))
	for _, s := range l.sessions {
		open = append(open, s)
	}
	l.mu.Unlock()
	for _, s := range open {
		s.close(l.server.redirect("this coordinator doesn't lead any more"), nil)
	}
}
