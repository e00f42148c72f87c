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
	"cmp"
	"fmt"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Options are set once, by the shell.
type Options struct {
	// Cluster is the cluster's name; it is part of every transactional id.
	Cluster string
	// Coordinators are those that are known to be alive; CoordinatorsChanged replaces them.
	Coordinators []Coordinator
	// Version is this program's, for people.
	Version string
	// LevelMin and LevelMax are the levels that this coordinator can lead at. Default: those of this version.
	LevelMin, LevelMax uint32
	// LeaseTTL is how long a renewal lasts. Default 10 s.
	LeaseTTL time.Duration
	// PlainLeaseTTL is the same for at-least-once tasks, which stop when their lease runs out: a hard take-over of the coordinator must fit into it three times. Default 30 s.
	PlainLeaseTTL time.Duration
	// Heartbeat is how often runners send one. Default LeaseTTL/5.
	Heartbeat time.Duration
	// Reconnect is how long a runner whose session this leader has held may stay away before its tasks move. Default 2 s.
	Reconnect time.Duration
	// Drain is how long a task may take to finish what it has before its id is fenced. Default 20 s.
	Drain time.Duration
	// FenceRetry is how long after a permanent refusal a round is tried again. Default 60 s.
	FenceRetry time.Duration
	// NoBalance leaves tasks that run where they are when runners join.
	NoBalance bool
}

// withDefaults fills what isn't set.
func (o Options) withDefaults() Options {
	o.LeaseTTL = cmp.Or(o.LeaseTTL, 10*time.Second)
	o.PlainLeaseTTL = cmp.Or(o.PlainLeaseTTL, 30*time.Second)
	o.Heartbeat = cmp.Or(o.Heartbeat, o.LeaseTTL/5)
	o.Reconnect = cmp.Or(o.Reconnect, 2*time.Second)
	o.Drain = cmp.Or(o.Drain, 20*time.Second)
	o.FenceRetry = cmp.Or(o.FenceRetry, time.Minute)
	o.LevelMin, o.LevelMax = cmp.Or(o.LevelMin, LevelMin), cmp.Or(o.LevelMax, LevelMax)
	return o
}

// State is all that a leader knows. It isn't safe for concurrent use.
type State struct {
	options      Options
	term         uint64
	level        uint32 // 0 before TookOver where the log has none
	accepted     int64  // the log may begin at this offset, as an operator has accepted
	coordinators []Coordinator
	connectors   map[string]*connector
	runners      map[string]*runner
	sessions     map[SessionID]*runner
	held         map[string]map[*lease]struct{} // leases that aren't lost, by the runner's name
	plans        map[string]int                 // plans by the runner's name
	rounds       uint64                         // the last round's Seq
	heals        uint64                         // the last Heal's Seq
	moves        map[taskRef]*move
	warmUps      uint64    // the last WarmUp's request
	shifts       uint64    // counts what drains and balance depend on
	shifted      bool      // something has changed since balance was looked at
	balanceAt    time.Time // when it is looked at again even where nothing has
	settled      time.Time // from here on, a runner that hasn't come back since the take-over isn't waited for
	committed    time.Time // a transaction of the log began no earlier and was committed
	wake         time.Time // no deadline passes before; zero: there is none

	// Of the step being taken.
	now     time.Time
	effects []Effect
	puts    map[string]any
	order   []string // keys of puts
	answers []answer
	touched map[string]bool
}

// answer is a Reply whose view of the connector is made at the end of the step.
type answer struct {
	reply     Reply
	connector *connector
}

// New makes an empty State. Zero options take their defaults.
func New(options Options) *State {
	return &State{
		options: options.withDefaults(), coordinators: options.Coordinators,
		connectors: map[string]*connector{}, runners: map[string]*runner{}, sessions: map[SessionID]*runner{},
		held: map[string]map[*lease]struct{}{}, plans: map[string]int{}, moves: map[taskRef]*move{},
		puts: map[string]any{}, touched: map[string]bool{},
	}
}

