package model

import "fmt"

// machine takes the steps of a world. It is the search's: one goroutine uses it.
type machine struct {
	bounds  Bounds
	mistake Mistake
	cores   *cores
	// say tells people what happens; nil while nobody wants to know.
	say func(text string)
	// wrong is the first property that the step broke.
	wrong string
}

func (m *machine) tell(format string, args ...any) {
	if m.say != nil {
		m.say(fmt.Sprintf(format, args...))
	}
}

// broken notes that a property doesn't hold.
func (m *machine) broken(format string, args ...any) {
	if m.wrong == "" {
		m.wrong = fmt.Sprintf(format, args...)
	}
}

func coordinatorName(k int) string { return fmt.Sprintf("coordinator %d", k+1) }
func runnerName(r int) string      { return fmt.Sprintf("runner %d", r+1) }

// take has a coordinator take an event: decide → persist → send. Where the log doesn't take its writes any more, nothing is sent and it leads no more.
func (m *machine) take(w *world, k int, e event) *edge {
	l := &w.lead[k]
	e.wait += l.lag
	made := m.cores.step(l.core, e)
	if !m.persist(w, k, e, made) {
		return nil
	}
	l.core, l.lag = made.to, 0
	for i := range made.effects {
		m.carryOut(w, k, &made.effects[i])
	}
	return made
}

// persist writes to the log. It says whether the step's effects are carried out.
func (m *machine) persist(w *world, k int, e event, made *edge) bool {
	l := &w.lead[k]
	switch {
	case made.write == nil:
		return true
	case int(w.holder) == k+1:
		before := w.log
		w.log = m.cores.written(w.log, made, m.mistake == CountLate)
		l.age = 0
		m.onlyGrows(&m.cores.logs[before].logSummary, &m.cores.logs[w.log].logSummary)
		return true
	case m.mistake == ConfirmFromMemory && e.kind == evConfirm, m.mistake == RenewedByDeposed && e.kind == evHeartbeat:
		m.tell("%s answers from memory: it has no transaction of the log for it", coordinatorName(k))
		return true
	case m.mistake == SentBeforePersisted:
		m.tell("%s sends before it persists", coordinatorName(k))
		for i := range made.effects {
			m.carryOut(w, k, &made.effects[i])
		}
	}
	m.tell("%s is refused by the log: it has been replaced, and falls silent", coordinatorName(k))
	m.silent(w, k)
	return false
}

// silent ends a leadership. What it has sent may still arrive; nobody is told that a session ended.
func (m *machine) silent(w *world, k int) {
	w.lead[k] = leader{state: gone}
	for r := range w.runner {
		x := &w.runner[r]
		x.closing[k] = 0
		if int(x.at) == k+1 {
			x.up = [mostWaiting]message{}
		}
	}
	if int(w.waiting) == k+1 {
		w.waiting = mustAskAgain
	}
}

// mustAskAgain is world.waiting where whoever stops the connector has lost the coordinator that was asked.
const mustAskAgain = coordinators + 1

// carryOut lets one effect happen.
func (m *machine) carryOut(w *world, k int, f *effect) {
	switch f.kind {
	case fxRound:
		for task := range tasks {
			if f.tasks&(1<<task) != 0 {
				push(&w.lead[k].ops[task], op{round: f.number})
			}
		}
		m.tell("%s begins a fencing round of %s", coordinatorName(k), idNames(f.tasks))
		if m.mistake == StopAnsweredEarly && int(w.waiting) == k+1 {
			m.answerStop(w)
		}
	case fxCancel:
		for task := range tasks {
			m.drop(&w.lead[k].ops[task], f.number)
		}
	case fxPrepareID:
		push(&w.lead[k].ops[f.lease.task()], op{session: f.session, lease: f.lease, attempt: f.attempt})
	case fxLook:
		// Nothing hangs in this model.
		m.take(w, k, event{kind: evLooked, session: f.session, lease: f.lease, attempt: f.attempt})
	case fxReply:
		if !f.refused && w.waiting != 0 {
			m.answerStop(w)
		}
	case fxClose:
		m.closeSession(w, k, f.session)
	default:
		m.send(w, k, f)
	}
}

func idNames(set uint8) string {
	names := ""
	for task := range tasks {
		if set&(1<<task) != 0 {
			if names != "" {
				names += " and "
			}
			names += fmt.Sprintf("the id of task %d", task)
		}
	}
	return names
}

