package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// The limits of the protocol for task sets.
const (
	maxTaskConfig = 1 << 20
	maxTaskSet    = 16 << 20
	maxSlotsOf    = 10_000
	maxLookup     = 10_000
)

// planHost is what a plugin's Plan talks to.
type planHost struct {
	r     *planRun
	first *time.Timer // Ends the plan where no task set comes.
	set   atomic.Bool // A task set was taken.
}

// SetTasks checks a task set and sends it on. An equal one changes nothing.
func (h *planHost) SetTasks(_ context.Context, tasks []source.TaskSpec) error {
	set, err := canonicalTasks(tasks, h.r.start.TasksMax)
	if err != nil {
		return source.Fatalf("task set: %w", err)
	}
	same, err := json.Marshal(set)
	if err != nil {
		return fmt.Errorf("task set: %w", err)
	}
	r := h.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if refused := r.refused; refused != nil {
		r.refused = nil
		return source.Fatalf("the coordinator refused the task set before: %s", refused.Reason)
	}
	h.first.Stop()
	h.set.Store(true)
	if !r.bad && r.last != nil && bytes.Equal(same, r.last) {
		return nil
	}
	r.version++
	r.last, r.bad = same, false
	r.s.session.PlanResult(session.PlanResult{Plan: r.start.Plan, Version: r.version, Tasks: set})
	return nil
}

// Lookup reads stored offsets from Kafka, each time: an answer from memory could be one that was later discarded.
func (h *planHost) Lookup(ctx context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	if len(partitions) > maxLookup {
		return nil, source.Fatalf("a look-up of %d partitions; at most %d are possible", len(partitions), maxLookup)
	}
	stored, err := h.r.s.cfg.LoadOffsets(ctx, h.r.start.Plan.Connector, h.r.topic)
	if err != nil {
		return nil, fmt.Errorf("look up offsets: %w", err)
	}
	answers := make([]source.PartitionOffset, len(partitions))
	for i, p := range partitions {
		canonical, err := source.Canonical(p)
		if err != nil {
			return nil, source.Fatalf("look up offsets: partition %d: %w", i, err)
		}
		found, _ := stored.Stored(canonical)
		answers[i] = source.PartitionOffset{Partition: p, Offset: found.Offset}
	}
	return answers, nil
}

// canonicalTasks checks a task set and writes its partitions in canonical form, sorted, so that equal sets are equal bytes.
func canonicalTasks(tasks []source.TaskSpec, most int) ([]source.TaskSpec, error) {
	if len(tasks) > most {
		return nil, fmt.Errorf("%d tasks, and tasks.max is %d", len(tasks), most)
	}
	out := make([]source.TaskSpec, len(tasks))
	total := 0
	for i, t := range tasks {
		claim, claimBytes, err := canonicalClaim(t.Claim)
		if err != nil {
			return nil, fmt.Errorf("task %d: %w", i, err)
		}
		configBytes := 0
		for k, v := range t.Config {
			configBytes += len(k) + len(v)
		}
		if configBytes > maxTaskConfig {
			return nil, fmt.Errorf("task %d: a configuration of %d bytes; at most %d are possible", i, configBytes, maxTaskConfig)
		}
		if total += configBytes + claimBytes; total > maxTaskSet {
			return nil, fmt.Errorf("more than %d bytes together", maxTaskSet)
		}
		out[i] = source.TaskSpec{Config: t.Config, Claim: claim}
	}
	return out, nil
}

// canonicalClaim checks a claim, and measures it.
func canonicalClaim(c source.Claim) (source.Claim, int, error) {
	set := 0
	for _, is := range []bool{c.Set != nil, c.Prefix != nil, c.Range != nil, c.Slot != nil} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return c, 0, errors.New("a claim of several kinds")
	case c.Range != nil && len(c.Range.Until) > 0 && bytes.Compare(c.Range.From, c.Range.Until) >= 0:
		return c, 0, errors.New("a claim of an empty range")
	case c.Slot != nil && (c.Slot.Of == 0 || c.Slot.Of > maxSlotsOf || c.Slot.Slot >= c.Slot.Of):
		return c, 0, fmt.Errorf("a claim of slot %d of %d", c.Slot.Slot, c.Slot.Of)
	case c.Range != nil:
		return c, len(c.Range.From) + len(c.Range.Until), nil
	case c.Set == nil:
		return c, len(c.Prefix), nil
	}
	size := 0
	canonical := make([]source.JSON, len(c.Set))
	for i, p := range c.Set {
		one, err := source.Canonical(p)
		if err != nil {
			return c, 0, fmt.Errorf("partition %d of its claim: %w", i, err)
		}
		canonical[i] = one
		size += len(one)
	}
	slices.SortFunc(canonical, func(a, b source.JSON) int { return bytes.Compare(a, b) })
	canonical = slices.CompactFunc(canonical, func(a, b source.JSON) bool { return bytes.Equal(a, b) })
	return source.Claim{Set: canonical}, size, nil
}
