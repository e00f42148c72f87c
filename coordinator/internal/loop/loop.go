// Package loop is the one goroutine that owns a leader's State. It takes events from a bounded queue, lets the State decide on several of them, writes all that is to be persisted in one transaction of the config
// log, and only then carries the other effects out, in order: decide → persist → send. So nobody hears of anything that another leader could not read in the log (I6), and where the write fails nothing was said:
// the State is thrown away, Run returns, and the coordinator doesn't lead any more (I7).
//
// It decides nothing itself; see package state.
package loop

import (
	"cmp"
	"context"
	"errors"
	"sync/atomic"
	"time"

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
	Heal(state.Heal)
	HealOn(state.HealOn)
}

// Sender passes messages to runners. Its methods never block: a session that is gone or whose queue is full is closed, and SessionClosed is submitted.
type Sender interface {
	Send(state.Send)
	CloseSession(state.CloseSession)
}

// History is told of connectors whose happenings have changed, so that they can be kept. It never blocks.
type History interface{ Note(connector string) }

// Shell is what the loop acts through.
type Shell struct {
	Log    Log
	Fencer Fencer
	Sender Sender
	// History may be nil.
	History History
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

// queueDefault is how many events may wait, see Config.Queue.
const queueDefault = 1024

// Loop owns a State.
type Loop struct {
	state  *state.State
	logger hclog.Logger
	queue  chan item
	asks   atomic.Uint64
	ended  chan struct{}

	// Of the goroutine of Run.
	shell  Shell
	proven time.Time // a transaction that was committed began then: this coordinator led
	asked  map[uint64]chan<- state.Reply
}

// item is an event, with where its answer goes if it is an operation; or a look at the State.
type item struct {
	event  state.Event
	id     uint64 // of the operation that answer is for
	answer chan<- state.Reply
	look   func(*state.State)
	looked chan<- struct{}
}

// New makes a Loop; Run starts it. Events may be submitted before.
func New(config Config) *Loop {
	logger := config.Logger
	if logger == nil {
		logger = hclog.NewNullLogger()
	}
	return &Loop{
		state: config.State, logger: logger, queue: make(chan item, cmp.Or(config.Queue, queueDefault)),
		ended: make(chan struct{}), asked: map[uint64]chan<- state.Reply{},
	}
}

// Submit hands over an event. It waits while the queue is full, and returns ErrEnded once Run has returned.
func (l *Loop) Submit(ctx context.Context, event state.Event) error {
	return l.enqueue(ctx, item{event: event})
}

func (l *Loop) enqueue(ctx context.Context, i item) error {
	select {
	case <-l.ended:
		return ErrEnded
	default:
	}
	select {
	case l.queue <- i:
		return nil
	case <-l.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Do carries out a user's operation. The error is a *state.Error where the operation was refused, ErrEnded, or that of ctx: then what was decided stays and goes on.
func (l *Loop) Do(ctx context.Context, op state.Op) (state.Result, error) {
	id := l.asks.Add(1)
	answer := make(chan state.Reply, 1) // one answer at most, which nobody may be waiting for any more
	if err := l.enqueue(ctx, item{event: state.Asked{ID: id, Op: op}, id: id, answer: answer}); err != nil {
		return state.Result{}, err
	}
	select {
	case reply := <-answer:
		if reply.Err != nil {
			return state.Result{}, reply.Err
		}
		return reply.Result, nil
	case <-l.ended:
		return state.Result{}, ErrEnded
	case <-ctx.Done():
		select {
		case l.queue <- item{event: state.GaveUp{ID: id}}:
		default: // it only frees what the answer would free
		}
		return state.Result{}, ctx.Err()
	}
}

// View lets look read the State between two steps. What look keeps must be copied out of it; the views are copies. It sees what was decided and committed, by a leader that was one when it was asked or half a second before: where no transaction says
// so, one is made, so that a leader that was replaced and doesn't know shows nothing.
func (l *Loop) View(ctx context.Context, look func(*state.State)) error {
	looked := make(chan struct{})
	if err := l.enqueue(ctx, item{look: look, looked: looked}); err != nil {
		return err
	}
	select {
	case <-looked:
		return nil
	case <-l.ended:
		return ErrEnded
	case <-ctx.Done():
		return ctx.Err()
	}
}
