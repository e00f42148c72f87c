package source

import "bytes"

// outgoing is a message with its number, and the positions that it reaches.
type outgoing struct {
	message   Message
	seq       uint64
	positions []Position
}

// heldBatch is a batch that can't go out yet: no offset covers the records of bare.
type heldBatch struct {
	batch     *Batch
	positions []Position
	bare      []*Partition
}

// maxHeldBytes bounds what waits for a Reach.
const maxHeldBytes = 64 << 20

// flush sends what was added so far, unless it has records that no offset covers yet.
func (r *Records) flush() error {
	if r.err != nil || r.uncovered > 0 {
		return r.err
	}
	return r.split(false)
}

func (r *Records) split(continues bool) error {
	if err := r.sendDropped(); err != nil {
		return err
	}
	return r.seal(continues, NoMark)
}

// seal ends the open batch, where it has anything, and sends it, or holds it where it has records that no offset covers yet.
func (r *Records) seal(continues bool, mark Mark) error {
	if r.builder.Len() == 0 && len(r.touched) == 0 && len(r.held) == 0 && mark == NoMark {
		return nil
	}
	h := heldBatch{}
	for _, p := range r.touched {
		p.touched = false
		if p.uncovered {
			h.bare = append(h.bare, p)
		} else {
			h.positions = append(h.positions, Position{Partition: p, Offset: bytes.Clone(p.offset)})
		}
	}
	r.touched = r.touched[:0]
	r.offsetBytes = 0
	h.batch = r.builder.Batch(0)
	h.batch.Boundary = mark
	if r.uncovered == 0 {
		return r.release(h, continues)
	}
	r.held = append(r.held, h)
	r.heldBytes += h.batch.Size()
	if r.heldBytes > maxHeldBytes {
		r.err = Fatalf("%d bytes of records wait for an offset that covers them, the limit is %d: call Reach earlier, or give each record its offset", r.heldBytes, maxHeldBytes)
	}
	return r.err
}

// release sends the batches that were held, and the last one. They are one unit: no transaction ends between them, and the offset of a bare partition is that of the whole.
func (r *Records) release(last heldBatch, continues bool) error {
	held := append(r.held, last)
	r.held, r.heldBytes = nil, 0
	for i, h := range held {
		for _, p := range h.bare {
			h.positions = append(h.positions, Position{Partition: p, Offset: bytes.Clone(p.offset)})
		}
		goesOn := continues || i < len(held)-1
		if err := r.sendBatch(h, goesOn); err != nil {
			return err
		}
	}
	return nil
}

func (r *Records) sendBatch(h heldBatch, continues bool) error {
	b := h.batch
	r.seq++
	b.Seq, b.Continues = r.seq, continues
	b.Offsets = make([]Reached, len(h.positions))
	for i, p := range h.positions {
		b.Offsets[i] = Reached{Partition: p.Partition.number, Offset: p.Offset}
	}
	if size := b.Size(); size > r.limits.MaxBatchBytes {
		r.err = Fatalf("a batch has %d bytes, the limit is %d", size, r.limits.MaxBatchBytes)
		return r.err
	}
	r.sinceMark = b.Boundary == NoMark
	if err := r.emit(outgoing{message: b, seq: r.seq, positions: h.positions}); err != nil {
		return err
	}
	if r.reuse {
		r.builder.Reuse(b)
	}
	return nil
}

// sendDropped sends the drops that were collected.
func (r *Records) sendDropped() error {
	if r.dropped.Count == 0 {
		return nil
	}
	r.seq++
	d := r.dropped
	d.Seq = r.seq
	positions := make([]Position, len(r.dropping))
	for i, p := range r.dropping {
		p.touched = false
		positions[i] = Position{Partition: p, Offset: bytes.Clone(p.offset)}
		d.Offsets = append(d.Offsets, Reached{Partition: p.number, Offset: positions[i].Offset})
	}
	r.dropped, r.dropping, r.dropBytes = Dropped{}, r.dropping[:0], 0
	r.sinceMark = true
	return r.emit(outgoing{message: &d, seq: r.seq, positions: positions})
}

func (r *Records) emit(o outgoing) error {
	r.idle = false
	if err := r.send(o); err != nil {
		r.err = err
	}
	return r.err
}
