package state

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Hang is a partition that a finished transaction of one of our ids still holds: no marker will ever come.
type Hang struct {
	ID        string `json:"id"`
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	// ProducerID, ProducerEpoch and CoordinatorEpoch are as the partition's leader shows them. A marker must have these very values.
	ProducerID       int64 `json:"producer_id"`
	ProducerEpoch    int16 `json:"producer_epoch"`
	CoordinatorEpoch int32 `json:"coordinator_epoch"`
	// Start is the offset of the transaction's first record there.
	Start int64 `json:"start"`
}

// String names the partition, for people.
func (h Hang) String() string { return fmt.Sprintf("partition %d of topic %q", h.Partition, h.Topic) }

// HealNote says which way an empty transaction that frees partitions is to be ended. It is in the log before the first of them is added: from then on whoever initialises the id, or lets the transaction expire, aborts it, and
// deletes what was committed there. A new leader ends it by the note, and initialises nothing before.
type HealNote struct {
	// ProducerID and ProducerEpoch are those of the empty transaction.
	ProducerID    int64 `json:"producer_id"`
	ProducerEpoch int16 `json:"producer_epoch"`
	// Outcome is OutcomeCommitted or OutcomeAborted.
	Outcome Outcome `json:"outcome"`
	Hanging []Hang  `json:"hanging"`
}

// Mended is a hang that was ended.
type Mended struct {
	Hang
	Outcome Outcome
	// Proof says how the direction is known, Way how the marker was written; both for people.
	Proof, Way string
}

// looker is a runner that waits for the answer to its Look.
type looker struct {
	session SessionID
	request uint64
	lease   Lease
}

// healing is what is being done about an id's hanging transactions. There is one at a time for each id.
type healing struct {
	seq     uint64
	lookers []looker
	// asked has the user's operations that wait for it.
	asked []uint64
	// hanging is what it was begun for.
	hanging []Hang
}

// taskOf is the task whose id this is.
func (s *State) taskOf(c *connector, id string) (uint32, bool) {
	n, err := strconv.ParseUint(id[strings.LastIndexByte(id, '.')+1:], 10, 32)
	if err != nil || names.TransactionalID(s.options.Cluster, c.name, uint32(n)) != id {
		return 0, false
	}
	return uint32(n), true
}

// written has the topics that the connector's ids may have written, sorted. The offsets topic of a connector that is gone isn't known any more, but its name mostly is.
func (s *State) written(c *connector) []string {
	topics := slices.Clone(c.topics.Topics)
	offsets := c.topics.OffsetsTopic
	if offsets == "" && !c.exists() {
		offsets = names.OffsetsTopic(s.options.Cluster, c.name)
	}
	if offsets != "" && !slices.Contains(topics, offsets) {
		topics = append(topics, offsets)
	}
	slices.Sort(topics)
	return topics
}

// ids has every id that the connector, or an earlier life of its name, may have used.
func (s *State) ids(c *connector) map[uint32]string {
	ids := map[uint32]string{}
	for task := range c.IDs {
		ids[task] = names.TransactionalID(s.options.Cluster, c.name, task)
	}
	for task := range c.decisions {
		ids[task] = names.TransactionalID(s.options.Cluster, c.name, task)
	}
	return ids
}

// producers has what the log knows of the ids' producer ids: an id may have another one since.
func (c *connector) producers() map[uint32]int64 {
	known := map[uint32]int64{}
	for task, d := range c.decisions {
		if d.ProducerID >= 0 {
			known[task] = d.ProducerID
		}
	}
	return known
}

// noted is what the log knows of an id's last transactions, where it proves a direction, and OutcomeUnknown where it doesn't. What was let write since may have made a later decision. And a task that may abort a transaction
// and go on under the same epoch may have left an aborted one hanging before the commit that was noted; where it may not, an abort is the last thing that a producer does, so that a commit was preceded by commits only.
// An abort that was noted proves nothing: the transaction that hangs may be a commit before it.
func (c *connector) noted(task uint32) Decision {
	d := c.decisions[task]
	if d == nil || d.Used || d.Mixed || d.Outcome != OutcomeCommitted {
		return Decision{Outcome: OutcomeUnknown, ProducerID: -1, ProducerEpoch: -1}
	}
	return d.Decision
}

