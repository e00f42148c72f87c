package state

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// TestTranscripts replays the stories in testdata. A command is an event, what follows is its effects in order: "log" lines are one transaction, committed before anything else.
//
//	takeover                                 a new leader reads the log
//	runner NAME [process=P] [plugins=(file@1.0.0,…)] [labels=(zone:x,…)] [new]
//	                                         opens a session; new: a second process under the name
//	disconnect NAME                          its session ends
//	create|apply NAME [key=value …]          connector.class is file unless set
//	delete|pause|resume|stop|restart NAME [task=N] [failed]
//	plan RUNNER CONNECTOR [failed|host] [reason=…]
//	                                         a task set, one claim a line; without lines a failure
//	prepare|confirm|look|heartbeat|ended|status|topics|claim RUNNER TASK …
//	                                         messages; generation=, epoch=, incarnation=, term= change the lease or the term
//	alter NAME, deliver NAME GUARANTEE       a change of offsets, of the delivery
//	drain RUNNER [undo]                      an operator's drain; draining RUNNER: it wants to go
//	warmed RUNNER [failed=…]                 it answers every WarmUp
//	prepared [failed=…]                      the fencer answers every PrepareID
//	fenced CONNECTOR [outcome=…]             the fencer's round is done
//	found CONNECTOR                          the coordinator's own look; looked and found take hangs, one a line: TASK TOPIC PARTITION OFFSET
//	noting CONNECTOR/TASK                    the fencer asks for the note of an empty transaction
//	healed CONNECTOR/TASK [outcome=…] [left=…] [failed=…] [fenced] [aborted]
//	end CONNECTOR/TASK [force=…]             a user ends a transaction
//	refused CONNECTOR task=N reason=… [fenced=(N,…)]
//	                                         … or met a permanent refusal, though it fenced some
//	pass DURATION                            time passes
//	show CONNECTOR, runners, log
func TestTranscripts(t *testing.T) {
	stories, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(stories) == 0 {
		t.Fatalf("stories: %v %v", stories, err)
	}
	for _, path := range stories {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txt"), func(t *testing.T) {
			m := newSim(t, Options{})
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				m.t = t
				effects, text := m.command(t, d)
				var out strings.Builder
				for _, e := range effects {
					m.print(&out, e)
				}
				out.WriteString(text)
				if out.Len() == 0 {
					return "nothing\n"
				}
				return out.String()
			})
		})
	}
}

