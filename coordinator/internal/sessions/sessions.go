// Package sessions serves runners: one bidirectional stream each, turned into events for the loop that leads, and the loop's messages turned into writes.
//
// While nobody leads here, a stream is answered by Redirect and ends. While a loop leads (Lead to Leadership.End), a stream begins with Hello, which becomes SessionOpened; every message after it becomes FromRunner; its end, for
// whatever reason, becomes one SessionClosed. Messages to a runner wait in a bounded queue with one writer: a runner that doesn't read loses its session rather than holding up the loop. A stream on which nothing came for
// three heartbeats is dead.
//
// The package decides nothing about runners, and keeps nothing across sessions. Answers to questions that the control service asked (Leadership.Ask) go to whoever asked, and never to the loop.
//
// Who owns which goroutine: gRPC's handler supervises a session and starts its reader and its writer; both end when the handler returns, and Close waits for them.
package sessions

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// silentHeartbeats is how many heartbeats may fail to come.
	silentHeartbeats = 3
	// goodbye is how long the last messages of a session may take to be written.
	goodbye = time.Second
)

// Core is the loop that leads.
type Core interface {
	Submit(ctx context.Context, event state.Event) error
}

// Config of a Server.
type Config struct {
	// Leader is the address of another coordinator that leads, to send runners to; empty where none is known.
	Leader func() string
	// Coordinators are the addresses of those that are alive, as far as is known. Default: none.
	Coordinators func() []string
	// Queue is how many messages may wait for one runner. Default 50,000: several for each lease that a runner may hold, since one step may grant or revoke them all.
	Queue int
	// MaxSessions is how many streams there may be. Default 1,000.
	MaxSessions int
	// HelloTimeout is how long a stream may take to send Hello, and to be welcomed. Default 15 s: a write of the config log may take ten.
	HelloTimeout time.Duration
	// Logger. Default: none.
	Logger hclog.Logger
}

// Server is the Coordinator service of runner/v1. It outlives leaderships.
type Server struct {
	runnerv1.UnimplementedCoordinatorServer
	config Config
	log    hclog.Logger
	wait   sync.WaitGroup // readers and writers

	mu      sync.Mutex
	last    state.SessionID // never used twice in this process
	leading *Leadership
	count   int
}

// New makes a Server.
func New(config Config) *Server {
	config.Queue = cmp.Or(config.Queue, 50_000)
	config.MaxSessions = cmp.Or(config.MaxSessions, 1000)
	config.HelloTimeout = cmp.Or(config.HelloTimeout, 15*time.Second)
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	if config.Coordinators == nil {
		config.Coordinators = func() []string { return nil }
	}
	return &Server{config: config, log: config.Logger}
}

// Close waits for what sessions have left running. The gRPC server must have been stopped before.
func (s *Server) Close() { s.wait.Wait() }

// Lead lets runners open sessions with a loop. There is one leadership at a time: End comes before the next Lead.
func (s *Server) Lead(core Core) *Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.leading != nil {
		panic("sessions: a leadership began before the last one had ended")
	}
	s.leading = &Leadership{server: s, core: core, sessions: map[state.SessionID]*session{}, asks: map[uint64]*ask{}}
	return s.leading
}

// Session implements runnerv1.CoordinatorServer.
func (s *Server) Session(stream grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]) error {
	if !s.enter() {
		return errTooMany(s.config.MaxSessions)
	}
	defer s.leave()
	leadership := s.current()
	if leadership == nil {
		return stream.Send(s.redirect("this coordinator doesn't lead"))
	}
	return leadership.serve(stream)
}

func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count >= s.config.MaxSessions {
		return false
	}
	s.count++
	return true
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count--
}

func (s *Server) current() *Leadership {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.leading
}

func (s *Server) nextID() state.SessionID {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.last++
	return s.last
}

// redirect sends a runner to whoever leads.
func (s *Server) redirect(reason string) *runnerv1.SessionResponse {
	return redirect(s.config.Leader(), s.config.Coordinators(), reason)
}

func redirect(leader string, coordinators []string, reason string) *runnerv1.SessionResponse {
	return &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Redirect{Redirect: &runnerv1.Redirect{Leader: leader, Coordinators: coordinators, Reason: reason}}}
}
