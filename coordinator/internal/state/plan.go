package state

import (
	"fmt"
	"maps"
	"slices"
	"time"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// plannerState is what this leader knows of a connector's plan beside the log.
type plannerState struct {
	// gone is when another runner gets the plan, where the one that has it isn't connected.
	gone time.Time
	// trouble is what went wrong last; stuck says that nothing more comes of itself: the runner gave up, or its task set was refused.
	trouble string
	stuck   bool
}

// plan makes exactly the connectors that run have a plan, each on a connected runner with its plugin.
func (s *State) plan(c *connector) {
	if c.Planner != "" && s.due(c.planner.gone) {
		s.dropPlanner(c)
	}
	if r := s.runners[c.Planner]; !c.runs() || r != nil && r.process == c.PlannerProcess && r.draining && (r.leaving || s.fitsElsewhere(c, planWork, s.planTakers())) {
		s.stopPlan(c)
	}
	if !c.runs() || c.Planner != "" || c.Plugin.Name == "" {
		return
	}
	r := s.leastPlans(c)
	if r == nil {
		return
	}
	c.PlanEpoch++ // I6: persisted with this step
	c.Planner, c.PlannerProcess = r.name, r.process
	c.planner = plannerState{}
	delete(c.pauses, planWork)
	s.plans[r.name]++
	s.putName(c)
	s.putConnector(c)
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_StartPlan{StartPlan: &runnerv1.StartPlan{
		Plan: c.planRef(), Config: c.Config, TasksMax: c.settings.tasksMax, Plugin: c.Plugin.wire(),
	}}})
}

func (c *connector) planRef() *runnerv1.PlanRef {
	return &runnerv1.PlanRef{Connector: c.name, Incarnation: c.Incarnation, PlanEpoch: c.PlanEpoch}
}

// planSession is the session of the process that holds the plan; 0 where it isn't connected.
func (s *State) planSession(c *connector) SessionID {
	if r := s.runners[c.Planner]; r != nil && r.process == c.PlannerProcess {
		return r.session
	}
	return 0
}

// stopPlan lets the plan go.
func (s *State) stopPlan(c *connector) {
	if session := s.planSession(c); session != 0 && c.Planner != "" {
		s.sendStopPlan(session, c.planRef())
	}
	s.dropPlanner(c)
}

func (s *State) sendStopPlan(session SessionID, plan *runnerv1.PlanRef) {
	s.send(session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_StopPlan{StopPlan: &runnerv1.StopPlan{Plan: plan}}})
}

// dropPlanner forgets who holds the plan. Two plans at once would do no harm: a result counts only with the newest plan epoch.
func (s *State) dropPlanner(c *connector) {
	if c.Planner == "" {
		return
	}
	if s.plans[c.Planner]--; s.plans[c.Planner] == 0 {
		delete(s.plans, c.Planner)
	}
	c.Planner, c.PlannerProcess = "", ""
	c.planner = plannerState{}
	s.putConnector(c)
	s.touch(c)
}

// adoptPlans compares the plans that a runner says it holds with what the log says.
func (s *State) adoptPlans(r *runner, plans []*runnerv1.PlanRef) {
	kept := map[string]bool{}
	for _, p := range plans {
		c := s.connectors[p.GetConnector()]
		if c != nil && c.plannedBy(r, p) {
			kept[c.name] = true
		} else {
			s.sendStopPlan(r.session, p)
		}
	}
	for _, name := range sorted(s.connectors) {
		c := s.connectors[name]
		if c.Planner != r.name || c.PlannerProcess != r.process {
			continue
		}
		if kept[name] {
			c.planner.gone = time.Time{}
		} else {
			s.dropPlanner(c)
		}
	}
}

// plannedBy says that a plan is the one in force, and this process's.
func (c *connector) plannedBy(r *runner, p *runnerv1.PlanRef) bool {
	return c.exists() && c.Planner == r.name && c.PlannerProcess == r.process &&
		p.GetIncarnation() == c.Incarnation && p.GetPlanEpoch() == c.PlanEpoch
}

