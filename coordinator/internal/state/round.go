package state

import (
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
)

// round is a fencing round under way. A full one fences whatever generations before its own may have used; the others fence the ids of lost leases within one.
type round struct {
	seq        uint64
	generation uint64
	full       bool
	tasks      []uint32
}

// fence starts the round that is needed, or ends one that isn't any more. A generation's round waits until the old tasks have ended or their time is up; whoever is still there then is what it is for.
func (s *State) fence(c *connector) {
	full := c.Fenced < c.Generation
	if r := c.round; r != nil && (r.generation != c.Generation || r.full != full) {
		s.emit(CancelRound{Connector: c.name, Seq: r.seq})
		c.round = nil
	}
	if c.round != nil {
		return
	}
	again := !s.now.Before(c.retry)
	var tasks []uint32
	switch {
	case !full:
		tasks = c.lost(again) // an id that was refused doesn't hold up those that were lost since
		if len(tasks) == 0 {
			return
		}
	case !again || !c.idle():
		return
	default:
		// I2: every id that anyone before this generation may have used.
		for task := range c.IDs {
			tasks = append(tasks, task)
		}
	}
	c.round = &round{generation: c.Generation, full: full, tasks: tasks}
	if len(tasks) == 0 {
		s.fencedAll(c)
		return
	}
	s.rounds++
	c.round.seq = s.rounds
	start := StartRound{Connector: c.name, Incarnation: c.Incarnation, Generation: c.Generation, Seq: c.round.seq, Tasks: tasks}
	for _, task := range tasks {
		start.IDs = append(start.IDs, names.TransactionalID(s.options.Cluster, c.name, task))
	}
	s.emit(start)
}

func (s *State) roundDone(e RoundDone) {
	c := s.inForce(e.Connector, e.Seq)
	if c == nil {
		return
	}
	s.decided(c, e.Decisions)
	s.happen(c, "%s fenced for generation %d", many(len(c.round.tasks), "transactional id"), c.Generation)
	s.fencedAll(c)
	s.touch(c)
}

// inForce finds the connector whose round an answer belongs to; nil where the round was superseded.
func (s *State) inForce(name string, seq uint64) *connector {
	if c := s.connectors[name]; c != nil && c.round != nil && c.round.seq == seq {
		return c
	}
	return nil
}

// fencedAll notes that the round in force is done: the leases that it was for are over.
func (s *State) fencedAll(c *connector) {
	r := c.round
	c.round = nil
	if r.full {
		c.Fenced = r.generation
		// Nobody but the tasks of this generation can use an id from here on, and none has been granted yet.
		c.IDs = c.Tasks
		if c.wantsAlter() && !c.Deleting {
			c.IDs = max(c.IDs, 1) // task 0's id is used next
		}
		s.putName(c)
	}
	for _, task := range r.tasks {
		s.endLost(c, task)
	}
	if len(c.lost(true)) == 0 {
		c.refusal, c.retry = "", time.Time{}
	}
}

// endLost ends a lost lease whose id is fenced.
func (s *State) endLost(c *connector, task uint32) {
	if l := c.leases[task]; l != nil && l.State == leaseLost {
		s.end(c, l)
	}
}

// roundFailed keeps what can't go on until someone changes something, says so, and tries again later.
func (s *State) roundFailed(e RoundFailed) {
	c := s.inForce(e.Connector, e.Seq)
	if c == nil {
		return
	}
	s.decided(c, e.Decisions)
	if r := c.round; !r.full { // those whose ids are fenced all the same go on
		for _, task := range r.tasks {
			if _, fenced := e.Decisions[task]; fenced {
				s.endLost(c, task)
			} else if l := c.leases[task]; l != nil && l.State == leaseLost {
				l.refused = true
			}
		}
	}
	s.touch(c)
	c.round = nil
	c.refusal = clip(e.Reason, mostErrorBytes)
	c.retry = s.now.Add(s.options.FenceRetry)
	s.wakeAt(c.retry)
	s.happen(c, "fencing failed: %s", e.Reason)
	for _, w := range c.waits {
		s.refuse(w.id, &Error{Code: CodeStuck, Text: "what was asked is stored, but fencing failed: " + e.Reason, Hint: "it is tried again by itself; the connector's state shows how far it is"})
	}
	c.waits = nil
}

// decided keeps the last decisions of ids. An id that was empty hasn't had a transaction since it was last initialised. So a decision that is still free of doubt stands; but where a task was let write since then, an
// initialisation whose outcome never reached the log may have wiped the trace of a later one, and nothing is known.
func (s *State) decided(c *connector, decisions map[uint32]Decision) {
	for _, task := range sorted(decisions) {
		seen := &idRecord{Decision: decisions[task]}
		if old := c.decisions[task]; old != nil {
			seen.Mixed = old.Mixed
		}
		if old := c.decisions[task]; old != nil && seen.Outcome == OutcomeNone {
			if !old.Used {
				continue
			}
			seen.Outcome = OutcomeUnknown
		} else if old != nil && *old == *seen {
			continue
		}
		c.decisions[task] = seen
		s.put(taskKey(keyID, c.name, task), seen)
	}
}

// used notes that a task may write from here on: what the log says of its id is the last decision only until then.
func (s *State) used(c *connector, l Lease) {
	d := c.decisions[l.Task]
	if d == nil {
		d = &idRecord{Decision: Decision{Outcome: OutcomeNone, ProducerID: -1, ProducerEpoch: -1}}
		c.decisions[l.Task] = d
	}
	if mixed := c.aborts(l); !d.Used || d.Mixed != mixed {
		d.Used, d.Mixed = true, mixed
		s.put(taskKey(keyID, c.name, l.Task), d)
	}
}
