package model

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// beat is the model's unit of time.
const beat = 500 * time.Millisecond

// The times of the model, in beats. What counts is their order, which is that of the defaults: reconnect < a quarter of a lease < drain < lease.
const (
	leaseBeats     = 20
	drainBeats     = 12
	heartbeatBeats = 4
	reconnectBeats = 4
)

const (
	clusterName   = "t"
	connectorName = "c"
	incarnation   = "life"
)

var coreOptions = state.Options{
	Cluster: clusterName, LeaseTTL: leaseBeats * beat, Heartbeat: heartbeatBeats * beat, Reconnect: reconnectBeats * beat, Drain: drainBeats * beat,
	NoBalance: true, // it moves tasks that run, by the same steps as a restart
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// coreID names a state of the decision core, logID a content of the config log. Equal states have equal names.
type (
	coreID uint32
	logID  uint32
)

// cores keeps every state of the decision core that the search has met, and what each event made of it: since State.Step is pure, it is called once for each pair of the two. The States kept here are never stepped; a copy of
// one is.
type cores struct {
	nodes  []core
	byForm map[string]coreID
	edges  map[edgeKey]*edge

	logs     []configLog
	logNames map[string]logID
	writes   map[writeKey]logID
	reads    map[logID]*edge
	made     int // edges
}

// core is a state of the decision core, with the time at which it is one.
type core struct {
	state *state.State
	now   time.Time
	// wake is when it wants a tick, in beats from now; -1: never.
	wake int
}

type edgeKey struct {
	from  coreID
	event event
}

// edge is what an event makes of a core.
type edge struct {
	to      coreID
	write   []state.Record // one transaction of the log; nil: none
	number  int            // names write
	effects []effect
}

type writeKey struct {
	to    logID
	write int
}

// configLog is the log as a new leader reads it, and what of it the properties speak of.
type configLog struct {
	records map[string]state.Record
	logSummary
}

type logSummary struct {
	term                                 uint64
	generation, fenced, epoch, planEpoch uint64
	ids                                  uint32
	leases                               map[uint32]logLease
}

type logLease struct {
	Generation uint64 `json:"generation"`
	Epoch      uint64 `json:"epoch"`
	State      string `json:"state"`
}

func newCores() *cores {
	c := &cores{byForm: map[string]coreID{}, edges: map[edgeKey]*edge{}, logNames: map[string]logID{}, writes: map[writeKey]logID{}, reads: map[logID]*edge{}}
	c.nodes = append(c.nodes, core{}) // 0 is no core
	c.nameLog(map[string]state.Record{})
	return c
}

// intern names a state.
func (c *cores) intern(s *state.State, now time.Time) coreID {
	f := form(s, now)
	if id, known := c.byForm[f]; known {
		return id
	}
	id := coreID(len(c.nodes))
	c.byForm[f] = id
	node := core{state: s, now: now, wake: -1}
	if at, waits := s.Wake(); waits {
		node.wake = int((max(at.Sub(now), 0) + beat - 1) / beat)
	}
	c.nodes = append(c.nodes, node)
	return id
}

// step is State.Step.
func (c *cores) step(from coreID, e event) *edge {
	key := edgeKey{from, e}
	if known := c.edges[key]; known != nil {
		return known
	}
	node := &c.nodes[from]
	s, now := clone(node.state), node.now.Add(time.Duration(e.wait)*beat)
	made := c.take(s, now, e.real())
	c.edges[key] = made
	return made
}

// lead is a take-over: a new State reads the log to its end.
func (c *cores) lead(log logID) *edge {
	if known := c.reads[log]; known != nil {
		return known
	}
	s := state.New(coreOptions)
	records := c.logs[log].records
	for _, key := range slices.Sorted(maps.Keys(records)) {
		if err := s.Load(records[key]); err != nil {
			panic(fmt.Sprintf("load %s: %v", key, err))
		}
	}
	made := c.take(s, start, state.TookOver{})
	c.reads[log] = made
	return made
}

func (c *cores) take(s *state.State, now time.Time, e state.Event) *edge {
	c.made++
	made := &edge{number: c.made}
	for _, x := range s.Step(now, e) {
		if p, ok := x.(state.Persist); ok {
			made.write = append(made.write, p.Records...)
		} else if f, counts := effectOf(x); counts {
			made.effects = append(made.effects, f)
		}
	}
	made.to = c.intern(s, now)
	return made
}

// written is the log after a transaction. late keeps the count of ids as it was: the planted mistake countLate.
func (c *cores) written(to logID, e *edge, late bool) logID {
	key := writeKey{to, e.number}
	if id, known := c.writes[key]; known {
		return id
	}
	records := maps.Clone(c.logs[to].records)
	for _, r := range e.write {
		switch {
		case r.Key == "meta/beacon": // says nothing to who reads it
		case r.Value == nil:
			delete(records, r.Key)
		default:
			if late && r.Key == "name/"+connectorName {
				r = countBefore(r, c.logs[to].ids)
			}
			records[r.Key] = r
		}
	}
	id := c.nameLog(records)
	c.writes[key] = id
	return id
}

// countBefore is a record of a name whose count of ids hasn't grown yet.
func countBefore(r state.Record, ids uint32) state.Record {
	frame := frameOf(r)
	body, ok := frame["b"].(map[string]any)
	if !ok {
		panic("the config log has " + string(r.Value))
	}
	if n, ok := body["ids"].(float64); ok && uint32(n) > ids {
		body["ids"] = ids
	}
	value, err := json.Marshal(frame)
	if err != nil {
		panic(err)
	}
	return state.Record{Key: r.Key, Value: value}
}

func frameOf(r state.Record) map[string]any {
	var frame map[string]any
	if err := json.Unmarshal(r.Value, &frame); err != nil {
		panic(fmt.Sprintf("record %s: %v", r.Key, err))
	}
	return frame
}

// nameLog names a content of the log. Texts for people don't count.
func (c *cores) nameLog(records map[string]state.Record) logID {
	var name strings.Builder
	for _, key := range slices.Sorted(maps.Keys(records)) {
		frame := frameOf(records[key])
		if body, ok := frame["b"].(map[string]any); ok {
			delete(body, "reason")
			delete(body, "created")
		}
		value, _ := json.Marshal(frame)
		fmt.Fprintf(&name, "%s=%s\n", key, value)
	}
	if id, known := c.logNames[name.String()]; known {
		return id
	}
	id := logID(len(c.logs))
	c.logNames[name.String()] = id
	c.logs = append(c.logs, configLog{records: records, logSummary: summarise(records)})
	return id
}

func summarise(records map[string]state.Record) logSummary {
	s := logSummary{leases: map[uint32]logLease{}}
	for key, r := range records {
		switch {
		case key == "meta/cluster":
			var body struct{ Term uint64 }
			bodyOf(r, &body)
			s.term = body.Term
		case key == "name/"+connectorName:
			var body struct {
				Generation, Fenced, Epoch uint64
				IDs                       uint32
				PlanEpoch                 uint64 `json:"plan_epoch"`
			}
			bodyOf(r, &body)
			s.generation, s.fenced, s.epoch, s.ids, s.planEpoch = body.Generation, body.Fenced, body.Epoch, body.IDs, body.PlanEpoch
		case strings.HasPrefix(key, "lease/"):
			var body struct {
				logLease
				Task uint32
			}
			bodyOf(r, &body)
			s.leases[body.Task] = body.logLease
		}
	}
	return s
}

func bodyOf(r state.Record, into any) {
	frame := struct {
		B any `json:"b"`
	}{into}
	if err := json.Unmarshal(r.Value, &frame); err != nil {
		panic(fmt.Sprintf("record %s: %v", r.Key, err))
	}
}

// kind is what kind of event a core takes.
type kind uint8

const (
	evTick kind = iota + 1
	evHello
	evClosed
	evHeartbeat
	evPrepare
	evConfirm
	evLook
	evEnded
	evPlan
	evPrepared
	evLooked
	evRoundDone
	evCreate
	evApply
	evStop
	evDelete
)

// event is an event of the core in a form that can be compared. Fields that its kind doesn't have are zero.
type event struct {
	kind    kind
	session uint8
	// process and plan are those of a Hello; plan is also that of a plan's result.
	process, plan uint8
	// term of a message.
	term uint8
	// lease and attempt of a question, an end, or an answer of the fencer's.
	lease   lease
	attempt uint8
	// layout of a plan's result, or of a configuration.
	layout uint8
	// round that is done.
	round uint8
	// held has the leases of a Hello or a heartbeat; zeros last.
	held [4]lease
	// wait is how many beats have passed since the core's last event.
	wait uint8
}

// real is the event as the core knows it.
func (e event) real() state.Event {
	switch e.kind {
	case evTick:
		return state.Tick{}
	case evHello:
		return state.SessionOpened{Session: state.SessionID(e.session), Term: uint64(e.term), Hello: e.hello()}
	case evClosed:
		return state.SessionClosed{Session: state.SessionID(e.session)}
	case evPrepared:
		return state.IDPrepared{
			Session: state.SessionID(e.session), RequestID: request(e.lease, e.attempt), Lease: e.lease.real(),
			Decision: state.Decision{Outcome: state.OutcomeNone, ProducerID: -1, ProducerEpoch: -1},
		}
	case evLooked:
		return state.Looked{Session: state.SessionID(e.session), RequestID: request(e.lease, e.attempt), Lease: e.lease.real()}
	case evRoundDone:
		return state.RoundDone{Connector: connectorName, Seq: uint64(e.round)}
	case evCreate:
		return state.Asked{ID: 1, Op: state.Create{Name: connectorName, Incarnation: incarnation, Config: configuration(e.layout)}}
	case evApply:
		return state.Asked{ID: 2, Op: state.Apply{Name: connectorName, Incarnation: incarnation, Config: configuration(e.layout)}}
	case evStop:
		return state.Asked{ID: askStop, Op: state.Stop{Name: connectorName}}
	case evDelete:
		return state.Asked{ID: askStop, Op: state.Delete{Name: connectorName}}
	}
	m := e.message()
	m.Term = uint64(e.term)
	return state.FromRunner{Session: state.SessionID(e.session), Message: m}
}

// askStop is the operation that is answered when no task can write any more.
const askStop = 3

func configuration(layout uint8) map[string]string {
	return map[string]string{"connector.class": "numbers", "tasks.max": "2", "layout": fmt.Sprint(layout)}
}

func (e event) hello() *runnerv1.Hello {
	runner := runnerOf(e.session)
	h := &runnerv1.Hello{
		Name: fmt.Sprintf("r%d", runner+1), ProcessId: fmt.Sprintf("p%d", e.process), Version: "1.0.0", LevelMin: 1, LevelMax: 1, Host: "host",
		Offer: &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{{Path: "/plugins/numbers", Sha256: "sum", Description: &pluginv1.DescribeResponse{
			Name: "numbers", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: "numbers"}},
		}}}},
		Held: e.wireHeld(),
	}
	if e.plan != 0 {
		h.Plans = []*runnerv1.PlanRef{planRef(e.plan)}
	}
	return h
}