// Step takes an event at a time that never falls. The State supposes that what it asks to persist will be: where it can't be, the State is to be thrown away.
func (s *State) Step(now time.Time, event Event) []Effect {
	s.now = now
	s.decide(event)
	s.follow()
	for _, r := range s.going() {
		s.drainNext(r)
	}
	s.settleTouched()
	s.balance()
	s.settleTouched()
	if _, ticked := event.(Tick); ticked {
		s.rescan()
	}
	return s.finish()
}

// settleTouched reconciles every connector that the step concerns.
func (s *State) settleTouched() {
	for len(s.touched) > 0 {
		for _, name := range sorted(s.touched) {
			delete(s.touched, name)
			s.reconcile(s.connectors[name])
		}
	}
}

func (s *State) decide(event Event) {
	switch e := event.(type) {
	case TookOver:
		s.takeOver()
	case Tick:
		s.tick()
	case Asked:
		s.ask(e)
	case GaveUp:
		s.forget(e.ID)
	case SessionOpened:
		s.open(e)
	case SessionClosed:
		s.closed(e)
	case FromRunner:
		s.message(e)
	case RoundDone:
		s.roundDone(e)
	case RoundFailed:
		s.roundFailed(e)
	case IDPrepared:
		s.prepared(e)
	case Looked:
		s.looked(e)
	case CoordinatorsChanged:
		s.coordinatorsChanged(e)
	case Doubted:
		s.prove()
	case Recalled:
		s.recall(e)
	case Found:
		s.found(e)
	case HealPrepared:
		s.healPrepared(e)
	case Healed:
		s.healed(e)
	default:
		panic(fmt.Sprintf("event %T", event))
	}
}

// takeOver raises the term and gives every lease and plan in the log a whole lease time to be renewed (I7). A new cluster begins at the highest level of its first leader.
func (s *State) takeOver() {
	s.term++
	s.level = cmp.Or(s.level, s.options.LevelMax)
	s.putCluster()
	s.settled = s.now.Add(s.options.LeaseTTL)
	s.wakeAt(s.settled)
	for _, name := range sorted(s.connectors) {
		c := s.connectors[name]
		c.loaded()
		s.finishHeals(c)
		if c.missing() != "" {
			s.mend(c)
		}
		for _, task := range sorted(c.leases) {
			l := c.leases[task]
			if l.State == leaseLost {
				continue
			}
			s.hold(l)
			c.last[task] = l.Runner
			l.expires = s.now.Add(s.ttlOf(l))
			l.deadline = s.now.Add(s.options.Drain)
			s.wakeAt(l.deadline)
		}
		s.noiseAgain(c)
		if c.Planner != "" {
			s.plans[c.Planner]++
			c.planner.gone = s.settled
		}
		s.touch(c)
	}
}

// tick takes back what has run out, and touches every connector that a deadline concerns.
func (s *State) tick() {
	if late := s.now.Sub(s.wake); !s.wake.IsZero() && late > s.options.Heartbeat {
		s.postpone()
	}
	s.wake = time.Time{}
	s.shifts++ // some of it only passes with time
	for _, name := range sorted(s.runners) {
		if r := s.runners[name]; r.session == 0 && !s.now.Before(r.grace) {
			s.lose(r.name, r.process, "its connection closed and no other came")
			delete(s.runners, name)
		}
	}
	for _, name := range sorted(s.connectors) {
		c := s.connectors[name]
		for _, task := range sorted(c.leases) {
			s.overdue(c.leases[task])
		}
		if s.due(c.planner.gone) || s.due(s.settled) {
			s.touch(c)
		}
		if s.due(c.quiet) {
			s.quietNow(c)
		}
		if s.due(c.retry) {
			c.retry = time.Time{}
			s.touch(c)
		}
		for w, p := range c.pauses {
			if s.due(p.until) {
				delete(c.pauses, w)
				s.touch(c)
			}
		}
	}
	if s.due(s.settled) {
		s.settled = time.Time{}
		s.shift()
	}
}

