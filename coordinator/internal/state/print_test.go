package state

import (
	"fmt"
	"strings"
	"time"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// print writes an effect for a transcript.
func (m *sim) print(out *strings.Builder, e Effect) {
	switch e := e.(type) {
	case Persist:
		for _, r := range e.Records {
			fmt.Fprintf(out, "log  %s\n", printRecord(r))
		}
	case Send:
		fmt.Fprintf(out, "→ %s: %s\n", m.nameOf(e.Session), printMessage(e.Message))
	case CloseSession:
		fmt.Fprintf(out, "close %s (%s): %s\n", m.nameOf(e.Session), map[CloseReason]string{
			CloseExists: "exists", CloseReplaced: "replaced", CloseInvalid: "invalid", CloseStale: "stale",
		}[e.Why], e.Text)
	case StartRound:
		fmt.Fprintf(out, "fence round %d of %s, generation %d: %s\n", e.Seq, e.Connector, e.Generation, strings.Join(e.IDs, " "))
	case CancelRound:
		fmt.Fprintf(out, "cancel round %d of %s\n", e.Seq, e.Connector)
	case PrepareID:
		fmt.Fprintf(out, "fence %s for %s\n", e.ID, e.Lease)
	case Look:
		fmt.Fprintf(out, "look at %v for %s, producers", e.Topics, e.Lease)
		for _, task := range sorted(e.IDs) {
			if producer, known := e.Producers[task]; known {
				fmt.Fprintf(out, " %d:%d", task, producer)
			} else {
				fmt.Fprintf(out, " %d:-", task)
			}
		}
		fmt.Fprintln(out)
	case Heal:
		fmt.Fprintf(out, "heal %d of %s", e.Seq, e.ID)
		for _, h := range e.Hanging {
			fmt.Fprintf(out, ", %s/%d since %d", h.Topic, h.Partition, h.Start)
		}
		if e.Topics != nil {
			fmt.Fprintf(out, ", look at %v", e.Topics)
		}
		if e.Note != nil {
			fmt.Fprintf(out, ", ended by its note as %s under epoch %d", e.Note.Outcome, e.Note.ProducerEpoch)
		} else if e.Noted.Outcome != OutcomeUnknown {
			fmt.Fprintf(out, ", noted %s by %d under epoch %d", e.Noted.Outcome, e.Noted.ProducerID, e.Noted.ProducerEpoch)
		}
		if e.Force != "" {
			fmt.Fprintf(out, ", forced %s", e.Force)
		}
		fmt.Fprintln(out)
	case HealOn:
		fmt.Fprintf(out, "heal %d of %s/%d goes on\n", e.Seq, e.Connector, e.Task)
	case Reply:
		if e.Err != nil {
			fmt.Fprintf(out, "answer %d: %s\n", e.ID, e.Err.Text)
			return
		}
		fmt.Fprintf(out, "answer %d: %s", e.ID, map[Change]string{Unchanged: "unchanged", Created: "created", Changed: "done"}[e.Result.Change])
		if e.Result.Restarted > 0 {
			fmt.Fprintf(out, ", %d tasks", e.Result.Restarted)
		}
		if l := e.Result.Lease; l != (Lease{}) {
			fmt.Fprintf(out, ", lease %s on %s", l, m.nameOf(e.Result.Session))
		}
		if c := e.Result.Connector; c != nil {
			fmt.Fprintf(out, ", %s %s", c.Name, c.State)
		}
		fmt.Fprintln(out)
	case Happening:
		fmt.Fprintf(out, "# %s\n", e.Text)
	}
}

// printRecord leaves out the frame that every record has.
func printRecord(r Record) string {
	if r.Value == nil {
		return r.Key + " deleted"
	}
	body := strings.TrimSuffix(strings.TrimPrefix(string(r.Value), `{"v":1,"b":`), "}")
	if r.Key == keyBeacon {
		return r.Key
	}
	return r.Key + " " + body
}

func (m *sim) nameOf(session SessionID) string {
	for name, r := range m.runners {
		if r.session == session {
			return name
		}
	}
	return fmt.Sprintf("session %d", session)
}

func printMessage(m *runnerv1.SessionResponse) string {
	answer := func(name string, texts ...string) string {
		for i := 0; i < len(texts); i += 2 {
			if texts[i+1] != "" {
				return name + " " + texts[i] + ": " + texts[i+1]
			}
		}
		return name + " ok"
	}
	switch b := m.GetMessage().(type) {
	case *runnerv1.SessionResponse_Welcome:
		return fmt.Sprintf("welcome, term %d", m.GetTerm())
	case *runnerv1.SessionResponse_HeartbeatAnswer:
		text := fmt.Sprintf("renewed for %s", time.Duration(b.HeartbeatAnswer.GetTtlMs())*time.Millisecond)
		if ms := b.HeartbeatAnswer.GetAtLeastOnceTtlMs(); ms > 0 {
			text += fmt.Sprintf(", at-least-once for %s", time.Duration(ms)*time.Millisecond)
		}
		for _, l := range b.HeartbeatAnswer.GetLost() {
			text += fmt.Sprintf(", lost %s", LeaseOf(l))
		}
		return text
	case *runnerv1.SessionResponse_PrepareStartAnswer:
		return answer("prepared", "refused", b.PrepareStartAnswer.GetRefused(), "error", b.PrepareStartAnswer.GetError())
	case *runnerv1.SessionResponse_ConfirmAnswer:
		return answer("confirmed", "refused", b.ConfirmAnswer.GetRefused())
	case *runnerv1.SessionResponse_LookAnswer:
		text := answer("looked", "refused", b.LookAnswer.GetRefused(), "error", b.LookAnswer.GetError())
		for _, h := range b.LookAnswer.GetHanging() {
			text += fmt.Sprintf(", %s/%d hangs: %s", h.GetTopic(), h.GetPartition(), h.GetAdvice())
		}
		return text
	case *runnerv1.SessionResponse_RecordTopicsAnswer:
		return answer("topics", "refused", b.RecordTopicsAnswer.GetRefused(), "error", b.RecordTopicsAnswer.GetError())
	case *runnerv1.SessionResponse_ClaimPartitionsAnswer:
		return answer("claims", "refused", b.ClaimPartitionsAnswer.GetRefused(), "conflict", b.ClaimPartitionsAnswer.GetConflict())
	case *runnerv1.SessionResponse_Grant:
		g := b.Grant
		return fmt.Sprintf("grant %s, id %s, %s@%s, offsets in %s", LeaseOf(g.GetLease()), g.GetTransactionalId(), g.GetPlugin().GetName(), g.GetPlugin().GetVersion(), g.GetOffsetsTopic())
	case *runnerv1.SessionResponse_Revoke:
		how := "stop"
		if b.Revoke.GetDrain() {
			how = fmt.Sprintf("drain within %s", time.Duration(b.Revoke.GetDeadlineMs())*time.Millisecond)
		}
		return fmt.Sprintf("revoke %s, %s: %s", LeaseOf(b.Revoke.GetLease()), how, b.Revoke.GetReason())
	case *runnerv1.SessionResponse_StartPlan:
		p := b.StartPlan
		return fmt.Sprintf("plan %s e%d with %s@%s, at most %d tasks", p.GetPlan().GetConnector(), p.GetPlan().GetPlanEpoch(), p.GetPlugin().GetName(), p.GetPlugin().GetVersion(), p.GetTasksMax())
	case *runnerv1.SessionResponse_StopPlan:
		return fmt.Sprintf("stop plan %s e%d", b.StopPlan.GetPlan().GetConnector(), b.StopPlan.GetPlan().GetPlanEpoch())
	case *runnerv1.SessionResponse_WarmUp:
		return fmt.Sprintf("warm up %s with %s@%s", b.WarmUp.GetConnector(), b.WarmUp.GetPlugin().GetName(), b.WarmUp.GetPlugin().GetVersion())
	case *runnerv1.SessionResponse_Drain:
		if b.Drain.GetUndo() {
			return "drained no more"
		}
		return "drained"
	case *runnerv1.SessionResponse_TaskSetRefused:
		return "task set refused: " + b.TaskSetRefused.GetReason()
	}
	return m.String()
}

// show writes a connector as users see it.
func (m *sim) show(name string) string {
	v, ok := m.state.Connector(name)
	if !ok {
		return "no such connector\n"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s g%d: %s", v.Name, v.Generation, v.State)
	if v.Message != "" {
		fmt.Fprintf(&out, " (%s)", v.Message)
	}
	fmt.Fprintln(&out)
	for _, t := range v.Tasks {
		fmt.Fprintf(&out, "  task %d e%d on %q: %s, %s", t.Task, t.Epoch, t.Runner, t.State, t.Claim)
		if t.Error != "" {
			fmt.Fprintf(&out, ": %s", t.Error)
		}
		fmt.Fprintln(&out)
	}
	return out.String()
}

func (m *sim) showRunners() string {
	var out strings.Builder
	for _, r := range m.state.Runners(m.now) {
		fmt.Fprintf(&out, "%s %s: %d leases, %s left, plugins %v\n", r.Name, r.State, len(r.Leases), r.LeaseLeft, r.Plugins)
		for _, t := range r.Stuck {
			fmt.Fprintf(&out, "  %s stays: %s\n", t.Lease, t.Reason)
		}
	}
	return out.String()
}
