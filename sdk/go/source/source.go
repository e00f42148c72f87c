// Package source is what a connector is made of. It uses the standard library only.
//
// Two layers:
//
//   - Connector and Reader are what an author writes: records one by one, with offsets as small maps. New makes a Plugin of a Connector.
//   - Plugin is what crosses the process boundary: batches in columns. The runner sees every plugin as this interface, whether it is a subprocess
//     (sdk/go/host), an address, or a value in the same process.
//
// Where to read next: connector.go for authors, batch.go for the layout of records, sdk/go/serve to make a binary of it.
package source

import (
	"context"
	"time"
)

// Plugin serves one or more connector types. Its methods may be called from several goroutines at once.
// Errors: see Error for those that users see; any other error is taken for one that is worth a retry.
type Plugin interface {
	// Describe says what the plugin is. The same answer every time.
	Describe(ctx context.Context) (*Description, error)
	// Validate checks a configuration and returns all problems at once. No side effects.
	Validate(ctx context.Context, req *ValidateRequest) (*Validation, error)
	// Plan tells host the tasks of a connector, now and whenever the source changes. It returns nil soon after ctx is done,
	// and an error where it can't go on.
	Plan(ctx context.Context, open *PlanOpen, host PlanHost) error
	// Run is one task from start to end. It returns nil soon after it got a Stop signal, or ctx is done, and an error where it can't go on.
	Run(ctx context.Context, open *RunOpen, host RunHost) error
}

// OffsetAlterer is a Plugin that wants to know when an operator changes stored offsets.
type OffsetAlterer interface {
	// AlterOffsets checks new offsets, refuses them, or moves something in the source.
	AlterOffsets(ctx context.Context, req *AlterRequest) (*AlterAnswer, error)
}

// PlanHost is what Plan talks to.
type PlanHost interface {
	// SetTasks replaces the connector's tasks. It returns an error where the set is refused: claims that overlap, too many tasks.
	// A refusal may also come later, as the error of the next call.
	SetTasks(ctx context.Context, tasks []TaskSpec) error
	// Lookup reads stored offsets; one answer for each partition, in the same order, Offset nil where none is stored.
	Lookup(ctx context.Context, partitions []JSON) ([]PartitionOffset, error)
}

// RunHost is what Run talks to. Send may be called by one goroutine at a time; the others from any.
type RunHost interface {
	// Send hands one message on, in order. The caller must not change a message, or memory that it refers to, after Send. Whoever implements Plugin directly keeps within the credit
	// that Signals gave; New does it for a Connector. An error is final: Run returns.
	Send(ctx context.Context, msg Message) error
	// Lookup reads stored offsets, as in PlanHost. It works until Run returns.
	Lookup(ctx context.Context, partitions []JSON) ([]PartitionOffset, error)
	// Signals is what the runner tells the task. It is closed when the runner is gone.
	Signals() <-chan Signal
}

// Copier is a RunHost that has copied a message by the time that Send returns, so that the sender may use its memory again. Send's rule holds for all others.
type Copier interface {
	RunHost
	// Copies does nothing; it tells a Copier from the others.
	Copies()
}

// Message is what a task sends: Opened, *Declare, *Batch, *Idle, *Dropped, *Metrics, *Notice or Drained.
type Message interface{ message() }

// Opened says that the source is open; before it only Declare may be sent.
type Opened struct{}

// Declare gives numbers to partitions, topics and schemas; each number once per Run.
type Declare struct {
	Partitions []DeclaredPartition
	Topics     []DeclaredTopic
	Schemas    []DeclaredSchema
}

// DeclaredPartition names a source partition by a number from 1.
type DeclaredPartition struct {
	Number    uint32
	Partition JSON
}

// DeclaredTopic names a topic by a number from 1.
type DeclaredTopic struct {
	Number uint32
	Name   string
}

// DeclaredSchema names a schema by a number from 16.
type DeclaredSchema struct {
	Number uint32
	Schema *Schema
}

// Idle says that the source has nothing more to give for now. It takes the next sequence number.
type Idle struct{ Seq uint64 }

// Dropped says that records were left out by a rule that the configuration asked for. It takes the next sequence number.
type Dropped struct {
	Seq     uint64
	Count   uint64
	Reason  string
	Offsets []Reached
}

// Metrics carries the plugin's own figures.
type Metrics struct{ Metrics []Metric }

// Metric is one figure, in Prometheus' terms.
type Metric struct {
	Name    string
	Labels  map[string]string
	Value   float64
	Counter bool
}

// Notice says what people should know although the task goes on: a file that can't be read while others can. It replaces the one before; an empty one takes it back.
// At most 20 texts of 500 bytes.
type Notice struct{ Texts []string }

// Drained answers a drain: no Batch follows.
type Drained struct{}

func (Opened) message()   {}
func (*Declare) message() {}
func (*Batch) message()   {}
func (*Idle) message()    {}
func (*Dropped) message() {}
func (*Metrics) message() {}
func (*Notice) message()  {}
func (Drained) message()  {}

// SignalKind says what a Signal means.
type SignalKind uint8

// The signals.
const (
	// SignalCredit adds Bytes to what may be sent, and, where MaxUncommitted isn't 0, sets the cap on uncommitted records.
	SignalCredit SignalKind = iota + 1
	// SignalCommitted says that everything up to Seq is committed. Only now may the source forget it.
	SignalCommitted
	// SignalDrain asks to stop reading, and to send Drained.
	SignalDrain
	// SignalStop asks to close the source and return.
	SignalStop
)

