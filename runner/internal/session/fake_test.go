package session_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	ttl       = 10 * time.Second
	heartbeat = time.Second
)

var orders = lease.Lease{Connector: "orders", Incarnation: "i1", Generation: 2, Task: 1, Epoch: 7}

// bed is a session against coordinators that a test plays, all in one bubble.
type bed struct {
	*testing.T
	session *session.Session
	events  chan session.Event
	started time.Time
	full    atomic.Bool // Deliver refuses.
	mu      sync.Mutex
	dials   int
	nets    map[string]*bufconn.Listener
	streams map[string]chan *peer
	servers []*grpc.Server
	stop    context.CancelFunc
	ended   chan error
}

// peer is the coordinator's end of one stream.
type peer struct {
	t    *testing.T
	in   chan *runnerv1.SessionRequest
	rpc  grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]
	end  chan error // What the test puts here ends the stream.
	term uint64
}

type server struct {
	runnerv1.UnimplementedCoordinatorServer
	t       *testing.T
	streams chan *peer
}

func (s *server) Session(rpc grpc.BidiStreamingServer[runnerv1.SessionRequest, runnerv1.SessionResponse]) error {
	p := &peer{t: s.t, rpc: rpc, in: make(chan *runnerv1.SessionRequest, 1000), end: make(chan error, 1), term: 1}
	received := make(chan struct{})
	go func() {
		defer close(received)
		for {
			m, err := rpc.Recv()
			if err != nil {
				close(p.in)
				return
			}
			p.in <- m
		}
	}()
	s.streams <- p
	select {
	case err := <-p.end:
		return err
	case <-received:
		return nil
	}
}

// run runs a test in a bubble with a session that knows the named coordinators.
//
// It is given all of them as its coordinators, or those that are named at last.
func run(t *testing.T, names []string, test func(t *bed), given ...string) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t, names, given)
		defer b.close()
		test(b)
	})
}

// newBed starts a session and its coordinators, in a bubble.
func newBed(t *testing.T, names, given []string, opts ...grpc.ServerOption) *bed {
	t.Helper()
	b := &bed{T: t, events: make(chan session.Event, 100), nets: map[string]*bufconn.Listener{}, streams: map[string]chan *peer{}, started: time.Now(), ended: make(chan error, 1)}
	for _, n := range names {
		b.nets[n], b.streams[n] = bufconn.Listen(1<<20), make(chan *peer, 100)
		s := grpc.NewServer(opts...)
		runnerv1.RegisterCoordinatorServer(s, &server{t: t, streams: b.streams[n]})
		go s.Serve(b.nets[n])
		b.servers = append(b.servers, s)
	}
	var addresses []string
	if given == nil {
		given = names
	}
	for _, n := range given {
		addresses = append(addresses, "passthrough:///"+n)
	}
	s, err := session.New(session.Config{
		Name: "runner-1", ProcessID: "p1", Version: "test", Coordinators: addresses, Logger: hclog.NewNullLogger(),
		Deliver: func(e session.Event) error {
			if b.full.Load() {
				return errors.New("the queue is full")
			}
			b.events <- e
			return nil
		},
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			b.mu.Lock()
			b.dials++
			l := b.nets[address]
			b.mu.Unlock()
			if l == nil {
				return nil, errors.New("nobody listens")
			}
			return l.DialContext(ctx)
		})},
	})
	if err != nil {
		t.Fatal(err)
	}
	b.session = s
	ctx, stop := context.WithCancel(t.Context())
	b.stop = stop
	go func() { b.ended <- s.Run(ctx) }()
	return b
}

// close ends the session and its coordinators.
func (b *bed) close() {
	b.stop()
	if err := <-b.ended; err != nil {
		b.Errorf("Run: %v", err)
	}
	for _, s := range b.servers {
		s.Stop()
	}
}

// accept waits for a stream and its Hello.
func (b *bed) accept(name string) (*peer, *runnerv1.Hello) {
	b.Helper()
	var p *peer
	select {
	case p = <-b.streams[name]:
	case <-time.After(time.Minute):
		b.Fatalf("no session at %s", name)
	}
	hello := p.next().GetHello()
	if hello == nil {
		b.Fatal("the first message isn't Hello")
	}
	return p, hello
}

// welcome waits for a stream and accepts it.
func (b *bed) welcome(name string) (*peer, *runnerv1.Hello) {
	b.Helper()
	p, hello := b.accept(name)
	p.welcome()
	if _, ok := b.event().(*session.Welcomed); !ok {
		b.Fatal("no Welcomed")
	}
	return p, hello
}

func (p *peer) welcome() {
	p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Welcome{Welcome: &runnerv1.Welcome{
		Cluster: "test", LeaseTtlMs: uint64(ttl.Milliseconds()), HeartbeatMs: uint64(heartbeat.Milliseconds()), Level: 1,
	}}})
}