// postpone gives runners the time to be heard. A Tick that comes late means that this coordinator was held up, by a slow transaction for example, and that their heartbeats may still be waiting to be taken. To take a
// lease back later than promised harms nobody.
func (s *State) postpone() {
	until := s.now.Add(2 * s.options.Heartbeat)
	for _, leases := range s.held {
		for l := range leases {
			if l.expires.Before(until) {
				l.expires = until
			}
		}
	}
	for _, r := range s.runners {
		if r.session == 0 && r.grace.Before(s.now.Add(s.options.Reconnect)) {
			r.grace = s.now.Add(s.options.Reconnect)
		}
	}
}

// due says that a deadline was set and has passed.
func (s *State) due(at time.Time) bool { return !at.IsZero() && !s.now.Before(at) }

// wakeAt asks for a Tick at a time.
func (s *State) wakeAt(at time.Time) {
	if s.wake.IsZero() || at.Before(s.wake) {
		s.wake = at
	}
}

// rescan finds the next deadline. Other steps only move it nearer, so that a Tick may find nothing due.
func (s *State) rescan() {
	next := func(at time.Time) {
		if !at.IsZero() {
			s.wakeAt(at)
		}
	}
	next(s.settled)
	next(s.balanceAt)
	for _, m := range s.moves {
		next(m.until)
	}
	for _, r := range s.runners {
		if r.session == 0 {
			next(r.grace)
		}
	}
	for _, c := range s.connectors {
		next(c.retry)
		next(c.quiet)
		next(c.planner.gone)
		for _, p := range c.pauses {
			next(p.until)
		}
		for _, l := range c.leases {
			switch l.State {
			case leaseHeld:
				next(l.expires)
				if l.Alter {
					next(l.deadline)
				}
			case leaseRevoked:
				next(l.expires)
				next(l.deadline)
			}
		}
	}
}

// Wake is when a Tick is due; false where nothing waits for the time to pass.
func (s *State) Wake() (time.Time, bool) { return s.wake, !s.wake.IsZero() }

// Term is the leader's; 0 before TookOver.
func (s *State) Term() uint64 { return s.term }

func (s *State) touch(c *connector) { s.touched[c.name] = true }

func (s *State) emit(e Effect) { s.effects = append(s.effects, e) }

// put persists a record with this step; value is encoded at its end, so that later changes to what it points to are in. A nil value deletes.
func (s *State) put(key string, value any) {
	if _, again := s.puts[key]; !again {
		s.order = append(s.order, key)
	}
	s.puts[key] = value
}

// prove makes this step have a transaction even where nothing else is persisted: what it sends is then known to come from a leader that still holds the log (I3, I7).
func (s *State) prove() {
	s.put(keyBeacon, &beaconRecord{Term: s.term, At: s.now})
}

// send sends a message with the term.
func (s *State) send(session SessionID, m *runnerv1.SessionResponse) {
	m.Term = s.term
	s.emit(Send{Session: session, Message: m})
}

func (s *State) reply(id uint64, c *connector, result Result) {
	s.answers = append(s.answers, answer{reply: Reply{ID: id, Result: result}, connector: c})
}

func (s *State) refuse(id uint64, err *Error) {
	s.answers = append(s.answers, answer{reply: Reply{ID: id, Err: err}})
}

// finish collects the step's effects: what is to be persisted first, answers last.
func (s *State) finish() []Effect {
	effects := make([]Effect, 0, 1+len(s.effects)+len(s.answers))
	if len(s.order) > 0 {
		// A transaction with anything in it proves as much as a beacon.
		records := make([]Record, 0, len(s.order))
		for _, key := range s.order {
			if value := s.puts[key]; value == nil {
				records = append(records, Record{Key: key})
			} else if key != keyBeacon || len(s.order) == 1 {
				records = append(records, encode(key, value))
			}
		}
		effects = append(effects, Persist{Records: records})
		s.committed = s.now
	}
	effects = append(effects, s.effects...)
	for _, a := range s.answers {
		if a.connector != nil && a.reply.Err == nil {
			view := s.view(a.connector)
			a.reply.Result.Connector = &view
		}
		effects = append(effects, a.reply)
	}
	s.effects, s.order, s.answers = nil, nil, nil
	clear(s.puts)
	return effects
}
