package state

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// ask takes a user's operation.
func (s *State) ask(e Asked) {
	switch op := e.Op.(type) {
	case Create:
		s.create(e.ID, op)
	case Apply:
		s.apply(e.ID, op)
	case Delete:
		s.with(e.ID, op.Name, func(c *connector) { s.delete(e.ID, c) })
	case Pause:
		s.with(e.ID, op.Name, func(c *connector) { s.aim(e.ID, c, TargetPaused) })
	case Resume:
		s.with(e.ID, op.Name, func(c *connector) { s.aim(e.ID, c, TargetRunning) })
	case Stop:
		s.with(e.ID, op.Name, func(c *connector) { s.stop(e.ID, c) })
	case Restart:
		s.with(e.ID, op.Name, func(c *connector) { s.restart(e.ID, c, op) })
	case AlterOffsets:
		s.with(e.ID, op.Name, func(c *connector) { s.alter(e.ID, c) })
	case ChangeDelivery:
		s.with(e.ID, op.Name, func(c *connector) { s.changeDelivery(e.ID, c, op.Guarantee) })
	case DrainRunner:
		s.drainRunner(e.ID, op)
	case RaiseLevel:
		s.raiseLevel(e.ID, op)
	case EndTransaction:
		s.endTransaction(e.ID, op)
	default:
		panic(fmt.Sprintf("operation %T", e.Op))
	}
}

// forget drops whoever waits for an answer no more.
func (s *State) forget(id uint64) {
	for _, c := range s.connectors {
		for i, w := range c.waits {
			if w.id == id {
				c.waits = append(c.waits[:i], c.waits[i+1:]...)
				return
			}
		}
	}
}

// with finds the connector of an operation. One that is being deleted takes no more of them, but for another deletion.
func (s *State) with(id uint64, name string, do func(*connector)) {
	c := s.connectors[name]
	if c == nil || !c.exists() {
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("there is no connector %q", name)})
		return
	}
	s.touch(c)
	do(c)
}

func deleting(c *connector) *Error {
	return &Error{Code: CodeRefused, Text: fmt.Sprintf("connector %q is being deleted", c.name), Hint: "wait until it is gone, then create it again"}
}

func invalid(problems []*pluginv1.Problem) *Error {
	text := "the configuration has problems"
	if len(problems) == 1 {
		text = strings.TrimSpace(problems[0].GetKey() + " " + problems[0].GetMessage())
	}
	return &Error{Code: CodeInvalid, Text: text, Problems: problems}
}

// check reads what was asked for; nil settings mean that it was refused.
func check(name, incarnation string, config map[string]string) (settings, *Error) {
	if wrong := names.CheckConnector(name); wrong != "" {
		return settings{}, &Error{Code: CodeInvalid, Text: wrong}
	}
	if incarnation == "" {
		panic("an operation without an incarnation for connector " + name)
	}
	of, problems := parse(config)
	if len(problems) > 0 {
		return settings{}, invalid(problems)
	}
	return of, nil
}

func (s *State) create(id uint64, op Create) {
	of, wrong := check(op.Name, op.Incarnation, op.Config)
	if wrong != nil {
		s.refuse(id, wrong)
		return
	}
	switch c := s.connectors[op.Name]; {
	case c != nil && c.exists() && c.Deleting:
		s.refuse(id, deleting(c))
	case c != nil && c.exists():
		s.refuse(id, &Error{Code: CodeExists, Text: fmt.Sprintf("there is a connector %q already", op.Name), Hint: "use apply to change it"})
	default:
		target := op.Target
		if target == "" {
			target = TargetRunning
		}
		s.begin(s.named(op.Name), op.Incarnation, op.Config, of, target)
		s.reply(id, s.connectors[op.Name], Result{Change: Created})
	}
}

// begin starts a life of a name. It goes on from the generations, epochs and ids of the lives before (I6).
func (s *State) begin(c *connector, incarnation string, config map[string]string, of settings, target Target) {
	c.connectorRecord = connectorRecord{Incarnation: incarnation, Target: target, Created: s.now.UTC().Truncate(time.Millisecond)}
	s.configure(c, config, of)
	s.happen(c, "created, generation %d", c.Generation)
	s.touch(c)
}

