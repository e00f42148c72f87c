package model

// What must hold. A step that breaks a property ends the search; the first one is told.

// onlyGrows is I6 in the log: generations, epochs, plan epochs and terms never fall.
func (m *machine) onlyGrows(before, after *logSummary) {
	if after.generation < before.generation || after.epoch < before.epoch || after.planEpoch < before.planEpoch || after.term < before.term || after.fenced < before.fenced {
		m.broken("I6: a generation, an epoch or a term in the log has fallen")
	}
	if after.fenced > after.generation {
		m.broken("I2: the log says that a generation is fenced which hasn't begun")
	}
}

// announced is I6 on the wire: a lease that is granted can be read in the log.
func (m *machine) announced(w *world, k int, l lease) {
	if !m.inForce(w, l) {
		m.broken("I6: %s has granted %s, and the log doesn't have it", coordinatorName(k), l)
	}
}

// counted is I2: an id that is initialised under a lease that is in force is counted in the log. (A runner that slept may take an id back that isn't counted any more: it won't be confirmed.)
func (m *machine) counted(w *world, by lease) {
	if n := int(m.cores.logs[w.log].ids); m.inForce(w, by) && n <= by.task() {
		m.broken("I2: the id of task %d exists now, and the log counts %d: a leader that takes over wouldn't fence it", by.task(), n)
	}
}

// confirmed is I3: a lease that is confirmed is in force in the log at that moment, whoever confirms it.
func (m *machine) confirmed(w *world, k int, l lease) {
	if !m.inForce(w, l) {
		m.broken("I3: %s has confirmed %s, and the log says that it is over", coordinatorName(k), l)
	}
}

// inForce says that the log has a lease, and that it wasn't taken back.
func (m *machine) inForce(w *world, l lease) bool {
	held, there := m.cores.logs[w.log].leases[uint32(l.task())]
	return there && uint8(held.Generation) == l.generation() && uint8(held.Epoch) == l.epoch() && held.State == "held"
}

// committed looks at a transaction that has just been committed.
func (m *machine) committed(w *world, by lease) {
	task := by.task()
	switch {
	case w.stopped:
		m.broken("stop: %s has committed after the stop was answered", by)
	case by.generation() < w.newest:
		m.broken("I2, fence first: %s has committed, and generation %d had committed before", by, w.newest)
	case by.epoch() < w.latest[task]:
		m.broken("I4: %s has committed, and the task's lease of epoch %d had committed before", by, w.latest[task])
	}
	w.newest, w.latest[task] = max(w.newest, by.generation()), max(w.latest[task], by.epoch())
	for p := range w.out {
		m.inOrder(w, p)
		if stored, readable := w.storedOffset(p), w.committed(p); stored != readable {
			m.broken("I1: the last readable record is %s%d, and the stored offset is %d", partitionNames[p], readable, stored)
		}
	}
}

// inOrder says that a reader sees each record once, in order, with none left out.
func (m *machine) inOrder(w *world, p int) {
	last := w.out[p].readable
	for _, e := range w.out[p].behind {
		if e == (entry{}) || !w.decided(e) {
			continue
		}
		switch {
		case e.value <= last:
			m.broken("a reader sees record %s%d twice", partitionNames[p], e.value)
		case e.value > last+1:
			m.broken("record %s%d is lost: a reader sees %s%d and not the one before", partitionNames[p], last+1, partitionNames[p], e.value)
		}
		last = e.value
	}
}

// storedOffset is what is stored for a partition, whatever is still open among the stored offsets.
func (w *world) storedOffset(p int) uint8 {
	at := w.offsets.stored[p]
	for _, e := range w.offsets.behind {
		if e != (entry{}) && w.decided(e) && int(e.partition) == p+1 {
			at = e.value
		}
	}
	return at
}

// check looks at a whole state. I8: of those tasks that go on after their confirmation, at most one can still commit what a source partition gives.
func (m *machine) check(w *world) {
	var owned uint8
	for r := range w.runner {
		for t := range w.runner[r].slot {
			s := &w.runner[r].slot[t]
			if !s.phase.producing() || w.id[t].owner != slotNumber(r, t) {
				continue
			}
			if owned&s.claim != 0 {
				m.broken("I8: two tasks that were both confirmed read one source partition, and both can commit")
			}
			owned |= s.claim
		}
	}
}

// done says that nothing is left to do: all that was asked for was done, and every record was delivered unless the connector was stopped.
func (m *machine) done(w *world) bool {
	if int(w.changed) < len(m.bounds.Changes) || w.waiting != 0 {
		return false
	}
	if w.stopped {
		return true
	}
	for p := range w.out {
		if w.out[p].readable < m.bounds.Records[p] {
			return false
		}
	}
	return true
}
