package state

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Connectors lists all connectors by name.
func (s *State) Connectors() []ConnectorView {
	var views []ConnectorView
	for _, name := range sorted(s.connectors) {
		if c := s.connectors[name]; c.exists() {
			views = append(views, s.view(c))
		}
	}
	return views
}

// Connector shows one.
func (s *State) Connector(name string) (ConnectorView, bool) {
	c := s.connectors[name]
	if c == nil || !c.exists() {
		return ConnectorView{}, false
	}
	return s.view(c), true
}

// Awaited says that this leader is so young that runners may be on their way to it: one that holds tasks hasn't come back yet, or none has come at all.
func (s *State) Awaited() bool {
	if s.settled.IsZero() {
		return false
	}
	for name := range s.held {
		if r := s.runners[name]; r == nil || r.session == 0 {
			return true
		}
	}
	for _, r := range s.runners {
		if r.session != 0 {
			return false
		}
	}
	return true
}

// Cluster is what the log says of the cluster.
func (s *State) Cluster() ClusterView {
	return ClusterView{Cluster: s.options.Cluster, Term: s.term, Level: s.level}
}

func (s *State) view(c *connector) ConnectorView {
	v := ConnectorView{
		Name: c.name, Config: maps.Clone(c.Config), Target: c.Target, Incarnation: c.Incarnation, Generation: c.Generation,
		Plugin: c.Plugin, OffsetsTopic: c.offsetsTopic(s.options.Cluster), Topics: slices.Clone(c.topics.Topics), Created: c.Created,
		Happenings: slices.Clone(c.happened), Planner: c.Planner,
	}
	for _, task := range c.numbers() {
		v.Tasks = append(v.Tasks, s.viewTask(c, task))
	}
	v.State, v.Message = s.standing(c, v.Tasks)
	return v
}

// numbers are those of the tasks that there are to show: the task set's, and those of an older one that haven't ended.
func (c *connector) numbers() []uint32 {
	numbers := make([]uint32, 0, c.Tasks)
	for task := range c.Tasks {
		numbers = append(numbers, task)
	}
	for task, l := range c.leases {
		if l.State != leaseLost && task >= c.Tasks {
			numbers = append(numbers, task)
		}
	}
	slices.Sort(numbers)
	return numbers
}

func (s *State) viewTask(c *connector, task uint32) TaskView {
	v := TaskView{Task: task, TransactionalID: names.TransactionalID(s.options.Cluster, c.name, task)}
	if task < c.Tasks {
		v.Claim = clip(c.tasks[task].Claim.String(), 500)
	}
	s.stateOf(c, task, &v)
	v.Rewinds = maps.Clone(v.Rewinds)
	v.LastError = c.errors[task]
	return v
}

// stateOf fills in who has a task and what was said of it. The view shares the status's map.
func (s *State) stateOf(c *connector, task uint32, v *TaskView) {
	v.State = taskUnassigned
	l := c.leases[task]
	if l == nil || l.State == leaseLost {
		switch {
		case c.failed[task] != "":
			v.State, v.Error, v.Cause = taskFailed, c.failed[task], "config"
		case c.Target == TargetPaused:
			v.State = taskPaused
		case l != nil && l.refused:
			v.Error, v.Cause, v.RetryAt = "fencing failed: "+c.refusal, "fenced", c.retry
		case s.hostTrouble(c, taskWork(task)) != "":
			v.Error, v.Cause, v.RetryAt = s.hostTrouble(c, taskWork(task)), "host", c.pauses[taskWork(task)].until
		}
		return
	}
	v.State, v.Runner, v.Epoch = taskStarting, l.Runner, l.Epoch
	if st := c.statuses[task]; st != nil {
		v.State, v.RetryAt, v.TaskStatus = st.state, st.retryAt, st.TaskStatus
	}
	if l.State == leaseRevoked {
		v.State = taskDraining
	}
}

// standing sums a connector up in one word, and says why where that isn't the wanted one.
func (s *State) standing(c *connector, tasks []TaskView) (state, message string) {
	switch {
	case c.Deleting:
		return connectorDeleting, s.progress(c)
	case c.Target == TargetStopped && c.altering() != nil:
		return connectorStopped, "its offsets are being changed by runner " + c.altering().Runner
	case c.Target == TargetStopped && c.idle() && c.fenced() && c.PlainMs == 0:
		return connectorStopped, ""
	case c.refusal != "" && c.Fenced < c.Generation:
		return taskFailed, "fencing failed: " + c.refusal
	case c.Target == TargetStopped:
		return connectorFencing, s.progress(c)
	case c.Target == TargetPaused:
		return taskPaused, s.progress(c)
	case !c.Filled:
		return s.planning(c)
	case c.Fenced < c.Generation:
		return connectorFencing, s.progress(c)
	}
	return s.sum(c, tasks)
}

