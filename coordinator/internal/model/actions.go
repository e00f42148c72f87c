package model

// action is a step that a world may take.
type action struct {
	kind actionKind
	// who takes it: a coordinator or a runner. what of it: a task, and for produce the partition above it.
	who, task, partition uint8
}

type actionKind uint8

const (
	// Steps that have to come sooner or later.
	doHear actionKind = iota + 1 // a coordinator takes a message
	doReceive
	doFence
	doInit
	doProduce
	doCommit
	doMark
	doRetry
	doPlan
	doConnect
	doTellClosed
	doStreamEnds
	doRestart
	doTime
	doElect // where nobody leads
	doChange
	doAskAgain
	doDropCommit
	// Steps that may come.
	doDeposedTick
	doLandCommit
	// Faults, each as often as the bounds say.
	doTakeOver
	doCrashCoordinator
	doCrashRunner
	doSleep
	doCut
	doCommitUnanswered
	doExpire
)

// fault says that a step is one of the faults; optional that it needn't come.
func (k actionKind) fault() bool    { return k >= doTakeOver }
func (k actionKind) optional() bool { return k >= doDeposedTick }

// enabled lists the steps that a world may take, in an order that is always the same.
func (m *machine) enabled(w *world, into []action) []action {
	add := func(kind actionKind, who, task, partition int) {
		into = append(into, action{kind, uint8(who), uint8(task), uint8(partition)})
	}
	for k := range w.lead {
		m.ofCoordinator(w, k, add)
	}
	for r := range w.runner {
		m.ofRunner(w, r, add)
	}
	m.ofBroker(w, add)
	if m.mayPass(w, nobody) {
		add(doTime, 0, 0, 0)
	}
	if leader := int(w.holder) - 1; leader >= 0 && w.lead[leader].state == leads {
		if int(w.changed) < len(m.bounds.Changes) && w.waiting == 0 && m.mayChange(w) {
			add(doChange, leader, 0, 0)
		}
		if w.waiting == mustAskAgain || w.waiting != 0 && w.waiting != w.holder {
			add(doAskAgain, leader, 0, 0)
		}
	}
	return into
}

func (m *machine) ofCoordinator(w *world, k int, add func(kind actionKind, who, task, partition int)) {
	l := &w.lead[k]
	switch l.state {
	case standby:
		if w.holder == 0 || w.lead[w.holder-1].state == gone {
			add(doElect, k, 0, 0)
		} else if w.left.takeovers > 0 {
			add(doTakeOver, k, 0, 0)
		}
	case leads:
		for task := range tasks {
			if m.next(&l.ops[task]) < 0 {
				continue
			}
			if s := w.id[task].state; s == empty || s == ongoing || m.mistake == RoundNotRepeated && l.ops[task][0].round != 0 {
				add(doFence, k, task, 0)
			}
		}
		if int(w.holder) != k+1 && l.lag > 0 {
			add(doDeposedTick, k, 0, 0)
		}
		if int(w.holder) == k+1 && w.left.crashes > 0 && k == 0 {
			add(doCrashCoordinator, k, 0, 0)
		}
	case gone:
	}
}

func (m *machine) ofRunner(w *world, r int, add func(kind actionKind, who, task, partition int)) {
	x := &w.runner[r]
	if x.dead {
		add(doRestart, r, 0, 0)
	}
	for k := range x.closing {
		if x.closing[k] != 0 {
			add(doTellClosed, r, k, 0)
		}
	}
	if x.dead {
		return
	}
	m.ofStream(w, r, add)
	for task := range x.slot {
		s := &x.slot[task]
		switch s.phase {
		case pausing:
			if s.trust > 0 {
				add(doRetry, r, task, 0)
			}
		case prepared:
			if st := w.id[task].state; st == empty || st == ongoing {
				add(doInit, r, task, 0)
			}
		case running:
			m.ofTask(w, r, task, add)
		case idle, preparing, confirming, looking, reading:
		}
	}
	if w.left.crashes > 0 {
		add(doCrashRunner, r, 0, 0)
	}
	if w.left.zombies > 0 && m.mayPass(w, r) {
		add(doSleep, r, 0, 0)
		if x.at == w.holder {
			add(doSleep, r, 1, 0)
		}
	}
}

func (m *machine) ofStream(w *world, r int, add func(kind actionKind, who, task, partition int)) {
	x := &w.runner[r]
	if x.at == 0 {
		for k := range w.lead {
			// Nobody goes back to a leader that was replaced for ever.
			if w.lead[k].state == leads && x.term <= m.term(w, k) && (x.closing[k] == 0 || x.process == 1) && (int(w.holder) == k+1 || x.sessions < 2) {
				add(doConnect, r, k, 0)
			}
		}
		return
	}
	lives := w.lead[x.at-1].state == leads
	if lives && x.up[0] != (message{}) {
		add(doHear, r, 0, 0)
	}
	if x.down[0] != (message{}) {
		add(doReceive, r, 0, 0)
	}
	if lives && x.planDue {
		add(doPlan, r, 0, 0)
	}
	if !lives {
		add(doStreamEnds, r, 0, 0)
	} else if w.left.cuts > 0 || x.at != w.holder {
		add(doCut, r, 0, 0) // that of a leader that was replaced may break at any time
	}
}

