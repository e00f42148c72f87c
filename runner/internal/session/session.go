// Package session owns a runner's connection to the coordinator: it dials, keeps the stream and the heartbeats, knows until when each lease may be trusted, asks the questions of a task's start, and hands
// what the coordinator wants to the supervisor.
//
// Its invariants:
//   - A lease's deadline counts from when the answered heartbeat was sent, so that a slow answer never stretches it.
//   - A confirmation is a question sent after it was asked for; none is answered from memory (I3).
//   - The highest term seen is never left behind: whatever comes with a lower one is refused together with its stream (I6).
//   - The receive loop never waits for a task: events go into the supervisor's queue, and where that is full the stream ends (I10).
//
// A stream that ends disturbs no task: the next Hello names everything held, unanswered questions are asked again, and the last status of each task and the last result of each plan are sent again.
//
// It never starts or stops a task, and it never touches Kafka. Where to read next: stream.go, one stream from Hello to its end.
package session

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

// LevelMin and LevelMax are the cluster levels that this runner can work at.
const (
	LevelMin uint32 = 1
	LevelMax uint32 = 1
)

const (
	// redialPause is the time between dials that fail; the first after the end of a stream is at once.
	redialPause = 250 * time.Millisecond
	// welcomeTimeout is how long a dial may take until the coordinator's first answer.
	welcomeTimeout = 5 * time.Second
	// flushTimeout is how long the last messages may take at the end.
	flushTimeout = 2 * time.Second
	// silentHeartbeats without any message make a stream dead.
	silentHeartbeats = 3
	// maxLeases is the most leases of a runner.
	maxLeases = 10_000
)

// Config says who the runner is and whom it talks to.
type Config struct {
	// Name is the runner's name, unique in the cluster.
	Name string
	// ProcessID is random, made at the start of the process.
	ProcessID string
	// Version is the version of Fencepost.
	Version string
	// Host is the host's name, for people.
	Host string
	// Labels are for placement.
	Labels map[string]string
	// Coordinators are addresses to dial, in turn; at least one. Those that a coordinator names are dialled beside them.
	Coordinators []string
	// Cluster is the cluster that the runner is meant for; empty is that of the first coordinator that welcomes it. Another one is never joined.
	Cluster string
	// TLS secures the connection; nil is in the clear.
	TLS *tls.Config
	// DialOptions are added after the session's own.
	DialOptions []grpc.DialOption
	// Deliver hands an Event on. It must not block; an error ends the stream.
	Deliver func(Event) error
	// Logger is required.
	Logger hclog.Logger
}

// Session is a runner's connection. Its methods may be called from any goroutine, also before and after Run.
type Session struct {
	cfg    Config
	leases leases
	box    outbox
	route  route

	mu      sync.Mutex
	term    uint64
	cluster string

	connected atomic.Bool
	joined    atomic.Uint64
}

// New makes a Session. It starts nothing.
func New(cfg Config) (*Session, error) {
	switch {
	case cfg.Name == "" || cfg.ProcessID == "":
		return nil, errors.New("session: a runner needs a name and a process id")
	case len(cfg.Coordinators) == 0:
		return nil, errors.New("session: at least one coordinator's address is needed")
	case cfg.Deliver == nil || cfg.Logger == nil:
		return nil, errors.New("session: Deliver and Logger are needed")
	}
	s := &Session{cfg: cfg, route: route{configured: cfg.Coordinators}, cluster: cfg.Cluster}
	s.leases.deadlines = map[lease.Lease]time.Time{}
	s.box.init()
	return s, nil
}

// Run keeps a stream to the leading coordinator until ctx is done. It then sends what is still waiting, for at most 2 s, and returns nil.
func (s *Session) Run(ctx context.Context) error {
	logged := map[string]string{} // The last error of each address: one that goes on is logged once.
	for ctx.Err() == nil {
		address, begun := s.route.next(), time.Now()
		err := s.connect(ctx, address)
		var to *redirect
		switch {
		case ctx.Err() != nil:
			continue
		case errors.As(err, &to):
			s.route.redirected(to.leader, to.coordinators)
		case s.route.lost():
			s.cfg.Logger.Warn("lost the coordinator", "address", address, "error", err)
			clear(logged)
			if time.Since(begun) >= redialPause {
				continue // Redial at once, unless that would make a loop of streams that end at once.
			}
		case logged[address] != err.Error():
			logged[address] = err.Error()
			if refused(err) {
				s.cfg.Logger.Error("the coordinator refuses this runner", "address", address, "error", err)
			} else {
				s.cfg.Logger.Warn("can't reach the coordinator", "address", address, "error", err)
			}
		}
		if s.route.atOnce() {
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(redialPause):
		}
	}
	return nil
}

