package state

import (
	"time"
)

// States of tasks, as users see them.
const (
	taskStarting   = "STARTING"
	taskRunning    = "RUNNING"
	taskRetrying   = "RETRYING"
	taskFailed     = "FAILED"
	taskDraining   = "DRAINING"
	taskPaused     = "PAUSED"
	taskUnassigned = "UNASSIGNED"
)

// States of connectors, as users see them, beside those that tasks have too.
const (
	connectorStopped  = "STOPPED"
	connectorDegraded = "DEGRADED"
	connectorFencing  = "FENCING"
	connectorPlanning = "PLANNING"
	connectorDeleting = "DELETING"
)

// States of runners, as users see them.
const (
	runnerConnected = "CONNECTED"
	runnerLost      = "LOST"
	runnerDraining  = "DRAINING"
	runnerDrained   = "DRAINED"
)

// ConnectorView is a connector as users see it. It is a copy: it may be kept and changed.
type ConnectorView struct {
	Name   string
	Config map[string]string
	Target Target
	// State is what is: RUNNING, STARTING, PAUSED, STOPPED, DEGRADED, FAILED, UNASSIGNED, FENCING, PLANNING or DELETING.
	State string
	// Message says why, where the state isn't the wanted one.
	Message     string
	Incarnation string
	Generation  uint64
	Tasks       []TaskView
	Plugin      Plugin
	// OffsetsTopic is its name.
	OffsetsTopic string
	Topics       []string
	Created      time.Time
	// Happenings are the last 50, oldest first; equal ones are one, where it was last.
	Happenings []Happening
	// Planner is the runner that holds the plan; empty where none does.
	Planner string
}

// TaskView is a task as users see it.
type TaskView struct {
	Task uint32
	// State is STARTING, RUNNING, RETRYING, FAILED, DRAINING, PAUSED or UNASSIGNED.
	State string
	// Runner holds the lease of Epoch; empty where none does.
	Runner          string
	Epoch           uint64
	Claim           string
	TransactionalID string
	// RetryAt is when it tries again; zero where it doesn't.
	RetryAt time.Time
	// LastError is the last one, also where the task has got over it; TaskStatus.Error is what is wrong now.
	LastError LastError
	TaskStatus
}

// TaskStatus is what the runner last said of a task. Figures count from the grant.
type TaskStatus struct {
	Phase, Error, Cause                      string
	Attempt, BudgetLeft                      uint32
	Endless                                  bool
	Records, Bytes, Commits, Aborts, Dropped uint64
	CaughtUp                                 bool
	OpenRecords, OpenAgeMs                   uint64
	DroppedReason                            string
	PluginVersion, PluginSHA256              string
	Rewinds                                  map[string]uint64
	// Notices are the plugin's words to people while the task goes on.
	Notices []string
}

// RunnerView is a runner as users see it.
type RunnerView struct {
	Name, Host, Version string
	Labels              map[string]string
	// State is CONNECTED, LOST (its leases still run), DRAINING or DRAINED.
	State string
	// Stopping says that a DRAINING or DRAINED runner stops by itself.
	Stopping bool
	// Stuck are tasks of a DRAINING runner that fit on no other.
	Stuck []StuckTask
	// Session is zero where it isn't connected.
	Session SessionID
	Leases  []Lease
	Since   time.Time
	// Plugins as name@version.
	Plugins []string
	// LeaseLeft is how long its longest lease still lasts.
	LeaseLeft time.Duration
}

// StuckTask is a task that can't be moved, and why.
type StuckTask struct {
	Lease
	Reason string
}

// PluginView is a plugin that at least one runner offers, or a file that should be one.
type PluginView struct {
	Name, Version, SHA256, Path string
	Types                       []string
	// Runners that offer it, sorted.
	Runners []string
	// Error says why it can't run; empty where it can.
	Error string
}

// ClusterView is what the log says of the cluster.
type ClusterView struct {
	Cluster string
	Term    uint64
	Level   uint32
}
