package wire

import (
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// EncodePlanOpen makes the first message of a Plan stream.
func EncodePlanOpen(o *source.PlanOpen) *pluginv1.PlanOpen {
	return &pluginv1.PlanOpen{Connector: o.Connector, Type: o.Type, Config: o.Config, TasksMax: uint32(o.TasksMax)}
}

// DecodePlanOpen reads the first message of a Plan stream.
func DecodePlanOpen(o *pluginv1.PlanOpen) *source.PlanOpen {
	return &source.PlanOpen{Connector: o.GetConnector(), Type: o.GetType(), Config: o.GetConfig(), TasksMax: int(o.GetTasksMax())}
}

// EncodeTasks makes a TaskSet with a version.
func EncodeTasks(version uint64, tasks []source.TaskSpec) *pluginv1.TaskSet {
	out := &pluginv1.TaskSet{Version: version}
	for i := range tasks {
		out.Tasks = append(out.Tasks, &pluginv1.Task{Config: tasks[i].Config, Claim: EncodeClaim(tasks[i].Claim)})
	}
	return out
}

// DecodeTasks reads a TaskSet.
func DecodeTasks(set *pluginv1.TaskSet) []source.TaskSpec {
	out := make([]source.TaskSpec, len(set.GetTasks()))
	for i, t := range set.GetTasks() {
		out[i] = source.TaskSpec{Config: t.GetConfig(), Claim: DecodeClaim(t.GetClaim())}
	}
	return out
}

// EncodeClaim makes the wire form of a claim; the zero Claim is Unknown.
func EncodeClaim(c source.Claim) *pluginv1.Claim {
	switch {
	case c.Set != nil:
		set := &pluginv1.Claim_PartitionSet{Partitions: make([][]byte, len(c.Set))}
		for i, p := range c.Set {
			set.Partitions[i] = p
		}
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Set{Set: set}}
	case c.Prefix != nil:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Prefix{Prefix: c.Prefix}}
	case c.Range != nil:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Range_{Range: &pluginv1.Claim_Range{From: c.Range.From, Until: c.Range.Until}}}
	case c.Slot != nil:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Slot{Slot: &pluginv1.Claim_HashSlot{Slot: c.Slot.Slot, Of: c.Slot.Of}}}
	default:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Unknown_{Unknown: &pluginv1.Claim_Unknown{}}}
	}
}

// DecodeClaim reads a claim. A set or prefix that is there but empty stays set (not nil), so that an empty set claims nothing and never everything.
func DecodeClaim(c *pluginv1.Claim) source.Claim {
	switch rule := c.GetRule().(type) {
	case *pluginv1.Claim_Set:
		set := make([]source.JSON, len(rule.Set.GetPartitions()))
		for i, p := range rule.Set.GetPartitions() {
			set[i] = p
		}
		return source.Claim{Set: set}
	case *pluginv1.Claim_Prefix:
		prefix := rule.Prefix
		if prefix == nil {
			prefix = []byte{}
		}
		return source.Claim{Prefix: prefix}
	case *pluginv1.Claim_Range_:
		return source.Claim{Range: &source.Range{From: rule.Range.GetFrom(), Until: rule.Range.GetUntil()}}
	case *pluginv1.Claim_Slot:
		return source.Claim{Slot: &source.Slot{Slot: rule.Slot.GetSlot(), Of: rule.Slot.GetOf()}}
	default:
		return source.Claim{}
	}
}

// EncodeLookup makes a Lookup.
func EncodeLookup(id uint64, partitions []source.JSON) *pluginv1.Lookup {
	out := &pluginv1.Lookup{Id: id, Partitions: make([][]byte, len(partitions))}
	for i, p := range partitions {
		out.Partitions[i] = p
	}
	return out
}

// DecodeLookup reads the partitions of a Lookup.
func DecodeLookup(l *pluginv1.Lookup) []source.JSON {
	out := make([]source.JSON, len(l.GetPartitions()))
	for i, p := range l.GetPartitions() {
		out[i] = p
	}
	return out
}

// EncodeLookupAnswer answers a Lookup; err is why it couldn't be answered, or nil.
func EncodeLookupAnswer(id uint64, offsets []source.PartitionOffset, err error) *pluginv1.LookupAnswer {
	if err != nil {
		return &pluginv1.LookupAnswer{Id: id, Error: ValidText(err.Error())}
	}
	return &pluginv1.LookupAnswer{Id: id, Offsets: EncodeOffsets(offsets)}
}

// DecodeLookupAnswer reads the answer to a Lookup of so many partitions. An answer with another number of offsets is an error, since they are matched by place.
func DecodeLookupAnswer(a *pluginv1.LookupAnswer, partitions int) ([]source.PartitionOffset, error) {
	if a.GetError() != "" {
		return nil, source.Retryf("look up offsets: %s", a.GetError())
	}
	if len(a.GetOffsets()) != partitions {
		return nil, source.Retryf("look up offsets: asked for %d partitions and got %d offsets", partitions, len(a.GetOffsets()))
	}
	return DecodeOffsets(a.GetOffsets()), nil
}
