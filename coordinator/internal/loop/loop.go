// Package loop is the one goroutine that owns a leader's State. It takes events from a bounded queue, lets the State decide on several of them, writes all that is to be persisted in one transaction of the config
// log, and only then carries the other effects out, in order: decide → persist → send. So nobody hears of anything that another leader could not read in the log (I6), and where the write fails nothing was said:
// the State is thrown away, Run returns, and the coordinator doesn't lead any more (I7).
//
// It decides nothing itself; see package state.
package loop

import (
	"context"
	"errors"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Log is the config log, as long as this coordinator holds its transactional epoch.
type Log interface {
	// Write writes the records in one transaction and returns when it is committed. It never gets two records with one key, and never none. Any error ends the leadership: Write retries by itself
	// what can be retried, and returns no later than its own deadline.
	Write(ctx context.Context, records []state.Record) error
}

// Fencer carries out operations on transactional ids, each in goroutines of its own. Its methods never block and never fail: outcomes come back through Submit. Operations on one id are carried out one after
// another, in the order of the calls, so that a late initialisation for an old lease never hits the producer of a new one. Everything ends with the context of Run.
type Fencer interface {
	StartRound(state.StartRound)
	CancelRound(state.CancelRound)
	PrepareID(state.PrepareID)
	Look(state.Look)
}

// Sender passes messages to runners. Its methods never block: a session that is gone or whose queue is full is closed, and SessionClosed is submitted.
type Sender interface {
	Send(state.Send)
	CloseSession(state.CloseSession)
}

// Shell is what the loop acts through.
type Shell struct {
	Log    Log
	Fencer Fencer
	Sender Sender
}

// Config of a Loop.
type Config struct {
	// State as read from the log; the Loop owns it from New on.
	State *state.State
	// Queue is how many events may wait. Default 1,024: a burst of heartbeats and statuses of many runners while a transaction is being written. When it is full, Submit waits.
	Queue int
	// Logger gets one line per happening. Default: none.
	Logger hclog.Logger
}

// ErrEnded says that the loop doesn't run any more: this coordinator doesn't lead. What was asked may or may not be stored.
var ErrEnded = errors.New("this coordinator doesn't lead any more")

// Loop owns a State.
type Loop struct{}

// New makes a Loop; Run starts it. Events may be submitted before.
func New(config Config) *Loop { panic("not yet") }

// Run takes over and then leads until ctx ends, when it returns nil, or a write to the log fails, when it returns that error.
func (l *Loop) Run(ctx context.Context, shell Shell) error { panic("not yet") }

// Submit hands over an event. It waits while the queue is full, and returns ErrEnded once Run has returned.
func (l *Loop) Submit(ctx context.Context, event state.Event) error { panic("not yet") }

// Do carries out a user's operation. The error is a *state.Error where the operation was refused, ErrEnded, or that of ctx: then what was decided stays and goes on.
func (l *Loop) Do(ctx context.Context, op state.Op) (state.Result, error) { panic("not yet") }

// View lets look read the State between two steps. What look keeps must be copied out of it; the views are copies. It sees what was decided and committed.
func (l *Loop) View(ctx context.Context, look func(*state.State)) error { panic("not yet") }
