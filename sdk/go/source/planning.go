package source

import (
	"context"
	"fmt"
)

// Planning is what a Connector's Plan works with.
type Planning struct {
	host     PlanHost
	config   Config
	name     string
	tasksMax int
	set      bool
}

// Connector is the connector's name.
func (p *Planning) Connector() string { return p.name }

// Config is the connector's configuration.
func (p *Planning) Config() Config { return p.config }

// TasksMax is the most tasks that a set may have, at least 1.
func (p *Planning) TasksMax() int { return p.tasksMax }

// SetTasks replaces the connector's tasks; an equal set changes nothing. It fails where the set is refused, perhaps only at the next call.
func (p *Planning) SetTasks(ctx context.Context, tasks ...TaskSpec) error {
	if len(tasks) > p.tasksMax {
		return Fatalf("the plan has %d tasks, tasks.max is %d", len(tasks), p.tasksMax)
	}
	p.set = true
	if err := p.host.SetTasks(ctx, tasks); err != nil {
		return fmt.Errorf("set %d tasks: %w", len(tasks), err)
	}
	return nil
}

// Lookup reads the offsets that are stored for partitions, in the same order; nil where none is.
func (p *Planning) Lookup(ctx context.Context, partitions ...Fields) ([]Fields, error) {
	return lookup(ctx, p.host, partitions)
}

// One is the task set of a source that can't be divided: one task that may read every partition.
func One() TaskSpec { return TaskSpec{Claim: Claim{Prefix: []byte("{")}} }

// OneTask is the Plan of a Connector whose source can't be divided, for embedding.
type OneTask struct{}

// Plan sets one task that may read every partition.
func (OneTask) Plan(ctx context.Context, p *Planning) error { return p.SetTasks(ctx, One()) }

// Slots makes n tasks that share all partitions by the hash of their canonical form, so that a new partition needs no new plan.
func Slots(n int) []TaskSpec {
	tasks := make([]TaskSpec, n)
	for i := range tasks {
		tasks[i].Claim.Slot = &Slot{Slot: uint32(i), Of: uint32(n)}
	}
	return tasks
}

// Set claims exactly these partitions.
func Set(partitions ...Fields) (Claim, error) {
	set := make([]JSON, len(partitions))
	for i, p := range partitions {
		j, err := p.JSON()
		if err != nil {
			return Claim{}, fmt.Errorf("partition %d of a claim: %w", i, err)
		}
		set[i] = j
	}
	return Claim{Set: set}, nil
}

// lookuper is the half of PlanHost and RunHost that answers look-ups.
type lookuper interface {
	Lookup(ctx context.Context, partitions []JSON) ([]PartitionOffset, error)
}

// maxLookup is how many partitions the protocol allows in one look-up.
const maxLookup = 10_000

func lookup(ctx context.Context, host lookuper, partitions []Fields) ([]Fields, error) {
	answers := make([]Fields, 0, len(partitions))
	for len(partitions) > 0 {
		n := min(len(partitions), maxLookup)
		asked := make([]JSON, n)
		for i, p := range partitions[:n] {
			j, err := p.JSON()
			if err != nil {
				return nil, fmt.Errorf("look up a partition: %w", err)
			}
			asked[i] = j
		}
		got, err := host.Lookup(ctx, asked)
		if err != nil {
			return nil, fmt.Errorf("look up %d partitions: %w", n, err)
		}
		if len(got) != n {
			return nil, Fatalf("a look-up of %d partitions got %d answers", n, len(got))
		}
		for i, g := range got {
			var offset Fields
			if g.Offset != nil {
				if offset, err = g.Offset.Fields(); err != nil {
					return nil, Fatalf("the offset stored for %s: %w", asked[i], err)
				}
			}
			answers = append(answers, offset)
		}
		partitions = partitions[n:]
	}
	return answers, nil
}
