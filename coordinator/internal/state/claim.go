package state

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"sort"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// ClaimKind is the kind of a claim.
type ClaimKind string

// Kinds of claims. The zero value is an unknown claim.
const (
	ClaimUnknown ClaimKind = ""
	ClaimSet     ClaimKind = "set"
	ClaimPrefix  ClaimKind = "prefix"
	ClaimRange   ClaimKind = "range"
	ClaimSlot    ClaimKind = "slot"
)

// mostSlots is the most slots that a hash may be divided into.
const mostSlots = 10_000

// Claim is the rule that says which source partitions belong to a task. Partitions are in canonical form; the runner made them so, and here only bytes are compared.
type Claim struct {
	Kind ClaimKind `json:"kind,omitempty"`
	// Set has the partitions of ClaimSet, sorted.
	Set [][]byte `json:"set,omitempty"`
	// Prefix of ClaimPrefix.
	Prefix []byte `json:"prefix,omitempty"`
	// From and Until of ClaimRange; an empty Until is no end.
	From  []byte `json:"from,omitempty"`
	Until []byte `json:"until,omitempty"`
	// Slot of Of, with ClaimSlot.
	Slot uint32 `json:"slot,omitempty"`
	Of   uint32 `json:"of,omitempty"`
}

// claimOf reads a claim from the wire.
func claimOf(m *pluginv1.Claim) (Claim, error) {
	switch rule := m.GetRule().(type) {
	case *pluginv1.Claim_Set:
		set := slices.Clone(rule.Set.GetPartitions())
		slices.SortFunc(set, bytes.Compare)
		return Claim{Kind: ClaimSet, Set: slices.CompactFunc(set, bytes.Equal)}, nil
	case *pluginv1.Claim_Prefix:
		return Claim{Kind: ClaimPrefix, Prefix: rule.Prefix}, nil
	case *pluginv1.Claim_Range_:
		c := Claim{Kind: ClaimRange, From: rule.Range.GetFrom(), Until: rule.Range.GetUntil()}
		if len(c.Until) > 0 && bytes.Compare(c.From, c.Until) >= 0 {
			return Claim{}, fmt.Errorf("claims an empty range, from %q until %q", c.From, c.Until)
		}
		return c, nil
	case *pluginv1.Claim_Slot:
		c := Claim{Kind: ClaimSlot, Slot: rule.Slot.GetSlot(), Of: rule.Slot.GetOf()}
		if c.Of < 1 || c.Of > mostSlots || c.Slot >= c.Of {
			return Claim{}, fmt.Errorf("claims slot %d of %d; there are 1 to %d slots, counted from 0", c.Slot, c.Of, mostSlots)
		}
		return c, nil
	default:
		return Claim{}, nil
	}
}

// wire is the claim as runners see it.
func (c Claim) wire() *pluginv1.Claim {
	switch c.Kind {
	case ClaimSet:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Set{Set: &pluginv1.Claim_PartitionSet{Partitions: c.Set}}}
	case ClaimPrefix:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Prefix{Prefix: c.Prefix}}
	case ClaimRange:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Range_{Range: &pluginv1.Claim_Range{From: c.From, Until: c.Until}}}
	case ClaimSlot:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Slot{Slot: &pluginv1.Claim_HashSlot{Slot: c.Slot, Of: c.Of}}}
	default:
		return &pluginv1.Claim{Rule: &pluginv1.Claim_Unknown_{Unknown: &pluginv1.Claim_Unknown{}}}
	}
}

// String is for people.
func (c Claim) String() string {
	switch c.Kind {
	case ClaimSet:
		switch len(c.Set) {
		case 0:
			return "nothing"
		case 1:
			return string(c.Set[0])
		}
		return fmt.Sprintf("%s and %d more", c.Set[0], len(c.Set)-1)
	case ClaimPrefix:
		return fmt.Sprintf("partitions that start with %s", c.Prefix)
	case ClaimRange:
		if len(c.Until) == 0 {
			return fmt.Sprintf("partitions from %s on", c.From)
		}
		return fmt.Sprintf("partitions from %s until %s", c.From, c.Until)
	case ClaimSlot:
		return fmt.Sprintf("slot %d of %d", c.Slot, c.Of)
	default:
		return "as it goes"
	}
}

// interval is a prefix or a range, half open; a nil until is no end.
type interval struct {
	from, until []byte
	task        uint32
}

// claims answers which task a partition belongs to by the claims of a task set.
type claims struct {
	set       map[string]uint32
	intervals []interval // sorted by from, disjoint
	slots     map[uint32]uint32
	of        uint32 // the one divisor of all slots; 0 without slots
}