// aborts says that a task of this lease may abort a transaction and go on. Of a generation that is gone the configuration isn't known any more.
func (c *connector) aborts(l Lease) bool {
	return l.Generation != c.Generation || c.Config["transaction.boundary"] == "connector"
}

// looked answers a runner's Look, or has what was found healed first.
func (s *State) looked(e Looked) {
	r := s.sessions[e.Session]
	if r == nil {
		return // it asks again on its next session
	}
	if _, refused := s.holds(r, e.Lease); refused != "" {
		s.answerLook(e.Session, &runnerv1.LookAnswer{RequestId: e.RequestID, Refused: refused})
		return
	}
	c := s.connectors[e.Lease.Connector]
	own, offsets := s.sort(c, e.Lease.Task, e.Hanging)
	d := c.decisions[e.Lease.Task]
	switch {
	case len(own) > 0 && d != nil && d.Used:
		// It writes. One order of a start heals, and no second path.
		s.answerLook(e.Session, &runnerv1.LookAnswer{RequestId: e.RequestID, Error: "Kafka left a committed or aborted transaction hanging on " + own[0].String() + ": the task starts again, which ends it"})
	case len(own) > 0:
		s.heal(c, e.Lease.Task, own, looker{e.Session, e.RequestID, e.Lease})
	case e.Failed != "":
		s.answerLook(e.Session, &runnerv1.LookAnswer{RequestId: e.RequestID, Error: e.Failed})
	case len(offsets) > 0:
		// A sibling's transaction hides offsets, this task's among them.
		s.answerLook(e.Session, &runnerv1.LookAnswer{RequestId: e.RequestID, Error: fmt.Sprintf("a transaction of %s hangs on %s: it is waited for", offsets[0].ID, offsets[0])})
	default:
		s.used(c, e.Lease) // from here on it writes
		s.answerLook(e.Session, &runnerv1.LookAnswer{RequestId: e.RequestID})
	}
}

// sort parts what was found: own has the hangs of one task's id, and those of others are dealt with. Of these, offsets has the ones on the offsets topic.
func (s *State) sort(c *connector, task uint32, hanging []Hang) (own, offsets []Hang) {
	others := map[uint32][]Hang{}
	for _, h := range hanging {
		of, known := s.taskOf(c, h.ID)
		switch {
		case !known:
		case of == task:
			own = append(own, h)
		default:
			others[of] = append(others[of], h)
			if h.Topic == c.offsetsTopic(s.options.Cluster) {
				offsets = append(offsets, h)
			}
		}
	}
	s.deal(c, others)
	return own, offsets
}

// found takes what the coordinator's own look found.
func (s *State) found(e Found) {
	c := s.connectors[e.Connector]
	if c == nil {
		return
	}
	hangs := map[uint32][]Hang{}
	for _, h := range e.Hanging {
		if task, known := s.taskOf(c, h.ID); known {
			hangs[task] = append(hangs[task], h)
		}
	}
	s.deal(c, hangs)
}

// deal takes a task that writes back: its next start heals. An id that nobody holds is healed at once. Every other task is on its way: to its start, which looks by itself, or to its end.
func (s *State) deal(c *connector, hangs map[uint32][]Hang) {
	for _, task := range sorted(hangs) {
		h := hangs[task][0]
		switch l, d := c.leases[task], c.decisions[task]; {
		case l == nil && c.given(hangs[task]):
		case l == nil:
			s.heal(c, task, hangs[task])
		case l.State == leaseHeld && d != nil && d.Used:
			s.revoke(l, false, "Kafka left one of its transactions hanging on "+h.String()+": its next start ends it")
		}
	}
}

