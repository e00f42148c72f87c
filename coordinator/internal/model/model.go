// Package model checks the protocol of lease, fence and commit by trying everything: every order of the steps of two coordinators, two runners, a broker and a source, with faults, within bounds. Tests meet an ordering
// mistake by luck; a search finds it, and the shortest way to it.
//
// The decision core is the real one: each event goes through State.Step (package state), the take-over through State.Load. What is around it is abstract and written down here: the config log with its transactional epoch, so
// that a leader that was replaced goes on believing until a write is refused (coordinators.go); runners with the steps of a start in their order (runners.go); a broker with transactional ids, CONCURRENT_TRANSACTIONS, markers
// that come late and a last stable offset that they hold back (broker.go); streams that delay messages and lose them when they end. actions.go has the steps, properties.go what must hold after each, search.go tries them.
//
// Two reductions keep the number of states down. Both are meant to lose nothing, which is argued and not proven: epochs of producers are kept as who has the newest one, which is all that they are for; and a step that only its own side can see is one with the message
// that led to it. Time is no clock: it passes in steps of their own, up to the leader's next deadline, and the core's times count by how far they are from now.
//
// It never talks to anything real, and nothing but its tests uses it. What it leaves out is in docs/proof.md. Read next: model_test.go, then testdata/*.txt, the ways to planted mistakes.
package model

// Bounds say how much may happen.
type Bounds struct {
	// Layout is the first task set, Changes what is asked for after it, in this order.
	Layout  uint8
	Changes []Change
	// Records is how many each source partition gives.
	Records [partitions]uint8
	// Faults, and how many of each.
	Takeovers, Crashes, Zombies, Cuts, Unanswered, Expiries uint8
	// States is where the search stops; 0: nowhere. Walk leads every so many-th state to the end by a fair run; 0: none.
	States, Walk int
}

// Change is what a user, or the source, asks for.
type Change struct {
	Kind   ChangeKind
	Layout uint8
}

// ChangeKind is the kind of a change.
type ChangeKind uint8

// Kinds of changes, each of which begins a generation.
const (
	// Apply is a new configuration, whose plan gives the task set.
	Apply ChangeKind = iota + 1
	// Replan is a new task set of a plan that goes on.
	Replan
	// Stop stops the connector, Delete deletes it.
	Stop
	Delete
)

func (b Bounds) faults() faults {
	return faults{takeovers: b.Takeovers, crashes: b.Crashes, zombies: b.Zombies, cuts: b.Cuts, unanswered: b.Unanswered, expiries: b.Expiries}
}

// Mistake is a mistake that is planted in the world around the core, to see that the search finds it.
type Mistake uint8

// Mistakes.
const (
	None Mistake = iota
	// NoConfirmation: a runner reads and produces as soon as its id is initialised.
	NoConfirmation
	// ConfirmFromMemory: a leader confirms without a transaction of the log.
	ConfirmFromMemory
	// RenewedByDeposed: a leader renews without one, however old its last one is.
	RenewedByDeposed
	// OffsetsBeforeInit: a task set is planned with the offsets that are stored then, and its tasks go on from those.
	OffsetsBeforeInit
	// ReadToLastStable: stored offsets are read up to the last stable offset.
	ReadToLastStable
	// CountLate: the count of ids doesn't grow in the log before the ids exist.
	CountLate
	// RoundNotRepeated: a fencing round takes CONCURRENT_TRANSACTIONS for an answer.
	RoundNotRepeated
	// AcknowledgeEarly: the source is told when its record has been produced.
	AcknowledgeEarly
	// ResumeFromMemory: an attempt goes on from where the one before was.
	ResumeFromMemory
	// SentBeforePersisted: decide → send → persist.
	SentBeforePersisted
	// StopAnsweredEarly: a stop is answered when the fencing round begins.
	StopAnsweredEarly
)