func planRef(epoch uint8) *runnerv1.PlanRef {
	return &runnerv1.PlanRef{Connector: connectorName, Incarnation: incarnation, PlanEpoch: uint64(epoch)}
}

func (e event) wireHeld() []*runnerv1.Lease {
	var held []*runnerv1.Lease
	for _, l := range e.held {
		if l != 0 {
			held = append(held, l.real().Wire())
		}
	}
	return held
}

func (e event) message() *runnerv1.SessionRequest {
	switch e.kind {
	case evHeartbeat:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: &runnerv1.Heartbeat{Seq: 1, Leases: e.wireHeld()}}}
	case evPrepare:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PrepareStart{PrepareStart: &runnerv1.PrepareStart{RequestId: request(e.lease, e.attempt), Lease: e.lease.real().Wire()}}}
	case evConfirm:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Confirm{Confirm: &runnerv1.Confirm{RequestId: request(e.lease, e.attempt), Lease: e.lease.real().Wire()}}}
	case evLook:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Look{Look: &runnerv1.Look{RequestId: request(e.lease, e.attempt), Lease: e.lease.real().Wire()}}}
	case evEnded:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: e.lease.real().Wire(), Clean: true, Reason: "it ended"}}}
	case evPlan:
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{Plan: planRef(e.plan), TaskSet: taskSet(e.layout)}}}
	}
	panic(fmt.Sprintf("event of kind %d", e.kind))
}