func (m *machine) ofTask(w *world, r, task int, add func(kind actionKind, who, task, partition int)) {
	s := &w.runner[r].slot[task]
	mine := w.id[task].owner == slotNumber(r, task)
	if s.open != 0 {
		add(doCommit, r, task, 0)
		if mine && w.left.unanswered > 0 && !s.drain {
			add(doCommitUnanswered, r, task, 0)
		}
		return
	}
	if mine && w.id[task].state != empty {
		return // the markers of its last transaction are due
	}
	for p := range partitions {
		if s.claim&(1<<p) != 0 && s.at[p] < m.bounds.Records[p] {
			add(doProduce, r, task, p)
		}
	}
}

func (m *machine) ofBroker(w *world, add func(kind actionKind, who, task, partition int)) {
	for task := range w.id {
		id := &w.id[task]
		if id.state == prepareCommit || id.state == prepareAbort {
			add(doMark, 0, task, 0)
		}
		if id.inFlight {
			add(doLandCommit, 0, task, 0)
			add(doDropCommit, 0, task, 0)
		}
		if id.state == ongoing && w.left.expiries > 0 {
			add(doExpire, 0, task, 0)
		}
	}
}

// mayChange says that the change that is next can be asked for.
func (m *machine) mayChange(w *world) bool {
	if m.bounds.Changes[w.changed].Kind != Replan {
		return true
	}
	for r := range w.runner {
		if x := &w.runner[r]; x.plan != 0 && !x.dead {
			return true
		}
	}
	return false
}

// nobody sleeps.
const nobody = -1

// mayPass says that time can pass: nothing takes as long as a deadline but a runner that sleeps, whatever is asked of the fencer, and what the broker does.
func (m *machine) mayPass(w *world, asleep int) bool {
	k := int(w.holder) - 1
	if k < 0 || w.lead[k].state != leads || m.pause(w, asleep) < 0 {
		return false
	}
	for r := range w.runner {
		x := &w.runner[r]
		if x.closing[k] != 0 {
			return false
		}
		if x.dead || r == asleep {
			continue
		}
		if x.at == 0 || w.lead[x.at-1].state != leads || x.planDue || x.up[0] != (message{}) || x.down[0] != (message{}) {
			return false
		}
	}
	return true
}

// pause is how long it is until the leader wants a tick, or a runner that hangs on a deposed one has sent heartbeats for a quarter of a lease; -1 where nothing waits for the time to pass.
func (m *machine) pause(w *world, asleep int) int {
	d := m.cores.nodes[w.lead[w.holder-1].core].wake
	for r := range w.runner {
		x := &w.runner[r]
		if x.dead || r == asleep || x.at == 0 || x.at == w.holder || w.lead[x.at-1].state != leads {
			continue
		}
		if d < 0 || d > leaseBeats/4 {
			d = leaseBeats / 4
		}
	}
	return d
}

// apply takes a step.
func (m *machine) apply(w *world, a action) {
	who, task, partition := int(a.who), int(a.task), int(a.partition)
	switch a.kind {
	case doHear:
		m.hear(w, who)
	case doReceive:
		m.receive(w, who)
	case doFence:
		m.fence(w, who, task)
	case doInit:
		m.init(w, who, task)
	case doProduce:
		m.produce(w, who, task, partition)
	case doCommit:
		m.commit(w, who, task)
	case doMark:
		m.tell("the broker writes the markers of the transaction of task %d: it is %s", task, map[bool]string{true: "committed", false: "aborted"}[w.id[task].state == prepareCommit])
		w.mark(task)
	case doRetry:
		m.attempt(w, who, task)
	case doPlan:
		m.plan(w, who)
	case doConnect:
		m.hello(w, who, task)
	case doTellClosed:
		m.tellClosed(w, who, task)
	case doStreamEnds:
		m.tell("%s notices that its session has ended", runnerName(who))
		m.cut(w, who)
	case doRestart:
		m.tell("%s is started again", runnerName(who))
		w.runner[who].dead, w.runner[who].process = false, w.runner[who].process+1
	case doTime:
		m.time(w, nobody)
	case doElect, doTakeOver, doCrashCoordinator, doCrashRunner, doSleep, doCut, doCommitUnanswered, doExpire:
		m.applyFault(w, a)
	case doChange:
		m.change(w, who)
	case doAskAgain:
		m.tell("the stop is asked for again")
		m.stop(w, who)
	case doDropCommit:
		m.tell("the commit that was on its way for task %d is lost", task)
		w.id[task].inFlight = false
	case doLandCommit:
		m.tell("the commit that was on its way for task %d arrives", task)
		m.decideCommit(w, task)
	case doDeposedTick:
		m.tell("%s, which has been replaced, looks at its deadlines", coordinatorName(who))
		m.take(w, who, event{kind: evTick})
	}
	m.check(w)
}

