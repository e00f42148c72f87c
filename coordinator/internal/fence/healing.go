package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// healKey names a heal that waits for its note.
type healKey struct {
	connector string
	task      uint32
	seq       uint64
}

// Heal ends an id's hanging transactions. It holds the id's place in its line from before the first look to after the last one, so that nobody here initialises the id in between.
func (d *Desk) Heal(h state.Heal) {
	before, leave := d.queue(h.ID)
	d.wait.Go(func() {
		defer leave()
		if before != nil {
			<-before
		}
		w := &healer{Desk: d, heal: h, done: state.Healed{Connector: h.Connector, Task: h.Task, Seq: h.Seq}}
		err := w.run(d.ctx)
		if ended(d.ctx) {
			return
		}
		if err != nil {
			w.done.Failed = err.Error()
		}
		d.tell(w.done)
	})
}

// HealOn lets a heal go on whose note is in the log.
func (d *Desk) HealOn(on state.HealOn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	key := healKey{on.Connector, on.Task, on.Seq}
	if noted := d.noted[key]; noted != nil {
		close(noted)
		delete(d.noted, key)
	}
}

// note asks for a note, and waits until it is in the log.
func (d *Desk) note(p state.HealPrepared) error {
	noted := make(chan struct{})
	d.mu.Lock()
	d.noted[healKey{p.Connector, p.Task, p.Seq}] = noted
	d.mu.Unlock()
	d.tell(p)
	select {
	case <-noted:
		return nil
	case <-d.ctx.Done():
		return context.Cause(d.ctx)
	}
}

// healer carries out one Heal.
type healer struct {
	*Desk
	heal state.Heal
	done state.Healed
}

func (w *healer) run(ctx context.Context) error {
	if note := w.heal.Note; note != nil {
		return w.finish(ctx, empty{w.heal.ID, *note})
	}
	limited, cancel := context.WithTimeout(ctx, healBudget)
	defer cancel()
	hangs, err := w.find(limited)
	if err != nil || len(hangs) == 0 {
		return err
	}
	proven, err := w.fencer.Prove(limited, w.heal.ID, hangs, w.heal.Noted)
	if err != nil {
		return err
	}
	var toCommit, toAbort []state.Mended
	for _, p := range proven {
		if p.Outcome == state.OutcomeUnknown && w.heal.Force != "" {
			p.Outcome, p.Proof = w.heal.Force, proofUser
		}
		m := state.Mended{Hang: p.Hang, Outcome: wrongWay(p.Outcome), Proof: p.Proof}
		switch m.Outcome {
		case state.OutcomeCommitted:
			toCommit = append(toCommit, m)
		case state.OutcomeAborted:
			toAbort = append(toAbort, m)
		default:
			w.leave(p.Hang, advice(p.Hang, p.Proof))
		}
	}
	// Commits first: whatever goes wrong in the middle then costs the lesser.
	for _, mend := range [][]state.Mended{toCommit, toAbort} {
		if err := w.mend(ctx, limited, mend); err != nil {
			return err
		}
	}
	return nil
}

func (w *healer) leave(h state.Hang, text string) {
	w.done.Left = append(w.done.Left, &runnerv1.HangingPartition{Topic: h.Topic, Partition: h.Partition, TransactionalId: h.ID, Advice: text})
}

// find has what hangs now. Since it was asked for, somebody before in the line may have healed it, or begun a transaction: then it is no hang.
func (w *healer) find(ctx context.Context) ([]state.Hang, error) {
	if w.heal.Live && w.heal.Only == nil {
		if err := w.abortOpen(ctx); err != nil {
			return nil, err
		}
	}
	hangs := w.heal.Hanging
	if w.heal.Topics != nil {
		var err error
		if hangs, err = w.fencer.Look(ctx, w.heal.Topics, map[uint32]string{w.heal.Task: w.heal.ID}, w.heal.Producers); err != nil {
			return nil, err
		}
	}
	if only := w.heal.Only; only != nil {
		var meant []state.Hang
		for _, h := range hangs {
			if h.Topic == only.Topic && h.Partition == only.Partition {
				meant = append(meant, h)
			}
		}
		hangs = meant
	}
	last, err := w.fencer.describe(ctx, w.heal.ID)
	if err != nil {
		return nil, err
	}
	if last.Outcome == state.OutcomeUnknown {
		return nil, fmt.Errorf("a transaction of %q is open: what it holds isn't hanging", w.heal.ID)
	}
	if len(hangs) == 0 {
		return nil, nil
	}
	return w.fencer.still(ctx, hangs)
}

// abortOpen aborts a transaction that is open, which is what taking the id does.
func (w *healer) abortOpen(ctx context.Context) error {
	last, err := w.fencer.describe(ctx, w.heal.ID)
	if err == nil && last.Outcome != state.OutcomeUnknown {
		return nil
	}
	if err != nil && !errors.Is(err, errDeciding) {
		return err
	}
	taken, err := w.fencer.Take(ctx, w.heal.ID)
	if err != nil {
		return err
	}
	w.done.Aborted, w.done.Fenced, w.done.Last = true, true, &taken.Last
	return nil
}