func (m *sim) command(t *testing.T, d *datadriven.TestData) ([]Effect, string) {
	t.Helper()
	first := func() string { return d.CmdArgs[0].Key }
	switch d.Cmd {
	case "takeover":
		m.lead()
		return m.step(TookOver{}), ""
	case "runner":
		return m.cmdRunner(d), ""
	case "disconnect":
		r := m.runners[first()]
		session := r.session
		r.session = 0
		return m.step(SessionClosed{Session: session, Reason: "connection reset"}), ""
	case "warmed":
		return m.warmed(m.runners[first()], strings.ReplaceAll(arg(d, "failed"), "_", " ")), ""
	case "create", "apply", "delete", "pause", "resume", "stop", "restart", "drain", "alter", "deliver":
		return m.ask(m.cmdOp(t, d)), ""
	case "plan":
		return m.cmdPlan(t, d), ""
	case "prepared":
		if outcome := arg(d, "outcome"); outcome != "" {
			return m.prepared(Decision{Outcome: Outcome(outcome), ProducerID: 7, ProducerEpoch: 3}, ""), ""
		}
		return m.prepared(Decision{Outcome: OutcomeNone, ProducerID: -1, ProducerEpoch: -1}, arg(d, "failed")), ""
	case "looked":
		looks := m.looks
		m.looks = nil
		var effects []Effect
		for _, l := range looks {
			effects = append(effects, m.step(Looked{Session: l.Session, RequestID: l.RequestID, Lease: l.Lease, Hanging: hangs(t, d.Input), Failed: strings.ReplaceAll(arg(d, "failed"), "_", " ")})...)
		}
		return effects, ""
	case "found":
		return m.step(Found{Connector: first(), Hanging: hangs(t, d.Input)}), ""
	case "noting":
		h := m.heals[first()]
		return m.step(HealPrepared{
			Connector: h.Connector, Task: h.Task, Seq: h.Seq, Last: Decision{Outcome: OutcomeNone, ProducerID: 7, ProducerEpoch: 4},
			Note: HealNote{ProducerID: 7, ProducerEpoch: 5, Outcome: Outcome(argOr(d, "outcome", "committed")), Hanging: h.Hanging},
		}), ""
	case "healed":
		return m.healed(d), ""
	case "end":
		task := strings.Split(first(), "/")
		return m.ask(EndTransaction{Connector: task[0], ID: "fencepost.t." + task[0] + "." + task[1], Force: Outcome(arg(d, "force"))}), ""
	case "fenced":
		return m.fenced(first(), Decision{Outcome: Outcome(argOr(d, "outcome", "none")), ProducerID: 7, ProducerEpoch: 3}), ""
	case "late-fenced":
		return m.step(RoundDone{Connector: first(), Seq: number(t, arg(d, "seq"))}), ""
	case "refused":
		failed := RoundFailed{
			Connector: first(), Seq: m.rounds[first()].Seq, Task: uint32(number(t, arg(d, "task"))),
			Reason: strings.ReplaceAll(arg(d, "reason"), "_", " "), Decisions: map[uint32]Decision{},
		}
		for _, task := range strings.FieldsFunc(arg(d, "fenced"), func(c rune) bool { return c == ',' }) {
			failed.Decisions[uint32(number(t, task))] = Decision{Outcome: OutcomeNone, ProducerID: 7, ProducerEpoch: 3}
			m.closed(taskName(first(), uint32(number(t, task))), func(Lease) bool { return true })
		}
		return m.step(failed), ""
	case "pass":
		wait, err := time.ParseDuration(first())
		if err != nil {
			t.Fatal(err)
		}
		return m.pass(wait), ""
	case "show":
		return nil, m.show(first())
	case "runners":
		return nil, m.showRunners()
	case "log":
		var out strings.Builder
		for _, key := range sorted(m.log) {
			fmt.Fprintf(&out, "%s\n", printRecord(m.log[key]))
		}
		return nil, out.String()
	}
	return m.cmdMessage(t, d), ""
}

// hangs reads lines of TASK TOPIC PARTITION OFFSET: hangs of the connector orders.
func hangs(t *testing.T, lines string) []Hang {
	t.Helper()
	var all []Hang
	for line := range strings.Lines(lines) {
		h := Hang{ProducerID: 7, ProducerEpoch: 3}
		var task uint32
		if _, err := fmt.Sscan(line, &task, &h.Topic, &h.Partition, &h.Start); err != nil {
			t.Fatalf("hang %q: %v", line, err)
		}
		h.ID = fmt.Sprintf("fencepost.t.orders.%d", task)
		all = append(all, h)
	}
	return all
}

// healed is the fencer's answer to the heal under way: every hang ended as outcome= says, or left= says why not.
func (m *sim) healed(d *datadriven.TestData) []Effect {
	m.t.Helper()
	name := d.CmdArgs[0].Key
	h := m.heals[name]
	delete(m.heals, name)
	done := Healed{Connector: h.Connector, Task: h.Task, Seq: h.Seq, Fenced: d.HasArg("fenced"), Aborted: d.HasArg("aborted"), Failed: strings.ReplaceAll(arg(d, "failed"), "_", " ")}
	hanging := h.Hanging
	if h.Note != nil {
		hanging = h.Note.Hanging
	}
	for _, at := range hanging {
		if left := arg(d, "left"); left != "" {
			done.Left = append(done.Left, &runnerv1.HangingPartition{Topic: at.Topic, Partition: at.Partition, TransactionalId: at.ID, Advice: at.String() + ": " + left})
		} else if outcome := arg(d, "outcome"); outcome != "" {
			done.Mended = append(done.Mended, Mended{Hang: at, Outcome: Outcome(outcome), Proof: "a proof", Way: "a marker"})
		}
	}
	return m.step(done)
}

func arg(d *datadriven.TestData, key string) string {
	for _, a := range d.CmdArgs {
		if a.Key == key {
			return strings.Join(a.Vals, ",")
		}
	}
	return ""
}

func argOr(d *datadriven.TestData, key, otherwise string) string {
	if v := arg(d, key); v != "" {
		return v
	}
	return otherwise
}

