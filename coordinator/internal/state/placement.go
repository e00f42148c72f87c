package state

import (
	"slices"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func (p Plugin) wire() *runnerv1.PluginRef {
	return &runnerv1.PluginRef{Name: p.Name, Version: p.Version, Sha256: p.SHA256, Type: p.Type}
}

// need is what the connector's tasks need of a runner: the stored choice of a plugin, or what the configuration says where none was made.
func (c *connector) need() assign.Need {
	need := c.settings.need
	if c.Plugin.Name != "" {
		need.Plugin, need.Version = c.Plugin.Name, c.Plugin.Version
	}
	return need
}

// takers has the runners that take tasks and plans, with their loads.
func (s *State) takers() []assign.Runner {
	var takers []assign.Runner
	for _, name := range sorted(s.runners) {
		if r := s.runners[name]; r.session != 0 && !r.draining {
			fits := r.fits
			fits.Load = len(s.held[name])
			fits.New = s.now.Sub(r.since) < newFor
			takers = append(takers, fits)
		}
	}
	for _, m := range s.moves {
		if m.stage == stageStarting {
			continue // it counts already
		}
		if at := slices.IndexFunc(takers, func(r assign.Runner) bool { return r.Name == m.to }); at >= 0 {
			takers[at].Load++
		}
	}
	return takers
}

// takersFor is takers with what each has of a connector's tasks.
func (s *State) takersFor(c *connector) []assign.Runner {
	own := map[string]int{}
	for _, l := range c.leases {
		if l.State != leaseLost {
			own[l.Runner]++
		}
	}
	takers := s.takers()
	for i := range takers {
		takers[i].Own = own[takers[i].Name]
	}
	return takers
}

// place grants the tasks that nobody has.
func (s *State) place(c *connector) {
	if !c.runs() || !c.Filled || c.Plugin.Name == "" || !c.fenced() || c.altering() != nil || c.PlainMs > 0 && c.settings.plain == 0 {
		return
	}
	var open []uint32
	for task := range c.Tasks {
		if c.leases[task] == nil && c.failed[task] == "" {
			open = append(open, task)
		}
	}
	if len(open) == 0 {
		return
	}
	need, takers := c.need(), s.takersFor(c)
	var tasks []uint32
	var wants []assign.Task
	for _, task := range open {
		want := assign.Task{Previous: c.last[task], Ready: s.readyFor(c, task), Avoid: s.avoided(c, taskWork(task))}
		if s.waits(c, taskWork(task), takers) {
			continue
		}
		tasks, wants = append(tasks, task), append(wants, want)
	}
	for i, name := range assign.Place(need, wants, takers) {
		delete(c.pauses, taskWork(tasks[i]))
		s.grant(c, tasks[i], s.runners[name])
	}
}

// planTakers is takers with how many plans each has.
func (s *State) planTakers() []assign.Runner {
	takers := s.takers()
	for i := range takers {
		takers[i].Load = s.plans[takers[i].Name]
	}
	return takers
}

// leastPlans finds the runner that gets a plan; nil where none can have it yet.
func (s *State) leastPlans(c *connector) *runner {
	takers := s.planTakers()
	if s.waits(c, planWork, takers) {
		return nil
	}
	if placed := assign.Place(c.need(), []assign.Task{{Avoid: s.avoided(c, planWork)}}, takers); placed != nil {
		return s.runners[placed[0]]
	}
	return nil
}

// choose stores the plugin where it isn't chosen yet. It also chooses again where nobody offers the chosen version any more, nothing runs on it, and the user hasn't asked for it: runners were upgraded.
func (s *State) choose(c *connector) {
	if !c.runs() {
		return
	}
	if c.Plugin.Name != "" {
		pinned := c.settings.need.Version != ""
		if _, there := assign.Choose(c.need(), s.takers()); there || pinned || len(c.leases) > 0 || !s.settled.IsZero() {
			return
		}
	}
	plugin, ok := s.pick(c.settings)
	if !ok {
		return
	}
	if c.Plugin.Name != "" {
		s.stopPlan(c)
		clear(c.pauses) // what hosts couldn't do was with the other one
		clear(c.faults)
		s.happen(c, "plugin %s %s isn't offered any more: %s %s from now on", c.Plugin.Name, c.Plugin.Version, plugin.Name, plugin.Version)
	}
	c.Plugin = plugin
	s.putConnector(c)
}

// pick chooses among what connected runners offer.
func (s *State) pick(of settings) (Plugin, bool) {
	found, ok := assign.Choose(of.need, s.takers())
	return Plugin{Name: found.Name, Version: found.Version, SHA256: of.need.SHA256, Type: of.need.Type}, ok
}

// Choose picks the plugin for a configuration and a connected runner that has it, so that it can be asked to validate or to read offsets: one whose host has failed to answer only where no other fits. The error is what a user
// is to be told.
func (s *State) Choose(config map[string]string, failed ...SessionID) (Plugin, SessionID, *Error) {
	of, problems := parse(config)
	if len(problems) > 0 {
		return Plugin{}, 0, invalid(problems)
	}
	takers := s.takers()
	plugin, ok := s.pick(of)
	if !ok {
		return Plugin{}, 0, &Error{Code: CodeRefused, Text: assign.Why(of.need, takers), Hint: "start a runner that has the plugin, or correct connector.class, plugin.version or plugin.sha256"}
	}
	need := of.need
	need.Plugin, need.Version = plugin.Name, plugin.Version
	avoid := map[string]bool{}
	for _, session := range failed {
		if r := s.sessions[session]; r != nil {
			avoid[r.name] = true
		}
	}
	placed := assign.Place(need, []assign.Task{{Avoid: avoid}}, takers)
	if placed == nil {
		return plugin, 0, &Error{Code: CodeRefused, Text: assign.Why(need, takers)}
	}
	return plugin, s.runners[placed[0]].session, nil
}
