package loop

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// batch is how many events share a transaction at most: enough for what gathers while one is being written, few enough that its effects don't wait long.
	batch = 256
	// tickEvery bounds how often deadlines are looked at.
	tickEvery = 100 * time.Millisecond
	// trust is how long after the beginning of a committed transaction the State is shown without another one. Nobody is elected within that time of it: an election takes a session time-out, at least a second.
	trust = 500 * time.Millisecond
)

// Run takes over and then leads until ctx ends, when it returns nil, or a write to the log fails, when it returns that error. It is called once.
func (l *Loop) Run(ctx context.Context, shell Shell) error {
	defer close(l.ended)
	l.shell = shell
	if err := l.act(ctx, []item{{event: state.TookOver{}}}); err != nil {
		return stopped(ctx, err)
	}
	timer := time.NewTimer(tickEvery)
	defer timer.Stop()
	ticked := time.Now()
	for {
		due := l.nextTick(ticked)
		timer.Reset(time.Until(due))
		var taken []item
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		case i := <-l.queue:
			taken = l.more(append(taken, i))
		}
		if !time.Now().Before(due) { // also where events come without end
			taken = append(taken, item{event: state.Tick{}})
			ticked = time.Now()
		}
		if err := l.act(ctx, taken); err != nil {
			return stopped(ctx, err)
		}
	}
}

// stopped tells a failed write from one that ended because Run was asked to.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// nextTick is when deadlines are to be looked at next. An idle coordinator wakes for nothing.
func (l *Loop) nextTick(last time.Time) time.Time {
	at, waits := l.state.Wake()
	if !waits {
		return time.Now().Add(time.Hour)
	}
	if soonest := last.Add(tickEvery); at.Before(soonest) {
		return soonest
	}
	return at
}

// more takes what else is waiting.
func (l *Loop) more(taken []item) []item {
	for len(taken) < batch {
		select {
		case i := <-l.queue:
			taken = append(taken, i)
		default:
			return taken
		}
	}
	return taken
}

// act is decide → persist → send. The order is what the promises rest on: whatever is sent, a grant above all, can be read in the log by the next leader, and a leader that lost the log falls silent here without having
// said anything that it decided since.
func (l *Loop) act(ctx context.Context, taken []item) error {
	// Decide.
	var effects []state.Effect
	if looks(taken) && time.Since(l.proven) >= trust { // I7: nobody is shown what may be another leader's by now.
		effects = append(effects, l.state.Step(time.Now(), state.Doubted{})...)
	}
	for _, i := range taken {
		if i.event == nil {
			continue
		}
		if i.answer != nil {
			l.asked[i.id] = i.answer
		}
		if gone, ok := i.event.(state.GaveUp); ok {
			delete(l.asked, gone.ID)
		}
		effects = append(effects, l.state.Step(time.Now(), i.event)...)
	}
	// Persist. The transaction begins here, after every event of the batch had arrived (I3), and nothing below is reached unless it is committed (I7).
	if records := merged(effects); len(records) > 0 {
		began := time.Now()
		if err := l.shell.Log.Write(ctx, records); err != nil {
			return fmt.Errorf("write to the config log: %w", err)
		}
		l.proven = began
	}
	// Send.
	for _, effect := range effects {
		l.carryOut(effect)
	}
	for _, i := range taken {
		if i.look != nil {
			i.look(l.state)
			close(i.looked)
		}
	}
	return nil
}

// looks says that somebody wants to see the State.
func looks(taken []item) bool {
	return slices.ContainsFunc(taken, func(i item) bool { return i.look != nil })
}

// merged has the last record of each key.
func merged(effects []state.Effect) []state.Record {
	var records []state.Record
	at := map[string]int{}
	for _, effect := range effects {
		persist, ok := effect.(state.Persist)
		if !ok {
			continue
		}
		for _, r := range persist.Records {
			if i, again := at[r.Key]; again {
				records[i] = r
				continue
			}
			at[r.Key] = len(records)
			records = append(records, r)
		}
	}
	return records
}

func (l *Loop) carryOut(effect state.Effect) {
	switch e := effect.(type) {
	case state.Persist: // written before
	case state.Send:
		l.shell.Sender.Send(e)
	case state.CloseSession:
		l.shell.Sender.CloseSession(e)
	case state.StartRound:
		l.shell.Fencer.StartRound(e)
	case state.CancelRound:
		l.shell.Fencer.CancelRound(e)
	case state.PrepareID:
		l.shell.Fencer.PrepareID(e)
	case state.Look:
		l.shell.Fencer.Look(e)
	case state.Heal:
		l.shell.Fencer.Heal(e)
	case state.HealOn:
		l.shell.Fencer.HealOn(e)
	case state.Reply:
		if answer := l.asked[e.ID]; answer != nil {
			delete(l.asked, e.ID)
			answer <- e
		}
	case state.Happening:
		l.logger.Info("connector event", "connector", e.Connector, "text", e.Text)
		if l.shell.History != nil {
			l.shell.History.Note(e.Connector)
		}
	default:
		panic(fmt.Sprintf("effect %T", effect))
	}
}
