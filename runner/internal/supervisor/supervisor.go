// Package supervisor owns what runs on a runner: which tasks, plans and plugin processes there are, against which the coordinator wants.
//
// Its invariants:
//   - One goroutine owns the map of tasks. A task of one connector runs at most once at a time on a runner, so that there is at most one producer for a transactional id: a newer grant waits until the
//     older one's task has ended.
//   - A lower (generation, epoch) than one that was seen is refused (I6).
//   - A lease is given back only when the task's plugin is gone and its producer closed, and always is then.
//   - Whatever goes wrong costs an attempt: the next one goes through the whole order of a start, with a pause and within a budget (I4). Nothing is resumed from memory.
//   - Stopping has two stages: drain, then abandon after a set time.
//
// It never speaks to Kafka or to the coordinator itself, and it reads no record. Where to read next: task.go for the life of a task, budget.go for what an error costs.
package supervisor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

const (
	// drainAtEnd is how long all tasks together may take to be handed over and to drain when the runner stops.
	drainAtEnd = 20 * time.Second
	// handOverSoon is how long a leader may take to say that it hands the tasks over, and handOverFor how long it may take for all. What is left then drains at once.
	handOverSoon = 500 * time.Millisecond
	handOverFor  = 10 * time.Second
	// killAfter is how long an attempt may go on after it was told to end at once; its plugin is killed then.
	killAfter = 30 * time.Second
	// leaveAfter is how long the end of the runner waits for tasks that were told to end at once. It is longer than killAfter, the close of a producer and the stop of a plugin together.
	leaveAfter = 90 * time.Second
)

// Config is what a Supervisor works with.
type Config struct {
	// Validator knows the plugins and starts them; an error of a start with a method HostFault is the host's. Run closes it.
	Validator *Validator
	// RunTask is one attempt of a task. Its error is a *task.Failure; nil is a clean end after a drain.
	RunTask func(ctx context.Context, a Attempt) error
	// LoadOffsets reads a connector's stored offsets.
	LoadOffsets func(ctx context.Context, connector, topic string) (Offsets, error)
	// Logger is required.
	Logger hclog.Logger
}

// Session is what the supervisor tells the coordinator; *session.Session is one.
type Session interface {
	TaskSession
	PlanSession
	AnswerSession
}

// TaskSession is told about tasks.
type TaskSession interface {
	Status(s session.Status)
	Ended(l lease.Lease, clean bool, reason string)
	HostFailed(l lease.Lease, reason string)
	Draining()
}

// PlanSession is told about plans.
type PlanSession interface {
	PlanResult(r session.PlanResult)
	DropPlan(p session.PlanRef)
}

// AnswerSession is told the answers to the coordinator's questions.
type AnswerSession interface {
	AnswerValidate(id session.RequestID, problems []source.Problem, host bool, err error)
	AnswerReadOffsets(id session.RequestID, offsets []source.PartitionOffset, err error)
	AnswerAlterOffsets(id session.RequestID, err error)
	AnswerWarmUp(id session.RequestID, err error)
}

// Process is a plugin that runs; *pluginhost.Process is one.
type Process interface {
	Plugin() source.Plugin
	// Done is closed when the process has ended, and Err then says why.
	Done() <-chan struct{}
	Err() error
	// Stop ends it step by step; Kill at once.
	Stop(ctx context.Context) error
	Kill()
	// SHA256 is the checksum of the file that runs; empty where nobody here knows it.
	SHA256() string
}

// Offsets are a connector's stored offsets.
type Offsets interface {
	Stored(canonical []byte) (source.PartitionOffset, bool)
	All() []source.PartitionOffset
}

// Attempt is what one attempt of a task needs.
type Attempt struct {
	// Grant says what to run.
	Grant *session.Grant
	// Cluster is the cluster's name.
	Cluster string
	// Settings are the runtime's keys, Own the plugin's.
	Settings *settings.Settings
	Own      map[string]string
	// Plugin reads the source.
	Plugin source.Plugin
	// Drain is closed to ask for the end.
	Drain <-chan struct{}
	// Shrink says how often to halve a transaction's limits.
	Shrink int
	// NameRecords asks for delivery reports, so that the error of a commit that fails again names the record.
	NameRecords bool
	// Status is told how the attempt is doing.
	Status func(task.Status)
	// Logger is the task's.
	Logger hclog.Logger
}

// Supervisor runs a runner's tasks and plans.
type Supervisor struct {
	cfg       Config
	queue     queue
	questions chan struct{} // A token for each question that is being answered.
	running   sync.WaitGroup

	session Session // Set by Run, before anything else.

	// These belong to Run's goroutine.
	cluster  string
	tasks    map[lease.ID]*slot
	plans    map[string]*planSlot
	waiting  int // Questions that aren't answered yet.
	stopping bool
	handed   bool // A leader hands the tasks over, one by one.
	live     int  // Tasks and plans that have not ended.
}

