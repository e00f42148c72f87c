package state

import (
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Event is something that happened. Step takes one at a time, together with the time at which it is taken.
type Event interface{ event() }

// SessionID names one stream of one runner within this process. The sessions server counts them up and never uses one twice.
type SessionID uint64

// TookOver says that this coordinator was elected, the log's transactional id is initialised, and the log was read to its end into the State. It must be the first event, and comes once:
// it raises and persists the term, and counts every lease in the log as renewed now (I7).
type TookOver struct{}

// Tick lets deadlines pass. It is due at State.Wake.
type Tick struct{}

// Asked is a user's operation. It is answered by one Reply with the same ID, at once or after events to come, unless a GaveUp with that ID comes first.
type Asked struct {
	ID uint64
	Op Op
}

// GaveUp says that whoever asked doesn't wait any more. What was decided stays.
type GaveUp struct{ ID uint64 }

// SessionOpened says that a runner's stream began with Hello. It is answered by Send of a Welcome, or by CloseSession.
type SessionOpened struct {
	Session SessionID
	// Term is the highest one that the runner has seen.
	Term  uint64
	Hello *runnerv1.Hello
}

// SessionClosed says that a stream has ended or was silent for too long; it follows every CloseSession, too. One for a session that was never welcomed, or was replaced, changes nothing.
type SessionClosed struct {
	Session SessionID
	Reason  string
}

// FromRunner is a message that came on a session after its Hello. ValidateAnswer, ReadOffsetsAnswer and AlterOffsetsAnswer belong to whoever asked and are kept back by the sessions server.
type FromRunner struct {
	Session SessionID
	Message *runnerv1.SessionRequest
}

// RoundDone says that every id of a StartRound was answered `ok`.
type RoundDone struct {
	Connector string
	// Seq is StartRound's; another one than the round in force is ignored.
	Seq uint64
	// Decisions has what was seen of each id before the attempt that was answered `ok`.
	Decisions map[uint32]Decision
}

// RoundFailed says that a round met a permanent refusal. What can be retried is retried by the Fencer and isn't told.
type RoundFailed struct {
	Connector string
	Seq       uint64
	// Task is the one whose id was refused.
	Task uint32
	// Reason names the id and the right that is missing, for users.
	Reason string
	// Decisions of the ids that were fenced all the same.
	Decisions map[uint32]Decision
}

// IDPrepared answers PrepareID.
type IDPrepared struct {
	Session   SessionID
	RequestID uint64
	Lease     Lease
	// Decision is what was seen of the id before the attempt that was answered `ok`.
	Decision Decision
	// Failed, where set, is a permanent refusal: it names the id and the right that is missing.
	Failed string
}

// Looked answers Look.
type Looked struct {
	Session   SessionID
	RequestID uint64
	Lease     Lease
	// Hanging is what was found.
	Hanging []Hang
	// Failed, where set, says why the look could not be done, or not everywhere; it may be asked again.
	Failed string
}

// Found says what the coordinator's own look found. Where it found nothing it says nothing.
type Found struct {
	Connector string
	Hanging   []Hang
}

// HealPrepared asks for the note of an empty transaction to be put into the log; answered by HealOn. The id was initialised for it.
type HealPrepared struct {
	Connector string
	Task      uint32
	// Seq is Heal's.
	Seq  uint64
	Note HealNote
	// Last is what was seen of the id before the attempt that was answered `ok`.
	Last Decision
}

// Healed answers Heal.
type Healed struct {
	Connector string
	Task      uint32
	Seq       uint64
	Mended    []Mended
	// Left are the partitions that still hang, and whose direction isn't proven, or for which a right is missing: only a person can go on.
	Left []*runnerv1.HangingPartition
	// Failed, where set, says why it could not be done now; it may be asked again.
	Failed string
	// Fenced: the id was initialised, so whoever held it has to start again. Last is then what was seen before, where it isn't in the log yet.
	Fenced bool
	Last   *Decision
	// Aborted: an open transaction of the id was aborted, as a user asked.
	Aborted bool
}

// CoordinatorsChanged says which coordinators take part in the election.
type CoordinatorsChanged struct{ Coordinators []Coordinator }

// Doubted says that somebody asks for the State and that no transaction was committed lately: this step has one. A leader that was replaced never gets to answer (I7).
type Doubted struct{}

func (TookOver) event()      {}
func (Tick) event()          {}
func (Asked) event()         {}
func (GaveUp) event()        {}
func (SessionOpened) event() {}
func (SessionClosed) event() {}
func (FromRunner) event()    {}
func (RoundDone) event()     {}
func (RoundFailed) event()   {}
func (IDPrepared) event()    {}
func (Looked) event()        {}
func (Found) event()         {}
func (HealPrepared) event()  {}
func (Healed) event()        {}

func (CoordinatorsChanged) event() {}
func (Doubted) event()             {}

// Outcome is what is known of the last transaction of a transactional id.
type Outcome string

// Outcomes. Seen is what DescribeTransactions says before the attempt of InitProducerId that was answered `ok`; any other state seen then is OutcomeUnknown (I3).
const (
	// OutcomeNone: the id was Empty or doesn't exist: no transaction since its last initialisation. It doesn't replace an earlier decision, which still is the last one.
	OutcomeNone Outcome = "none"
	// OutcomeCommitted: CompleteCommit.
	OutcomeCommitted Outcome = "committed"
	// OutcomeAborted: CompleteAbort.
	OutcomeAborted Outcome = "aborted"
	// OutcomeUnknown: the direction can't be told; a hanging transaction of this id can't be healed.
	OutcomeUnknown Outcome = "unknown"
)

// Decision is the last decision of a transactional id, kept to heal a hanging transaction in the proven direction.
type Decision struct {
	Outcome Outcome `json:"outcome"`
	// ProducerID and ProducerEpoch are those of DescribeTransactions; -1 where it gave none.
	ProducerID    int64 `json:"producer_id"`
	ProducerEpoch int16 `json:"producer_epoch"`
}
