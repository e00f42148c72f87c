package session

import (
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Event is what a coordinator wants of the runner: Welcomed, Grant, Revoke, Lost, StartPlan, StopPlan, TaskSetRefused, Validate, ReadOffsets, AlterOffsets, WarmUp or Drain.
type Event interface{ event() }

// Welcomed says that a leader has accepted the runner.
type Welcomed struct {
	// Cluster is the cluster's name.
	Cluster string
	// LeaseTTL is how long a renewal lasts.
	LeaseTTL time.Duration
}

// Grant gives the runner a task.
type Grant struct {
	Lease           lease.Lease
	Config          map[string]string
	TaskConfig      map[string][]byte
	Claim           source.Claim
	TransactionalID string
	OffsetsTopic    string
	OffsetsTopicID  string
	Plugin          PluginRef
}

// PluginRef names the exact plugin to run. SHA256 empty is any.
type PluginRef struct{ Name, Version, SHA256, Type string }

// Revoke takes a task back.
type Revoke struct {
	Lease lease.Lease
	// Drain asks to finish what is there, within Deadline.
	Drain    bool
	Deadline time.Duration
	Reason   string
}

// Lost says that a lease isn't the runner's any more. The session has forgotten it already.
type Lost struct{ Lease lease.Lease }

// PlanRef names a plan. Epoch grows with each start of a connector's plan.
type PlanRef struct {
	Connector, Incarnation string
	Epoch                  uint64
}

// StartPlan asks the runner to hold a connector's plan.
type StartPlan struct {
	Plan     PlanRef
	Config   map[string]string
	TasksMax int
	Plugin   PluginRef
}

// StopPlan ends a plan.
type StopPlan struct{ Plan PlanRef }

// TaskSetRefused says that a task set wasn't taken.
type TaskSetRefused struct {
	Plan    PlanRef
	Version uint64
	Reason  string
}

// RequestID names a coordinator's question. An answer that comes after the end of the question's stream is dropped.
type RequestID struct{ stream, id uint64 }

// Validate asks for a configuration's problems. Answer with AnswerValidate.
type Validate struct {
	ID        RequestID
	Connector string
	Config    map[string]string
}

// ReadOffsets asks for a connector's stored offsets. Answer with AnswerReadOffsets.
type ReadOffsets struct {
	ID           RequestID
	Connector    string
	Config       map[string]string
	OffsetsTopic string
}

// AlterOffsets asks to change a stopped connector's offsets. Answer with AnswerAlterOffsets.
type AlterOffsets struct {
	ID           RequestID
	Lease        lease.Lease
	Config       map[string]string
	OffsetsTopic string
	Offsets      []source.PartitionOffset
	ResetAll     bool
}

// WarmUp asks to have a connector's plugin running, for a task that comes from another runner. Answer with AnswerWarmUp. It gives no right to anything.
type WarmUp struct {
	ID        RequestID
	Connector string
	Plugin    PluginRef
}

// Drain says that the leader hands the runner's tasks over to others, one by one, or, with Undo, that it doesn't any more. The session keeps it in mind for later leaders.
type Drain struct{ Undo bool }

func (*Welcomed) event()       {}
func (*Grant) event()          {}
func (*Revoke) event()         {}
func (*Lost) event()           {}
func (*StartPlan) event()      {}
func (*StopPlan) event()       {}
func (*TaskSetRefused) event() {}
func (*Validate) event()       {}
func (*ReadOffsets) event()    {}
func (*AlterOffsets) event()   {}
func (*WarmUp) event()         {}
func (*Drain) event()          {}

// Offer is what the runner can run, and what it can't.
type Offer struct {
	Plugins []Plugin
	Broken  []Broken
}

// Plugin is a plugin that can run.
type Plugin struct {
	Description  *source.Description
	Path, SHA256 string
}

// Broken is a file that looks like a plugin and can't run.
type Broken struct{ Path, Error string }

// State is what a task is doing; the numbers are those of the protocol.
type State int32

// The states.
const (
	Starting State = 1
	Running  State = 2
	Retrying State = 3
	Failed   State = 4
	Draining State = 5
)

// Status says how a task is doing. Counts are those since the grant.
type Status struct {
	Lease lease.Lease
	State State
	// Phase is what it is doing within the state, in a few words.
	Phase string
	// Error is the last thing that went wrong, for users; Cause its kind.
	Error, Cause string
	// Host: the task goes on trying, and another runner may do better.
	Host bool
	// Attempt counts the attempts of the last error's cause since the last success, and BudgetLeft says how many more of them there may be. Endless: as many as it takes.
	Attempt, BudgetLeft int
	Endless             bool
	// RetryIn is the time until the next attempt.
	RetryIn time.Duration

	Records, Bytes, Commits, Aborts, Dropped uint64

	CaughtUp      bool
	OpenRecords   uint64
	OpenAge       time.Duration
	DroppedReason string

	PluginVersion, PluginSHA256 string
	// Rewinds by cause, and Notices of the plugin. Not changed after the call.
	Rewinds map[string]uint64
	Notices []string
}

// PlanResult is a plan's task set, or says what is wrong with the plan.
type PlanResult struct {
	Plan PlanRef
	// Version numbers task sets from 1; 0 is none.
	Version uint64
	Tasks   []source.TaskSpec
	// Error is why there is none, Failed that the runner has given up, and Host that another runner is to have the plan.
	Error  string
	Failed bool
	Host   bool
}
