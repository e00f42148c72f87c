package state

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// fataler is *testing.T or *rapid.T.
type fataler interface {
	Helper()
	Fatalf(format string, args ...any)
}

// sim is a cluster around a State: a log, runners that take what they are granted, and a fencer whose answers the test gives. It checks after each step what must always hold.
type sim struct {
	t       fataler
	options Options
	state   *State
	now     time.Time
	log     map[string]Record
	wrote   time.Time // the last transaction
	lossy   bool      // the next transaction is lost: the leader loses the log with it

	runners  map[string]*simRunner
	sessions SessionID
	steps    int
	replay   int                   // replay the log after every so many steps
	rounds   map[string]StartRound // running, by connector
	prepares []PrepareID
	looks    []Look
	heals    map[string]Heal // under way, by connector and task
	asks     uint64
	lives    int

	// open has the leases under which a task may still write: granted, and neither ended cleanly nor fenced since.
	open map[string][]Lease
	high map[string]uint64 // epochs by connector and task
	// loud is until when a plain producer may still write, by connector.
	loud map[string]time.Time
	// balanced is when a task was last taken back for balance; onItsWay is the one that was and isn't granted again yet.
	balanced map[string]time.Time
	onItsWay Lease
	lasting  map[string]string // the incarnation of balanced
}

type simRunner struct {
	name, process string
	session       SessionID
	plugins       []string
	labels        map[string]string
	held          map[string]Lease
	plans         map[string]*runnerv1.PlanRef
	warmUps       []uint64 // that aren't answered yet
	draining      *runnerv1.Draining
	old           bool // a version that knows nothing of WarmUp and Drain
	seq           uint64
}

func newSim(t fataler, options Options) *sim {
	options.Cluster = "t"
	m := &sim{
		t: t, options: options, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), log: map[string]Record{},
		replay: 1, runners: map[string]*simRunner{}, open: map[string][]Lease{}, high: map[string]uint64{}, loud: map[string]time.Time{}, balanced: map[string]time.Time{}, lasting: map[string]string{},
	}
	m.lead()
	return m
}

// lead makes a new leader that knows nothing but the log. The sessions of the old one end.
func (m *sim) lead() {
	m.state = New(m.options)
	for _, key := range sorted(m.log) {
		if err := m.state.Load(m.log[key]); err != nil {
			m.t.Fatalf("load %s: %v", key, err)
		}
	}
	m.rounds, m.prepares, m.looks, m.heals = map[string]StartRound{}, nil, nil, map[string]Heal{}
	m.balanced, m.onItsWay = map[string]time.Time{}, Lease{} // another leader begins anew
	for _, r := range m.runners {
		r.session = 0
	}
}

func taskName(connector string, task uint32) string { return fmt.Sprintf("%s/%d", connector, task) }

// step takes an event and lets its effects happen.
func (m *sim) step(event Event) []Effect {
	m.t.Helper()
	effects := m.state.Step(m.now, event)
	if m.lossy {
		for _, e := range effects {
			if _, ok := e.(Persist); ok {
				m.lossy = false
				m.lead()
				return append(m.step(TookOver{}), effects[:0]...)
			}
		}
	}
	persisted := false
	for _, e := range effects {
		if p, ok := e.(Persist); ok {
			persisted = true
			m.persist(p)
		}
	}
	for _, e := range effects {
		m.happen(e, persisted)
	}
	if m.steps++; m.steps%m.replay == 0 {
		m.check()
	}
	return effects
}

func (m *sim) persist(p Persist) {
	m.wrote = m.now
	for _, r := range p.Records {
		if old, ok := m.log[r.Key]; ok && strings.HasPrefix(r.Key, keyName) {
			m.grows(old, r)
		}
		if !Known(r.Key) {
			m.t.Fatalf("key %q isn't among the kinds that this version knows", r.Key)
		}
		m.listen(r)
		if r.Value == nil {
			delete(m.log, r.Key)
		} else {
			m.log[r.Key] = r
		}
	}
}

