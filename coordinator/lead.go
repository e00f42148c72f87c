package coordinator

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/control"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/metrics"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// reachTimeout is how long the brokers are asked for before a line in the log says that none answers.
	reachTimeout = 5 * time.Second
	// retryDelay is how long the next try waits after one that failed.
	retryDelay = 2 * time.Second
	// unfitDelay is how long a coordinator that can't lead with the log leaves the election to others, where nothing is written into the log meanwhile.
	unfitDelay = 30 * time.Second
	// sayAgain is how often the log is told of a cause that stays.
	sayAgain, mostCauses = 30 * time.Second, 100
	// A coordinator that stops waits as long as this for its successor, so that its runners and clients hear where to go.
	successorWait, successorPoll = time.Second, 20 * time.Millisecond
)

// errUnfit says that this coordinator can't lead with the log as it is.
var errUnfit = errors.New("this coordinator can't lead")

// stand stands for election and leads, again and again, until ctx ends.
func (c *Coordinator) stand(ctx context.Context) error {
	defer c.store.Resign()
	held := 0 // how often in a row the log was held
	for {
		err := c.term(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if held++; !errors.Is(err, configlog.ErrHeld) {
			held = 0
		}
		switch {
		case errors.Is(err, configlog.ErrHeld):
			c.failed.Store(&err)
			c.elects(false)
			delay := min(retryDelay<<min(held-1, 16), unfitDelay)
			if c.silent.ends(err) {
				c.log.Error("can't lead, and no other coordinator can", "error", err, "next_try", delay)
			}
			c.pause(ctx, delay, c.store.Grown()) // It grows for those who follow as soon as it is free.
		case errors.Is(err, errUnfit), errors.Is(err, configlog.ErrDamaged):
			c.failed.Store(&err)
			c.elects(false)
			if c.silent.ends(err) {
				c.log.Error("can't lead; another coordinator may", "error", err, "next_try", unfitDelay)
			}
			c.pause(ctx, unfitDelay, c.store.Grown())
		case err != nil:
			c.failed.Store(&err)
			c.elects(false)
			if c.silent.ends(err) {
				c.log.Warn("can't take part in the election", "bootstrap_servers", c.settings.String(), "cause", c.settings.Explain(err), "next_try", retryDelay)
			}
			c.pause(ctx, retryDelay, nil)
		}
	}
}

// pause waits for a time, or until somebody has news.
func (c *Coordinator) pause(ctx context.Context, delay time.Duration, news <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-time.After(delay):
	case <-news:
		select { // What is being put right may take more than one record.
		case <-ctx.Done():
		case <-time.After(retryDelay):
		}
	}
}

// silence keeps the log from hearing of one cause again and again: when each was said last. It belongs to one goroutine.
type silence map[string]time.Time

// ends says whether a cause is to be said: it is a new one, or it was said long ago.
func (s silence) ends(cause error) bool {
	text, now := cause.Error(), time.Now()
	if said, is := s[text]; is && now.Sub(said) < sayAgain {
		return false
	}
	if len(s) >= mostCauses {
		clear(s)
	}
	s[text] = now
	return true
}

// term is one candidacy and, where it is won, one leadership: nil then. A coordinator that can't lead at all leaves the election; one that led and lost the log stays in it.
func (c *Coordinator) term(ctx context.Context) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	if err := c.fit(ctx); err != nil {
		c.store.Resign()
		return err
	}
	c.failed.Store(nil)
	c.elects(true)
	c.log.Debug("standing for election")
	leadership, err := c.store.Campaign(ctx)
	if err != nil {
		return err
	}
	defer leadership.End()
	st, err := c.load(leadership.Content())
	if err != nil {
		c.store.Resign()
		return err
	}
	clear(c.silent)
	led, cause := c.lead(ctx, leadership, st)
	switch {
	case ctx.Err() != nil:
		c.log.Info("the leadership is given up")
	case led:
		c.log.Warn("the leadership is lost", "cause", cause)
	default:
		c.store.Resign()
		return fmt.Errorf("begin to lead: %w", cause)
	}
	return nil
}

// fit reads the log before this coordinator stands for election: where it couldn't lead with it, being elected would only hold up the others.
func (c *Coordinator) fit(ctx context.Context) error {
	content, err := c.store.Peek(ctx)
	if err != nil || content == nil {
		return err
	}
	_, err = c.load(content)
	return err
}

// reach asks whether any broker answers, with the cause where none does.
func (c *Coordinator) reach(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	return c.client.Ping(ctx)
}

// absent is why this coordinator has no part in the election; empty where nothing is known to be wrong.
func (c *Coordinator) absent() string {
	err := c.store.Trouble()
	if failed := c.failed.Load(); err == nil && failed != nil {
		err = *failed
	}
	switch {
	case err == nil:
		return ""
	case errors.Is(err, errUnfit), errors.Is(err, configlog.ErrDamaged), errors.Is(err, configlog.ErrTwin), errors.Is(err, configlog.ErrHeld):
		return err.Error()
	case kafkaclient.Unreachable(err):
		return "this coordinator can't reach Kafka: " + c.settings.Explain(err)
	}
	return "this coordinator can't take part in the election: " + c.settings.Explain(err)
}

