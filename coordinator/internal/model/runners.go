package model

import "fmt"

// The abstract runner: the steps of a start as runner/internal/task takes them, and of the supervisor and the session what decides about leases. What a runner does by itself between two messages is one step with the message
// before it: nobody sees the difference.

// ask sends the question that a slot waits for; on each new stream again. Without a stream it waits for the next one.
func (x *runner) ask(s *slot) {
	kinds := map[phase]messageKind{preparing: msPrepare, confirming: msConfirm, looking: msLook}
	if kind, asks := kinds[s.phase]; asks && x.at != 0 {
		push(&x.up, message{kind: kind, lease: s.lease, attempt: s.attempt})
	}
}

// receive has a runner take the first message of its stream.
func (m *machine) receive(w *world, r int) {
	x := &w.runner[r]
	got := x.down[0]
	remove(&x.down, 0)
	s := &x.slot[got.lease.task()]
	switch got.kind {
	case msGrant:
		m.granted(w, r, got)
	case msRevoke:
		m.revoked(w, r, got)
	case msPrepareAnswer, msConfirmAnswer, msLookAnswer:
		wants := map[messageKind]phase{msPrepareAnswer: preparing, msConfirmAnswer: confirming, msLookAnswer: looking}[got.kind]
		switch {
		case s.lease != got.lease || s.attempt != got.attempt || s.phase != wants:
			// Whoever asked waits no more.
		case got.flag:
			m.tell("%s is refused %s", runnerName(r), got.lease)
			m.end(w, r, got.lease.task())
		default:
			m.goOn(w, r, got.lease.task())
		}
	default:
		panic(fmt.Sprintf("message %d to a runner", got.kind))
	}
}

// goOn takes a slot to its next question.
func (m *machine) goOn(w *world, r, task int) {
	x := &w.runner[r]
	s := &x.slot[task]
	switch s.phase {
	case preparing:
		if s.trust == 0 {
			m.tell("%s was let start %s, but its lease has run out meanwhile", runnerName(r), s.lease)
			s.phase = pausing
			return
		}
		m.tell("%s has checked the lease of %s", runnerName(r), s.lease)
		s.phase = prepared
	case confirming:
		m.tell("%s knows that %s is confirmed", runnerName(r), s.lease)
		s.phase = looking
		x.ask(s)
	case looking:
		m.readOffsets(w, r, task)
	}
}

// granted starts a task, after the older one of the same number.
func (m *machine) granted(w *world, r int, got message) {
	x := &w.runner[r]
	s := &x.slot[got.lease.task()]
	switch {
	case s.lease == got.lease || s.next.lease == got.lease:
		return
	case got.lease.epoch() <= s.newest:
		m.sayEnded(x, got.lease)
		return
	}
	s.newest = got.lease.epoch()
	if s.next.lease != 0 {
		m.sayEnded(x, s.next.lease)
	}
	s.next.lease, s.next.claim = got.lease, got.claim
	if s.lease != 0 {
		m.end(w, r, got.lease.task())
		return
	}
	m.startNext(w, r, got.lease.task())
}

func (m *machine) startNext(w *world, r, task int) {
	s := &w.runner[r].slot[task]
	if s.next.lease == 0 {
		return
	}
	m.tell("%s starts %s", runnerName(r), s.next.lease)
	*s = slot{lease: s.next.lease, claim: s.next.claim, trust: leaseBeats - heartbeatBeats, newest: s.newest}
	m.attempt(w, r, task)
}

// attempt begins an attempt: the whole order of a start.
func (m *machine) attempt(w *world, r, task int) {
	x := &w.runner[r]
	s := &x.slot[task]
	s.phase, s.attempt = preparing, (s.attempt+1)%attempts
	s.open, s.end = 0, 0
	if !s.memory {
		s.at = [partitions]uint8{}
	}
	if m.mistake == OffsetsBeforeInit {
		s.at, s.memory = w.early, true
		for p := range s.at {
			if s.claim&(1<<p) == 0 {
				s.at[p] = 0
			}
		}
	}
	x.ask(s)
}

// init is the runner's own initialisation of an id.
func (m *machine) init(w *world, r, task int) {
	x := &w.runner[r]
	s := &x.slot[task]
	if !w.initialise(task, slotNumber(r, task)) {
		m.tell("%s initialises the id of task %d, is answered CONCURRENT_TRANSACTIONS, and will try again", runnerName(r), task)
		return
	}
	m.tell("%s initialises the id of task %d", runnerName(r), task)
	m.counted(w, s.lease)
	if m.mistake == NoConfirmation {
		m.readOffsets(w, r, task)
		return
	}
	s.phase = confirming
	x.ask(s)
}

// readOffsets reads what is stored, up to the high watermark as it is now, and opens the source with it.
func (m *machine) readOffsets(w *world, r, task int) {
	s := &w.runner[r].slot[task]
	if s.memory {
		m.tell("%s goes on with %s without reading the stored offsets: %s", runnerName(r), s.lease, positions(s))
		s.phase = running
		s.memory = m.mistake == ResumeFromMemory
		return
	}
	s.phase = reading
	s.end = w.endOfOffsets(m.mistake == ReadToLastStable)
	if !w.tryRead(s) {
		m.tell("%s waits for open transactions among the stored offsets", runnerName(r))
		return
	}
	m.tell("%s reads the stored offsets of %s and opens the source: %s", runnerName(r), s.lease, positions(s))
}