// planResult takes a task set, or refuses it, or notes why there is none.
func (s *State) planResult(r *runner, m *runnerv1.PlanResult) {
	c := s.connectors[m.GetPlan().GetConnector()]
	if c == nil || !c.plannedBy(r, m.GetPlan()) {
		s.sendStopPlan(r.session, m.GetPlan()) // an older plan epoch, or a plan of an earlier life (I6)
		return
	}
	if m.GetTaskSet() == nil && m.GetHost() {
		s.happen(c, "plan given back by %s: %s", r.name, m.GetError())
		s.givenBack(c, planWork, r, true, m.GetError())
		s.stopPlan(c)
		return
	}
	if m.GetTaskSet() == nil {
		c.planner.trouble, c.planner.stuck = clip(m.GetError(), mostErrorBytes), m.GetFailed()
		s.happen(c, "planning failed: %s", m.GetError())
		return
	}
	tasks, err := c.checkTasks(m.GetTaskSet())
	if err != nil {
		reason := clip(err.Error(), mostErrorBytes)
		c.planner.trouble, c.planner.stuck = reason, true
		s.happen(c, "task set refused: %s", reason)
		s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_TaskSetRefused{TaskSetRefused: &runnerv1.TaskSetRefused{
			Plan: m.GetPlan(), Version: m.GetTaskSet().GetVersion(), Reason: reason,
		}}})
		return
	}
	c.planner.trouble, c.planner.stuck = "", false
	if c.Filled && slices.EqualFunc(c.tasks, tasks, TaskSpec.equal) {
		return // an equal plan is no new generation
	}
	s.fill(c, tasks)
	s.touch(c)
}

// fill gives the generation its task set, or begins the next one with it where this one has another already.
func (s *State) fill(c *connector, tasks []TaskSpec) {
	if c.Filled {
		s.raise(c)
	}
	s.setTasks(c, tasks)
	c.Filled = true
	s.putConnector(c)
	// I2: the ids are counted before the first of them can be granted. The count falls again when the round is done that fences the old ones.
	if c.IDs < c.Tasks {
		c.IDs = c.Tasks
		s.putName(c)
	}
	s.happen(c, "generation %d has %s", c.Generation, many(len(tasks), "task"))
}

// checkTasks reads a task set. The error is for the plugin's author and for users.
func (c *connector) checkTasks(set *pluginv1.TaskSet) ([]TaskSpec, error) {
	if n := len(set.GetTasks()); n > int(c.settings.tasksMax) {
		return nil, fmt.Errorf("the plan has %s, tasks.max is %d", many(n, "task"), c.settings.tasksMax)
	}
	tasks := make([]TaskSpec, 0, len(set.GetTasks()))
	for i, t := range set.GetTasks() {
		claim, err := claimOf(t.GetClaim())
		if err != nil {
			return nil, fmt.Errorf("task %d %w", i, err)
		}
		spec := TaskSpec{Config: t.GetConfig(), Claim: claim}
		if size := spec.size(); size > mostConfigBytes {
			return nil, fmt.Errorf("the configuration and the claim of task %d take %d bytes, the limit is %d", i, size, mostConfigBytes)
		}
		tasks = append(tasks, spec)
	}
	if _, err := newClaims(tasks); err != nil { // I8
		return nil, err
	}
	return tasks, nil
}

func (t TaskSpec) size() int {
	size := len(t.Claim.Prefix) + len(t.Claim.From) + len(t.Claim.Until)
	for _, p := range t.Claim.Set {
		size += len(p)
	}
	for key, value := range t.Config {
		size += len(key) + len(value)
	}
	return size
}

func (t TaskSpec) equal(o TaskSpec) bool {
	return maps.EqualFunc(t.Config, o.Config, slices.Equal) && t.Claim.equal(o.Claim)
}