func number(t *testing.T, s string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func (m *sim) cmdRunner(d *datadriven.TestData) []Effect {
	name := d.CmdArgs[0].Key
	r := m.runners[name]
	process := argOr(d, "process", "p1")
	if d.HasArg("new") { // the first one is still there
		m.sessions++
		second := &simRunner{name: name, process: process}
		return m.hello(second, m.sessions)
	}
	if r == nil || r.process != process {
		r = &simRunner{name: name, process: process, plugins: []string{"file@1.0.0"}, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
		m.runners[name] = r
	}
	if d.HasArg("plugins") {
		r.plugins = strings.FieldsFunc(arg(d, "plugins"), func(c rune) bool { return c == ',' })
	}
	if labels := arg(d, "labels"); labels != "" {
		r.labels = map[string]string{}
		for label := range strings.SplitSeq(labels, ",") {
			key, value, _ := strings.Cut(label, ":")
			r.labels[key] = value
		}
	}
	r.old = d.HasArg("old")
	if d.HasArg("forgets") {
		clear(r.held)
	}
	return m.connect(r)
}

func (m *sim) cmdOp(t *testing.T, d *datadriven.TestData) Op {
	t.Helper()
	name := d.CmdArgs[0].Key
	switch d.Cmd {
	case "delete":
		return Delete{Name: name}
	case "pause":
		return Pause{Name: name}
	case "resume":
		return Resume{Name: name}
	case "stop":
		return Stop{Name: name}
	case "alter":
		return AlterOffsets{Name: name}
	case "deliver":
		return ChangeDelivery{Name: name, Guarantee: d.CmdArgs[1].Key}
	case "drain":
		return DrainRunner{Name: name, Undo: d.HasArg("undo")}
	case "restart":
		op := Restart{Name: name, OnlyFailed: d.HasArg("failed")}
		if v := arg(d, "task"); v != "" {
			task := uint32(number(t, v))
			op.Task = &task
		}
		return op
	}
	config := map[string]string{"connector.class": "file"}
	for _, a := range d.CmdArgs[1:] {
		config[a.Key] = strings.ReplaceAll(strings.Join(a.Vals, ","), ":", "=")
	}
	m.lives++
	incarnation := fmt.Sprintf("life%d", m.lives)
	if d.Cmd == "create" {
		return Create{Name: name, Incarnation: incarnation, Config: config}
	}
	return Apply{Name: name, Incarnation: incarnation, Config: config}
}

func (m *sim) cmdPlan(t *testing.T, d *datadriven.TestData) []Effect {
	t.Helper()
	r := m.runners[d.CmdArgs[0].Key]
	name := d.CmdArgs[1].Key
	ref := r.plans[name]
	if ref == nil {
		ref = &runnerv1.PlanRef{Connector: name}
	}
	if v := arg(d, "epoch"); v != "" {
		ref = &runnerv1.PlanRef{Connector: name, Incarnation: ref.GetIncarnation(), PlanEpoch: number(t, v)}
	}
	result := &runnerv1.PlanResult{Plan: ref}
	if d.Input == "" {
		result.Error, result.Failed, result.Host = argOr(d, "reason", "the source isn't there"), d.HasArg("failed"), d.HasArg("host")
		result.Error = strings.ReplaceAll(result.Error, "_", " ")
	} else {
		result.TaskSet = &pluginv1.TaskSet{Version: 1}
		for line := range strings.SplitSeq(d.Input, "\n") {
			claim, err := parseClaim(line)
			if err != nil {
				t.Fatal(err)
			}
			result.TaskSet.Tasks = append(result.TaskSet.Tasks, &pluginv1.Task{Claim: claim})
		}
	}
	return m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: result}})
}

// parseClaim reads "set a b", "prefix a", "range a b", "slot 0 2" or "unknown".
func parseClaim(line string) (*pluginv1.Claim, error) {
	f := strings.Fields(line)
	if len(f) == 0 {
		return nil, errors.New("an empty line is no claim")
	}
	c := Claim{Kind: ClaimKind(f[0])}
	var err error
	switch f[0] {
	case "set":
		for _, p := range f[1:] {
			c.Set = append(c.Set, []byte(p))
		}
	case "prefix":
		c.Prefix = []byte(f[1])
	case "range":
		c.From = []byte(f[1])
		if len(f) > 2 {
			c.Until = []byte(f[2])
		}
	case "slot":
		_, err = fmt.Sscan(line, new(string), &c.Slot, &c.Of)
	case "unknown":
	default:
		err = fmt.Errorf("claim %q", line)
	}
	return c.wire(), err
}

