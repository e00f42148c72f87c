package coordinator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/control"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// reachTimeout is how long the brokers are asked for before a line in the log says that none answers.
	reachTimeout = 5 * time.Second
	// retryDelay is how long the next try waits after one that failed.
	retryDelay = 2 * time.Second
	// unfitDelay is how long a coordinator that can't read the log leaves the election to others.
	unfitDelay = 30 * time.Second
)

// errUnfit says that this coordinator can't lead with the log as it is.
var errUnfit = errors.New("this coordinator can't lead")

// stand stands for election and leads, again and again, until ctx ends.
func (c *Coordinator) stand(ctx context.Context) error {
	defer c.store.Resign()
	for {
		err := c.term(ctx)
		if ctx.Err() != nil {
			return nil
		}
		delay := retryDelay
		if err != nil {
			c.failed.Store(&err)
		}
		switch {
		case errors.Is(err, errUnfit):
			delay = unfitDelay
			c.log.Error("can't lead; another coordinator may", "error", err, "next_try", delay)
		case err != nil:
			c.log.Warn("can't take part in the election", "bootstrap_servers", c.settings.String(), "cause", c.settings.Explain(err), "next_try", delay)
		default: // It led.
			delay = 0
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// term is one candidacy and, where it is won, one leadership: nil then. A coordinator that can't lead at all leaves the election; one that led and lost the log stays in it.
func (c *Coordinator) term(ctx context.Context) error {
	if err := c.reach(ctx); err != nil {
		return err
	}
	c.failed.Store(nil)
	c.log.Debug("standing for election")
	leadership, err := c.store.Campaign(ctx)
	if err != nil {
		return err
	}
	defer leadership.End()
	st, err := c.load(leadership)
	if err != nil {
		c.store.Resign()
		return err
	}
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
	case errors.Is(err, errUnfit):
		return err.Error()
	case kafkaclient.Unreachable(err):
		return "this coordinator can't reach Kafka: " + c.settings.Explain(err)
	}
	return "this coordinator can't take part in the election: " + c.settings.Explain(err)
}

// load makes a State of what the log holds. What can't be understood must not be led.
func (c *Coordinator) load(leadership *configlog.Leadership) (*state.State, error) {
	st := state.New(state.Options{Cluster: c.config.Cluster, Coordinators: []string{c.config.Advertise}, LeaseTTL: c.config.LeaseTTL, NoBalance: c.config.NoBalance})
	for _, record := range leadership.Records() {
		if err := st.Load(record); err != nil {
			return nil, fmt.Errorf("%w: %w", errUnfit, err)
		}
	}
	return st, nil
}

// lead leads until ctx ends or the leadership is lost, and says whether its first transaction was committed. When it returns, everything that was made for the leadership has ended too.
func (c *Coordinator) lead(ctx context.Context, leadership *configlog.Leadership, st *state.State) (led bool, cause error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	core := loop.New(loop.Config{State: st, Logger: c.log.Named("loop")})
	events := c.metrics.Events(core)
	desk := fence.NewDesk(c.fencer, events.Submit)
	runners := c.sessions.Lead(events)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		// Whatever ends the loop ends the leadership, and what it asked for ends after it.
		defer cancel(nil)
		err := core.Run(ctx, c.metrics.Shell(loop.Shell{Log: leadership, Fencer: desk, Sender: runners}))
		runners.End()
		return err
	})
	group.Go(func() error { return desk.Run(ctx) })
	group.Go(func() error {
		select {
		case <-leadership.Done():
			cancel(leadership.Err())
		case <-ctx.Done():
		}
		return nil
	})
	group.Go(func() error {
		led = c.announce(ctx, core, &control.Leader{Core: core, Runners: runners, Rights: c.fencer})
		return nil
	})
	cause = group.Wait()
	c.leads.Store(false)
	c.control.Lead(nil)
	c.metrics.Lead(nil)
	c.healthy(false)
	if lost := leadership.Err(); lost != nil {
		cause = lost
	}
	return led, cause
}

// announce says that this coordinator leads, once its first transaction is committed; false where that never was.
func (c *Coordinator) announce(ctx context.Context, core *loop.Loop, leader *control.Leader) bool {
	var term uint64
	if err := core.View(ctx, func(st *state.State) { term = st.Term() }); err != nil {
		return false // The loop has ended, which says why.
	}
	c.leads.Store(true)
	c.control.Lead(leader)
	c.metrics.Lead(core.View)
	c.healthy(true)
	c.log.Info("leading", "cluster", c.config.Cluster, "term", term, "address", c.config.Advertise)
	c.led.Do(func() { close(c.leading) })
	return true
}
