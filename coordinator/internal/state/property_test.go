package state

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// chaos drives a sim at random: operations, runners that come, go, lose messages and are replaced, slow and refused rounds, take-overs, transactions that are lost. The sim checks I2, I3, I6, I7 and that the log replays to the
// same state after each step.
type chaos struct {
	*sim
	r *rapid.T
}

func (m *chaos) pick(label string, from []string) string {
	return rapid.SampledFrom(from).Draw(m.r, label)
}

func (m *chaos) chance(label string, percent int) bool {
	return rapid.IntRange(0, 99).Draw(m.r, label) < percent
}

// TestAnyHistoryKeepsTheInvariants is the property. Each action is drawn by its weight, so that most of the time things go well.
func TestAnyHistoryKeepsTheInvariants(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		m := &chaos{sim: newSim(r, Options{}), r: r}
		m.replay = 5
		m.step(TookOver{})
		for _, name := range []string{"r1", "r2", "r3"} {
			m.runners[name] = m.fresh(name, 1)
			m.connect(m.runners[name])
		}
		actions := []struct {
			weight int
			do     func()
		}{
			{10, m.operate}, {14, m.planSome}, {14, m.endSome}, {12, m.fenceSome}, {10, m.startSome}, {14, m.beat},
			{4, m.comeAndGo}, {12, m.wait}, {2, m.replace}, {4, m.claimSome}, {1, m.loseLog}, {3, m.drainSome}, {6, m.warmSome}, {8, m.hangSome},
		}
		var bag []func()
		for _, a := range actions {
			for range a.weight {
				bag = append(bag, a.do)
			}
		}
		for range rapid.IntRange(1, 150).Draw(r, "steps") {
			bag[rapid.IntRange(0, len(bag)-1).Draw(r, "action")]()
		}
		m.settle()
	})
}

func (m *chaos) fresh(name string, process int) *simRunner {
	return &simRunner{name: name, process: fmt.Sprintf("p%d", process), plugins: []string{"file@1.0.0"}, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
}

func (m *chaos) connected() []*simRunner {
	var on []*simRunner
	for _, name := range m.runnerNames() {
		if m.runners[name].session != 0 {
			on = append(on, m.runners[name])
		}
	}
	return on
}

func (m *chaos) anyRunner() *simRunner {
	on := m.connected()
	if len(on) == 0 {
		return nil
	}
	return on[rapid.IntRange(0, len(on)-1).Draw(m.r, "runner")]
}

func (m *chaos) operate() {
	name := m.pick("connector", []string{"a", "b"})
	m.lives++
	life := fmt.Sprintf("life%d", m.lives)
	config := map[string]string{"connector.class": "file", "tasks.max": m.pick("tasks.max", []string{"1", "2", "4"})}
	switch m.pick("op", []string{"create", "create", "apply", "apply", "delete", "pause", "resume", "resume", "stop", "restart", "restart", "failed", "gave up", "alter", "deliver"}) {
	case "create":
		m.ask(Create{Name: name, Incarnation: life, Config: config})
	case "apply":
		m.ask(Apply{Name: name, Incarnation: life, Config: config})
	case "delete":
		m.ask(Delete{Name: name})
	case "pause":
		m.ask(Pause{Name: name})
	case "resume":
		m.ask(Resume{Name: name})
	case "stop":
		m.ask(Stop{Name: name})
	case "restart":
		m.ask(Restart{Name: name})
	case "failed":
		m.ask(Restart{Name: name, OnlyFailed: true})
	case "alter":
		m.ask(AlterOffsets{Name: name})
	case "deliver":
		m.ask(ChangeDelivery{Name: name, Guarantee: m.pick("guarantee", []string{exactlyOnce, atLeastOnce})})
	case "gave up":
		m.step(GaveUp{ID: m.asks})
	}
}

func (m *chaos) planSome() {
	r := m.anyRunner()
	if r == nil || len(r.plans) == 0 {
		return
	}
	ref := r.plans[m.pick("plan", sorted(r.plans))]
	set := &pluginv1.TaskSet{Version: 1}
	n := rapid.IntRange(0, 4).Draw(m.r, "tasks")
	unknown := m.chance("unknown", 40)
	for i := range n {
		claim := Claim{Kind: ClaimSlot, Slot: uint32(i), Of: uint32(n)}
		if unknown {
			claim = Claim{}
		}
		set.Tasks = append(set.Tasks, &pluginv1.Task{Claim: claim.wire()})
	}
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{Plan: ref, TaskSet: set}}})
}