// given says that it was tried to heal all of these, and a person has to: the coordinator's own looks don't try again.
func (c *connector) given(hangs []Hang) bool {
	for _, h := range hangs {
		if _, stuck := c.stuck[h]; !stuck {
			return false
		}
	}
	return true
}

// heal has an id's hangs healed, and whoever waits for it answered then.
func (s *State) heal(c *connector, task uint32, hanging []Hang, lookers ...looker) {
	if at := c.healing[task]; at != nil {
		at.lookers = append(at.lookers, lookers...)
		return
	}
	for _, h := range hanging {
		s.happen(c, "task %d: a transaction of %s hangs on %s since offset %d", task, h.ID, h, h.Start)
	}
	s.startHeal(c, task, Heal{Hanging: hanging}, &healing{lookers: lookers, hanging: hanging})
}

func (s *State) startHeal(c *connector, task uint32, heal Heal, h *healing) {
	s.heals++
	h.seq = s.heals
	c.healing[task] = h
	heal.Connector, heal.Task, heal.Seq = c.name, task, h.seq
	heal.ID = names.TransactionalID(s.options.Cluster, c.name, task)
	heal.Noted, heal.Note = c.noted(task), c.notes[task]
	s.emit(heal)
}

// finishHeals ends what an earlier leader began. It comes before anything else that this leader does about these ids.
func (s *State) finishHeals(c *connector) {
	for _, task := range sorted(c.notes) {
		s.happen(c, "task %d: a transaction of %s that frees a partition is ended as noted", task, names.TransactionalID(s.options.Cluster, c.name, task))
		s.startHeal(c, task, Heal{}, &healing{})
	}
}

// healPrepared puts the note into the log, and then lets the Fencer go on.
func (s *State) healPrepared(e HealPrepared) {
	c := s.connectors[e.Connector]
	if c == nil || c.healing[e.Task] == nil || c.healing[e.Task].seq != e.Seq {
		return
	}
	s.decided(c, map[uint32]Decision{e.Task: e.Last})
	note := e.Note
	c.notes[e.Task] = &note
	s.put(taskKey(keyHeal, c.name, e.Task), &note)
	s.emit(HealOn{Connector: e.Connector, Task: e.Task, Seq: e.Seq})
}

// healed forgets the note, and answers whoever waits.
func (s *State) healed(e Healed) {
	c := s.connectors[e.Connector]
	if c == nil || c.healing[e.Task] == nil || c.healing[e.Task].seq != e.Seq {
		return
	}
	h := c.healing[e.Task]
	delete(c.healing, e.Task)
	for _, was := range h.hanging {
		delete(c.stuck, was)
		if slices.ContainsFunc(e.Left, func(l *runnerv1.HangingPartition) bool {
			return l.GetTopic() == was.Topic && l.GetPartition() == was.Partition
		}) {
			c.stuck[was] = struct{}{}
		}
	}
	if c.notes[e.Task] != nil {
		delete(c.notes, e.Task)
		s.put(taskKey(keyHeal, c.name, e.Task), nil)
	}
	if e.Last != nil {
		s.decided(c, map[uint32]Decision{e.Task: *e.Last})
	}
	for _, m := range e.Mended {
		s.happen(c, "task %d: %s is free again: the transaction since offset %d is ended as %s, known from %s, by %s", e.Task, m.Hang, m.Start, m.Outcome, m.Proof, m.Way)
	}
	for _, left := range e.Left {
		s.happen(c, "task %d: %s", e.Task, left.GetAdvice())
	}
	for _, l := range h.lookers {
		s.answerHealed(l, e)
	}
	for _, id := range h.asked {
		s.answerEnd(id, e)
	}
	s.touch(c)
}

func (s *State) answerHealed(l looker, e Healed) {
	if r := s.sessions[l.session]; r == nil {
		return
	} else if _, refused := s.holds(r, l.lease); refused != "" {
		s.answerLook(l.session, &runnerv1.LookAnswer{RequestId: l.request, Refused: refused})
		return
	}
	answer := &runnerv1.LookAnswer{RequestId: l.request}
	switch {
	case len(e.Left) > 0:
		answer.Hanging = e.Left
	case e.Failed != "":
		answer.Error = e.Failed
	case e.Fenced:
		answer.Error = "a hanging transaction of the task's was ended by another of the same id: the task starts again"
	default:
		// What was healed is looked at again by the one look that lets a task write.
		s.emit(s.lookFor(s.connectors[l.lease.Connector], l))
		return
	}
	s.answerLook(l.session, answer)
}