func (m *machine) answerStop(w *world) {
	w.waiting, w.stopped = 0, true
	m.tell("the stop is answered: no task can write any more")
}

// drop takes a cancelled round's operation out of an id's line.
func (m *machine) drop(ops *[mostWaiting]op, round uint8) {
	for i := range ops {
		if ops[i].round == round {
			remove(ops, i)
			return
		}
	}
}

// closeSession ends a stream from the coordinator's side.
func (m *machine) closeSession(w *world, k int, session uint8) {
	x := &w.runner[runnerOf(session)]
	if int(x.at) == k+1 && x.session == session {
		m.tell("%s closes the session of %s", coordinatorName(k), runnerName(runnerOf(session)))
		m.cut(w, runnerOf(session))
	}
}

// cut ends a runner's stream: whatever is on its way is lost. The coordinator learns of it in a step of its own.
func (m *machine) cut(w *world, r int) {
	x := &w.runner[r]
	if k := int(x.at) - 1; k >= 0 && w.lead[k].state == leads && x.closing[k] == 0 {
		x.closing[k] = x.session
	}
	x.at, x.session = 0, 0
	x.up, x.down = [mostWaiting]message{}, [mostWaiting]message{}
}

// send puts a message on a runner's stream. Messages about plans are taken at once: nothing that the properties speak of depends on when they arrive.
func (m *machine) send(w *world, k int, f *effect) {
	r := runnerOf(f.session)
	x := &w.runner[r]
	switch {
	case f.kind == fxGrant:
		m.announced(w, k, f.lease)
	case f.kind == fxConfirmAnswer && !f.refused:
		m.confirmed(w, k, f.lease)
	}
	if int(x.at) != k+1 || x.session != f.session {
		return
	}
	switch f.kind {
	case fxGrant:
		m.tell("%s grants %s to %s", coordinatorName(k), f.lease, runnerName(r))
		push(&x.down, message{kind: msGrant, lease: f.lease, claim: f.number})
	case fxRevoke:
		m.tell("%s takes %s back from %s", coordinatorName(k), f.lease, runnerName(r))
		push(&x.down, message{kind: msRevoke, lease: f.lease, flag: f.drain})
	case fxPrepareAnswer:
		push(&x.down, message{kind: msPrepareAnswer, lease: f.lease, attempt: f.attempt, flag: f.refused})
	case fxConfirmAnswer:
		m.tell("%s %s %s", coordinatorName(k), map[bool]string{true: "refuses to confirm", false: "confirms"}[f.refused], f.lease)
		push(&x.down, message{kind: msConfirmAnswer, lease: f.lease, attempt: f.attempt, flag: f.refused})
	case fxLookAnswer:
		push(&x.down, message{kind: msLookAnswer, lease: f.lease, attempt: f.attempt, flag: f.refused})
	case fxRenewed:
		m.renewed(w, k, r, f)
	case fxStartPlan:
		x.plan, x.planDue = f.number, true
	case fxStopPlan:
		if x.plan == f.number {
			x.plan, x.planDue = 0, false
		}
	}
}

// renewed moves the deadlines of a runner's leases. Heartbeats don't wait in streams: they are part of the passing of time.
func (m *machine) renewed(w *world, k, r int, f *effect) {
	if int(f.beats)+int(w.lead[k].age) > leaseBeats {
		m.broken("I7: a renewal reaches further than one lease time beyond the last transaction of the log by the coordinator that gives it")
	}
	x := &w.runner[r]
	for t := range x.slot {
		s := &x.slot[t]
		lost := false
		for _, l := range f.lost {
			if l == s.lease || l == s.next.lease {
				push(&x.down, message{kind: msRevoke, lease: l})
				lost = lost || l == s.lease
			}
		}
		if s.lease != 0 && !lost {
			s.trust = max(s.trust, f.beats)
		}
	}
}

// takeOver makes a coordinator the leader: it is elected, takes the log's transactional id, and reads the log to its end.
func (m *machine) takeOver(w *world, k int) {
	m.tell("%s is elected, takes the log's transactional id and reads the log", coordinatorName(k))
	w.holder = uint8(k) + 1
	made := m.cores.lead(w.log)
	w.lead[k] = leader{core: made.to, state: leads}
	m.persist(w, k, event{}, made)
	for i := range made.effects {
		m.carryOut(w, k, &made.effects[i])
	}
}