// progress says what an end waits for.
func (s *State) progress(c *connector) string {
	if c.refusal != "" {
		return "fencing failed: " + c.refusal
	}
	ending := 0
	for _, l := range c.leases {
		if l.State == leaseRevoked {
			ending++
		}
	}
	switch {
	case ending > 0:
		return "waiting for " + many(ending, "task") + " to end"
	case c.PlainMs > 0 && c.fenced():
		return fmt.Sprintf("waiting for up to %s more: a host didn't answer, and its producer can't be fenced under at-least-once", max(0, c.quiet.Sub(s.now)).Round(time.Second))
	case c.round != nil:
		return "fencing " + many(len(c.round.tasks), "transactional id")
	}
	return ""
}

func (s *State) planning(c *connector) (state, message string) {
	if c.planner.stuck {
		return taskFailed, c.planner.trouble
	}
	if c.Planner == "" {
		if why := assign.Why(c.need(), s.takers()); why != "" {
			return taskUnassigned, why
		}
	}
	return connectorPlanning, s.planTrouble(c)
}

// planTrouble says, for people, what is wrong with the plan; empty where nothing is known to be.
func (s *State) planTrouble(c *connector) string {
	if c.Planner != "" {
		return c.planner.trouble
	}
	if text := s.hostTrouble(c, planWork); text != "" {
		return "plan: " + text
	}
	return ""
}

// sum makes one state of those of the tasks.
func (s *State) sum(c *connector, tasks []TaskView) (state, message string) {
	count := map[string]int{}
	for _, t := range tasks {
		count[t.State]++
		if message == "" && t.Error != "" && (t.State == taskFailed || t.State == taskRetrying || t.State == taskUnassigned) {
			message = fmt.Sprintf("task %d: %s", t.Task, t.Error)
		}
	}
	switch n := len(tasks); {
	case n == 0:
		return taskRunning, "the source has nothing to do for now: the plan has no tasks"
	case count[taskUnassigned] > 0:
		if message == "" {
			message = cmp.Or(s.progress(c), assign.Why(c.need(), s.takers()))
		}
		if count[taskUnassigned] == n {
			return taskUnassigned, message
		}
		return connectorDegraded, message
	case count[taskFailed] == n:
		return taskFailed, message
	case count[taskFailed]+count[taskRetrying] > 0:
		return connectorDegraded, message
	case count[taskRunning] == n:
		return taskRunning, cmp.Or(s.planTrouble(c), assign.Remark(c.need(), s.takers()))
	}
	return taskStarting, s.planTrouble(c)
}

// mostErrorBytes bounds an error text of a runner.
const mostErrorBytes = 8 << 10

// Limits of a plugin's notices, as the plugin protocol gives them.
const (
	mostNotices     = 20
	mostNoticeBytes = 500
)

// statusOf reads a status from the wire.
func statusOf(m *runnerv1.TaskStatus) *status {
	state := taskStarting
	switch m.GetState() {
	case runnerv1.TaskState_TASK_STATE_RUNNING:
		state = taskRunning
	case runnerv1.TaskState_TASK_STATE_RETRYING:
		state = taskRetrying
	case runnerv1.TaskState_TASK_STATE_FAILED:
		state = taskFailed
	case runnerv1.TaskState_TASK_STATE_DRAINING:
		state = taskDraining
	}
	return &status{lease: LeaseOf(m.GetLease()), seq: m.GetSeq(), state: state, host: m.GetHost(), TaskStatus: TaskStatus{
		Phase: m.GetPhase(), Error: clip(m.GetError(), mostErrorBytes), Cause: m.GetCause(),
		Attempt: m.GetAttempt(), BudgetLeft: m.GetBudgetLeft(), Endless: m.GetEndless(),
		Records: m.GetRecords(), Bytes: m.GetBytes(), Commits: m.GetCommits(), Aborts: m.GetAborts(), Dropped: m.GetDropped(),
		CaughtUp: m.GetCaughtUp(), OpenRecords: m.GetOpenRecords(), OpenAgeMs: m.GetOpenAgeMs(), DroppedReason: clip(m.GetDroppedReason(), mostErrorBytes),
		PluginVersion: m.GetPluginVersion(), PluginSHA256: m.GetPluginSha256(), Rewinds: m.GetRewinds(),
		Notices: clipNotices(m.GetNotices()),
	}}
}