func (m *sim) cmdMessage(t *testing.T, d *datadriven.TestData) []Effect {
	t.Helper()
	r := m.runners[d.CmdArgs[0].Key]
	r.seq++
	lease := Lease{}
	if len(d.CmdArgs) > 1 && strings.Contains(d.CmdArgs[1].Key, "/") {
		name := d.CmdArgs[1].Key
		lease = r.held[name]
		if lease == (Lease{}) {
			connector, task, _ := strings.Cut(name, "/")
			lease = Lease{Connector: connector, Incarnation: "life1", Generation: 1, Task: uint32(number(t, task)), Epoch: 1}
		}
	}
	if v := arg(d, "generation"); v != "" {
		lease.Generation = number(t, v)
	}
	if v := arg(d, "epoch"); v != "" {
		lease.Epoch = number(t, v)
	}
	if v := arg(d, "incarnation"); v != "" {
		lease.Incarnation = v
	}
	msg := &runnerv1.SessionRequest{}
	if v := arg(d, "term"); v != "" {
		msg.Term = number(t, v)
	}
	w := lease.Wire()
	switch d.Cmd {
	case "heartbeat":
		beat := &runnerv1.Heartbeat{Seq: r.seq}
		for _, task := range sorted(r.held) {
			beat.Leases = append(beat.Leases, r.held[task].Wire())
		}
		msg.Message = &runnerv1.SessionRequest_Heartbeat{Heartbeat: beat}
	case "prepare":
		msg.Message = &runnerv1.SessionRequest_PrepareStart{PrepareStart: &runnerv1.PrepareStart{RequestId: r.seq, Lease: w}}
	case "confirm":
		msg.Message = &runnerv1.SessionRequest_Confirm{Confirm: &runnerv1.Confirm{RequestId: r.seq, Lease: w}}
	case "look":
		msg.Message = &runnerv1.SessionRequest_Look{Look: &runnerv1.Look{RequestId: r.seq, Lease: w}}
	case "topics":
		msg.Message = &runnerv1.SessionRequest_RecordTopics{RecordTopics: &runnerv1.RecordTopics{
			RequestId: r.seq, Lease: w, Topics: strings.Fields(d.Input), OffsetsTopic: arg(d, "offsets"), OffsetsTopicId: arg(d, "id"),
		}}
	case "claim":
		claim := &runnerv1.ClaimPartitions{RequestId: r.seq, Lease: w}
		for _, p := range strings.Fields(d.Input) {
			claim.Partitions = append(claim.Partitions, []byte(p))
		}
		msg.Message = &runnerv1.SessionRequest_ClaimPartitions{ClaimPartitions: claim}
	case "status":
		state := runnerv1.TaskState(runnerv1.TaskState_value["TASK_STATE_"+argOr(d, "state", "RUNNING")])
		msg.Message = &runnerv1.SessionRequest_TaskStatus{TaskStatus: &runnerv1.TaskStatus{Lease: w, Seq: r.seq, State: state, Error: strings.ReplaceAll(arg(d, "error"), "_", " "), Host: d.HasArg("host")}}
	case "ended":
		msg.Message = &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: w, Clean: !d.HasArg("unclean"), Host: d.HasArg("host"), Reason: strings.ReplaceAll(argOr(d, "reason", "asked"), "_", " ")}}
	case "draining":
		msg.Message = &runnerv1.SessionRequest_Draining{Draining: &runnerv1.Draining{Asked: d.HasArg("asked")}}
		r.draining = msg.GetDraining()
	case "offer":
		r.plugins = strings.FieldsFunc(arg(d, "plugins"), func(c rune) bool { return c == ',' })
		msg.Message = &runnerv1.SessionRequest_Offer{Offer: offer(r.plugins)}
	default:
		t.Fatalf("command %q", d.Cmd)
	}
	return m.say(r, msg)
}
