// Package state is the coordinator's decision core: what there is (connectors, generations, task sets, leases, ids, runners) and what follows from each event. It is a pure function: State.Step takes an event and
// the time and gives back effects; it has no clock, no I/O, no goroutine, no lock, no source of chance and no log, so that any failure can be replayed from its events. Package loop owns the one State of a leader and
// carries the effects out: decide → persist → send.
//
// The parts that outlive a leader are in the config log, one record per key (see record.go): replaying every record that Step asked to persist gives the same State again, but for what is volatile (sessions,
// statuses, pending operations, happenings).
//
// What it enforces:
//   - I2: a grant follows only a fencing round of its generation that is done, and a persisted count of ids that includes its own.
//   - I6: generations, epochs, plan epochs and terms only grow, and are persisted in the step that announces them.
//   - I7: a renewal reaches at most one lease time beyond the last transaction of the log; a confirmation is sent only after one that began after the question.
//   - I8: overlapping claims are refused, and partitions that were claimed while running belong to one task.
//
// It never validates a connector's own keys, never sees a record or an offset, and never decides that a retriable error is final: that is the Fencer's part.
//
// Read next: event.go and effect.go, then testdata/*.txt, which show whole stories, then connector.go.
package state

import (
	"time"
)

// Options are set once, by the shell.
type Options struct {
	// Cluster is the cluster's name; it is part of every transactional id.
	Cluster string
	// Coordinators are the addresses that Welcome tells to runners.
	Coordinators []string
	// LeaseTTL is how long a renewal lasts. Default 10 s.
	LeaseTTL time.Duration
	// Heartbeat is how often runners send one. Default LeaseTTL/5.
	Heartbeat time.Duration
	// Reconnect is how long a runner whose session this leader has held may stay away before its tasks move. Default 2 s.
	Reconnect time.Duration
	// Drain is how long a task may take to finish what it has before its id is fenced. Default 20 s.
	Drain time.Duration
	// FenceRetry is how long after a permanent refusal a round is tried again. Default 60 s.
	FenceRetry time.Duration
}

// State is all that a leader knows. It isn't safe for concurrent use.
type State struct {
	options Options
}

// New makes an empty State. Zero options take their defaults.
func New(options Options) *State {
	return &State{options: options}
}

// Load takes in one record of the log, in the log's order, before TookOver. ErrNewer and a log of another cluster are errors: such a log must not be led.
func (s *State) Load(r Record) error { panic("not yet") }

// Step takes an event at a time that never falls.
func (s *State) Step(now time.Time, event Event) []Effect { panic("not yet") }

// Wake is when a Tick is due; false where nothing waits for the time to pass.
func (s *State) Wake() (time.Time, bool) { panic("not yet") }

// Term is the leader's; 0 before TookOver.
func (s *State) Term() uint64 { panic("not yet") }

// Connectors lists all connectors by name.
func (s *State) Connectors() []ConnectorView { panic("not yet") }

// Connector shows one.
func (s *State) Connector(name string) (ConnectorView, bool) { panic("not yet") }

// Runners lists runners by name; now is for how long leases last.
func (s *State) Runners(now time.Time) []RunnerView { panic("not yet") }

// Plugins lists what runners offer, by name, version and checksum.
func (s *State) Plugins() []PluginView { panic("not yet") }

// Cluster is what the log says of the cluster.
func (s *State) Cluster() ClusterView { panic("not yet") }

// Choose picks the plugin for a configuration and a connected runner that has it, so that it can be asked to validate or to read offsets. The error is what a user is to be told.
func (s *State) Choose(config map[string]string) (Plugin, SessionID, *Error) { panic("not yet") }