// listen notes until when a plain producer may write that was left behind: as long as its lease can last and as it tries to send.
func (m *sim) listen(r Record) {
	var l leaseRecord
	if strings.HasPrefix(r.Key, keyLease) && r.Value != nil && load(r, &l) == nil && l.State == leaseLost && l.PlainMs > 0 {
		if until := m.now.Add(time.Duration(l.PlainMs) * time.Millisecond); until.After(m.loud[l.Connector]) {
			m.loud[l.Connector] = until
		}
	}
}

// grows checks I6.
func (m *sim) grows(old, next Record) {
	m.t.Helper()
	var a, b nameRecord
	if err := load(old, &a); err != nil {
		m.t.Fatalf("%v", err)
	}
	if err := load(next, &b); err != nil {
		m.t.Fatalf("%v", err)
	}
	if next.Value == nil || b.Generation < a.Generation || b.Epoch < a.Epoch || b.PlanEpoch < a.PlanEpoch || b.Fenced < a.Fenced || b.Fenced > b.Generation {
		m.t.Fatalf("%s fell from %+v to %+v", next.Key, a, b)
	}
}

func (m *sim) happen(e Effect, persisted bool) {
	m.t.Helper()
	switch e := e.(type) {
	case Send:
		if e.Message.GetTerm() != m.state.term {
			m.t.Fatalf("a message without the term: %v", e.Message)
		}
		for _, r := range m.runners {
			if r.session == e.Session {
				m.receive(r, e.Message, persisted)
			}
		}
	case CloseSession:
		for _, r := range m.runners {
			if r.session == e.Session {
				r.session = 0
			}
		}
	case Reply:
		if l := e.Result.Lease; l != (Lease{}) {
			for _, r := range m.runners {
				if r.session == e.Result.Session {
					m.granted(l, persisted)
					r.held[taskName(l.Connector, l.Task)] = l
				}
			}
		}
	case StartRound:
		m.rounds[e.Connector] = e
		for _, task := range e.Tasks {
			m.noteFirst(e.Connector, task)
		}
	case CancelRound:
		if m.rounds[e.Connector].Seq == e.Seq {
			delete(m.rounds, e.Connector)
		}
	case PrepareID:
		m.prepares = append(m.prepares, e)
		m.noteFirst(e.Lease.Connector, e.Lease.Task)
	case Look:
		m.looks = append(m.looks, e)
	case Heal:
		if at, twice := m.heals[taskName(e.Connector, e.Task)]; twice {
			m.t.Fatalf("two healers of %s: %d and %d", e.ID, at.Seq, e.Seq)
		}
		m.heals[taskName(e.Connector, e.Task)] = e
	case HealOn:
		if m.log[taskKey(keyHeal, e.Connector, e.Task)].Value == nil {
			m.t.Fatalf("heal %d of %s/%d goes on without its note in the log", e.Seq, e.Connector, e.Task)
		}
	}
}

// noteFirst checks that an id with a note in the log isn't initialised before the heal that ends its transaction: that would abort it, and delete what was committed.
func (m *sim) noteFirst(connector string, task uint32) {
	m.t.Helper()
	if _, noted := m.log[taskKey(keyHeal, connector, task)]; !noted {
		return
	}
	if _, first := m.heals[taskName(connector, task)]; !first {
		m.t.Fatalf("the id of %s/%d is initialised before the transaction of its note is ended", connector, task)
	}
}

