package state

import (
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Effect is something to do. The effects of one Step are carried out in order, but for Persist: all Persist of a step (of several steps, where several are taken together) form one transaction,
// and it must be committed before any other effect of these steps is carried out. Where it can't be, the leader has lost the log: no effect is carried out, and the State is thrown away.
type Effect interface{ effect() }

// Persist adds records to the transaction of this step. Of two records with one key the later counts.
type Persist struct{ Records []Record }

// Send sends a message to a runner. A session that is gone, or too slow to take it, is closed by the shell: SessionClosed follows.
type Send struct {
	Session SessionID
	Message *runnerv1.SessionResponse
}

// CloseSession ends a stream. Where Redirect is set, that message is sent before.
type CloseSession struct {
	Session SessionID
	Why     CloseReason
	Text    string
}

// CloseReason says how a stream is to end.
type CloseReason int

// Reasons.
const (
	// CloseExists: another process holds this runner's name. gRPC's ALREADY_EXISTS.
	CloseExists CloseReason = iota + 1
	// CloseReplaced: the same process has opened a newer stream.
	CloseReplaced
	// CloseInvalid: the runner broke the protocol, or its levels don't fit. gRPC's INVALID_ARGUMENT or FAILED_PRECONDITION.
	CloseInvalid
	// CloseStale: the runner has seen a higher term, so this coordinator doesn't lead any more. The stream ends with a Redirect without an address.
	CloseStale
)

// StartRound asks the Fencer to initialise ids until each was answered `ok` once, and to answer by RoundDone or RoundFailed. Operations on one id, of rounds and of PrepareID, are carried out one after
// another, in the order in which they were asked for.
type StartRound struct {
	Connector   string
	Incarnation string
	Generation  uint64
	// Seq grows with each round of this leader.
	Seq uint64
	// Tasks are the numbers of the ids, see names.TransactionalID; IDs are the same as ids.
	Tasks []uint32
	IDs   []string
}

// CancelRound says that a round isn't needed any more: a newer one takes its place. An answer that comes all the same is ignored.
type CancelRound struct {
	Connector string
	Seq       uint64
}

// PrepareID asks the Fencer to note the last decision of one id and to initialise it until `ok`; answered by IDPrepared with the same session, request and lease.
type PrepareID struct {
	Session   SessionID
	RequestID uint64
	Lease     Lease
	ID        string
}

// Look asks the Fencer whether a transaction of the connector's own ids hangs on one of the topics; answered by Looked.
type Look struct {
	Session   SessionID
	RequestID uint64
	Lease     Lease
	// Topics that the connector has written, the offsets topic among them, sorted.
	Topics []string
	// IDs of the connector, by task, and the producer ids that the log knows of them.
	IDs       map[uint32]string
	Producers map[uint32]int64
}

// Heal asks the Fencer to end the hanging transactions of one id, each in the direction that is proven; answered by Healed, with HealPrepared and HealOn before where an empty transaction of the id is needed. It takes its
// turn among the other operations on the id, and keeps it to the end.
type Heal struct {
	Connector string
	Task      uint32
	// Seq grows with each Heal of this leader.
	Seq     uint64
	ID      string
	Hanging []Hang
	// Noted is the id's last decision, where it proves anything; otherwise its outcome is OutcomeUnknown.
	Noted Decision
	// Note, where set, is of an empty transaction that an earlier leader began: it is ended by the note, and nothing is initialised before.
	Note *HealNote

	// A user's: Topics is where to look first, Only the one partition that is meant, Force the direction of what can't be proven, Live that an open transaction is aborted, too.
	Topics    []string
	Producers map[uint32]int64
	Only      *TopicPartition
	Force     Outcome
	Live      bool
}

// TopicPartition is one partition.
type TopicPartition struct {
	Topic     string
	Partition int32
}

// HealOn says that the note of a Heal is in the log: it may go on.
type HealOn struct {
	Connector string
	Task      uint32
	Seq       uint64
}

// Reply answers Asked. Exactly one of Result and Err counts: Result where Err is nil.
type Reply struct {
	ID     uint64
	Result Result
	Err    *Error
}

// Happening tells people what happened to a connector. It is in ConnectorView.Happenings too, where equal ones are one.
type Happening struct {
	Connector string
	// At is when, or when last where Count is more than 1; First is then when it first was.
	At, First time.Time
	Count     uint64
	Text      string
}

func (Persist) effect()      {}
func (Send) effect()         {}
func (CloseSession) effect() {}
func (StartRound) effect()   {}
func (CancelRound) effect()  {}
func (PrepareID) effect()    {}
func (Look) effect()         {}
func (Heal) effect()         {}
func (HealOn) effect()       {}
func (Reply) effect()        {}
func (Happening) effect()    {}