// mend ends hangs of one direction: by markers where the user may, which needs no more than one request each and leaves no window; else by one empty transaction.
func (w *healer) mend(ctx, limited context.Context, mend []state.Mended) error {
	var rest []state.Mended
	for _, m := range mend {
		err := w.fencer.mark(limited, m.Hang, m.Outcome == state.OutcomeCommitted)
		switch {
		case errors.Is(err, errNoRight):
			rest = append(rest, m)
		case err != nil:
			return err
		default:
			m.Way = wayMarker
			w.done.Mended = append(w.done.Mended, m)
		}
	}
	if len(rest) == 0 {
		return nil
	}
	return w.mendEmpty(ctx, limited, rest)
}

func (w *healer) mendEmpty(ctx, limited context.Context, mend []state.Mended) error {
	taken, err := w.fencer.takeLong(limited, w.heal.ID)
	if err != nil {
		return err
	}
	w.done.Fenced = true
	e := empty{w.heal.ID, state.HealNote{ProducerID: taken.ProducerID, ProducerEpoch: taken.Epoch, Outcome: mend[0].Outcome}}
	fits := map[state.Hang]state.Mended{}
	for _, m := range mend {
		// An empty transaction writes its markers under the id's own producer id: where that has changed they free nothing.
		if m.ProducerID != taken.ProducerID || m.ProducerEpoch >= taken.Epoch {
			w.leave(m.Hang, stuck(m.Hang, m.Outcome, "the id has another producer id since, so only a marker frees it: grant the coordinator's user ClusterAction (or Alter) on the cluster"))
			continue
		}
		e.note.Hanging = append(e.note.Hanging, m.Hang)
		fits[m.Hang] = m
	}
	if len(e.note.Hanging) == 0 {
		w.done.Last = &taken.Last
		return nil
	}
	// The note first. From here to the end of the transaction nobody may initialise the id: that would abort it, and delete what was committed.
	if err := w.note(state.HealPrepared{Connector: w.heal.Connector, Task: w.heal.Task, Seq: w.heal.Seq, Note: e.note, Last: taken.Last}); err != nil {
		return err
	}
	crash("noted")
	var refused *Refused
	switch err := w.fencer.add(ctx, e); {
	case errors.As(err, &refused):
		for _, h := range e.note.Hanging {
			w.leave(h, stuck(h, e.note.Outcome, refused.Reason))
		}
		return nil
	case errors.Is(err, errTaken):
		return w.overtaken(ctx, e)
	case err != nil:
		return fmt.Errorf("end what hangs by an empty transaction of %q: %w", e.id, err)
	}
	crash("added")
	switch err := w.fencer.end(ctx, e); {
	case errors.Is(err, errTaken):
		return w.overtaken(ctx, e)
	case err != nil:
		return fmt.Errorf("end the empty transaction of %q: %w", e.id, err)
	}
	crash("ended")
	if err := w.fencer.free(ctx, e.note.Hanging); err != nil {
		return err
	}
	for _, h := range e.note.Hanging {
		m := fits[h]
		m.Way = wayEmpty
		w.done.Mended = append(w.done.Mended, m)
	}
	return nil
}

// finish ends by the note what an earlier leader began, and initialises nothing before. How far that one came isn't known; the transaction may be open, over, or not begun.
func (w *healer) finish(ctx context.Context, e empty) error {
	w.done.Fenced = true
	err := w.fencer.end(ctx, e)
	if errors.Is(err, kerr.InvalidTxnState) {
		// Not begun: nothing was added. The id is as it was initialised for this, so it can begin now. Or it was ended in the other direction, and then adding is harmless: the partitions are free.
		if err = w.fencer.add(ctx, e); err == nil {
			err = w.fencer.end(ctx, e)
		}
	}
	var refused *Refused
	switch {
	case errors.As(err, &refused):
		for _, h := range e.note.Hanging {
			w.leave(h, stuck(h, e.note.Outcome, refused.Reason))
		}
		return nil
	case errors.Is(err, errTaken):
		return w.overtaken(ctx, e)
	case err != nil:
		return err
	}
	if err := w.fencer.free(ctx, e.note.Hanging); err != nil {
		return err
	}
	for _, h := range e.note.Hanging {
		w.done.Mended = append(w.done.Mended, state.Mended{Hang: h, Outcome: e.note.Outcome, Proof: "the note of the coordinator that began it", Way: wayEmpty})
	}
	return nil
}

// overtaken says what is known where somebody else initialised the id, or the transaction expired. Partitions that still hang were not in it; the others may have got the abort marker.
func (w *healer) overtaken(ctx context.Context, e empty) error {
	left, err := w.fencer.still(ctx, e.note.Hanging)
	if err != nil {
		return err
	}
	for _, h := range e.note.Hanging {
		if !hanging(part{h.Topic, h.Partition}, h.ProducerID, left) && e.note.Outcome == state.OutcomeCommitted {
			w.fencer.log.Error("a hanging transaction that was committed may have been aborted", "transactional_id", e.id, "topic", h.Topic, "partition", h.Partition, "from_offset", h.Start)
		}
	}
	return nil
}