// clipNotices keeps what the plugin protocol allows.
func clipNotices(notices []string) []string {
	var kept []string
	for _, n := range notices[:min(len(notices), mostNotices)] {
		kept = append(kept, clip(n, mostNoticeBytes))
	}
	return kept
}

// Runners lists runners by name, also those that only the leases in the log speak of; now is for how long leases last.
func (s *State) Runners(now time.Time) []RunnerView {
	views := map[string]*RunnerView{}
	for name, r := range s.runners {
		v := &RunnerView{
			Name: name, Host: r.host, Version: r.version, Labels: maps.Clone(r.fits.Labels), State: s.standingOf(r), Session: r.session, Since: r.since,
		}
		for _, p := range r.fits.Plugins {
			v.Plugins = append(v.Plugins, p.Name+"@"+p.Version)
		}
		slices.Sort(v.Plugins)
		v.Stopping = r.leaving
		for _, l := range r.stuck {
			c := s.connectors[l.Connector]
			v.Stuck = append(v.Stuck, StuckTask{Lease: l, Reason: cmp.Or(assign.Why(c.need(), s.takers()), s.hostTrouble(c, taskWork(l.Task)))})
		}
		views[name] = v
	}
	for name, leases := range s.held {
		v := views[name]
		if v == nil {
			v = &RunnerView{Name: name, State: runnerLost}
			views[name] = v
		}
		for l := range leases {
			v.Leases = append(v.Leases, l.Lease)
			v.LeaseLeft = max(v.LeaseLeft, l.expires.Sub(now))
		}
		slices.SortFunc(v.Leases, func(a, b Lease) int {
			return cmp.Or(strings.Compare(a.Connector, b.Connector), cmp.Compare(a.Task, b.Task))
		})
	}
	var list []RunnerView
	for _, name := range sorted(views) {
		list = append(list, *views[name])
	}
	return list
}

// standingOf is how a runner that this leader has seen is.
func (s *State) standingOf(r *runner) string {
	switch {
	case r.session == 0:
		return runnerLost
	case r.draining && len(s.held[r.name]) == 0:
		return runnerDrained
	case r.draining:
		return runnerDraining
	}
	return runnerConnected
}

// Plugins lists what runners offer, by name, version and checksum; files that can't run come last.
func (s *State) Plugins() []PluginView {
	type id struct{ name, version, sha, path, err string }
	views := map[id]*PluginView{}
	add := func(key id, v PluginView, runner string) {
		if views[key] == nil {
			views[key] = &v
		}
		if at := views[key]; !slices.Contains(at.Runners, runner) {
			at.Runners = append(at.Runners, runner)
		}
	}
	for _, name := range sorted(s.runners) {
		r := s.runners[name]
		if r.session == 0 {
			continue
		}
		for i, p := range r.offer.GetPlugins() {
			fits := r.fits.Plugins[i]
			add(id{name: fits.Name, version: fits.Version, sha: fits.SHA256},
				PluginView{Name: fits.Name, Version: fits.Version, SHA256: fits.SHA256, Path: p.GetPath(), Types: slices.Clone(fits.Types)}, name)
		}
		for _, b := range r.offer.GetBroken() {
			add(id{path: b.GetPath(), err: b.GetError()}, PluginView{Path: b.GetPath(), Error: clip(b.GetError(), mostErrorBytes)}, name)
		}
	}
	list := make([]PluginView, 0, len(views))
	for _, v := range views {
		list = append(list, *v)
	}
	slices.SortFunc(list, func(a, b PluginView) int {
		broken := func(v PluginView) int { return min(len(v.Error), 1) }
		return cmp.Or(cmp.Compare(broken(a), broken(b)), strings.Compare(a.Name, b.Name), assign.CompareVersions(a.Version, b.Version),
			strings.Compare(a.SHA256, b.SHA256), strings.Compare(a.Path, b.Path), strings.Compare(a.Error, b.Error))
	})
	return list
}