// load makes a State of what the log holds. What can't be understood must not be led.
func (c *Coordinator) load(content *configlog.Content) (*state.State, error) {
	self, roster := c.store.Self(), c.store.Roster()
	if len(roster) == 0 {
		roster = []state.Coordinator{self}
	}
	st := state.New(state.Options{Cluster: c.config.Cluster, Coordinators: roster, Version: self.Version, LevelMin: self.LevelMin, LevelMax: self.LevelMax, LeaseTTL: c.config.LeaseTTL, PlainLeaseTTL: c.config.AtLeastOnceLeaseTTL, NoBalance: c.config.NoBalance})
	for _, record := range content.Records {
		if err := st.Load(record); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnfit, err)
		}
	}
	if err := st.Check(content.Begin, c.config.AcceptLostRecords); err != nil {
		return nil, fmt.Errorf("%w: %w", errUnfit, err)
	}
	return st, nil
}

// lead leads until ctx ends or the leadership is lost, and says whether its first transaction was committed. When it returns, everything that was made for the leadership has ended too.
//
// A coordinator that stops leaves the election before it sends its runners away, so that they hear who leads next: no task needs it meanwhile.
func (c *Coordinator) lead(stopping context.Context, leadership *configlog.Leadership, st *state.State) (led bool, cause error) {
	ctx, cancel := context.WithCancelCause(stopping)
	defer cancel(nil)
	core := loop.New(loop.Config{State: st, Logger: c.log.Named("loop")})
	events := c.metrics.Events(core)
	desk := fence.NewDesk(c.fencer, events.Submit)
	runners := c.sessions.Lead(events)
	keeper := c.history.Lead(core)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		// Whatever ends the loop ends the leadership, and what it asked for ends after it.
		defer cancel(nil)
		err := core.Run(ctx, c.metrics.Shell(loop.Shell{Log: leadership, Fencer: desk, Sender: runners, History: keeper}))
		runners.Over()
		return err
	})
	group.Go(func() error { return desk.Run(ctx) })
	group.Go(func() error { return keeper.Run(ctx) })
	group.Go(func() error { return c.watcher(core, events).Run(ctx) })
	group.Go(func() error {
		select {
		case <-leadership.Done():
			cancel(leadership.Err())
		case <-ctx.Done():
		}
		return nil
	})
	group.Go(func() error {
		led = c.announce(ctx, core, &control.Leader{Core: core, Runners: runners, Rights: c.fencer, Roster: c.store, Transactions: c.fencer})
		return nil
	})
	cause = group.Wait()
	c.core.Store(nil)
	c.control.Lead(nil)
	c.metrics.Lead(nil)
	c.healthy(false)
	if stopping.Err() != nil {
		c.store.Resign()
		c.awaitSuccessor()
	}
	runners.End()
	if lost := leadership.Err(); lost != nil {
		cause = lost
	}
	return led, cause
}

// awaitSuccessor waits until the log names another leader, a second at most; not at all where nobody else stands for election.
func (c *Coordinator) awaitSuccessor() {
	self := c.store.Self()
	others := slices.ContainsFunc(c.store.Roster(), func(other state.Coordinator) bool { return other.ID != self.ID })
	for until := time.Now().Add(successorWait); others && c.store.Heard().LeaderID == self.ID && time.Now().Before(until); {
		<-time.After(successorPoll)
	}
}

// watcher looks for hanging transactions everywhere, besides the looks that tasks ask for.
func (c *Coordinator) watcher(core *loop.Loop, events metrics.Core) *fence.Watcher {
	return fence.NewWatcher(fence.WatchConfig{Fencer: c.fencer, Submit: events.Submit, Targets: func(ctx context.Context) (targets []state.Watch, err error) {
		err = core.View(ctx, func(st *state.State) { targets = st.Names() })
		return targets, err
	}})
}

// announce says that this coordinator leads, once its first transaction is committed; false where that never was.
func (c *Coordinator) announce(ctx context.Context, core *loop.Loop, leader *control.Leader) bool {
	var term uint64
	if err := core.View(ctx, func(st *state.State) { term = st.Term() }); err != nil {
		return false // The loop has ended, which says why.
	}
	c.core.Store(core)
	c.rosterChanged(c.store.Roster()) // It may have changed since the State was made.
	c.control.Lead(leader)
	c.metrics.Lead(core.View)
	c.healthy(true)
	c.log.Info("leading", "cluster", c.config.Cluster, "term", term, "address", c.config.Advertise)
	c.led.Do(func() { close(c.leading) })
	return true
}