// receive is what a runner does with a message.
func (m *sim) receive(r *simRunner, msg *runnerv1.SessionResponse, persisted bool) {
	m.t.Helper()
	switch b := msg.GetMessage().(type) {
	case *runnerv1.SessionResponse_Grant:
		l := LeaseOf(b.Grant.GetLease())
		m.granted(l, persisted)
		r.held[taskName(l.Connector, l.Task)] = l
	case *runnerv1.SessionResponse_Revoke:
		if b.Revoke.GetDrain() && strings.HasSuffix(b.Revoke.GetReason(), "for balance") {
			m.takenForBalance(LeaseOf(b.Revoke.GetLease()))
		}
	case *runnerv1.SessionResponse_StartPlan:
		r.plans[b.StartPlan.GetPlan().GetConnector()] = b.StartPlan.GetPlan()
	case *runnerv1.SessionResponse_StopPlan:
		if p := r.plans[b.StopPlan.GetPlan().GetConnector()]; p.GetPlanEpoch() == b.StopPlan.GetPlan().GetPlanEpoch() {
			delete(r.plans, p.GetConnector())
		}
	case *runnerv1.SessionResponse_WarmUp:
		r.warmUps = append(r.warmUps, b.WarmUp.GetRequestId())
	case *runnerv1.SessionResponse_Drain:
		switch {
		case r.old, r.draining != nil && !r.draining.GetAsked():
		case b.Drain.GetUndo():
			r.draining = nil
		default:
			r.draining = &runnerv1.Draining{Asked: true}
		}
	case *runnerv1.SessionResponse_ConfirmAnswer:
		if b.ConfirmAnswer.GetRefused() == "" && !persisted {
			m.t.Fatalf("I3: confirmed from memory")
		}
	case *runnerv1.SessionResponse_HeartbeatAnswer:
		until := m.now.Add(time.Duration(b.HeartbeatAnswer.GetTtlMs()) * time.Millisecond)
		if until.After(m.wrote.Add(m.state.options.LeaseTTL)) {
			m.t.Fatalf("I7: renewed until %s, the last transaction was at %s", until, m.wrote)
		}
		until = m.now.Add(time.Duration(b.HeartbeatAnswer.GetAtLeastOnceTtlMs()) * time.Millisecond)
		if until.After(m.wrote.Add(m.state.options.PlainLeaseTTL)) {
			m.t.Fatalf("I7: renewed until %s, the last transaction was at %s", until, m.wrote)
		}
		for _, w := range b.HeartbeatAnswer.GetLost() {
			l := LeaseOf(w)
			if r.held[taskName(l.Connector, l.Task)] == l {
				delete(r.held, taskName(l.Connector, l.Task)) // it stops, who knows how cleanly
			}
		}
	}
}

// takenForBalance checks that no two tasks move at once, and none twice within a minute.
func (m *sim) takenForBalance(l Lease) {
	m.t.Helper()
	if l == m.onItsWay {
		return // said again, on another session
	}
	if c := m.state.connectors[m.onItsWay.Connector]; c != nil {
		if now := c.leases[m.onItsWay.Task]; now != nil && now.Lease == m.onItsWay && now.State == leaseRevoked && len(m.state.moves) > 1 {
			m.t.Fatalf("%s is taken back for balance while %s is on its way", l, m.onItsWay)
		}
	}
	task := taskName(l.Connector, l.Task)
	if last, moved := m.balanced[task]; moved && m.now.Sub(last) < restAfterMove && m.lasting[task] == l.Incarnation {
		m.t.Fatalf("%s is moved again after %s", l, m.now.Sub(last))
	}
	m.balanced[task], m.onItsWay, m.lasting[task] = m.now, l, l.Incarnation
}

