package configlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// leaveTimeout is how long leaving the group may take before its session time-out has to do it.
const leaveTimeout = 2 * time.Second

// sayAgain is how often the log is told of an interruption that lasts.
const sayAgain = 30 * time.Second

// heartbeat is how often those of the group come: they are how those who wait hear that the leader has left: a hand-over takes no longer than one of them and a take-over. More often than a session needs them.
const heartbeat = 250 * time.Millisecond

// election is one candidacy: a member of the group, elected while the log's partition is assigned to it. It goes on through lost elections and through brokers that are away: the client joins again under its old name, and nobody
// has to wait for that member's session time-out. The group reads nothing and commits nothing.
type election struct {
	client *kgo.Client
	log    *Log

	changed chan struct{} // one token: won or failed has changed

	mu     sync.Mutex
	won    bool
	reason error              // why it isn't won any more
	failed error              // it can't be won: a right is missing, for example
	lost   func(reason error) // told when it is won no more; may be nil

	interrupted time.Time // since when the group can't be taken part in; zero while it can
	said        time.Time // when the log said so last
}

// runForOffice joins the group. Whoever calls it calls resign.
func (l *Log) runForOffice() (*election, error) {
	e := &election{log: l, changed: make(chan struct{}, 1), reason: ErrEnded}
	client, err := l.config.Settings.NewClient(
		kgo.ClientID(clientID(l.self)), kgo.ConsumerGroup(l.group), kgo.ConsumeTopics(l.topic), kgo.DisableAutoCommit(),
		// A member that joins must not cost the leader its partition.
		kgo.Balancers(kgo.CooperativeStickyBalancer()),
		kgo.SessionTimeout(l.config.SessionTimeout), kgo.RebalanceTimeout(l.config.SessionTimeout), kgo.HeartbeatInterval(min(heartbeat, l.config.SessionTimeout/3)),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, assigned map[string][]int32) {
			e.goesOn() // It is called for every generation of the group, also where nothing is assigned.
			if len(assigned[l.topic]) > 0 {
				e.set(true, nil)
			}
		}),
		kgo.OnPartitionsRevoked(func(_ context.Context, _ *kgo.Client, revoked map[string][]int32) {
			if len(revoked[l.topic]) > 0 {
				e.set(false, fmt.Errorf("the group %q moved the leadership: %w", l.group, ErrEnded))
			}
		}),
		// Losing the partition comes with an error, which says why.
		kgo.WithHooks(e),
	)
	if err != nil {
		return nil, err
	}
	client.PauseFetchTopics(l.topic)
	e.client = client
	return e, nil
}

// OnGroupManageError implements kgo.HookGroupManageError: the partition is lost, and the client joins again.
func (e *election) OnGroupManageError(err error) {
	reason := fmt.Errorf("group %q: %w", e.log.group, e.log.explain(err))
	e.stops(err)
	if hopeless(err) {
		e.mu.Lock()
		e.failed = reason
		e.mu.Unlock()
	}
	e.set(false, reason)
}

// stops notes that the group can't be taken part in, and why. The client tries again several times a second, so the log hears of it once and now and then.
func (e *election) stops(cause error) {
	e.log.trouble.Store(&cause)
	e.mu.Lock()
	defer e.mu.Unlock()
	now := time.Now()
	switch {
	case e.interrupted.IsZero():
		e.interrupted, e.said = now, now
		e.log.log.Warn("the election is interrupted", "group", e.log.group, "cause", e.log.config.Settings.Explain(cause))
	case now.Sub(e.said) >= sayAgain:
		e.said = now
		e.log.log.Warn("the election is still interrupted", "group", e.log.group, "for", now.Sub(e.interrupted).Round(time.Second), "cause", e.log.config.Settings.Explain(cause))
	}
}

// goesOn notes that this coordinator takes part in the group.
func (e *election) goesOn() {
	e.log.trouble.Store(nil)
	e.log.regrouped()
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.interrupted.IsZero() {
		e.log.log.Info("the election goes on", "group", e.log.group, "after", time.Since(e.interrupted).Round(time.Millisecond))
		e.interrupted = time.Time{}
	}
}

// hopeless says that joining again gives the same answer until a person does something. An answer that isn't known here is taken for one, so that somebody is told.
func hopeless(err error) bool {
	var code *kerr.Error
	if !errors.As(err, &code) || code.Retriable {
		return false
	}
	switch code {
	case kerr.UnknownMemberID, kerr.IllegalGeneration, kerr.RebalanceInProgress, kerr.MemberIDRequired:
		return false
	}
	return true
}

func (e *election) set(won bool, reason error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	lost := e.lost
	if e.won = won; !won {
		e.reason, e.lost = reason, nil
		if lost != nil {
			lost(reason)
		}
	}
	select {
	case e.changed <- struct{}{}:
	default:
	}
}

// await waits until the election is won.
func (e *election) await(ctx context.Context) error {
	for {
		won, failed := e.stands()
		if won || failed != nil {
			return failed
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-e.changed:
		}
	}
}

func (e *election) stands() (won bool, failed error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.won, e.failed
}

// onLoss says whom to tell once when the election is lost; at once where it is lost already.
func (e *election) onLoss(tell func(reason error)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.lost = tell; !e.won {
		e.lost = nil
		tell(e.reason)
	}
}

// resign leaves the group, so that another member is elected at once.
func (e *election) resign() {
	e.set(false, ErrEnded)
	ctx, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	// An error means that the session time-out has to do it.
	_ = e.client.LeaveGroupContext(ctx)
	e.client.Close()
}
