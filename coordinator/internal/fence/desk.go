package fence

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// lookBudget is how long one look may take. Whoever asked may ask again.
const lookBudget = 10 * time.Second

var errCancelled = errors.New("a newer round takes its place")

// Desk carries out what one leader's loop asks for. Its methods never block; outcomes come back as events. Operations on one id are carried out one after another in the order of the calls, each with its
// event before the next begins: a late initialisation for an old lease never hits the producer of a newer one, and a newer decision is never told before an older one. How much is waiting is bounded by what the loop asks for: one round a connector, one start and one look a lease, one heal an id.
type Desk struct {
	fencer *Fencer
	submit func(context.Context, state.Event) error

	ctx    context.Context // ends with Run; a Desk lives as long as one leadership
	cancel context.CancelCauseFunc
	wait   sync.WaitGroup

	mu     sync.Mutex
	tails  map[string]chan struct{} // closed when the newest operation on an id is over
	rounds map[round]context.CancelCauseFunc
	noted  map[healKey]chan struct{} // closed when the note of a heal is in the log
}

type round struct {
	connector string
	seq       uint64
}

// NewDesk makes a Desk that submits outcomes.
func NewDesk(fencer *Fencer, submit func(context.Context, state.Event) error) *Desk {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &Desk{fencer: fencer, submit: submit, ctx: ctx, cancel: cancel, tails: map[string]chan struct{}{}, rounds: map[round]context.CancelCauseFunc{}, noted: map[healKey]chan struct{}{}}
}

// Run waits for ctx to end, ends everything and waits for it. The methods must not be called after that.
func (d *Desk) Run(ctx context.Context) error {
	<-ctx.Done()
	d.cancel(context.Cause(ctx))
	d.wait.Wait()
	return nil
}

// queue takes the last place in an id's line: the caller waits for before, and calls leave when it is done.
func (d *Desk) queue(id string) (before <-chan struct{}, leave func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	previous, mine := d.tails[id], make(chan struct{})
	d.tails[id] = mine
	return previous, func() {
		close(mine)
		d.mu.Lock()
		defer d.mu.Unlock()
		if d.tails[id] == mine {
			delete(d.tails, id)
		}
	}
}

// take waits for an id's turn and takes it. A turn is waited for even where ctx ends first, so that whoever is behind still waits for whoever is before.
func (d *Desk) take(ctx context.Context, id string, before <-chan struct{}) (Taken, error) {
	if before != nil {
		<-before // Each operation before this one ends: with Run at the latest.
	}
	return d.fencer.Take(ctx, id)
}

func (d *Desk) tell(event state.Event) {
	if d.submit(d.ctx, event) != nil {
		return // The loop has ended: nobody wants to know.
	}
}

// StartRound takes all ids of a round.
func (d *Desk) StartRound(r state.StartRound) {
	ctx, cancel := context.WithCancelCause(d.ctx)
	key := round{r.Connector, r.Seq}
	d.mu.Lock()
	d.rounds[key] = cancel
	d.mu.Unlock()
	takes, leaves := make([]func() (Taken, error), len(r.IDs)), make([]func(), len(r.IDs))
	for i, id := range r.IDs {
		before, leave := d.queue(id)
		takes[i], leaves[i] = func() (Taken, error) { return d.take(ctx, id, before) }, leave
	}
	d.wait.Go(func() {
		defer cancel(nil)
		defer d.forget(key)
		defer func() {
			for _, leave := range leaves {
				leave()
			}
		}()
		d.carryOut(ctx, r, takes)
	})
}

func (d *Desk) carryOut(ctx context.Context, r state.StartRound, takes []func() (Taken, error)) {
	if err := d.fencer.direct.Locate(ctx, r.IDs...); err != nil && !ended(ctx) {
		d.fencer.log.Debug("transaction coordinators not found at once", "connector", r.Connector, "error", err)
	}
	var (
		wait    sync.WaitGroup
		results = make([]Taken, len(takes))
		errs    = make([]error, len(takes))
	)
	for i, take := range takes {
		wait.Go(func() { results[i], errs[i] = take() })
	}
	wait.Wait()
	if ended(ctx) {
		return
	}
	decisions, failed := map[uint32]state.Decision{}, -1
	for i, task := range r.Tasks {
		if errs[i] == nil {
			decisions[task] = results[i].Last
		} else if failed < 0 {
			failed = i
		}
	}
	if failed < 0 {
		d.tell(state.RoundDone{Connector: r.Connector, Seq: r.Seq, Decisions: decisions})
		return
	}
	d.tell(state.RoundFailed{Connector: r.Connector, Seq: r.Seq, Task: r.Tasks[failed], Reason: errs[failed].Error(), Decisions: decisions})
}

func (d *Desk) forget(key round) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.rounds, key)
}

// CancelRound ends a round without an answer.
func (d *Desk) CancelRound(r state.CancelRound) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cancel, ok := d.rounds[round{r.Connector, r.Seq}]; ok {
		cancel(errCancelled)
	}
}

// PrepareID takes one id before a start.
func (d *Desk) PrepareID(p state.PrepareID) {
	before, leave := d.queue(p.ID)
	d.wait.Go(func() {
		defer leave()
		taken, err := d.take(d.ctx, p.ID, before)
		if ended(d.ctx) {
			return
		}
		prepared := state.IDPrepared{Session: p.Session, RequestID: p.RequestID, Lease: p.Lease, Decision: taken.Last}
		if err != nil {
			prepared.Failed = err.Error()
		}
		d.tell(prepared)
	})
}

// Look looks for hanging transactions.
func (d *Desk) Look(l state.Look) {
	d.wait.Go(func() {
		ctx, cancel := context.WithTimeout(d.ctx, lookBudget)
		defer cancel()
		hanging, err := d.fencer.Look(ctx, l.Topics, l.IDs, l.Producers)
		if ended(d.ctx) {
			return
		}
		looked := state.Looked{Session: l.Session, RequestID: l.RequestID, Lease: l.Lease, Hanging: hanging}
		if err != nil {
			looked.Failed = err.Error()
		}
		d.tell(looked)
	})
}
