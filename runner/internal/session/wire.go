package session

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/sdk/go/host"
)

// This file is the door between the wire and the package's own types: pure functions, no decisions.

// milliseconds reads a time that may come from anyone: what a Duration can't hold is the longest that it can.
func milliseconds(ms uint64) time.Duration {
	return time.Duration(min(ms, math.MaxInt64/uint64(time.Millisecond))) * time.Millisecond
}

func leaseToWire(l lease.Lease) *runnerv1.Lease {
	return &runnerv1.Lease{Connector: l.Connector, Incarnation: l.Incarnation, Generation: l.Generation, Task: l.Task, Epoch: l.Epoch}
}

func leaseFromWire(l *runnerv1.Lease) lease.Lease {
	return lease.Lease{Connector: l.GetConnector(), Incarnation: l.GetIncarnation(), Generation: l.GetGeneration(), Task: l.GetTask(), Epoch: l.GetEpoch()}
}

func planRefToWire(p PlanRef) *runnerv1.PlanRef {
	return &runnerv1.PlanRef{Connector: p.Connector, Incarnation: p.Incarnation, PlanEpoch: p.Epoch}
}

func planRefFromWire(p *runnerv1.PlanRef) PlanRef {
	return PlanRef{Connector: p.GetConnector(), Incarnation: p.GetIncarnation(), Epoch: p.GetPlanEpoch()}
}

func pluginFromWire(p *runnerv1.PluginRef) PluginRef {
	return PluginRef{Name: p.GetName(), Version: p.GetVersion(), SHA256: p.GetSha256(), Type: p.GetType()}
}

func grantFromWire(g *runnerv1.Grant) *Grant {
	return &Grant{
		Lease: leaseFromWire(g.GetLease()), Config: g.GetConfig(), TaskConfig: g.GetTaskConfig(), Claim: host.DecodeClaim(g.GetClaim()), TransactionalID: g.GetTransactionalId(),
		OffsetsTopic: g.GetOffsetsTopic(), OffsetsTopicID: g.GetOffsetsTopicId(), Plugin: pluginFromWire(g.GetPlugin()),
	}
}

// answerFromWire reads an answer to a question of the runner's; ok says whether it is one.
func answerFromWire(m *runnerv1.SessionResponse) (id uint64, a answer, ok bool) {
	switch m := m.GetMessage().(type) {
	case *runnerv1.SessionResponse_PrepareStartAnswer:
		p := m.PrepareStartAnswer
		return p.GetRequestId(), answer{refused: p.GetRefused(), permanent: p.GetError()}, true
	case *runnerv1.SessionResponse_ConfirmAnswer:
		return m.ConfirmAnswer.GetRequestId(), answer{refused: m.ConfirmAnswer.GetRefused()}, true
	case *runnerv1.SessionResponse_LookAnswer:
		l := m.LookAnswer
		return l.GetRequestId(), answer{refused: l.GetRefused(), hanging: l.GetHanging(), temporary: l.GetError()}, true
	case *runnerv1.SessionResponse_RecordTopicsAnswer:
		r := m.RecordTopicsAnswer
		return r.GetRequestId(), answer{refused: r.GetRefused(), permanent: r.GetError()}, true
	case *runnerv1.SessionResponse_ClaimPartitionsAnswer:
		c := m.ClaimPartitionsAnswer
		return c.GetRequestId(), answer{refused: c.GetRefused(), permanent: c.GetConflict()}, true
	}
	return 0, answer{}, false
}