// refused says that a coordinator was reached and doesn't want this runner: its name is taken, its levels don't fit, or it belongs to another cluster. It is asked again all the same: what is wrong may be put right there.
func refused(err error) bool {
	var other *otherCluster
	switch status.Code(err) {
	case codes.AlreadyExists, codes.InvalidArgument, codes.FailedPrecondition:
		return true
	}
	return errors.As(err, &other)
}

// connect dials one address and serves one stream to its end.
func (s *Session) connect(ctx context.Context, address string) error {
	conn, err := grpc.NewClient(address, s.dialOptions()...)
	if err != nil {
		return fmt.Errorf("dial %s: %w", address, err)
	}
	defer conn.Close()
	return s.serve(ctx, conn)
}

// Offer replaces what the runner offers, in this and later streams.
func (s *Session) Offer(o Offer) { s.box.setOffer(offerToWire(o)) }

// Status notes how a task is doing. Of several that can't be sent in time only the last one is; a change of state, phase or error goes out at once, anything else once a second.
func (s *Session) Status(st Status) {
	if s.leases.held(st.Lease) {
		s.box.setStatus(st)
	}
}

// Ended gives a lease back. The lease isn't renewed from here on.
func (s *Session) Ended(l lease.Lease, clean bool, reason string) {
	s.leases.drop(l)
	s.box.addEnded(l, clean, false, reason)
}

// HostFailed gives a lease back whose task this host can't run, for another runner to have it.
func (s *Session) HostFailed(l lease.Lease, reason string) {
	s.leases.drop(l)
	s.box.addEnded(l, true, true, reason)
}

// PlanResult sends a plan's newest result, and sends it again on each new stream for as long as the plan is held. A plan is held from its StartPlan on.
func (s *Session) PlanResult(r PlanResult) { s.box.setPlan(r) }

// DropPlan notes that a plan isn't held any more.
func (s *Session) DropPlan(p PlanRef) { s.box.dropPlan(p) }

// Draining tells the coordinator, in this and later streams, that the runner will stop.
func (s *Session) Draining() { s.box.setDraining() }

// Valid says whether a lease may be trusted right now.
func (s *Session) Valid(l lease.Lease) bool { return s.leases.valid(l, time.Now()) }

// Trust says until when a lease may be trusted, and how long a renewal lasts. The zero time is a lease that isn't held. Who finds that the deadline isn't moved on has no leader.
func (s *Session) Trust(l lease.Lease) (until time.Time, ttl time.Duration) { return s.leases.trust(l) }

// member checks that a coordinator is of this runner's cluster, which the first one decides where nobody told.
func (s *Session) member(cluster string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cluster == "" {
		s.cluster = cluster
	}
	if cluster != s.cluster {
		return &otherCluster{is: cluster, wanted: s.cluster}
	}
	return nil
}

// memberOf is the runner's cluster; empty where it isn't known yet.
func (s *Session) memberOf() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cluster
}

// otherCluster is how a stream ends whose coordinator is of another cluster.
type otherCluster struct{ is, wanted string }

// Error says what to do.
func (o *otherCluster) Error() string {
	return fmt.Sprintf("the coordinator is one of cluster %q, and this runner belongs to cluster %q: check --coordinator, or set --cluster to %s and start the runner again", o.is, o.wanted, o.is)
}

// seen notes a coordinator's term. A lower one than any before is refused (I6).
func (s *Session) seen(term uint64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term < s.term {
		return fmt.Errorf("the coordinator is of an older term: %d, and %d has been seen", term, s.term)
	}
	s.term = term
	return nil
}

// highest is the highest term seen.
func (s *Session) highest() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.term
}