// layouts are the task sets that a plan may give: for each task the source partitions that it claims, as bits.
var layouts = [...][]uint8{
	{0b01, 0b10}, // task 0 has A, task 1 has B
	{0b10, 0b01}, // … the other way round
	{0b11},       // one task has both
}

func taskSet(layout uint8) *pluginv1.TaskSet {
	set := &pluginv1.TaskSet{Version: uint64(layout) + 1}
	for _, claimed := range layouts[layout] {
		var partitions [][]byte
		for p, name := range partitionNames {
			if claimed&(1<<p) != 0 {
				partitions = append(partitions, []byte(name))
			}
		}
		set.Tasks = append(set.Tasks, &pluginv1.Task{Claim: &pluginv1.Claim{Rule: &pluginv1.Claim_Set{Set: &pluginv1.Claim_PartitionSet{Partitions: partitions}}}})
	}
	return set
}

var partitionNames = [partitions]string{"A", "B"}

// effectKind is what kind of effect.
type effectKind uint8

const (
	fxGrant effectKind = iota + 1
	fxRevoke
	fxPrepareAnswer
	fxConfirmAnswer
	fxLookAnswer
	fxRenewed // an answer to a heartbeat
	fxStartPlan
	fxStopPlan
	fxClose
	fxRound
	fxCancel
	fxPrepareID
	fxLook
	fxReply // to a stop or a deletion
)