func positions(s *slot) string {
	text := ""
	for p, name := range partitionNames {
		if s.claim&(1<<p) == 0 {
			continue
		}
		if text != "" {
			text += ", "
		}
		if s.at[p] == 0 {
			text += name + " from its beginning"
		} else {
			text += fmt.Sprintf("%s after record %d", name, s.at[p])
		}
	}
	return text
}

// produce sends the next record of a partition and its offset, in a new transaction.
func (m *machine) produce(w *world, r, task, partition int) {
	s := &w.runner[r].slot[task]
	if w.id[task].owner != slotNumber(r, task) {
		m.tell("%s produces for task %d and is refused: it has been fenced", runnerName(r), task)
		m.again(w, r, task)
		return
	}
	s.at[partition]++
	m.tell("%s produces record %s%d in a transaction of task %d", runnerName(r), partitionNames[partition], s.at[partition], task)
	w.begin(task, partition, s.at[partition], s.lease)
	s.open = uint8(partition) + 1
	if m.mistake == AcknowledgeEarly {
		m.acknowledge(w, r, task, partition)
	}
}

// commit ends a slot's transaction, and tells the source.
func (m *machine) commit(w *world, r, task int) {
	s := &w.runner[r].slot[task]
	if w.id[task].owner != slotNumber(r, task) {
		m.tell("%s commits for task %d and is refused: it has been fenced", runnerName(r), task)
		m.again(w, r, task)
		return
	}
	partition := int(s.open) - 1
	s.open = 0
	m.tell("%s commits record %s%d", runnerName(r), partitionNames[partition], s.at[partition])
	m.decideCommit(w, task)
	m.acknowledge(w, r, task, partition)
	if s.drain {
		m.end(w, r, task)
	}
}

// commitUnanswered sends a commit whose answer never comes. The attempt is over: I4.
func (m *machine) commitUnanswered(w *world, r, task int) {
	m.tell("%s commits for task %d and gets no answer", runnerName(r), task)
	w.id[task].inFlight = true
	s := &w.runner[r].slot[task]
	s.memory = m.mistake == ResumeFromMemory
	if s.memory {
		s.at[s.open-1]-- // it takes it for not committed
	}
	m.again(w, r, task)
}

// decideCommit is the moment at which a transaction is committed.
func (m *machine) decideCommit(w *world, task int) {
	id := &w.id[task]
	id.state, id.inFlight = prepareCommit, false
	m.committed(w, id.lease)
}

// acknowledge tells the source that what it gave is safe.
func (m *machine) acknowledge(w *world, r, task, partition int) {
	if at := w.runner[r].slot[task].at[partition]; at > w.committed(partition) {
		m.broken("I5: a source was told that record %s%d is safe, and it isn't committed", partitionNames[partition], at)
	}
}

// again ends an attempt and begins the next one. Nothing is carried over in memory (I4).
func (m *machine) again(w *world, r, task int) {
	s := &w.runner[r].slot[task]
	m.close(w, r, task)
	if s.drain {
		m.end(w, r, task)
		return
	}
	if m.mistake != ResumeFromMemory {
		s.memory = false
	} else if s.phase == running {
		s.memory = true
	}
	m.attempt(w, r, task)
}

// close closes a producer. Its epoch isn't used by anybody from then on.
func (m *machine) close(w *world, r, task int) {
	if w.id[task].owner == slotNumber(r, task) {
		w.id[task].owner = 0
	}
}

// end ends a task: its open transaction is aborted, its producer closed, its lease given back.
func (m *machine) end(w *world, r, task int) {
	x := &w.runner[r]
	s := &x.slot[task]
	if s.open != 0 && w.id[task].owner == slotNumber(r, task) {
		w.id[task].state = prepareAbort
	}
	m.close(w, r, task)
	m.tell("%s ends %s", runnerName(r), s.lease)
	m.sayEnded(x, s.lease)
	next := s.next
	*s = slot{newest: s.newest}
	s.next = next
	m.startNext(w, r, task)
}

func (m *machine) sayEnded(x *runner, l lease) {
	if x.at != 0 {
		push(&x.up, message{kind: msEnded, lease: l})
	}
}

// revoked ends a task, or lets it finish what is open.
func (m *machine) revoked(w *world, r int, got message) {
	x := &w.runner[r]
	task := got.lease.task()
	s := &x.slot[task]
	s.newest = max(s.newest, got.lease.epoch())
	switch {
	case s.next.lease == got.lease:
		s.next.lease, s.next.claim = 0, 0
		m.sayEnded(x, got.lease)
	case s.lease != got.lease:
		m.sayEnded(x, got.lease)
	case got.flag && s.phase == running && s.open != 0:
		m.tell("%s drains %s", runnerName(r), got.lease)
		s.drain = true
	default:
		m.end(w, r, task)
	}
}

// crashRunner kills a runner's process. Its open transactions stay open.
func (m *machine) crashRunner(w *world, r int) {
	m.tell("%s crashes", runnerName(r))
	x := &w.runner[r]
	m.cut(w, r)
	for task := range x.slot {
		m.close(w, r, task)
	}
	*x = runner{process: x.process, dead: true, sessions: x.sessions, closing: x.closing}
}
