package state

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/names"
)

// TaskSpec is what a plan says of one task.
type TaskSpec struct {
	Config map[string][]byte
	Claim  Claim
}

// Plugin names the plugin that a connector runs on.
type Plugin struct {
	Name    string `json:"name,omitempty"`
	Version string `json:"version,omitempty"`
	// SHA256 is set where the configuration pins it; empty is any.
	SHA256 string `json:"sha256,omitempty"`
	// Type is the connector type within it.
	Type string `json:"type,omitempty"`
}

// connector is all that there is under one name: the connector, where there is one now, and what outlives it. The records embedded in it are what the log has.
type connector struct {
	name string
	nameRecord
	connectorRecord // without an incarnation there is no connector of this name now
	topics          topicsRecord
	tasks           []TaskSpec
	leases          map[uint32]*lease
	decisions       map[uint32]*idRecord
	notes           map[uint32]*HealNote
	claimed         map[string]*claimRecord // partitions claimed while running, by the hash in their key

	// Derived from the records.
	settings settings
	claims   *claims

	// Volatile.
	statuses map[uint32]*status
	errors   map[uint32]LastError // of tasks, also of those that have got over it
	failed   map[uint32]string    // tasks that wait for a person without holding a lease, and why
	pauses   map[work]pause       // of what was given back unasked
	faults   map[work][]*fault    // of the hosts that it was given back from
	last     map[uint32]string    // the runner that had the task last
	moved    map[uint32]time.Time // when the task was last moved for balance
	waits    []wait
	healing  map[uint32]*healing
	stuck    map[Hang]struct{} // hangs that a person has to deal with
	happened []Happening
	round    *round
	refusal  string    // why the last round was refused for good
	retry    time.Time // when it is tried again
	quiet    time.Time // when no plain producer can write any more, see nameRecord.PlainMs
	planner  plannerState
}

// wait is an operation that is answered when the connector's tasks can't write any more.
type wait struct {
	id     uint64
	delete bool
	alter  bool // it waits for a lease to change offsets under
}

// status is the last one of a lease.
type status struct {
	lease   Lease
	seq     uint64
	state   string
	retryAt time.Time
	host    bool // the host is to blame that it doesn't get on
	TaskStatus
}

func (c *connector) exists() bool { return c.Incarnation != "" }

// runs says that the connector is to have tasks.
func (c *connector) runs() bool { return c.exists() && !c.Deleting && c.Target == TargetRunning }

func (c *connector) offsetsTopic(cluster string) string {
	if c.settings.offsetsTopic != "" {
		return c.settings.offsetsTopic
	}
	return names.OffsetsTopic(cluster, c.name)
}

// idle says that nobody holds a lease, not even one that was taken back.
func (c *connector) idle() bool {
	for _, l := range c.leases {
		if l.State != leaseLost {
			return false
		}
	}
	return true
}

// lost has the tasks whose ids are to be fenced before they are granted again, sorted; refused ones only where asked for.
func (c *connector) lost(refused bool) []uint32 {
	var tasks []uint32
	for task, l := range c.leases {
		if l.State == leaseLost && (refused || !l.refused) {
			tasks = append(tasks, task)
		}
	}
	slices.Sort(tasks)
	return tasks
}

// fenced says that nothing of the connector can write but tasks that hold a lease, and those whose ids can't be fenced for want of a right: no generation before this one, and no lost lease whose fencing hasn't been tried.
func (c *connector) fenced() bool { return c.Fenced == c.Generation && len(c.lost(false)) == 0 }

// named gives what there is under a name, and makes it where there is nothing.
func (s *State) named(name string) *connector {
	c := s.connectors[name]
	if c == nil {
		c = &connector{
			name: name, leases: map[uint32]*lease{}, decisions: map[uint32]*idRecord{}, notes: map[uint32]*HealNote{}, healing: map[uint32]*healing{}, stuck: map[Hang]struct{}{}, claimed: map[string]*claimRecord{},
			statuses: map[uint32]*status{}, errors: map[uint32]LastError{}, failed: map[uint32]string{}, pauses: map[work]pause{}, faults: map[work][]*fault{}, last: map[uint32]string{},
			moved: map[uint32]time.Time{},
		}
		s.connectors[name] = c
	}
	return c
}

// mostHappenings is how many of a connector's happenings are kept, and mostHappeningBytes how long each is at most.
const (
	mostHappenings     = 50
	mostHappeningBytes = 1000
)