// effect is an effect of the core as far as the model knows it.
type effect struct {
	kind    effectKind
	session uint8
	lease   lease
	attempt uint8
	// refused of an answer or a reply; drain of a revocation; both of a plan's epoch, of a round's number and of the claims of a grant.
	refused, drain bool
	number         uint8
	tasks          uint8 // of a round, as bits
	// beats that a renewal lasts, and leases that it says are lost.
	beats uint8
	lost  []lease
}

// effectOf reads an effect of the core; false for what the model doesn't know.
func effectOf(x state.Effect) (effect, bool) {
	switch x := x.(type) {
	case state.Send:
		return sent(uint8(x.Session), x.Message)
	case state.CloseSession:
		return effect{kind: fxClose, session: uint8(x.Session)}, true
	case state.StartRound:
		f := effect{kind: fxRound, number: uint8(x.Seq)}
		for _, task := range x.Tasks {
			f.tasks |= 1 << task
		}
		return f, true
	case state.CancelRound:
		return effect{kind: fxCancel, number: uint8(x.Seq)}, true
	case state.PrepareID:
		return effect{kind: fxPrepareID, session: uint8(x.Session), lease: leaseOf(x.Lease), attempt: uint8(x.RequestID) % attempts}, true
	case state.Look:
		return effect{kind: fxLook, session: uint8(x.Session), lease: leaseOf(x.Lease), attempt: uint8(x.RequestID) % attempts}, true
	case state.Reply:
		return effect{kind: fxReply, refused: x.Err != nil}, x.ID == askStop
	}
	return effect{}, false
}

func sent(session uint8, m *runnerv1.SessionResponse) (effect, bool) {
	switch b := m.GetMessage().(type) {
	case *runnerv1.SessionResponse_Grant:
		f := effect{kind: fxGrant, session: session, lease: leaseOf(state.LeaseOf(b.Grant.GetLease()))}
		for _, partition := range b.Grant.GetClaim().GetSet().GetPartitions() {
			f.number |= 1 << slices.Index(partitionNames[:], string(partition))
		}
		return f, true
	case *runnerv1.SessionResponse_Revoke:
		return effect{kind: fxRevoke, session: session, lease: leaseOf(state.LeaseOf(b.Revoke.GetLease())), drain: b.Revoke.GetDrain()}, true
	case *runnerv1.SessionResponse_PrepareStartAnswer:
		return answered(fxPrepareAnswer, session, b.PrepareStartAnswer.GetRequestId(), b.PrepareStartAnswer.GetRefused()), true
	case *runnerv1.SessionResponse_ConfirmAnswer:
		return answered(fxConfirmAnswer, session, b.ConfirmAnswer.GetRequestId(), b.ConfirmAnswer.GetRefused()), true
	case *runnerv1.SessionResponse_LookAnswer:
		return answered(fxLookAnswer, session, b.LookAnswer.GetRequestId(), b.LookAnswer.GetRefused()), true
	case *runnerv1.SessionResponse_HeartbeatAnswer:
		f := effect{kind: fxRenewed, session: session, beats: uint8(time.Duration(b.HeartbeatAnswer.GetTtlMs()) * time.Millisecond / beat)}
		for _, l := range b.HeartbeatAnswer.GetLost() {
			f.lost = append(f.lost, leaseOf(state.LeaseOf(l)))
		}
		return f, true
	case *runnerv1.SessionResponse_StartPlan:
		return effect{kind: fxStartPlan, session: session, number: uint8(b.StartPlan.GetPlan().GetPlanEpoch())}, true
	case *runnerv1.SessionResponse_StopPlan:
		return effect{kind: fxStopPlan, session: session, number: uint8(b.StopPlan.GetPlan().GetPlanEpoch())}, true
	}
	return effect{}, false
}

func answered(kind effectKind, session uint8, id uint64, refused string) effect {
	return effect{kind: kind, session: session, lease: lease(id / attempts), attempt: uint8(id % attempts), refused: refused != ""}
}

// request numbers a question: no two of a runner's have the same number.
func request(l lease, attempt uint8) uint64 { return uint64(l)*attempts + uint64(attempt) }
