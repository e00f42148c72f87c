package model

import (
	"fmt"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// How much there is of everything.
const (
	coordinators = 2
	runners      = 2
	tasks        = 2
	partitions   = 2
	// attempts of a start are told apart by their number modulo this: more questions of one lease are never under way.
	attempts = 2
	// mostWaiting bounds a stream's messages in one direction, an id's operations, and what a log of Kafka holds behind its first open record. It is a bound like the others: a step that needs more room isn't followed, and
	// the search says how many those were.
	mostWaiting = 6
)

// world is all that there is, but for what the source gives. It is a value: equal worlds are the same state of the search. Everything that only counts up is left out or made relative, where nothing depends on it.
type world struct {
	// log is the config log's content, holder the coordinator whose writes it takes.
	log    logID
	holder uint8
	lead   [coordinators]leader
	runner [runners]runner
	id     [tasks]txnID
	// out are the output's partitions, one for each of the source; offsets is the one partition of stored offsets.
	out     [partitions]output
	offsets offsetLog

	// changed is how many of the changes have been asked for, layout the task set that a plan gives. waiting: a stop isn't answered yet, and which coordinator was asked, from 1. stopped: it was answered.
	changed, layout, waiting uint8
	stopped                  bool
	// newest is the highest generation that has committed, latest the highest epoch of each task's leases.
	newest uint8
	latest [tasks]uint8

	// early is what was stored when the task set was planned, for the planted mistake of that name.
	early [partitions]uint8

	left faults
}

// faults are how many of each may still happen.
type faults struct{ takeovers, crashes, zombies, cuts, unanswered, expiries uint8 }

// leader is a coordinator that leads, or believes so.
type leader struct {
	core  coreID
	state leaderState
	// lag is how many beats have passed since the core's last event; it is 0 for the true leader. age is how many since its last transaction of the log.
	lag, age uint8
	// ops are the operations on each transactional id, in the order in which they were asked for.
	ops [tasks][mostWaiting]op
}

type leaderState uint8

const (
	standby leaderState = iota
	leads
	gone
)

// op is an operation of the fencer on one id: of a round, or before a task's start. Zero is none.
type op struct {
	round   uint8 // its number; 0: not of a round
	done    bool  // of a round: the id was answered `ok`
	session uint8
	lease   lease
	attempt uint8
}

// lease is a lease in two bytes: 1, task, generation (6 bits), epoch (8 bits). Zero is none.
type lease uint16

func newLease(task, generation, epoch uint64) lease {
	if task >= tasks || generation > 63 || epoch > 255 {
		panic(fmt.Sprintf("lease of task %d, generation %d, epoch %d: the model is too small", task, generation, epoch))
	}
	return lease(1<<15 | task<<14 | generation<<8 | epoch)
}

func leaseOf(l state.Lease) lease {
	if l.Connector == "" {
		return 0
	}
	return newLease(uint64(l.Task), l.Generation, l.Epoch)
}

func (l lease) task() int         { return int(l >> 14 & 1) }
func (l lease) generation() uint8 { return uint8(l >> 8 & 63) }
func (l lease) epoch() uint8      { return uint8(l) }
func (l lease) real() state.Lease {
	return state.Lease{Connector: connectorName, Incarnation: incarnation, Generation: uint64(l.generation()), Task: uint32(l.task()), Epoch: uint64(l.epoch())}
}

func (l lease) String() string {
	return fmt.Sprintf("task %d (generation %d, epoch %d)", l.task(), l.generation(), l.epoch())
}

// runner is a runner and its one stream to a coordinator.
type runner struct {
	// process counts the runner's lives; dead: it has crashed.
	process uint8
	dead    bool
	// at is the coordinator that the stream leads to, from 1; 0: there is none. session names it, sessions counts them.
	at, session, sessions uint8
	// term is the highest one seen.
	term     uint8
	up, down [mostWaiting]message
	// closing are sessions that have ended without the coordinators having been told, by coordinator.
	closing [coordinators]uint8
	// plan is the epoch of the plan that it holds, 0 for none; planDue: its task set is to be sent.
	plan    uint8
	planDue bool
	slot    [tasks]slot
}

// message is a message of a stream. Zero is none.
type message struct {
	kind    messageKind
	lease   lease
	attempt uint8
	// flag says no in an answer, and asks for a drain in a revocation. claim is a grant's.
	flag  bool
	claim uint8
}

type messageKind uint8

const (
	// Up.
	msPrepare messageKind = iota + 1
	msConfirm
	msLook
	msEnded
	// Down.
	msGrant
	msRevoke
	msPrepareAnswer
	msConfirmAnswer
	msLookAnswer
)

// slot is a task on a runner: what runs and what waits for its end.
type slot struct {
	lease lease
	phase phase
	claim uint8
	// trust is for how many beats the runner trusts the lease.
	trust   uint8
	attempt uint8
	drain   bool
	// end is how many offset records it reads before it goes on, where some of them are still open.
	end uint8
	// at is how far the source has been read, for each partition claimed.
	at [partitions]uint8
	// open is the partition of the open transaction's record, from 1; 0: there is no transaction.
	open uint8
	// memory: at wasn't read from Kafka but kept: the planted mistakes.
	memory bool
	next   struct {
		lease lease
		claim uint8
	}
	// newest is the highest epoch that this runner has seen of the task.
	newest uint8
}

type phase uint8

const (
	idle phase = iota
	// pausing: an attempt has ended, and the lease isn't to be trusted just now.
	pausing
	// preparing: the coordinator was asked to fence the id.
	preparing
	// prepared: it has, and the lease was checked. Whoever sleeps here takes the id back later.
	prepared
	// confirming: the id is initialised, the coordinator was asked to confirm the lease.
	confirming
	// looking: it has; the coordinator was asked to look for hanging transactions.
	looking
	// reading: the end of the stored offsets is known, and something before it is still open.
	reading
	// running: the source is open.
	running
)

// producing says that a task is between its confirmation and its end.
func (p phase) producing() bool { return p >= looking }

// txnID is a transactional id at its transaction coordinator. Instead of an epoch it has who holds the highest one, which is all that epochs are for.
type txnID struct {
	// owner is the slot whose producer has the newest epoch, from 1 (see slotNumber); 0: nobody's has.
	owner uint8
	state txnState
	// lease of whoever opened the transaction.
	lease lease
	// inFlight: a commit was sent whose sender doesn't wait for it any more.
	inFlight bool
}

type txnState uint8

const (
	empty txnState = iota
	ongoing
	// prepareCommit and prepareAbort: decided, the markers aren't written yet. Initialising is answered CONCURRENT_TRANSACTIONS and fences nobody.
	prepareCommit
	prepareAbort
)

func slotNumber(runner, task int) uint8 { return uint8(runner*tasks+task) + 1 }

// output is a partition of the output: how many records are readable, in order, and what lies behind them.
type output struct {
	readable uint8
	behind   [mostWaiting]entry
}

// entry is a record of a log of Kafka. Zero is none.
type entry struct {
	// value is the record's number; for a stored offset, partition says whose, from 1.
	value, partition uint8
	// open is the id whose transaction it belongs to, from 1; 0: it is committed, with its marker.
	open uint8
}

// offsetLog is the partition of stored offsets: what is stored before the first open record, and the records from there on.
type offsetLog struct {
	stored [partitions]uint8
	behind [mostWaiting]entry
}

// push adds to the end of a queue.
func push[T comparable](queue *[mostWaiting]T, item T) {
	var none T
	for i := range queue {
		if queue[i] == none {
			queue[i] = item
			return
		}
	}
	panic(noRoom{})
}

// noRoom is what push panics with; the search takes back the step.
type noRoom struct{}

// remove takes one out of a queue.
func remove[T any](queue *[mostWaiting]T, at int) {
	var none T
	copy(queue[at:], queue[at+1:])
	queue[mostWaiting-1] = none
}

func runnerOf(session uint8) int { return int(session-1) % runners }