// Signal is what a runner tells a task.
type Signal struct {
	Kind           SignalKind
	Bytes          uint64
	MaxUncommitted uint64
	Seq            uint64
	Reason         string
	// Within is how long a drain may take; past it the runner goes on with SignalStop. 0 is not said.
	Within time.Duration
}

// Ability is something that not every plugin can do.
type Ability int32

// The abilities; the numbers are those of the protocol.
const (
	AbilityAlterOffsets        Ability = 1
	AbilitySourceBoundaries    Ability = 2
	AbilityConnectorBoundaries Ability = 3
	AbilityKafkaPartitions     Ability = 4
	AbilityIdle                Ability = 5
)

// Description says what a plugin is.
type Description struct {
	// Name is 1 to 64 of [a-z0-9-].
	Name string
	// Version is a semantic version.
	Version   string
	Types     []Type
	Abilities []Ability
}

// Type is a connector type: what a user names in connector.class.
type Type struct {
	Name    string
	Summary string
	Config  []Key
	// OpenPrefixes are beginnings of keys that are passed through unchecked.
	OpenPrefixes []string
	// Example is a configuration that runs as it is, without connector.class and name.
	Example map[string]string
}

// ValueType is the type of a configuration value. Values travel as text.
type ValueType int32

// The types; the numbers are those of the protocol.
const (
	String   ValueType = 1
	Bool     ValueType = 2
	Int      ValueType = 3
	Long     ValueType = 4
	Double   ValueType = 5
	List     ValueType = 6
	Password ValueType = 7
	// Duration is "250ms", "10s", "5m"; a bare number is milliseconds.
	Duration ValueType = 8
	// Size is "100B", "16KiB", "1MB"; a bare number is bytes.
	Size ValueType = 9
)

// Importance orders keys in documentation.
type Importance int32

// The levels of importance.
const (
	High   Importance = 1
	Medium Importance = 2
	Low    Importance = 3
)

// Key describes one configuration key.
type Key struct {
	Name     string
	Type     ValueType
	Required bool
	// Default is nil where there is none; the function Default makes one.
	Default     *string
	Importance  Importance
	Doc         string
	Allowed     []string
	Recommended []string
	// Min and Max bound numbers; bytes for Size, milliseconds for Duration. nil is no bound.
	Min, Max *float64
}

// Default is for Key.Default: Key{Name: "poll", Type: Duration, Default: Default("250ms")}. The value is written as users write it, whatever its type is.
func Default(value string) *string { return &value }

// ValidateRequest is a configuration to check.
type ValidateRequest struct {
	Connector string
	Type      string
	// Config has the connector's own keys only.
	Config map[string]string
}

// Validation has every problem that was found.
type Validation struct {
	Problems            []Problem
	ExactlyOnce         Possible
	ConnectorBoundaries Possible
	Refined             []Key
}

// Problem is one mistake in a configuration.
type Problem struct {
	Key     string
	Message string
	// Hint says what would be right.
	Hint    string
	Warning bool
}

// Possible is yes, no or unknown.
type Possible int32

// The answers; the numbers are those of the protocol.
const (
	Yes     Possible = 1
	No      Possible = 2
	Unknown Possible = 3
)

// PlanOpen starts a plan.
type PlanOpen struct {
	Connector string
	Type      string
	Config    map[string]string
	// TasksMax is at least 1.
	TasksMax int
}

// TaskSpec is one task of a plan.
type TaskSpec struct {
	// Config is whatever the plugin needs to run the task; it comes back in RunOpen.TaskConfig.
	Config map[string][]byte
	Claim  Claim
}

// Claim says which source partitions a task may read: exactly one field is set, or none (the zero Claim), which claims partitions as they are declared.
type Claim struct {
	// Set lists partitions.
	Set []JSON
	// Prefix: canonical forms that start with it. nil is not set.
	Prefix []byte
	// Range of canonical forms, half open.
	Range *Range
	// Slot of a hash, see Slot.Has.
	Slot *Slot
}

// Range is half open; an empty Until is no end.
type Range struct{ From, Until []byte }

// Slot holds the partitions whose Hash mod Of is Slot.
type Slot struct{ Slot, Of uint32 }

// BoundaryRule is the rule by which the runner commits: transaction.boundary.
type BoundaryRule int32

// The rules; the numbers are those of the protocol.
const (
	Adaptive    BoundaryRule = 1
	PerPoll     BoundaryRule = 2
	Interval    BoundaryRule = 3
	PerSource   BoundaryRule = 4
	ByConnector BoundaryRule = 5
)

// Limits of what a task may send.
type Limits struct {
	// MaxRecordBytes counts key, value, header names and values together.
	MaxRecordBytes  int
	MaxBatchBytes   int
	MaxBatchRecords int
}

// RunOpen starts a task.
type RunOpen struct {
	Connector   string
	Type        string
	Task        int
	Config      map[string]string
	TaskConfig  map[string][]byte
	Claim       Claim
	Generation  uint64
	Epoch       uint64
	Incarnation string
	Limits      Limits
	Boundary    BoundaryRule
	// Stored has the offsets that are committed for the partitions that the task claims.
	Stored []PartitionOffset
}

// PartitionOffset is a source partition and the offset stored for it; Offset is nil where none is.
type PartitionOffset struct{ Partition, Offset JSON }

// AlterRequest asks about new offsets of a stopped connector; one without Offset is a reset.
type AlterRequest struct {
	Connector string
	Type      string
	Config    map[string]string
	Offsets   []PartitionOffset
}

// AlterAnswer is the plugin's verdict.
type AlterAnswer struct {
	// Veto is the reason for a refusal; empty is none.
	Veto string
	// Done says that the plugin did something; otherwise it had nothing to say.
	Done bool
}