// someLease is one that a runner believes to hold.
func (m *chaos) someLease() (*simRunner, Lease) {
	r := m.anyRunner()
	if r == nil || len(r.held) == 0 {
		return nil, Lease{}
	}
	return r, r.held[m.pick("held", sorted(r.held))]
}

func (m *chaos) endSome() {
	if r, l := m.someLease(); r != nil {
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: l.Wire(), Clean: m.chance("clean", 70), Host: m.chance("host", 20)}}})
	}
}

// drainSome drains a runner, ends that, or has one say that it stops.
func (m *chaos) drainSome() {
	r := m.runners[m.pick("name", m.runnerNames())]
	switch {
	case m.chance("by itself", 30) && r.session != 0:
		r.draining = &runnerv1.Draining{}
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Draining{Draining: r.draining}})
	default:
		m.ask(DrainRunner{Name: r.name, Undo: m.chance("undo", 40)})
	}
}

func (m *chaos) warmSome() {
	if r := m.anyRunner(); r != nil {
		trouble := ""
		if m.chance("can't", 15) {
			trouble = "no such file"
		}
		m.warmed(r, trouble)
	}
}

func (m *chaos) fenceSome() {
	if len(m.rounds) == 0 {
		return
	}
	name := m.pick("round", sorted(m.rounds))
	if m.chance("refused", 15) {
		failed := RoundFailed{Connector: name, Seq: m.rounds[name].Seq, Reason: "no right", Decisions: map[uint32]Decision{}}
		for _, task := range m.rounds[name].Tasks[1:] {
			if m.chance("fenced all the same", 50) {
				failed.Decisions[task] = Decision{Outcome: OutcomeNone}
				m.closed(taskName(name, task), func(Lease) bool { return true })
			}
		}
		delete(m.rounds, name)
		m.step(failed)
		return
	}
	m.fenced(name, Decision{Outcome: Outcome(m.pick("outcome", []string{"none", "committed", "aborted", "unknown"})), ProducerID: 1})
}

// startSome is a step of a task's start.
func (m *chaos) startSome() {
	r, l := m.someLease()
	if r == nil {
		return
	}
	r.seq++
	w := l.Wire()
	switch m.pick("step", []string{"prepare", "prepared", "confirm", "look", "looked", "topics", "status"}) {
	case "prepare":
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PrepareStart{PrepareStart: &runnerv1.PrepareStart{RequestId: r.seq, Lease: w}}})
	case "prepared":
		m.prepared(Decision{Outcome: OutcomeNone}, "")
	case "confirm":
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Confirm{Confirm: &runnerv1.Confirm{RequestId: r.seq, Lease: w}}})
	case "look":
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Look{Look: &runnerv1.Look{RequestId: r.seq, Lease: w}}})
	case "looked":
		looks := m.looks
		m.looks = nil
		for _, k := range looks {
			m.step(Looked{Session: k.Session, RequestID: k.RequestID, Lease: k.Lease, Hanging: m.someHangs(k.Lease.Connector)})
		}
	case "topics":
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_RecordTopics{RecordTopics: &runnerv1.RecordTopics{
			Lease: w, Topics: []string{m.pick("topic", []string{"x", "y", "z"})}, OffsetsTopic: "t.offsets." + l.Connector, OffsetsTopicId: "1",
		}}})
	case "status":
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: &runnerv1.TaskStatus{
			Lease: w, Seq: r.seq, State: runnerv1.TaskState(rapid.IntRange(1, 5).Draw(m.r, "state")),
		}}})
	}
}

func (m *chaos) claimSome() {
	if r, l := m.someLease(); r != nil {
		m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ClaimPartitions{ClaimPartitions: &runnerv1.ClaimPartitions{
			Lease: l.Wire(), Partitions: [][]byte{[]byte(m.pick("partition", []string{`{"p":1}`, `{"p":2}`, `{"p":3}`}))},
		}}})
	}
}

func (m *chaos) beat() {
	for _, r := range m.connected() {
		m.heartbeatOf(r)
	}
}

func (m *chaos) heartbeatOf(r *simRunner) {
	r.seq++
	beat := &runnerv1.Heartbeat{Seq: r.seq}
	for _, task := range sorted(r.held) {
		beat.Leases = append(beat.Leases, r.held[task].Wire())
	}
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: beat}})
}