func (p *peer) send(m *runnerv1.SessionResponse) {
	p.t.Helper()
	if m.Term == 0 {
		m.Term = p.term
	}
	if err := p.rpc.Send(m); err != nil {
		p.t.Fatal(err)
	}
}

// next is the next message.
func (p *peer) next() *runnerv1.SessionRequest {
	p.t.Helper()
	select {
	case m := <-p.in:
		if m == nil {
			p.t.Fatal("the stream has ended")
		}
		return m
	case <-time.After(time.Minute):
		p.t.Fatal("nothing came")
	}
	return nil
}

// until is the next message for which pick isn't nil; heartbeats on the way are answered where answer is set.
func until[T any](p *peer, answer bool, pick func(*runnerv1.SessionRequest) *T) *T {
	p.t.Helper()
	for {
		m := p.next()
		if got := pick(m); got != nil {
			return got
		}
		if h := m.GetHeartbeat(); h != nil && answer {
			p.renew(h)
		}
	}
}

// renew answers a heartbeat.
func (p *peer) renew(h *runnerv1.Heartbeat, lost ...*runnerv1.Lease) {
	p.t.Helper()
	p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_HeartbeatAnswer{HeartbeatAnswer: &runnerv1.HeartbeatAnswer{Seq: h.GetSeq(), TtlMs: uint64(ttl.Milliseconds()), Lost: lost}}})
}

// serve answers heartbeats until the stream ends, and drops everything else.
func (p *peer) serve() {
	go func() {
		for m := range p.in {
			if h := m.GetHeartbeat(); h != nil {
				_ = p.rpc.Send(&runnerv1.SessionResponse{Term: p.term, Message: &runnerv1.SessionResponse_HeartbeatAnswer{HeartbeatAnswer: &runnerv1.HeartbeatAnswer{Seq: h.GetSeq(), TtlMs: uint64(ttl.Milliseconds())}}})
			}
		}
	}()
}

// grant gives the session a lease.
func (b *bed) grant(p *peer, l lease.Lease) {
	b.Helper()
	p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_Grant{Grant: &runnerv1.Grant{Lease: toWire(l), TtlMs: uint64(ttl.Milliseconds())}}})
	if g, ok := b.event().(*session.Grant); !ok || g.Lease != l {
		b.Fatalf("no Grant of %s", l)
	}
}

// plan gives the session a plan.
func (b *bed) plan(p *peer, ref session.PlanRef) {
	b.Helper()
	p.send(&runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_StartPlan{StartPlan: &runnerv1.StartPlan{
		Plan: &runnerv1.PlanRef{Connector: ref.Connector, Incarnation: ref.Incarnation, PlanEpoch: ref.Epoch}, TasksMax: 1,
	}}})
	if s, ok := b.event().(*session.StartPlan); !ok || s.Plan != ref {
		b.Fatalf("no StartPlan of %+v", ref)
	}
}

func (b *bed) event() session.Event {
	b.Helper()
	select {
	case e := <-b.events:
		return e
	case <-time.After(time.Minute):
		b.Fatal("no event")
	}
	return nil
}

// listen makes a coordinator's address reachable, or not where l is nil. It returns the number of dials since the last call, and what listened there.
func (b *bed) listen(name string, l *bufconn.Listener) (int, *bufconn.Listener) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n, before := b.dials, b.nets[name]
	b.dials, b.nets[name] = 0, l
	return n, before
}

// at is the time since the test began.
func (b *bed) at() time.Duration { return time.Since(b.started) }

// wait lets time pass, and everything that falls due in it happen.
func wait(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

func toWire(l lease.Lease) *runnerv1.Lease {
	return &runnerv1.Lease{Connector: l.Connector, Incarnation: l.Incarnation, Generation: l.Generation, Task: l.Task, Epoch: l.Epoch}
}

func TestConfigIsChecked(t *testing.T) {
	good := session.Config{Name: "a", ProcessID: "b", Coordinators: []string{"c"}, Deliver: func(session.Event) error { return nil }, Logger: hclog.NewNullLogger()}
	if _, err := session.New(good); err != nil {
		t.Fatal(err)
	}
	for _, change := range []func(*session.Config){
		func(c *session.Config) { c.Name = "" }, func(c *session.Config) { c.ProcessID = "" }, func(c *session.Config) { c.Coordinators = nil },
		func(c *session.Config) { c.Deliver = nil }, func(c *session.Config) { c.Logger = nil },
	} {
		c := good
		change(&c)
		if _, err := session.New(c); err == nil || !strings.HasPrefix(err.Error(), "session: ") {
			t.Errorf("got %v", err)
		}
	}
}