// granted checks what a grant rests on: I2, I6, and that nobody else may write under the id.
func (m *sim) granted(l Lease, persisted bool) {
	m.t.Helper()
	var name nameRecord
	if err := load(m.log[keyName+l.Connector], &name); err != nil {
		m.t.Fatalf("%v", err)
	}
	var stored leaseRecord
	if err := load(m.log[taskKey(keyLease, l.Connector, l.Task)], &stored); err != nil {
		m.t.Fatalf("%v", err)
	}
	switch {
	case !persisted || stored.Lease != l || stored.State != leaseHeld:
		m.t.Fatalf("granted %s, the log has %+v", l, stored)
	case name.Fenced != name.Generation || l.Generation != name.Generation:
		m.t.Fatalf("I2: granted %s, the log has %+v", l, name)
	case stored.PlainMs == 0 && m.now.Before(m.loud[l.Connector]):
		m.t.Fatalf("granted %s while a plain producer may write until %s", l, m.loud[l.Connector])
	case l.Task >= name.IDs:
		m.t.Fatalf("I2: granted %s, the log counts %d ids", l, name.IDs)
	}
	task := taskName(l.Connector, l.Task)
	if l.Epoch <= m.high[task] {
		m.t.Fatalf("I6: granted %s after epoch %d", l, m.high[task])
	}
	m.high[task] = l.Epoch
	for other, leases := range m.open {
		for _, o := range leases {
			if other == task || o.Connector == l.Connector && o.Generation < l.Generation {
				m.t.Fatalf("granted %s while %s can still write", l, o)
			}
		}
	}
	m.open[task] = append(m.open[task], l)
}

// check compares the State with its log.
func (m *sim) check() {
	m.t.Helper()
	again := New(m.options)
	for _, key := range sorted(m.log) {
		if err := again.Load(m.log[key]); err != nil {
			m.t.Fatalf("load %s: %v", key, err)
		}
	}
	want, got := snapshot(m.state), snapshot(again)
	if diff := cmp.Diff(want, got); diff != "" {
		m.t.Fatalf("the log replays to another state (-decided +replayed):\n%s", diff)
	}
	for key := range m.log {
		if _, ok := want[key]; !ok && key != keyBeacon && !strings.HasPrefix(key, keyTopics) {
			m.t.Fatalf("the log still has %s", key)
		}
	}
	if at, waits := m.state.Wake(); waits && at.Before(m.now.Add(-time.Hour)) {
		m.t.Fatalf("a deadline was forgotten at %s", at)
	}
}

// snapshot has the records that a State is equal to.
func snapshot(s *State) map[string]string {
	records := map[string]string{}
	add := func(key string, value any) { records[key] = string(encode(key, value).Value) }
	if s.term > 0 {
		add(keyCluster, clusterRecord{s.options.Cluster, s.term, s.level, s.accepted})
	}
	for name, c := range s.connectors {
		add(keyName+name, c.nameRecord)
		if c.exists() {
			add(keyConnector+name, c.connectorRecord)
		}
		if len(c.topics.Topics) > 0 || c.topics.OffsetsTopic != "" {
			add(keyTopics+name, c.topics)
		}
		for i, t := range c.tasks[:min(int(c.Tasks), len(c.tasks))] {
			add(taskKey(keyTask, name, uint32(i)), taskRecord(t))
		}
		for task, l := range c.leases {
			add(taskKey(keyLease, name, task), l.leaseRecord)
		}
		for task, d := range c.decisions {
			add(taskKey(keyID, name, task), d)
		}
		for task, note := range c.notes {
			add(taskKey(keyHeal, name, task), note)
		}
		for hash, claimed := range c.claimed {
			add(keyClaim+name+"/"+hash, claimed)
		}
	}
	return records
}

// connect opens a session for a runner.
func (m *sim) connect(r *simRunner) []Effect {
	m.t.Helper()
	m.sessions++
	r.session = m.sessions
	return m.hello(r, r.session)
}

func (m *sim) hello(r *simRunner, session SessionID) []Effect {
	m.t.Helper()
	hello := &runnerv1.Hello{Name: r.name, ProcessId: r.process, Version: "1.0.0", LevelMin: 1, LevelMax: 1, Host: "host-" + r.name, Labels: r.labels, Offer: offer(r.plugins), WarmsUp: !r.old, Draining: r.draining}
	r.warmUps = nil
	for _, task := range sorted(r.held) {
		hello.Held = append(hello.Held, r.held[task].Wire())
	}
	for _, name := range sorted(r.plans) {
		hello.Plans = append(hello.Plans, r.plans[name])
	}
	return m.step(SessionOpened{Session: session, Hello: hello})
}