// comeAndGo ends a session or opens one, also of another process, also of one that forgot what it was granted.
func (m *chaos) comeAndGo() {
	r := m.runners[m.pick("name", m.runnerNames())]
	if r.session != 0 && m.chance("close", 70) {
		session := r.session
		r.session = 0
		m.step(SessionClosed{Session: session})
		return
	}
	if r.session == 0 && m.chance("other process", 30) {
		m.lives++
		r = m.fresh(r.name, m.lives)
		m.runners[r.name] = r
	}
	if len(r.held) > 0 && m.chance("forgets", 10) {
		delete(r.held, m.pick("forgotten", sorted(r.held)))
	}
	m.connect(r)
}

func (m *chaos) wait() {
	m.pass(time.Duration(rapid.IntRange(1, 12_000).Draw(m.r, "ms")) * time.Millisecond)
}

// replace is a take-over.
func (m *chaos) replace() {
	m.lead()
	m.step(TookOver{})
}

// loseLog has another coordinator take the log away just before the next transaction.
func (m *chaos) loseLog() { m.lossy = true }

// settle lets everything go well until nothing happens any more, and asks that everything is as wanted then: no history may leave a connector stuck.
// someHangs are hangs of a connector's ids, mostly none.
func (m *chaos) someHangs(connector string) []Hang {
	var hangs []Hang
	for task := range uint32(3) {
		if m.chance("hangs", 15) {
			hangs = append(hangs, Hang{ID: fmt.Sprintf("fencepost.t.%s.%d", connector, task), Topic: "x", ProducerID: 1})
		}
	}
	return hangs
}

// hangSome finds hangs, and lets heals go on or end, also those that a leader before began.
func (m *chaos) hangSome() {
	if len(m.heals) == 0 || m.chance("found", 40) {
		name := m.pick("connector", []string{"a", "b"})
		m.step(Found{Connector: name, Hanging: m.someHangs(name)})
		return
	}
	h := m.heals[m.pick("heal", sorted(m.heals))]
	if h.Note == nil && m.chance("needs a note", 50) {
		m.step(HealPrepared{Connector: h.Connector, Task: h.Task, Seq: h.Seq, Note: HealNote{ProducerID: 1, ProducerEpoch: 2, Outcome: OutcomeCommitted, Hanging: h.Hanging}, Last: Decision{Outcome: OutcomeNone}})
		if m.chance("and goes on", 50) {
			return
		}
	}
	m.endHeal(h)
}

func (m *chaos) endHeal(h Heal) {
	delete(m.heals, taskName(h.Connector, h.Task))
	done := Healed{Connector: h.Connector, Task: h.Task, Seq: h.Seq, Fenced: m.chance("fenced", 50)}
	switch m.pick("end", []string{"healed", "left", "failed"}) {
	case "left":
		done.Left = []*runnerv1.HangingPartition{{Topic: "x"}}
	case "failed":
		done.Failed = "a broker is away"
	}
	m.step(done)
}

func (m *chaos) settle() {
	m.lossy = false
	for _, name := range m.runnerNames() {
		r := m.runners[name]
		if r.draining != nil && !r.draining.GetAsked() {
			if session := r.session; session != 0 {
				r.session = 0
				m.step(SessionClosed{Session: session})
			}
			m.lives++
			r = m.fresh(name, m.lives)
			m.runners[name] = r
		}
		if r.session == 0 {
			m.connect(r)
		}
		m.ask(DrainRunner{Name: name, Undo: true})
	}
	for round := range 1000 {
		m.pass(time.Second)
		m.beat()
		for _, name := range sorted(m.rounds) {
			m.fenced(name, Decision{Outcome: OutcomeNone})
		}
		for _, name := range sorted(m.heals) {
			m.endHeal(m.heals[name])
		}
		for _, r := range m.connected() {
			m.obey(r)
		}
		if round > 30 && m.asWanted() == "" && m.even() == "" {
			return
		}
	}
	m.t.Fatalf("stuck: %s %s", m.asWanted(), m.even())
}

// even says what isn't in balance, once everything is as wanted: every connector fits on every runner here, but for hosts that were at fault.
func (m *chaos) even() string {
	if len(m.state.moves) > 0 {
		return "something still moves"
	}
	for _, c := range m.state.connectors {
		if len(c.faults) > 0 {
			return ""
		}
	}
	least, most := 1000, 0
	for name := range m.state.runners {
		least, most = min(least, len(m.state.held[name])), max(most, len(m.state.held[name]))
	}
	if most-least > 1 {
		return fmt.Sprintf("one runner has %d tasks and another %d", most, least)
	}
	return ""
}

