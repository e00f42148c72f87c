package configlog

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	// leaveTimeout is how long leaving the group may take before its session time-out has to do it.
	leaveTimeout = 2 * time.Second
	// outage is how long a candidacy lives without a broker that answers. A member that comes back after a broker's restart goes on; a new one would wait for the old one's session time-out.
	outage        = 20 * time.Second
	outageRetries = 1000
)

// election is one candidacy: a member of the group, elected as long as the log's partition is assigned to it. The group reads nothing and commits nothing.
type election struct {
	client  *kgo.Client
	topic   string
	elected chan struct{} // closed by the first assignment
	lost    chan struct{} // closed when the candidacy has ended, elected or not; reason says why

	mu     sync.Mutex
	won    bool
	reason error
	ended  func(reason error) // the leadership that rests on it; may be nil
}

// runForOffice joins the group. Whoever calls it calls resign.
func (l *Log) runForOffice() (*election, error) {
	e := &election{topic: l.topic, elected: make(chan struct{}), lost: make(chan struct{})}
	client, err := l.config.Settings.NewClient(
		kgo.ConsumerGroup(l.group), kgo.ConsumeTopics(l.topic), kgo.DisableAutoCommit(),
		// A member that joins must not cost the leader its partition.
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(l.config.SessionTimeout), kgo.RebalanceTimeout(l.config.SessionTimeout), kgo.HeartbeatInterval(l.config.SessionTimeout/3),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) { e.assigned(assigned) }),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
			e.revoked(revoked, fmt.Errorf("the group %q moved the leadership: %w", l.group, ErrEnded))
		}),
		kgo.RetryTimeout(outage), kgo.RequestRetries(outageRetries),
		// Losing the partition comes with an error, which says why.
		kgo.WithHooks(&groupErrors{election: e, log: l}),
	)
	if err != nil {
		return nil, err
	}
	client.PauseFetchTopics(l.topic)
	e.client = client
	return e, nil
}

// groupErrors ends a candidacy on errors of the group, missing rights among them.
type groupErrors struct {
	election *election
	log      *Log
}

// OnGroupManageError implements kgo.HookGroupManageError.
func (g *groupErrors) OnGroupManageError(err error) {
	g.election.end(fmt.Errorf("group %q: %w", g.log.group, g.log.explain(err)))
}

func (e *election) assigned(partitions map[string][]int32) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(partitions[e.topic]) > 0 && !e.won {
		e.won = true
		close(e.elected)
	}
}

func (e *election) revoked(partitions map[string][]int32, reason error) {
	if len(partitions[e.topic]) > 0 {
		e.end(reason)
	}
}

func (e *election) end(reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.reason == nil {
		e.reason = reason
		close(e.lost)
		if e.ended != nil {
			e.ended(reason)
		}
	}
}

// carry makes the end of the candidacy the end of a leadership too.
func (e *election) carry(ended func(reason error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = ended
	if e.reason != nil {
		ended(e.reason)
	}
}

// why is set once lost is closed.
func (e *election) why() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.reason
}

// resign leaves the group, so that another member is elected at once.
func (e *election) resign() {
	e.end(ErrEnded)
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	// An error means that the session time-out has to do it.
	_ = e.client.LeaveGroupContext(ctx)
	e.client.Close()
}