// eventFromWire reads what the supervisor gets; nil is a message that this version doesn't know.
func eventFromWire(m *runnerv1.SessionResponse, stream uint64) (Event, error) {
	switch m := m.GetMessage().(type) {
	case *runnerv1.SessionResponse_Revoke:
		r := m.Revoke
		return &Revoke{Lease: leaseFromWire(r.GetLease()), Drain: r.GetDrain(), Deadline: milliseconds(r.GetDeadlineMs()), Reason: r.GetReason()}, nil
	case *runnerv1.SessionResponse_StartPlan:
		p := m.StartPlan
		if p.GetTasksMax() == 0 {
			return nil, errors.New("a plan of no tasks")
		}
		return &StartPlan{Plan: planRefFromWire(p.GetPlan()), Config: p.GetConfig(), TasksMax: int(p.GetTasksMax()), Plugin: pluginFromWire(p.GetPlugin())}, nil
	case *runnerv1.SessionResponse_StopPlan:
		return &StopPlan{Plan: planRefFromWire(m.StopPlan.GetPlan())}, nil
	case *runnerv1.SessionResponse_TaskSetRefused:
		r := m.TaskSetRefused
		return &TaskSetRefused{Plan: planRefFromWire(r.GetPlan()), Version: r.GetVersion(), Reason: r.GetReason()}, nil
	case *runnerv1.SessionResponse_Validate:
		v := m.Validate
		return &Validate{ID: RequestID{stream, v.GetRequestId()}, Connector: v.GetConnector(), Config: v.GetConfig()}, nil
	case *runnerv1.SessionResponse_ReadOffsets:
		r := m.ReadOffsets
		return &ReadOffsets{ID: RequestID{stream, r.GetRequestId()}, Connector: r.GetConnector(), Config: r.GetConfig(), OffsetsTopic: r.GetOffsetsTopic()}, nil
	case *runnerv1.SessionResponse_AlterOffsets:
		a := m.AlterOffsets
		return &AlterOffsets{
			ID: RequestID{stream, a.GetRequestId()}, Lease: leaseFromWire(a.GetLease()), Config: a.GetConfig(), OffsetsTopic: a.GetOffsetsTopic(),
			Offsets: host.DecodeOffsets(a.GetOffsets()), ResetAll: a.GetResetAll(),
		}, nil
	case *runnerv1.SessionResponse_WarmUp:
		w := m.WarmUp
		return &WarmUp{ID: RequestID{stream, w.GetRequestId()}, Connector: w.GetConnector(), Plugin: pluginFromWire(w.GetPlugin())}, nil
	case *runnerv1.SessionResponse_Drain:
		return &Drain{Undo: m.Drain.GetUndo()}, nil
	}
	return nil, nil
}

func offerToWire(o Offer) *runnerv1.Offer {
	out := &runnerv1.Offer{}
	for _, p := range o.Plugins {
		out.Plugins = append(out.Plugins, &runnerv1.PluginInfo{Description: host.EncodeDescription(p.Description), Sha256: p.SHA256, Path: validText(p.Path)})
	}
	for _, b := range o.Broken {
		out.Broken = append(out.Broken, &runnerv1.BrokenPlugin{Path: validText(b.Path), Error: validText(b.Error)})
	}
	return out
}

func planResultToWire(r PlanResult) *runnerv1.PlanResult {
	out := &runnerv1.PlanResult{Plan: planRefToWire(r.Plan), Error: validText(r.Error), Failed: r.Failed, Host: r.Host}
	if r.Version > 0 {
		out.TaskSet = host.EncodeTasks(r.Version, r.Tasks)
	}
	return out
}

func statusToWire(s *Status, seq uint64) *runnerv1.TaskStatus {
	return &runnerv1.TaskStatus{
		Lease: leaseToWire(s.Lease), Seq: seq, State: runnerv1.TaskState(s.State), Phase: validText(s.Phase), Error: validText(s.Error), Cause: s.Cause, Host: s.Host,
		Attempt: count(s.Attempt), BudgetLeft: count(s.BudgetLeft), Endless: s.Endless, RetryInMs: uint64(max(0, s.RetryIn.Milliseconds())),
		Records: s.Records, Bytes: s.Bytes, Commits: s.Commits, Aborts: s.Aborts, Dropped: s.Dropped, CaughtUp: s.CaughtUp,
		OpenRecords: s.OpenRecords, OpenAgeMs: uint64(max(0, s.OpenAge.Milliseconds())), DroppedReason: validText(s.DroppedReason),
		PluginVersion: s.PluginVersion, PluginSha256: s.PluginSHA256, Rewinds: s.Rewinds, Notices: validTexts(s.Notices),
	}
}

func count(n int) uint32 { return uint32(min(max(n, 0), math.MaxInt32)) }

// maxText bounds a text that people read.
const maxText = 16 << 10

// validText makes any bytes fit for a text field: a plugin's error or a file's name may hold anything, and one bad byte would end the stream for every task.
func validText(s string) string {
	if len(s) > maxText {
		s = fmt.Sprintf("%s… (%d bytes more)", s[:maxText], len(s)-maxText)
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func validTexts(texts []string) []string {
	valid := make([]string, 0, len(texts))
	for _, t := range texts {
		valid = append(valid, validText(t))
	}
	return valid
}
