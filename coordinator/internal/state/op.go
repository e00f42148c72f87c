package state

import (
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// Op is an operation of a user. Configurations in it were validated by a runner before; what the coordinator itself reads of them is checked again by the core.
type Op interface{ op() }

// Create stores a new connector; Refused with AlreadyExists where the name is taken.
type Create struct {
	Name string
	// Incarnation is random, at least 16 bytes of hex, made by whoever asks: the core has no source of chance.
	Incarnation string
	Config      map[string]string
	// Target: the zero value is TargetRunning.
	Target Target
}

// Apply creates a connector or changes its configuration.
type Apply struct {
	Name string
	// Incarnation is used where the connector is new.
	Incarnation string
	Config      map[string]string
}

// Delete deletes a connector; answered when none of its tasks can write any more.
type Delete struct{ Name string }

// Pause makes the tasks drain and wait; answered when it is stored.
type Pause struct{ Name string }

// Resume lets a paused or stopped connector run; answered when it is stored.
type Resume struct{ Name string }

// Stop ends all tasks; answered when none can write any more.
type Stop struct{ Name string }

// Restart revokes tasks and grants them again with a higher epoch; answered when it is stored. Without Task it also starts a failed plan again, and retries a refused fencing round at once.
type Restart struct {
	Name string
	// Task is one task; nil is all.
	Task *uint32
	// OnlyFailed leaves out those that haven't failed.
	OnlyFailed bool
}

// AlterOffsets begins a change of a stopped connector's offsets: a new generation, a fencing round, and the lease of task 0, under whose id a runner writes. It is answered with that lease and the session of the runner that
// holds it; whoever asked then asks the runner. The lease ends like every lease, by the runner's TaskEnded.
type AlterOffsets struct{ Name string }

// ChangeDelivery changes a connector's delivery guarantee: a new generation with a fencing round; answered when it is stored.
type ChangeDelivery struct {
	Name string
	// Guarantee is exactly-once or at-least-once.
	Guarantee string
}

// DrainRunner has a runner's tasks moved to others, one by one, or ends that; answered at once.
type DrainRunner struct {
	Name string
	Undo bool
}

// RaiseLevel raises the cluster's level; refused, with the names of all that stand in its way, where a coordinator or a runner can't work at it. The level that the cluster has is no change.
type RaiseLevel struct {
	Level uint32
	// Coordinators are those that are alive now.
	Coordinators []Coordinator
}

// EndTransaction ends an id's transaction: a hanging one in the direction that was decided, an open one by fencing it. Refused while a task that runs holds the id; answered when it is done.
type EndTransaction struct {
	// Connector is the name that the id belongs to.
	Connector string
	ID        string
	// Only, where set, is the one partition that is meant.
	Only *TopicPartition
	// Force is the direction of a hang whose own isn't proven, OutcomeCommitted or OutcomeAborted: the user knows. Empty is none.
	Force Outcome
}

func (Create) op()         {}
func (Apply) op()          {}
func (Delete) op()         {}
func (Pause) op()          {}
func (Resume) op()         {}
func (Stop) op()           {}
func (Restart) op()        {}
func (EndTransaction) op() {}

func (AlterOffsets) op()   {}
func (ChangeDelivery) op() {}
func (DrainRunner) op()    {}
func (RaiseLevel) op()     {}

// Target is what a user wants a connector to do.
type Target string

// Targets.
const (
	TargetRunning Target = "running"
	TargetPaused  Target = "paused"
	TargetStopped Target = "stopped"
)

// Change is what an operation did to the stored configuration.
type Change int

// Changes.
const (
	Unchanged Change = iota
	Created
	Changed
)

// Result is the answer to an operation that was done.
type Result struct {
	// Connector as it is after the operation; nil after Delete.
	Connector *ConnectorView
	Change    Change
	// Restarted counts the tasks that Restart restarts.
	Restarted int
	// Mended are the hangs that EndTransaction ended, and Aborted says that it aborted an open transaction.
	Mended  []Mended
	Aborted bool
	// Lease and Session are AlterOffsets': what to write under, and whom to ask to.
	Lease   Lease
	Session SessionID
}

// Code is the kind of an Error.
type Code int

// Codes. The control service maps them to gRPC's.
const (
	// CodeInvalid: a mistake in what was asked.
	CodeInvalid Code = iota + 1
	// CodeNotFound: no such connector or task.
	CodeNotFound
	// CodeExists: the name is taken.
	CodeExists
	// CodeRefused: not in this state.
	CodeRefused
	// CodeSuperseded: a later operation undid what this one waited for.
	CodeSuperseded
	// CodeStuck: stored, but it can't be finished until someone does something; the text says what.
	CodeStuck
)

// Error is the answer to an operation that wasn't done. It is the only error type of an Op's answer.
type Error struct {
	Code Code
	Text string
	// Hint says what to do next; may be empty.
	Hint string
	// Problems of the configuration, with CodeInvalid.
	Problems []*pluginv1.Problem
}

// Error is the text.
func (e *Error) Error() string { return e.Text }