// offer makes plugins of texts like file@1.0.0, each of one type of its own name.
func offer(plugins []string) *runnerv1.Offer {
	o := &runnerv1.Offer{}
	for _, p := range plugins {
		name, version, _ := strings.Cut(p, "@")
		o.Plugins = append(o.Plugins, &runnerv1.PluginInfo{Path: "/plugins/" + name, Sha256: "sha-" + p, Description: &pluginv1.DescribeResponse{
			Name: name, Version: version, Types: []*pluginv1.ConnectorType{{Name: name}},
		}})
	}
	return o
}

// say sends a message of a runner.
func (m *sim) say(r *simRunner, msg *runnerv1.SessionRequest) []Effect {
	m.t.Helper()
	if msg.Term == 0 {
		msg.Term = m.state.term
	}
	if e, ok := msg.GetMessage().(*runnerv1.SessionRequest_TaskEnded); ok {
		l := LeaseOf(e.TaskEnded.GetLease())
		task := taskName(l.Connector, l.Task)
		delete(r.held, task)
		if e.TaskEnded.GetClean() {
			m.closed(task, func(o Lease) bool { return o == l })
		}
	}
	return m.step(FromRunner{Session: r.session, Message: msg})
}

// closed notes that leases of a task can't write any more.
func (m *sim) closed(task string, which func(Lease) bool) {
	m.open[task] = slices.DeleteFunc(m.open[task], which)
	if len(m.open[task]) == 0 {
		delete(m.open, task)
	}
}

// fenced lets the running round of a connector be done.
func (m *sim) fenced(connector string, decision Decision) []Effect {
	m.t.Helper()
	r := m.rounds[connector]
	delete(m.rounds, connector)
	done := RoundDone{Connector: connector, Seq: r.Seq, Decisions: map[uint32]Decision{}}
	for _, task := range r.Tasks {
		done.Decisions[task] = decision
		m.closed(taskName(connector, task), func(Lease) bool { return true })
	}
	return m.step(done)
}

// prepared answers every PrepareID.
func (m *sim) prepared(decision Decision, failed string) []Effect {
	m.t.Helper()
	var effects []Effect
	waiting := m.prepares
	m.prepares = nil
	for _, p := range waiting {
		effects = append(effects, m.step(IDPrepared{Session: p.Session, RequestID: p.RequestID, Lease: p.Lease, Decision: decision, Failed: failed})...)
	}
	return effects
}

// warmed answers every WarmUp of a runner.
func (m *sim) warmed(r *simRunner, trouble string) []Effect {
	m.t.Helper()
	var effects []Effect
	waiting := r.warmUps
	r.warmUps = nil
	for _, id := range waiting {
		effects = append(effects, m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_WarmedUp{WarmedUp: &runnerv1.WarmedUp{RequestId: id, Error: trouble}}})...)
	}
	return effects
}

// ask does an operation.
func (m *sim) ask(op Op) []Effect {
	m.t.Helper()
	m.asks++
	return m.step(Asked{ID: m.asks, Op: op})
}

// pass lets time pass, with every tick that is due on the way.
func (m *sim) pass(d time.Duration) []Effect {
	m.t.Helper()
	end := m.now.Add(d)
	var effects []Effect
	for {
		at, waits := m.state.Wake()
		if !waits || at.After(end) {
			break
		}
		if at.After(m.now) {
			m.now = at
		}
		effects = append(effects, m.step(Tick{})...)
		if next, waits := m.state.Wake(); waits && !next.After(m.now) {
			m.t.Fatalf("a tick at %s leaves a deadline at %s", m.now, next)
		}
	}
	m.now = end
	return effects
}

func (m *sim) runnerNames() []string { return slices.Sorted(maps.Keys(m.runners)) }