// lookFor is the Look of a runner.
func (s *State) lookFor(c *connector, l looker) Look {
	return Look{Session: l.session, RequestID: l.request, Lease: l.lease, Topics: s.written(c), IDs: s.ids(c), Producers: c.producers()}
}

// endTransaction carries out a user's EndTransaction.
func (s *State) endTransaction(id uint64, op EndTransaction) {
	c := s.connectors[op.Connector]
	if c == nil {
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("nothing is known of a transactional id %q", op.ID)})
		return
	}
	task, known := s.taskOf(c, op.ID)
	if _, used := s.ids(c)[task]; !known || !used {
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("nothing is known of a transactional id %q", op.ID)})
		return
	}
	if l := c.leases[task]; l != nil && l.State != leaseLost {
		if status := c.statuses[task]; status == nil || status.state != taskFailed {
			s.refuse(id, &Error{
				Code: CodeRefused, Text: fmt.Sprintf("task %d of connector %q is running on %s: its transactions are its own", task, c.name, l.Runner),
				Hint: fmt.Sprintf("a hanging transaction of a running task is found and ended by itself; to end an open one: fencepost restart %s --task %d", c.name, task),
			})
			return
		}
	}
	if c.healing[task] != nil {
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("a hanging transaction of %q is just being ended", op.ID), Hint: "ask again in a moment"})
		return
	}
	s.happen(c, "task %d: a user ends the transaction of %s", task, op.ID)
	s.startHeal(c, task, Heal{Topics: s.written(c), Producers: c.producers(), Only: op.Only, Force: op.Force, Live: true}, &healing{asked: []uint64{id}})
}

func (s *State) answerEnd(id uint64, e Healed) {
	switch {
	case len(e.Left) > 0:
		var texts []string
		for _, left := range e.Left {
			texts = append(texts, left.GetAdvice())
		}
		s.refuse(id, &Error{Code: CodeRefused, Text: strings.Join(texts, "; "), Hint: "where you know how it ended, say so: --commit or --abort, with --i-know"})
	case e.Failed != "":
		s.refuse(id, &Error{Code: CodeStuck, Text: e.Failed, Hint: "ask again"})
	case len(e.Mended) == 0 && !e.Aborted:
		s.refuse(id, &Error{Code: CodeNotFound, Text: fmt.Sprintf("task %d of connector %q has no open and no hanging transaction", e.Task, e.Connector)})
	default:
		s.reply(id, nil, Result{Change: Changed, Mended: e.Mended, Aborted: e.Aborted})
	}
}

// Watch is what to look at for one name: a connector, or what one left behind.
type Watch struct {
	Connector string
	Topics    []string
	IDs       map[uint32]string
	Producers map[uint32]int64
	// Noted are the decisions of the log that prove a direction, OutcomeUnknown where they don't.
	Noted map[uint32]Decision
}

// Names has every name that has, or had, ids.
func (s *State) Names() []Watch {
	var all []Watch
	for _, name := range sorted(s.connectors) {
		c := s.connectors[name]
		w := Watch{Connector: name, Topics: s.written(c), IDs: s.ids(c), Producers: c.producers(), Noted: map[uint32]Decision{}}
		for task := range w.IDs {
			w.Noted[task] = c.noted(task)
		}
		if len(w.IDs) > 0 {
			all = append(all, w)
		}
	}
	return all
}

// compareHangs orders hangs for people and tests.
func compareHangs(a, b Hang) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.ID, b.ID))
}

// SortHangs sorts by topic and partition.
func SortHangs(hangs []Hang) { slices.SortFunc(hangs, compareHangs) }
