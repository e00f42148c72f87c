package control

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Pure conversions from the core's views to the wire.

func connectorOf(v *state.ConnectorView) *controlv1.Connector {
	if v == nil {
		return nil
	}
	c := &controlv1.Connector{
		Name: v.Name, Config: v.Config, Target: targetFrom(v.Target), State: v.State, Message: v.Message, Incarnation: v.Incarnation, Generation: v.Generation,
		Plugin: pluginName(v.Plugin), OffsetsTopic: v.OffsetsTopic, Topics: v.Topics, Created: timeOf(v.Created), Planner: v.Planner,
	}
	for i := range v.Tasks {
		c.Tasks = append(c.Tasks, taskOf(&v.Tasks[i]))
	}
	for _, h := range v.Happenings {
		c.Events = append(c.Events, &controlv1.Happening{At: timeOf(h.At), Text: h.Text, Count: h.Count, First: timeOf(h.First)})
	}
	return c
}

func taskOf(v *state.TaskView) *controlv1.TaskInfo {
	return &controlv1.TaskInfo{
		Task: v.Task, State: v.State, Runner: v.Runner, Epoch: v.Epoch, Phase: v.Phase, Error: v.Error, Cause: v.Cause, Attempt: v.Attempt, BudgetLeft: v.BudgetLeft, Endless: v.Endless,
		RetryAt: timeOf(v.RetryAt), RetryInMs: millisecondsUntil(v.RetryAt), Records: v.Records, Bytes: v.Bytes, Commits: v.Commits, Aborts: v.Aborts, Dropped: v.Dropped, CaughtUp: v.CaughtUp, Claim: v.Claim,
		TransactionalId: v.TransactionalID, OpenRecords: v.OpenRecords, OpenAgeMs: v.OpenAgeMs, DroppedReason: v.DroppedReason, Rewinds: v.Rewinds, PluginVersion: v.PluginVersion,
		Notices: v.Notices, LastError: v.LastError.Text, LastErrorCause: v.LastError.Cause, LastErrorAt: timeOf(v.LastError.At),
	}
}

func pluginsOf(views []state.PluginView) []*controlv1.Plugin {
	var plugins []*controlv1.Plugin
	for _, v := range views {
		plugins = append(plugins, &controlv1.Plugin{Name: v.Name, Version: v.Version, Types: v.Types, Path: v.Path, Sha256: v.SHA256, Runners: v.Runners, Error: v.Error})
	}
	return plugins
}

func runnersOf(views []state.RunnerView) []*controlv1.Runner {
	var runners []*controlv1.Runner
	for _, v := range views {
		r := &controlv1.Runner{
			Name: v.Name, Host: v.Host, Version: v.Version, Labels: v.Labels, State: v.State, Since: timeOf(v.Since), Plugins: v.Plugins, LeaseLeftMs: uint64(max(v.LeaseLeft, 0).Milliseconds()),
		}
		r.Stopping = v.Stopping
		for _, t := range v.Stuck {
			r.Stuck = append(r.Stuck, &controlv1.StuckTask{Connector: t.Connector, Task: t.Task, Reason: t.Reason})
		}
		for _, l := range v.Leases {
			r.Tasks = append(r.Tasks, &controlv1.HeldTask{Connector: l.Connector, Task: l.Task, Generation: l.Generation, Epoch: l.Epoch})
		}
		runners = append(runners, r)
	}
	return runners
}

func pluginName(p state.Plugin) string {
	if p.Version == "" {
		return p.Name
	}
	return p.Name + "@" + p.Version
}

// millisecondsUntil is 0 for a time that isn't, or has passed.
func millisecondsUntil(t time.Time) uint64 {
	if t.IsZero() {
		return 0
	}
	return uint64(max(time.Until(t).Milliseconds(), 0))
}

// timeOf leaves out a time that isn't.
func timeOf(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

var targets = map[controlv1.TargetState]state.Target{
	controlv1.TargetState_TARGET_STATE_UNSPECIFIED: state.TargetRunning,
	controlv1.TargetState_TARGET_STATE_RUNNING:     state.TargetRunning,
	controlv1.TargetState_TARGET_STATE_PAUSED:      state.TargetPaused,
	controlv1.TargetState_TARGET_STATE_STOPPED:     state.TargetStopped,
}

func targetOf(t controlv1.TargetState) (state.Target, bool) {
	target, known := targets[t]
	return target, known
}

func targetFrom(t state.Target) controlv1.TargetState {
	switch t {
	case state.TargetPaused:
		return controlv1.TargetState_TARGET_STATE_PAUSED
	case state.TargetStopped:
		return controlv1.TargetState_TARGET_STATE_STOPPED
	}
	return controlv1.TargetState_TARGET_STATE_RUNNING
}

func outcomeOf(c state.Change) controlv1.ApplyConnectorResponse_Outcome {
	switch c {
	case state.Created:
		return controlv1.ApplyConnectorResponse_OUTCOME_CREATED
	case state.Changed:
		return controlv1.ApplyConnectorResponse_OUTCOME_CHANGED
	}
	return controlv1.ApplyConnectorResponse_OUTCOME_UNCHANGED
}