// obey ends what the log says is taken back, and plans what isn't planned.
func (m *chaos) obey(r *simRunner) {
	for _, task := range sorted(r.held) {
		l := r.held[task]
		c := m.state.connectors[l.Connector]
		if now := c.leases[l.Task]; now == nil || now.Lease != l {
			delete(r.held, task)
		} else if now.State == leaseRevoked || now.Alter {
			m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: l.Wire(), Clean: true}}})
		} else if st := c.statuses[l.Task]; st == nil || st.state != taskRunning {
			r.seq++
			m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: &runnerv1.TaskStatus{Lease: l.Wire(), Seq: r.seq, State: runnerv1.TaskState_TASK_STATE_RUNNING}}})
		}
	}
	m.warmed(r, "")
	for _, name := range sorted(r.plans) {
		if c := m.state.connectors[name]; c.exists() && !c.Filled {
			set := &pluginv1.TaskSet{Version: 1, Tasks: []*pluginv1.Task{{}}}
			m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{Plan: r.plans[name], TaskSet: set}}})
		}
	}
}

func (m *chaos) asWanted() string {
	for key := range m.log {
		if strings.HasPrefix(key, keyHeal) {
			return key + " is left in the log"
		}
	}
	for _, name := range sorted(m.state.connectors) {
		c := m.state.connectors[name]
		switch {
		case !c.exists():
			if c.IDs != 0 {
				return fmt.Sprintf("%s is gone and has %d ids", name, c.IDs)
			}
		case c.Deleting:
			return name + " is still being deleted"
		case len(c.waits) > 0:
			return name + " still owes an answer"
		case !c.fenced():
			return name + " isn't fenced"
		case c.Target != TargetRunning:
			if len(c.leases) > 0 {
				return fmt.Sprintf("%s is %s and has leases", name, c.Target)
			}
		case !c.Filled:
			return name + " has no tasks"
		case len(c.leases)+len(c.failed) < int(c.Tasks):
			return fmt.Sprintf("%s has %d tasks and %d leases", name, c.Tasks, len(c.leases))
		}
	}
	return ""
}

// TestClaimsAreRefusedExactlyWhenAPartitionHasTwoOwners compares the index of claims with the plain meaning of each claim.
func TestClaimsAreRefusedExactlyWhenAPartitionHasTwoOwners(t *testing.T) {
	word := rapid.StringOfN(rapid.SampledFrom([]rune("ab")), 0, 3, -1)
	rapid.Check(t, func(r *rapid.T) {
		var tasks []TaskSpec
		for range rapid.IntRange(1, 4).Draw(r, "tasks") {
			var c Claim
			switch rapid.IntRange(0, 3).Draw(r, "kind") {
			case 0:
				c = Claim{Kind: ClaimSet, Set: [][]byte{[]byte(word.Draw(r, "partition"))}}
			case 1:
				c = Claim{Kind: ClaimPrefix, Prefix: []byte(word.Draw(r, "prefix"))}
			case 2:
				c = Claim{Kind: ClaimRange, From: []byte(word.Draw(r, "from")), Until: []byte(word.Draw(r, "until") + "c")}
				if string(c.From) >= string(c.Until) {
					c.Until = nil
				}
			}
			tasks = append(tasks, TaskSpec{Claim: c})
		}
		index, err := newClaims(tasks)
		twice := false
		for _, p := range words(5) {
			owners := 0
			for i, task := range tasks {
				if !contains(task.Claim, p) {
					continue
				}
				owners++
				if err == nil {
					if owner, ok := index.owner([]byte(p)); !ok || owner != uint32(i) {
						r.Fatalf("%q belongs to task %d, the index says %d %v", p, i, owner, ok)
					}
				}
			}
			if owners == 0 && err == nil {
				if owner, ok := index.owner([]byte(p)); ok {
					r.Fatalf("%q belongs to nobody, the index says %d", p, owner)
				}
			}
			if owners > 1 {
				twice = true
			}
		}
		if twice != (err != nil) {
			r.Fatalf("some partition has two owners: %v, and the error is %v", twice, err)
		}
	})
}

func contains(c Claim, p string) bool {
	switch c.Kind {
	case ClaimSet:
		return string(c.Set[0]) == p
	case ClaimPrefix:
		return len(p) >= len(c.Prefix) && p[:len(c.Prefix)] == string(c.Prefix)
	case ClaimRange:
		return p >= string(c.From) && (len(c.Until) == 0 || p < string(c.Until))
	}
	return false
}

// words has every text of up to n letters of a, b and c.
func words(n int) []string {
	all := []string{""}
	for i := 0; i < len(all); i++ {
		if len(all[i]) < n {
			all = append(all, all[i]+"a", all[i]+"b", all[i]+"c")
		}
	}
	return all
}
