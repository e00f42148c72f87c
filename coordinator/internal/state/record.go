package state

import (
	"encoding/json"
	"errors"
	"fmt"
	"time"
)

// Record is one record of the config log. The log is compacted: the newest record of a key counts, and one without a value deletes the key.
type Record struct {
	Key string
	// Value is JSON with a "v"; nil is a tombstone.
	Value []byte
}

// recordVersion is the version of every record's form. A form that an older coordinator would misread gets a new one.
const recordVersion = 1

// ErrNewer says that the log holds a record which a newer version of Fencepost wrote. A coordinator that meets it must not lead.
var ErrNewer = errors.New("the config log was written by a newer version of Fencepost")

// Keys. Nothing that follows a connector's name holds a slash, so that no two things share a key.
//
//	meta/cluster               the term and the cluster's level
//	meta/beacon                nothing: it is written to prove that the leader still can
//	name/<name>                what outlives a connector: generation, epoch, count of ids
//	connector/<name>           configuration, target, plan
//	task/<name>/<task>         one task of the task set
//	lease/<name>/<task>        who holds it
//	id/<name>/<task>           the last decision of the transactional id
//	heal/<name>/<task>         how an empty transaction of the id is to be ended, while there is one
//	topics/<name>              topics written, the offsets topic
//	claim/<name>/<hash>        a partition that a task has claimed
const (
	keyCluster   = "meta/cluster"
	keyBeacon    = "meta/beacon"
	keyName      = "name/"
	keyConnector = "connector/"
	keyTask      = "task/"
	keyLease     = "lease/"
	keyID        = "id/"
	keyHeal      = "heal/"
	keyTopics    = "topics/"
	keyClaim     = "claim/"
)

// clusterRecord is meta/cluster.
type clusterRecord struct {
	// Cluster is its name, so that a coordinator of another cluster doesn't take the log for its own.
	Cluster string `json:"cluster"`
	Term    uint64 `json:"term"`
	Level   uint32 `json:"level"`
	// Begin is the log's first offset that an operator has accepted: what was before it is lost. 0 in a log that is whole.
	Begin int64 `json:"begin,omitempty"`
}

// beaconRecord is meta/beacon.
type beaconRecord struct {
	Term uint64    `json:"term"`
	At   time.Time `json:"at"`
}

// nameRecord is name/<name>. It is never deleted: generations and epochs grow across the lives of a name (I6).
type nameRecord struct {
	// Generation is the last one used.
	Generation uint64 `json:"generation"`
	// Fenced is the last generation whose round is done.
	Fenced uint64 `json:"fenced"`
	// Epoch is the last one granted to any task.
	Epoch uint64 `json:"epoch"`
	// IDs is how many transactional ids may have been used since they were last fenced: those of tasks 0 to IDs-1.
	IDs uint32 `json:"ids"`
	// PlanEpoch is the last one used.
	PlanEpoch uint64 `json:"plan_epoch"`
	// PlainMs isn't 0 while a plain producer of a lease that ended uncleanly may still write: it is their longest message time-out.
	PlainMs uint64 `json:"plain_ms,omitempty"`
}

// connectorRecord is connector/<name>.
type connectorRecord struct {
	Incarnation string            `json:"incarnation"`
	Config      map[string]string `json:"config"`
	Target      Target            `json:"target"`
	Created     time.Time         `json:"created"`
	Deleting    bool              `json:"deleting,omitempty"`
	// Plugin is the choice made when the configuration was stored; the name is empty while no runner has offered one.
	Plugin Plugin `json:"plugin"`
	// Filled says that this generation has its task set, of Tasks tasks.
	Filled bool   `json:"filled"`
	Tasks  uint32 `json:"tasks"`
	// Planner holds the plan of nameRecord.PlanEpoch; empty where nobody does.
	Planner        string `json:"planner,omitempty"`
	PlannerProcess string `json:"planner_process,omitempty"`
}

// taskRecord is task/<name>/<task>.
type taskRecord struct {
	Config map[string][]byte `json:"config,omitempty"`
	Claim  Claim             `json:"claim"`
}

// leaseRecord is lease/<name>/<task>.
type leaseRecord struct {
	Lease
	Runner  string     `json:"runner"`
	Process string     `json:"process"`
	State   leaseState `json:"state"`
	// Reason of a revocation.
	Reason string `json:"reason,omitempty"`
	// PlainMs is the message time-out of a task's plain producer, which can't be fenced; 0 under exactly-once.
	PlainMs uint64 `json:"plain_ms,omitempty"`
	// Alter says that it isn't for a task: offsets are changed under it.
	Alter bool `json:"alter,omitempty"`
}

// leaseState is how a lease stands.
type leaseState string

const (
	// leaseHeld: it is the runner's.
	leaseHeld leaseState = "held"
	// leaseRevoked: it was taken back, and the runner may still be ending its task.
	leaseRevoked leaseState = "revoked"
	// leaseLost: it isn't the runner's any more, but its id isn't fenced yet.
	leaseLost leaseState = "lost"
)

// idRecord is id/<name>/<task>. It outlives the connector: a transaction that hangs does too.
type idRecord struct {
	Decision
	// Used says that a task was let write since, so that there may be a later decision.
	Used bool `json:"used,omitempty"`
	// Mixed says that the task which wrote last might abort a transaction and go on under the same epoch. (Where it might not, every transaction before a committed one of the same epoch was committed, too.)
	Mixed bool `json:"mixed,omitempty"`
}

// topicsRecord is topics/<name>. It outlives the connector but for the offsets topic's id: to delete and create a connector is how an operator accepts a new offsets topic.
type topicsRecord struct {
	Topics         []string `json:"topics"`
	OffsetsTopic   string   `json:"offsets_topic,omitempty"`
	OffsetsTopicID string   `json:"offsets_topic_id,omitempty"`
}

// claimRecord is claim/<name>/<hash>.
type claimRecord struct {
	Task      uint32 `json:"task"`
	Partition []byte `json:"partition"`
}

// encode makes a record.
func encode(key string, value any) Record {
	body, err := json.Marshal(struct {
		V int `json:"v"`
		B any `json:"b"`
	}{recordVersion, value})
	if err != nil {
		panic(fmt.Sprintf("record %q: %v", key, err)) // every record type is plain data
	}
	return Record{Key: key, Value: body}
}

// decode reads a record's value.
func decode(r Record, into any) error {
	var frame struct {
		V int             `json:"v"`
		B json.RawMessage `json:"b"`
	}
	if err := json.Unmarshal(r.Value, &frame); err != nil {
		return fmt.Errorf("read record %q of the config log: %w", r.Key, err)
	}
	if frame.V != recordVersion {
		return fmt.Errorf("record %q has form %d, this version knows %d: %w", r.Key, frame.V, recordVersion, ErrNewer)
	}
	if err := json.Unmarshal(frame.B, into); err != nil {
		return fmt.Errorf("read record %q of the config log: %w", r.Key, err)
	}
	return nil
}