// crashCoordinator kills the leader.
func (m *machine) crashCoordinator(w *world, k int) {
	m.tell("%s crashes", coordinatorName(k))
	m.silent(w, k)
	for r := range w.runner {
		if int(w.runner[r].at) == k+1 {
			m.cut(w, r)
		}
	}
}

// fence takes one attempt at the first operation on an id.
func (m *machine) fence(w *world, k, task int) {
	at := m.next(&w.lead[k].ops[task])
	if at < 0 {
		return
	}
	o := &w.lead[k].ops[task][at]
	ok := w.initialise(task, 0)
	if !ok && m.mistake == RoundNotRepeated && o.round != 0 {
		m.tell("%s initialises the id of task %d, is answered CONCURRENT_TRANSACTIONS, and takes that for done", coordinatorName(k), task)
	} else if !ok {
		m.tell("%s initialises the id of task %d, is answered CONCURRENT_TRANSACTIONS, and will try again", coordinatorName(k), task)
		return
	} else {
		m.tell("%s initialises the id of task %d: it is fenced", coordinatorName(k), task)
	}
	if o.round == 0 {
		e := event{kind: evPrepared, session: o.session, lease: o.lease, attempt: o.attempt}
		remove(&w.lead[k].ops[task], at)
		m.take(w, k, e)
		return
	}
	o.done = true
	m.roundDone(w, k, o.round)
}

// next is the operation on an id whose turn it is. One of a round keeps its turn until the round is done.
func (m *machine) next(ops *[mostWaiting]op) int {
	if ops[0] == (op{}) || ops[0].done {
		return -1
	}
	return 0
}

// roundDone tells the core, once every id of a round was answered.
func (m *machine) roundDone(w *world, k int, round uint8) {
	for task := range tasks {
		for _, o := range w.lead[k].ops[task] {
			if o.round == round && !o.done {
				return
			}
		}
	}
	for task := range tasks {
		m.drop(&w.lead[k].ops[task], round)
	}
	m.take(w, k, event{kind: evRoundDone, round: round})
}

// hear has a coordinator take the first message that a runner sent it.
func (m *machine) hear(w *world, r int) {
	x := &w.runner[r]
	got, k := x.up[0], int(x.at)-1
	remove(&x.up, 0)
	e := event{session: x.session, lease: got.lease, attempt: got.attempt, term: x.term}
	switch got.kind {
	case msPrepare:
		m.tell("%s hears that %s wants to start %s", coordinatorName(k), runnerName(r), got.lease)
		e.kind = evPrepare
	case msConfirm:
		m.tell("%s hears %s ask whether it still holds %s", coordinatorName(k), runnerName(r), got.lease)
		e.kind = evConfirm
	case msLook:
		m.tell("%s looks for hanging transactions for %s, and finds none", coordinatorName(k), got.lease)
		e.kind = evLook
	case msEnded:
		m.tell("%s hears that %s has ended %s", coordinatorName(k), runnerName(r), got.lease)
		e.kind = evEnded
	default:
		panic(fmt.Sprintf("message %d to a coordinator", got.kind))
	}
	m.take(w, k, e)
}

// hello opens a runner's stream.
func (m *machine) hello(w *world, r, k int) {
	x := &w.runner[r]
	x.sessions++
	x.at, x.session = uint8(k)+1, x.sessions*runners-runners+uint8(r)+1
	m.tell("%s opens a session with %s", runnerName(r), coordinatorName(k))
	term := x.term
	x.term = max(x.term, m.term(w, k))
	for t := range x.slot {
		x.ask(&x.slot[t])
	}
	x.planDue = x.plan != 0
	m.take(w, k, event{kind: evHello, session: x.session, process: x.process, plan: x.plan, term: term, held: x.held()})
	x.closing[k] = 0 // what ended before was replaced
}

// term is a coordinator's: the n-th that leads leads in term n.
func (m *machine) term(w *world, k int) uint8 {
	return uint8(m.cores.nodes[w.lead[k].core].state.Term())
}

// held are the leases that a runner tells of.
func (x *runner) held() (held [4]lease) {
	n := 0
	for t := range x.slot {
		for _, l := range []lease{x.slot[t].lease, x.slot[t].next.lease} {
			if l != 0 {
				held[n] = l
				n++
			}
		}
	}
	return held
}