func (s *State) happen(c *connector, format string, args ...any) {
	h := Happening{Connector: c.name, At: s.now, First: s.now, Count: 1, Text: clip(fmt.Sprintf(format, args...), mostHappeningBytes)}
	c.fold(h)
	s.emit(h)
}

// many counts things for people.
func many(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// clip bounds a text that others wrote, or that holds bytes of theirs, and makes it valid UTF-8, which messages and records need.
func clip(text string, limit int) string {
	more := ""
	if len(text) > limit {
		text, more = text[:limit], "…"
	}
	return strings.ToValidUTF8(text, "\ufffd") + more
}

// mostReasonBytes bounds the reason that is kept with a lease.
const mostReasonBytes = 1000

func taskKey(prefix, name string, task uint32) string {
	return prefix + name + "/" + strconv.FormatUint(uint64(task), 10)
}

func (s *State) putName(c *connector)      { s.put(keyName+c.name, &c.nameRecord) }
func (s *State) putConnector(c *connector) { s.put(keyConnector+c.name, &c.connectorRecord) }
func (s *State) putTopics(c *connector)    { s.put(keyTopics+c.name, &c.topics) }
func (s *State) putLease(l *lease)         { s.put(taskKey(keyLease, l.Connector, l.Task), &l.leaseRecord) }

// raise begins a new generation without tasks. Those of the old one drain, their ids are fenced, and the next task set fills the new one. (I6: it is persisted with this step.)
func (s *State) raise(c *connector) {
	c.Generation++
	s.putName(c)
	s.setTasks(c, nil)
	c.Filled = false
	s.putConnector(c)
	clear(c.failed)
	clear(c.pauses)
	clear(c.faults)
	c.refusal, c.retry = "", time.Time{}
}

// setTasks replaces the task set in the log and here. Partitions claimed under the old one are free again: whoever claimed them is fenced before a task of the new one starts.
func (s *State) setTasks(c *connector, tasks []TaskSpec) {
	for i := len(tasks); i < len(c.tasks); i++ {
		s.put(taskKey(keyTask, c.name, uint32(i)), nil)
	}
	for i, t := range tasks {
		s.put(taskKey(keyTask, c.name, uint32(i)), &taskRecord{Config: t.Config, Claim: t.Claim})
	}
	for _, hash := range sorted(c.claimed) {
		s.put(keyClaim+c.name+"/"+hash, nil)
	}
	clear(c.claimed)
	c.tasks = tasks
	c.Tasks = uint32(len(tasks))
	c.claims, _ = newClaims(tasks) // a set with overlaps doesn't come this far
}

// reconcile brings a connector as far towards its target as it can go at once. What it has to wait for comes back as an event.
func (s *State) reconcile(c *connector) {
	if !c.exists() {
		return
	}
	s.choose(c)
	s.revokeStale(c)
	s.relieve(c)
	s.fence(c)
	s.settle(c)
	if c.exists() {
		s.lend(c)
		s.plan(c)
		s.place(c)
	}
}

// settle finishes a stop or a deletion once no task can write any more.
func (s *State) settle(c *connector) {
	if !c.idle() || !c.fenced() || c.PlainMs > 0 {
		return
	}
	if c.Deleting {
		s.remove(c)
		return
	}
	if c.Target != TargetStopped {
		return
	}
	var left []wait
	for _, w := range c.waits {
		if w.alter {
			left = append(left, w)
		} else {
			s.reply(w.id, c, Result{Change: Changed})
		}
	}
	c.waits = left
}

// remove forgets a connector. Its name, the decisions of its ids and the topics it has written stay: another connector of this name goes on from them.
func (s *State) remove(c *connector) {
	s.happen(c, "deleted: no task can write any more")
	s.stopPlan(c)
	s.setTasks(c, nil)
	s.put(keyConnector+c.name, nil)
	c.connectorRecord = connectorRecord{}
	if c.topics.OffsetsTopic != "" {
		c.topics.OffsetsTopic, c.topics.OffsetsTopicID = "", ""
		s.putTopics(c)
	}
	for _, w := range c.waits {
		if w.delete {
			s.reply(w.id, nil, Result{Change: Changed})
		} else {
			s.refuse(w.id, &Error{Code: CodeSuperseded, Text: fmt.Sprintf("connector %q was deleted meanwhile", c.name)})
		}
	}
	c.waits, c.happened = nil, nil
	clear(c.statuses)
	clear(c.errors)
	clear(c.last)
	clear(c.moved)
	clear(c.failed)
	clear(c.pauses)
	clear(c.faults)
}

// sorted gives a map's keys in order: effects are the same for the same events.
func sorted[K ~string | ~uint32 | ~uint64, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}