func (m *machine) applyFault(w *world, a action) {
	who := int(a.who)
	switch a.kind {
	case doElect:
		m.takeOver(w, who)
	case doTakeOver:
		w.left.takeovers--
		m.takeOver(w, who)
	case doCrashCoordinator:
		w.left.crashes--
		m.crashCoordinator(w, who)
	case doCrashRunner:
		w.left.crashes--
		m.crashRunner(w, who)
	case doSleep:
		w.left.zombies--
		m.sleep(w, who, a.task == 1)
	case doCut:
		if w.runner[who].at == w.holder {
			w.left.cuts--
		}
		m.tell("the connection of %s breaks", runnerName(who))
		m.cut(w, who)
	case doCommitUnanswered:
		w.left.unanswered--
		m.commitUnanswered(w, who, int(a.task))
	case doExpire:
		w.left.expiries--
		m.tell("the transaction of task %d was open for too long: the broker aborts it", a.task)
		w.fenced(int(a.task))
		w.id[a.task].state = prepareAbort
	}
}

// plan has a runner send the task set of its plan.
func (m *machine) plan(w *world, r int) {
	x := &w.runner[r]
	x.planDue = false
	if m.mistake == OffsetsBeforeInit {
		m.tell("the stored offsets are read before anybody initialises an id of the new task set")
		w.early = w.offsets.stored
	}
	m.tell("%s plans task set %d", runnerName(r), w.layout+1)
	m.take(w, int(x.at)-1, event{kind: evPlan, session: x.session, term: x.term, plan: x.plan, layout: w.layout})
}

func (m *machine) tellClosed(w *world, r, k int) {
	x := &w.runner[r]
	session := x.closing[k]
	x.closing[k] = 0
	m.tell("%s learns that a session of %s has ended", coordinatorName(k), runnerName(r))
	if w.lead[k].state == leads {
		m.take(w, k, event{kind: evClosed, session: session})
	}
}

// change asks for the next change.
func (m *machine) change(w *world, k int) {
	c := m.bounds.Changes[w.changed]
	w.changed++
	switch c.Kind {
	case Apply:
		w.layout = c.Layout
		m.tell("a user changes the configuration")
		m.take(w, k, event{kind: evApply, layout: c.Layout})
	case Replan:
		w.layout = c.Layout
		m.tell("the source has changed: there will be another task set")
		for r := range w.runner {
			if x := &w.runner[r]; x.plan != 0 {
				x.planDue = true
			}
		}
	case Stop, Delete:
		m.tell("a user stops the connector")
		m.stop(w, k)
	}
}

func (m *machine) stop(w *world, k int) {
	w.waiting = uint8(k) + 1
	e := event{kind: evStop}
	if m.bounds.Changes[w.changed-1].Kind == Delete {
		e.kind = evDelete
		if m.cores.logs[w.log].records["connector/"+connectorName].Key == "" {
			m.answerStop(w) // the one who asks is told that there is none any more
			return
		}
	}
	m.take(w, k, e)
}

// time passes until the leader has something to do: the next of its deadlines comes. Runners that don't sleep are heard by whoever they are connected to, at the last moment before. It says how much has passed.
func (m *machine) time(w *world, asleep int) int {
	leader, d := int(w.holder)-1, uint8(m.pause(w, asleep))
	m.tell("%d%% of a lease's time pass", int(d)*100/leaseBeats)
	for k := range w.lead {
		w.lead[k].age = min(w.lead[k].age+d, leaseBeats+1)
		if w.lead[k].state == leads {
			w.lead[k].lag = min(w.lead[k].lag+d, leaseBeats+drainBeats)
		}
	}
	for r := range w.runner {
		x := &w.runner[r]
		for t := range x.slot {
			x.slot[t].trust -= min(x.slot[t].trust, d)
		}
		if !x.dead && r != asleep && x.at != 0 && w.lead[x.at-1].state == leads {
			m.take(w, int(x.at)-1, event{kind: evHeartbeat, session: x.session, term: x.term, held: x.held()})
		}
	}
	m.take(w, leader, event{kind: evTick})
	return int(d)
}

// sleep is what makes a zombie: for a lease's time nobody hears a runner, and it does nothing, or until somebody else has something to do. Where it slept, it goes on later; how much later is up to the order of the steps that
// follow. A session that is silent for so long may have been closed by the coordinator before.
func (m *machine) sleep(w *world, r int, closed bool) {
	m.tell("%s sleeps", runnerName(r))
	if closed {
		k := int(w.runner[r].at) - 1
		m.tell("%s closes its session", coordinatorName(k))
		m.cut(w, r)
		m.tellClosed(w, r, k)
	}
	for slept := 0; slept < leaseBeats && m.mayPass(w, r); {
		slept += max(m.time(w, r), 1)
	}
}
