package session

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// errDone is how a stream ends that the runner itself ended.
var errDone = errors.New("the session is over")

// stream is one connection's life, from Hello to its end. Three goroutines belong to it: one receives, one sends, one watches for silence.
type stream struct {
	s      *Session
	rpc    grpc.BidiStreamingClient[runnerv1.SessionRequest, runnerv1.SessionResponse]
	number uint64
	// stop is done when the runner goes; what waits is then sent before the stream ends.
	stop context.Context

	welcomed  chan struct{} // Closed by the receiver.
	heartbeat time.Duration // Set before welcomed is closed.
	heard     atomic.Int64  // When a message last came, in nanoseconds since begun.
	begun     time.Time
	beats     beats
}

// serve runs one stream to its end.
func (s *Session) serve(ctx context.Context, conn *grpc.ClientConn) error {
	base, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	group, inner := errgroup.WithContext(base)
	// While it opens, the end of ctx ends it; from then on send and watch see to a good end.
	opening := context.AfterFunc(ctx, cancel)
	rpc, err := runnerv1.NewCoordinatorClient(conn).Session(inner)
	opening()
	if err != nil {
		return fmt.Errorf("open a session: %w", err)
	}
	st := &stream{s: s, rpc: rpc, stop: ctx, welcomed: make(chan struct{}), begun: time.Now()}
	offer, plans, draining, number := s.box.reopen()
	st.number = number
	hello := s.hello(offer, plans)
	hello.Draining, hello.WarmsUp = draining, true
	defer s.connected.Store(false)
	group.Go(st.receive)
	group.Go(func() error { return st.send(inner, hello) })
	group.Go(func() error { return st.watch(inner) })
	return group.Wait()
}

// hello names everything that the runner holds, so that a new stream disturbs no task.
func (s *Session) hello(offer *runnerv1.Offer, plans []PlanRef) *runnerv1.Hello {
	low, high := levels()
	h := &runnerv1.Hello{
		Name: s.cfg.Name, ProcessId: s.cfg.ProcessID, Version: s.cfg.Version, LevelMin: low, LevelMax: high, Cluster: s.memberOf(), Labels: s.cfg.Labels, Host: s.cfg.Host, Offer: offer,
	}
	for _, l := range s.leases.all() {
		h.Held = append(h.Held, leaseToWire(l))
	}
	for _, p := range plans {
		h.Plans = append(h.Plans, planRefToWire(p))
	}
	return h
}

// receive takes messages until the stream ends. It waits for nothing else.
func (st *stream) receive() error {
	for {
		m, err := st.rpc.Recv()
		if errors.Is(err, io.EOF) {
			return errors.New("the coordinator ended the session")
		}
		if err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		st.heard.Store(int64(time.Since(st.begun)))
		if r := m.GetRedirect(); r != nil {
			return &redirect{leader: r.GetLeader(), reason: r.GetReason(), coordinators: r.GetCoordinators()}
		}
		// I6: an old leader that doesn't know yet is left alone.
		if err := st.s.seen(m.GetTerm()); err != nil {
			return err
		}
		if err := st.take(m); err != nil {
			return err
		}
	}
}

// take handles one message.
func (st *stream) take(m *runnerv1.SessionResponse) error {
	if w := m.GetWelcome(); w != nil {
		return st.welcome(w)
	}
	if st.heartbeat == 0 {
		return errors.New("protocol error: the coordinator sent something before Welcome")
	}
	if c := m.GetClusterChanged(); c != nil {
		st.s.route.learn(c.GetCoordinators())
		st.s.cfg.Logger.Debug("the cluster has changed", "level", c.GetLevel(), "coordinators", c.GetCoordinators())
		return nil
	}
	if a := m.GetHeartbeatAnswer(); a != nil {
		return st.renew(a)
	}
	if g := m.GetGrant(); g != nil {
		return st.grant(g)
	}
	if id, got, ok := answerFromWire(m); ok {
		st.s.box.answered(id, got)
		return nil
	}
	event, err := eventFromWire(m, st.number)
	if err != nil {
		return fmt.Errorf("protocol error: %w", err)
	}
	if event == nil {
		return nil // A message of a later version.
	}
	if p, ok := event.(*StartPlan); ok {
		// Held from here on, as a lease is: a stream that ends before the supervisor has come to it must not make the coordinator start the plan elsewhere.
		st.s.box.holdPlan(p.Plan)
	}
	if d, ok := event.(*Drain); ok {
		st.s.box.setDrained(!d.Undo)
	}
	if r, ok := event.(*Revoke); ok && !r.Drain {
		st.s.box.refuse(r.Lease, cmp.Or(r.Reason, "it was taken back"))
	}
	return st.s.cfg.Deliver(event)
}

// welcome starts the heartbeats.
func (st *stream) welcome(w *runnerv1.Welcome) error {
	if st.heartbeat != 0 {
		return errors.New("protocol error: a second Welcome")
	}
	if w.GetHeartbeatMs() == 0 || w.GetHeartbeatMs() >= w.GetLeaseTtlMs() || w.GetLeaseTtlMs() > uint64(24*time.Hour/time.Millisecond) {
		return fmt.Errorf("protocol error: heartbeats every %d ms for leases of %d ms", w.GetHeartbeatMs(), w.GetLeaseTtlMs())
	}
	if err := st.s.member(w.GetCluster()); err != nil {
		return err
	}
	st.heartbeat = milliseconds(w.GetHeartbeatMs())
	st.s.leases.lasting(milliseconds(w.GetLeaseTtlMs()))
	st.s.route.welcomed(w.GetCoordinators())
	close(st.welcomed)
	st.s.connected.Store(true)
	st.s.joined.Add(1)
	st.s.cfg.Logger.Info("joined the cluster", "cluster", w.GetCluster(), "term", st.s.highest(), "lease_ttl_ms", w.GetLeaseTtlMs())
	return st.s.cfg.Deliver(&Welcomed{Cluster: w.GetCluster(), LeaseTTL: milliseconds(w.GetLeaseTtlMs())})
}

