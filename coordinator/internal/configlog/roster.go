package configlog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// A coordinator says who it is in the client id with which it joins the election: Kafka shows it to whoever describes the group, whatever the group is doing just then, and knows best who is alive.

// ErrTwin says that another coordinator advertises this one's address.
var ErrTwin = errors.New("another coordinator advertises this one's address")

// clientName begins the client id of every coordinator.
const clientName = "fencepost-coordinator"

// rosterEvery is how often the group is described where nothing tells that it has changed, and rosterTimeout how long that may take.
const (
	rosterEvery   = 5 * time.Second
	rosterTimeout = 5 * time.Second
)

// clientID says who a coordinator is.
func clientID(c state.Coordinator) string {
	return clientName + "?" + url.Values{
		"address": {c.Address}, "id": {c.ID}, "levels": {fmt.Sprintf("%d-%d", c.LevelMin, c.LevelMax)}, "version": {c.Version},
	}.Encode()
}

// coordinatorOf reads a client id. What isn't understood is left empty: a coordinator of another version is one too.
func coordinatorOf(clientID, host string) state.Coordinator {
	c := state.Coordinator{Host: strings.TrimPrefix(host, "/")}
	_, query, _ := strings.Cut(clientID, "?")
	said, err := url.ParseQuery(query)
	if err != nil {
		return c
	}
	low, high, _ := strings.Cut(said.Get("levels"), "-")
	c.LevelMin, c.LevelMax = levelOf(low), levelOf(high)
	c.Address, c.ID, c.Version = said.Get("address"), said.Get("id"), said.Get("version")
	return c
}

func levelOf(text string) uint32 {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// Coordinators asks Kafka which coordinators take part in the election now, and gives them by address.
func (l *Log) Coordinators(ctx context.Context) ([]state.Coordinator, error) {
	ctx, cancel := context.WithTimeout(ctx, rosterTimeout)
	defer cancel()
	groups, err := kadm.NewClient(l.config.Direct.Client()).DescribeGroups(ctx, l.group)
	if err == nil {
		err = groups[l.group].Err
	}
	if err != nil {
		return nil, fmt.Errorf("describe group %q: %w", l.group, l.explain(err))
	}
	var all []state.Coordinator
	for _, m := range groups[l.group].Members {
		all = append(all, coordinatorOf(m.ClientID, m.ClientHost))
	}
	slices.SortFunc(all, func(a, b state.Coordinator) int {
		return cmp.Or(cmp.Compare(a.Address, b.Address), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Host, b.Host))
	})
	return all, nil
}

// Roster is what Coordinators answered last, while Watch runs. It is not to be changed.
func (l *Log) Roster() []state.Coordinator {
	if all := l.roster.Load(); all != nil {
		return *all
	}
	return nil
}

// Watch keeps the Roster current until ctx ends; then it returns nil. It calls changed with each new one, from the goroutine that called Watch.
func (l *Log) Watch(ctx context.Context, changed func([]state.Coordinator)) error {
	ticker := time.NewTicker(min(rosterEvery, l.config.SessionTimeout))
	defer ticker.Stop()
	var twin time.Time // since when another one has this one's address
	for {
		all, err := l.Coordinators(ctx)
		if err != nil {
			l.log.Debug("the coordinators can't be listed", "error", err) // Whatever keeps it from Kafka is said by the election.
		} else {
			twin = l.twins(all, twin)
		}
		if err == nil && !slices.Equal(all, l.Roster()) {
			l.roster.Store(&all)
			changed(all)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-l.rebalanced:
		}
	}
}

// regrouped makes Watch look at once: the group has a new generation.
func (l *Log) regrouped() {
	select {
	case l.rebalanced <- struct{}{}:
	default:
	}
}

// twins notes another coordinator that has this one's address: nobody could tell runners and clients which of the two is meant. Where a process was killed, Kafka takes it for alive for a session time-out more.
func (l *Log) twins(all []state.Coordinator, since time.Time) time.Time {
	at := slices.IndexFunc(all, func(c state.Coordinator) bool { return c.Address == l.self.Address && c.ID != l.self.ID })
	switch {
	case at < 0:
		l.twin.Store(nil)
		return time.Time{}
	case since.IsZero():
		return time.Now()
	case time.Since(since) > l.config.SessionTimeout && l.twin.Load() == nil:
		err := fmt.Errorf("%w: one of cluster %q on host %s has %s too; give each an --advertise of its own, or another --cluster where it isn't meant to belong to this one", ErrTwin, l.config.Cluster, all[at].Host, l.self.Address)
		l.twin.Store(&err)
		l.log.Error("two coordinators have one address", "address", l.self.Address, "other_host", all[at].Host, "cause", err)
	}
	return since
}
