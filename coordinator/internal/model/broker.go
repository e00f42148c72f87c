package model

// The abstract broker: transactional ids, their transactions, and what is readable. It follows Kafka 4.4 with librdkafka as it was measured:
//   - Initialising an id that is Empty is answered `ok` and takes it. Where a transaction is open, it is answered CONCURRENT_TRANSACTIONS, and the open transaction is being aborted from then on. Where one is being ended,
//     it is answered the same, and nobody is fenced.
//   - A transaction is decided at once and atomically. Its markers come later, and until then its records hold back the last stable offset.
//   - Only the newest producer of an id begins, produces and commits.
//
// The markers of a transaction on the output and on the offsets are one step: nobody in this protocol reads the output.

// initialise is one InitProducerId. by is the slot that asks, 0 where it is a bare one.
func (w *world) initialise(task int, by uint8) (ok bool) {
	id := &w.id[task]
	switch id.state {
	case empty:
		w.fenced(task)
		id.owner = by
		return true
	case ongoing:
		w.fenced(task)
		id.state = prepareAbort
	case prepareCommit, prepareAbort:
	}
	return false
}

// fenced says that nobody's producer of an id is its newest any more.
func (w *world) fenced(task int) {
	w.id[task].owner, w.id[task].inFlight = 0, false
}

// begin opens a transaction with one record and the offset that covers it.
func (w *world) begin(task, partition int, value uint8, by lease) {
	id := &w.id[task]
	id.state, id.lease = ongoing, by
	push(&w.out[partition].behind, entry{value: value, partition: uint8(partition) + 1, open: uint8(task) + 1})
	push(&w.offsets.behind, entry{value: value, partition: uint8(partition) + 1, open: uint8(task) + 1})
}

// mark writes the markers of a transaction that was decided.
func (w *world) mark(task int) {
	id := &w.id[task]
	committed := id.state == prepareCommit
	id.state, id.lease = empty, 0
	for p := range w.out {
		w.settle(&w.out[p].behind, task, committed, nil)
		w.out[p].shrink()
	}
	w.settle(&w.offsets.behind, task, committed, w.before)
	w.finishReading()
	w.shrinkOffsets()
}

// settle frees the entries of a transaction from it, or deletes them; gone is told where one was deleted.
func (w *world) settle(log *[mostWaiting]entry, task int, committed bool, gone func(at int)) {
	for i := 0; i < mostWaiting && log[i] != (entry{}); i++ {
		if log[i].open != uint8(task)+1 {
			continue
		}
		if committed {
			log[i].open = 0
			continue
		}
		remove(log, i)
		if gone != nil {
			gone(i)
		}
		i--
	}
}

// before moves the ends up to which slots read, where an entry was deleted or has become part of what is stored.
func (w *world) before(at int) {
	for r := range w.runner {
		for t := range w.runner[r].slot {
			if s := &w.runner[r].slot[t]; int(s.end) > at {
				s.end--
			}
		}
	}
}

// shrink counts what is readable. What is committed behind it was checked when it was decided.
func (o *output) shrink() {
	for o.behind[0] != (entry{}) && o.behind[0].open == 0 {
		o.readable = o.behind[0].value
		remove(&o.behind, 0)
	}
}

// finishReading lets every slot go on that waits for nothing any more. What it has read can't change after that, so that it makes no difference when.
func (w *world) finishReading() {
	for r := range w.runner {
		for t := range w.runner[r].slot {
			if s := &w.runner[r].slot[t]; s.phase == reading {
				w.tryRead(s)
			}
		}
	}
}

// tryRead reads what is stored before a slot's end, unless something there is still open.
func (w *world) tryRead(s *slot) bool {
	for i := range s.end {
		if w.offsets.behind[i].open != 0 {
			return false
		}
	}
	stored := w.offsets.stored
	for _, e := range w.offsets.behind[:s.end] {
		stored[e.partition-1] = e.value
	}
	for p := range stored {
		if s.claim&(1<<p) == 0 {
			stored[p] = 0
		}
	}
	s.at, s.end = stored, 0
	if s.phase == reading {
		s.phase = running
	}
	return true
}

func (w *world) shrinkOffsets() {
	for w.offsets.behind[0] != (entry{}) && w.offsets.behind[0].open == 0 {
		w.offsets.stored[w.offsets.behind[0].partition-1] = w.offsets.behind[0].value
		remove(&w.offsets.behind, 0)
		w.before(0)
	}
}

// endOfOffsets is the high watermark of the stored offsets, or the last stable offset.
func (w *world) endOfOffsets(stable bool) uint8 {
	for i, e := range w.offsets.behind {
		if e == (entry{}) || stable && e.open != 0 {
			return uint8(i)
		}
	}
	return mostWaiting
}

// decided says that an entry is committed, its marker written or not.
func (w *world) decided(e entry) bool {
	return e.open == 0 || w.id[e.open-1].state == prepareCommit
}

// committed counts the records of a partition that will be readable whatever comes.
func (w *world) committed(partition int) uint8 {
	n := w.out[partition].readable
	for _, e := range w.out[partition].behind {
		if e != (entry{}) && w.decided(e) {
			n = e.value
		}
	}
	return n
}