// renew moves deadlines: they count from when the heartbeat was sent.
func (st *stream) renew(a *runnerv1.HeartbeatAnswer) error {
	sentAt, leases, ok := st.beats.take(a.GetSeq())
	if !ok {
		return nil // So late that its heartbeat has been forgotten: it could renew nothing.
	}
	lost := make([]lease.Lease, 0, len(a.GetLost()))
	for _, l := range a.GetLost() {
		lost = append(lost, leaseFromWire(l))
	}
	st.s.leases.renew(slices.DeleteFunc(leases, func(l lease.Lease) bool { return slices.Contains(lost, l) }), sentAt.Add(milliseconds(a.GetTtlMs())))
	for _, l := range lost {
		st.s.box.forget(l)
		st.s.box.refuse(l, "it is over")
		if !st.s.leases.drop(l) {
			continue // Given back meanwhile.
		}
		if err := st.s.cfg.Deliver(&Lost{Lease: l}); err != nil {
			return err
		}
	}
	return nil
}

// grant notes a lease and hands it on. Its time counts from one heartbeat before it came, since it may have been on its way that long.
func (st *stream) grant(w *runnerv1.Grant) error {
	g := grantFromWire(w)
	if !st.s.leases.add(g.Lease, time.Now().Add(milliseconds(w.GetTtlMs())-st.heartbeat)) {
		st.s.box.addEnded(g.Lease, true, false, fmt.Sprintf("this runner holds %d leases already, the most that are possible", maxLeases))
		return nil
	}
	return st.s.cfg.Deliver(g)
}

// send sends Hello, and after Welcome heartbeats and whatever waits.
func (st *stream) send(ctx context.Context, hello *runnerv1.Hello) error {
	if err := st.write(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Hello{Hello: hello}}); err != nil {
		return err
	}
	select {
	case <-st.welcomed:
	case <-ctx.Done():
		return nil
	case <-st.stop.Done():
		return errDone
	}
	beat, status := time.NewTicker(st.heartbeat), time.NewTicker(statusPause)
	defer beat.Stop()
	defer status.Stop()
	for due := true; ; {
		if due {
			if err := st.beat(); err != nil {
				return err
			}
		}
		if err := st.empty(beat.C); err != nil {
			return err
		}
		due = false
		select {
		case <-beat.C:
			due = true
		case <-status.C:
			st.s.box.statusesDue()
		case <-st.s.box.wake:
		case <-ctx.Done():
			return nil
		case <-st.stop.Done():
			return st.finish()
		}
	}
}

// empty sends all that waits; heartbeats that fall due meanwhile go first.
func (st *stream) empty(beat <-chan time.Time) error {
	for {
		select {
		case <-beat:
			if err := st.beat(); err != nil {
				return err
			}
		default:
		}
		m := st.s.box.next()
		if m == nil {
			return nil
		}
		if err := st.write(m); err != nil {
			return err
		}
	}
}

// beat sends a heartbeat with all leases. The time is taken before the call, so that however long the message takes to leave, no deadline is later than the coordinator's.
func (st *stream) beat() error {
	leases := st.s.leases.all()
	h := &runnerv1.Heartbeat{Seq: st.beats.add(time.Now(), leases)}
	for _, l := range leases {
		h.Leases = append(h.Leases, leaseToWire(l))
	}
	return st.write(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: h}})
}

// finish sends what still waits and ends the stream.
func (st *stream) finish() error {
	for m := st.s.box.next(); m != nil; m = st.s.box.next() {
		if err := st.write(m); err != nil {
			return err
		}
	}
	if err := st.rpc.CloseSend(); err != nil {
		return fmt.Errorf("close the session: %w", err)
	}
	return nil // The coordinator ends the stream, or watch does.
}

// write sends one message with the highest term seen.
func (st *stream) write(m *runnerv1.SessionRequest) error {
	m.Term = st.s.highest()
	err := st.rpc.Send(m)
	if errors.Is(err, io.EOF) {
		return nil // The stream has ended; receive has the reason.
	}
	if err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return nil
}

// watch ends a stream that is dead: no Welcome in time, nothing heard for three heartbeats, or an end that takes too long.
func (st *stream) watch(ctx context.Context) error {
	select {
	case <-st.welcomed:
	case <-ctx.Done():
		return nil
	case <-st.stop.Done():
		return errDone
	case <-time.After(welcomeTimeout):
		return fmt.Errorf("no answer within %s", welcomeTimeout)
	}
	ticker := time.NewTicker(st.heartbeat)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-st.stop.Done():
			select {
			case <-ctx.Done():
			case <-time.After(flushTimeout):
			}
			return errDone
		case <-ticker.C:
			if silent := time.Since(st.begun) - time.Duration(st.heard.Load()); silent >= silentHeartbeats*st.heartbeat {
				return fmt.Errorf("nothing heard for %s", silent)
			}
		}
	}
}