// New makes a Supervisor. It starts nothing.
func New(cfg Config) (*Supervisor, error) {
	if cfg.Validator == nil || cfg.RunTask == nil || cfg.LoadOffsets == nil || cfg.Logger == nil {
		return nil, errors.New("supervisor: Config is incomplete")
	}
	s := &Supervisor{cfg: cfg, tasks: map[lease.ID]*slot{}, plans: map[string]*planSlot{}, questions: make(chan struct{}, questionsAtOnce)}
	s.queue.init()
	return s, nil
}

// Deliver takes an event of the coordinator's. It never blocks; an error says that too many are waiting.
func (s *Supervisor) Deliver(e session.Event) error { return s.queue.push(e) }

// Run works until ctx is done; then it drains every task, abandons what isn't drained after 20 s, and stops the plugins. An error means that the process should end: a task that can't be ended, or a
// client that was lost with its memory.
func (s *Supervisor) Run(ctx context.Context, to Session) error {
	s.session = to
	// Tasks outlive ctx: they are drained first.
	work, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(nil)
	err := errors.Join(s.loop(ctx, work), s.drainAll(work, abandon))
	abandon(errRunnerStops)
	s.cfg.Validator.Close()
	if s.live == 0 {
		s.running.Wait()
	}
	return err
}

// loop handles events until ctx is done.
func (s *Supervisor) loop(ctx, work context.Context) error {
	for ctx.Err() == nil {
		if e, ok := s.queue.pop(); ok {
			if err := s.handle(work, e); err != nil {
				return err
			}
			continue
		}
		select {
		case <-ctx.Done():
		case <-s.queue.wake:
		}
	}
	return nil
}

// drainAll ends everything. First the leader hands the tasks over, each when another runner is ready for it; what it hasn't taken back in time, or where no leader is, drains at once; what doesn't is abandoned.
func (s *Supervisor) drainAll(work context.Context, abandon context.CancelCauseFunc) error {
	s.stopping = true
	s.session.Draining()
	for _, p := range s.plans {
		p.stop()
	}
	begun := time.Now()
	over, stage, cancel := time.NewTimer(handOverSoon), time.NewTimer(drainAtEnd), time.NewTimer(drainAtEnd+leaveAfter)
	defer over.Stop()
	defer stage.Stop()
	defer cancel.Stop()
	for s.live > 0 {
		for e, ok := s.queue.pop(); ok; e, ok = s.queue.pop() {
			if err := s.handle(work, e); err != nil {
				return err
			}
		}
		if s.live == 0 {
			break
		}
		select {
		case <-s.queue.wake:
		case <-over.C:
			if left := handOverFor - time.Since(begun); s.handed && left > 0 {
				over.Reset(left)
			} else {
				s.drainTasks()
			}
		case <-stage.C:
			abandon(errRunnerStops)
		case <-cancel.C:
			return fmt.Errorf("%d tasks and plans didn't end within %s", s.live, drainAtEnd+leaveAfter)
		}
	}
	return nil
}

// drainTasks asks every task to drain; the end of the first stage ends those that don't.
func (s *Supervisor) drainTasks() {
	for _, t := range s.tasks {
		t.drain(drainAtEnd+leaveAfter, "the runner is stopping")
	}
}

// handle handles one event. It never blocks.
func (s *Supervisor) handle(work context.Context, e any) error {
	switch e := e.(type) {
	case *session.Welcomed:
		s.cluster = e.Cluster
	case *session.Grant:
		s.grant(work, e)
	case *session.Revoke:
		s.revoke(e)
	case *session.Lost:
		s.revoke(&session.Revoke{Lease: e.Lease, Reason: "the lease was lost"})
	case *taskOver:
		return s.taskOver(work, e)
	case *session.StartPlan:
		s.startPlan(work, e)
	case *session.StopPlan:
		s.stopPlan(e.Plan)
	case *session.TaskSetRefused:
		s.taskSetRefused(e)
	case *planOver:
		s.planOver(work, e)
	case *session.Drain:
		s.handed = s.stopping && !e.Undo
	case *session.Validate, *session.ReadOffsets, *session.AlterOffsets, *session.WarmUp:
		s.question(work, e)
	case questionOver:
		s.waiting--
	default:
		s.cfg.Logger.Error("an event that nothing handles", "event", fmt.Sprintf("%T", e))
	}
	return nil
}