// configure stores a configuration and begins its generation.
func (s *State) configure(c *connector, config map[string]string, of settings) {
	s.stopPlan(c)
	c.Config, c.settings = maps.Clone(config), of
	c.Plugin, _ = s.pick(of)
	if c.Plugin.Name == "" {
		c.Plugin = Plugin{} // chosen as soon as a runner offers one
	}
	s.raise(c)
}

func (s *State) apply(id uint64, op Apply) {
	of, wrong := check(op.Name, op.Incarnation, op.Config)
	if wrong != nil {
		s.refuse(id, wrong)
		return
	}
	c := s.named(op.Name)
	switch {
	case !c.exists():
		s.begin(c, op.Incarnation, op.Config, of, TargetRunning)
		s.reply(id, c, Result{Change: Created})
	case c.Deleting:
		s.refuse(id, deleting(c))
	case maps.Equal(c.Config, op.Config):
		s.reply(id, c, Result{Change: Unchanged})
	default:
		s.configure(c, op.Config, of)
		s.happen(c, "configuration changed, generation %d", c.Generation)
		s.touch(c)
		s.reply(id, c, Result{Change: Changed})
	}
}

// delete and stop end every task. They are answered by settle, when no task can write any more.
func (s *State) delete(id uint64, c *connector) {
	if !c.Deleting {
		c.Deleting = true
		s.raise(c)
		s.happen(c, "being deleted, generation %d", c.Generation)
	}
	c.retry = time.Time{}
	c.waits = append(c.waits, wait{id: id, delete: true})
}

func (s *State) stop(id uint64, c *connector) {
	if c.Deleting {
		s.refuse(id, deleting(c))
		return
	}
	if c.Target != TargetStopped {
		c.Target = TargetStopped
		s.raise(c)
		s.happen(c, "stopping, generation %d", c.Generation)
	}
	c.retry = time.Time{}
	c.waits = append(c.waits, wait{id: id})
}

// aim lets a connector run or pause. Neither is a new generation: its tasks keep their ids, and get leases of a higher epoch.
func (s *State) aim(id uint64, c *connector, target Target) {
	if c.Deleting {
		s.refuse(id, deleting(c))
		return
	}
	change := Unchanged
	if c.Target != target {
		for _, w := range c.waits {
			s.refuse(w.id, &Error{Code: CodeSuperseded, Text: fmt.Sprintf("connector %q is set to be %s now", c.name, target)})
		}
		c.waits = nil
		c.Target, change = target, Changed
		s.putConnector(c)
		s.happen(c, "target is %s", target)
	}
	s.reply(id, c, Result{Change: change})
}

// restart ends tasks that run and lets them be granted again. Those that hold no lease only get free of what kept them.
func (s *State) restart(id uint64, c *connector, op Restart) {
	switch {
	case c.Deleting:
		s.refuse(id, deleting(c))
		return
	case c.Target != TargetRunning:
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("connector %q is %s", c.name, c.Target), Hint: "resume it"})
		return
	case op.Task != nil && *op.Task >= c.Tasks:
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("connector %q has no task %d, it has %s", c.name, *op.Task, many(int(c.Tasks), "task"))})
		return
	}
	count := 0
	for task := range c.Tasks {
		if op.Task == nil || *op.Task == task {
			count += s.restartTask(c, task, op.OnlyFailed)
		}
	}
	if op.Task == nil {
		c.retry = time.Time{}
		delete(c.pauses, planWork)
		delete(c.faults, planWork)
		if c.planner.stuck {
			s.stopPlan(c)
		}
	}
	s.happen(c, "%s restarted", many(count, "task"))
	s.reply(id, c, Result{Change: Changed, Restarted: count})
}

func (s *State) restartTask(c *connector, task uint32, onlyFailed bool) int {
	status := c.statuses[task]
	failed := c.failed[task] != "" || status != nil && status.state == taskFailed
	if onlyFailed && !failed {
		return 0
	}
	delete(c.failed, task)
	delete(c.pauses, taskWork(task))
	delete(c.faults, taskWork(task))
	if l := c.leases[task]; l != nil {
		l.free = true
		s.revoke(l, !failed, "the task is restarted")
	} else {
		s.freeClaims(c, task)
	}
	return 1
}