// newClaims indexes a task set. The error says which two tasks' claims overlap, or may: what can't be told apart for every partition that may come is refused (I8). Unknown claims are left out.
func newClaims(tasks []TaskSpec) (*claims, error) {
	c := &claims{set: map[string]uint32{}, slots: map[uint32]uint32{}}
	for i, t := range tasks {
		if err := c.add(uint32(i), t.Claim); err != nil {
			return nil, err
		}
	}
	return c, c.disjoint()
}

func (c *claims) add(task uint32, claim Claim) error {
	switch claim.Kind {
	case ClaimSet:
		for _, p := range claim.Set {
			if other, taken := c.set[string(p)]; taken {
				return fmt.Errorf("tasks %d and %d both claim %s", other, task, p)
			}
			c.set[string(p)] = task
		}
	case ClaimPrefix:
		c.intervals = append(c.intervals, interval{claim.Prefix, after(claim.Prefix), task})
	case ClaimRange:
		c.intervals = append(c.intervals, interval{claim.From, claim.Until, task})
	case ClaimSlot:
		if c.of != 0 && c.of != claim.Of {
			return fmt.Errorf("task %d claims a slot of %d, another task one of %d: these overlap", task, claim.Of, c.of)
		}
		c.of = claim.Of
		if other, taken := c.slots[claim.Slot]; taken {
			return fmt.Errorf("tasks %d and %d both claim slot %d of %d", other, task, claim.Slot, claim.Of)
		}
		c.slots[claim.Slot] = task
	}
	return nil
}

// disjoint looks at what add can't see: intervals among each other, and one kind of claim against another.
func (c *claims) disjoint() error {
	sort.SliceStable(c.intervals, func(i, j int) bool { return bytes.Compare(c.intervals[i].from, c.intervals[j].from) < 0 })
	for i := 1; i < len(c.intervals); i++ {
		a, b := c.intervals[i-1], c.intervals[i]
		if len(a.until) == 0 || bytes.Compare(b.from, a.until) < 0 {
			return fmt.Errorf("the claims of tasks %d and %d overlap at %q", min(a.task, b.task), max(a.task, b.task), b.from)
		}
	}
	if len(c.intervals) > 0 && len(c.slots) > 0 {
		return fmt.Errorf("task %d claims a prefix or a range, other tasks claim slots of a hash: these overlap", c.intervals[0].task)
	}
	partitions := make([]string, 0, len(c.set))
	for p := range c.set {
		partitions = append(partitions, p)
	}
	slices.Sort(partitions)
	for _, p := range partitions {
		if other, taken := c.ruled([]byte(p)); taken && other != c.set[p] {
			return fmt.Errorf("tasks %d and %d both claim %s", min(other, c.set[p]), max(other, c.set[p]), p)
		}
	}
	return nil
}

// owner says which task's claim has a partition.
func (c *claims) owner(partition []byte) (task uint32, ok bool) {
	if task, ok = c.set[string(partition)]; ok {
		return task, true
	}
	return c.ruled(partition)
}

// ruled is owner by the rules alone.
func (c *claims) ruled(partition []byte) (task uint32, ok bool) {
	after := sort.Search(len(c.intervals), func(i int) bool { return bytes.Compare(c.intervals[i].from, partition) > 0 })
	if after > 0 {
		if in := c.intervals[after-1]; len(in.until) == 0 || bytes.Compare(partition, in.until) < 0 {
			return in.task, true
		}
	}
	if c.of != 0 {
		sum := sha256.Sum256(partition)
		task, ok = c.slots[uint32(binary.BigEndian.Uint64(sum[:8])%uint64(c.of))]
	}
	return task, ok
}

// after is the first string of bytes behind all that start with prefix; nil where there is none.
func after(prefix []byte) []byte {
	end := slices.Clone(prefix)
	for len(end) > 0 {
		if end[len(end)-1]++; end[len(end)-1] != 0 {
			return end
		}
		end = end[:len(end)-1]
	}
	return nil
}

// claimHash is how a partition that was claimed while running is named in its record's key.
func claimHash(partition []byte) string {
	sum := sha256.Sum256(partition)
	return hex.EncodeToString(sum[:])
}

func (c Claim) equal(o Claim) bool {
	return c.Kind == o.Kind && c.Slot == o.Slot && c.Of == o.Of && slices.EqualFunc(c.Set, o.Set, bytes.Equal) &&
		bytes.Equal(c.Prefix, o.Prefix) && bytes.Equal(c.From, o.From) && bytes.Equal(c.Until, o.Until)
}
