// Package metrics shows to Prometheus what a coordinator knows and does.
//
// It stands beside the loop and not in it: the decision core counts nothing. What is counted goes past it on its way from the loop to the log, the fencing desk and the sessions, and back (see watch.go); what stands is read at a scrape
// from the State of the loop that leads, as a Tally. Nothing runs between two scrapes. A scrape that the loop has no time for, while a transaction waits for Kafka for example, gives what is counted here and leaves the rest out.
//
// Its invariants: counters live as long as the process, over all its leaderships. Labels are connectors, runners and words of fixed lists, never a value of a configuration or a text of an error (I9); those of connectors that are gone
// go with them (I10).
//
// Every metric with its meaning is in docs/metrics.md, which a test compares with what a scrape gives.
package metrics

import (
	"context"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// viewTimeout is how long a scrape waits for the loop.
const viewTimeout = time.Second

// Config of Metrics.
type Config struct {
	// Cluster and Version are the coordinator's.
	Cluster, Version string
	// History counts the records of the status topic that were written, and those that were dropped.
	History func() (written, dropped uint64)
}

// Metrics are those of one coordinator; a prometheus.Collector. A nil one takes everything and keeps nothing.
type Metrics struct {
	config  Config
	counted counted

	mu   sync.Mutex
	view View // nil while another coordinator leads
	// rounds are the fencing rounds under way, and when they began.
	rounds map[round]begun
	// labelled are the connectors that counters have labels of; false where the last scrape missed it.
	labelled map[string]bool
}

// View reads the State of the loop that leads.
type View func(ctx context.Context, look func(*state.State)) error

type round struct {
	connector string
	seq       uint64
}

type begun struct {
	at  time.Time
	ids int
}

// New makes Metrics; whoever calls it registers them.
func New(config Config) *Metrics {
	return &Metrics{config: config, counted: newCounted(), rounds: map[round]begun{}, labelled: map[string]bool{}}
}

// Lead has scrapes read a leader's State; nil ends that.
func (m *Metrics) Lead(view View) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if view != nil {
		m.counted.elections.Inc()
	}
	m.view = view
	clear(m.rounds)
}
