// Package sourcetest runs connectors in process as a runner would, so that a connector's tests need no broker: it collects what tasks send, commits or
// doesn't, and starts tasks again from what was committed.
//
// It is as strict as a runner: a batch that is malformed, out of order, without credit, outside the claim, or without an offset fails the test.
//
// Where to read next: exact.go for the test that every connector should have.
package sourcetest

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// patience is how long a wait may take before the test fails.
const patience = 20 * time.Second

// Config says what a Runner runs.
type Config struct {
	// Plugin is what is tested: source.New(…) of a connector, or a client of one in another process.
	Plugin source.Plugin
	// Type is the connector type; not needed where the plugin has only one.
	Type string
	// Config is the connector's configuration.
	Config map[string]string
	// Limits of records and batches; small ones make many batches of few records. 0 is the protocol's limit.
	Limits source.Limits
	// Boundary is the rule that the tasks are told; Adaptive where it is 0.
	Boundary source.BoundaryRule
	// Stored are the offsets to begin with.
	Stored []source.PartitionOffset
}

// Record is a record as a reader of the topic sees it.
type Record struct {
	Topic string
	// Partition is the canonical source partition.
	Partition  string
	Key, Value []byte
	Headers    []source.Header
	// Timestamp is zero where the record has none.
	Timestamp              time.Time
	KeySchema, ValueSchema uint32
	// KafkaPartition is −1 where the key's hash decides.
	KafkaPartition int32
}

// Runner runs tasks of one connector and keeps what they commit. Its methods may be called from several goroutines.
type Runner struct {
	tb  testing.TB
	cfg Config

	mu      sync.Mutex
	offsets map[string]source.PartitionOffset // by canonical partition
	records []Record
	epoch   uint64
}

// New makes a Runner. It fails the test where the plugin can't be described or the configuration is wrong.
func New(tb testing.TB, cfg Config) *Runner {
	tb.Helper()
	r := &Runner{tb: tb, cfg: cfg, offsets: make(map[string]source.PartitionOffset)}
	d, err := cfg.Plugin.Describe(tb.Context())
	if err != nil {
		tb.Fatalf("describe: %v", err)
	}
	if r.cfg.Type == "" {
		r.cfg.Type = d.Types[0].Name
	}
	if r.cfg.Boundary == 0 {
		r.cfg.Boundary = source.Adaptive
	}
	for _, p := range r.Validate().Problems {
		if !p.Warning {
			tb.Fatalf("validate: %s: %s %s", p.Key, p.Message, p.Hint)
		}
	}
	for _, o := range cfg.Stored {
		r.store(o)
	}
	return r
}

// Validate asks the plugin about the configuration.
func (r *Runner) Validate() *source.Validation {
	r.tb.Helper()
	v, err := r.cfg.Plugin.Validate(r.tb.Context(), &source.ValidateRequest{Connector: "test", Type: r.cfg.Type, Config: r.cfg.Config})
	if err != nil {
		r.tb.Fatalf("validate: %v", err)
	}
	return v
}

// Plan returns the first task set for at most tasksMax tasks, and ends the plan.
func (r *Runner) Plan(tasksMax int) []source.TaskSpec {
	r.tb.Helper()
	ctx, cancel := context.WithTimeout(r.tb.Context(), patience)
	defer cancel()
	host := &planHost{runner: r, set: make(chan []source.TaskSpec, 1)}
	done := make(chan error, 1)
	open := &source.PlanOpen{Connector: "test", Type: r.cfg.Type, Config: maps.Clone(r.cfg.Config), TasksMax: tasksMax}
	go func() { done <- r.cfg.Plugin.Plan(ctx, open, host) }()
	select {
	case tasks := <-host.set:
		cancel()
		if err := <-done; err != nil {
			r.tb.Fatalf("plan: %v", err)
		}
		return tasks
	case err := <-done:
		r.tb.Fatalf("plan ended without a task set: %v", err)
	}
	return nil
}

// planHost takes the first task set.
type planHost struct {
	runner *Runner
	set    chan []source.TaskSpec
}

// SetTasks implements source.PlanHost.
func (h *planHost) SetTasks(_ context.Context, tasks []source.TaskSpec) error {
	select {
	case h.set <- tasks:
	default: // only the first one is asked for
	}
	return nil
}

// Lookup implements source.PlanHost.
func (h *planHost) Lookup(_ context.Context, partitions []source.JSON) ([]source.PartitionOffset, error) {
	return h.runner.lookup(partitions)
}

// Committed returns every committed record in the order of the commits: what a reader of committed records sees.
func (r *Runner) Committed() []Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.records)
}

// Offset returns the committed offset of a source partition, nil where there is none.
func (r *Runner) Offset(partition source.Fields) source.Fields {
	r.tb.Helper()
	canonical, err := partition.JSON()
	if err != nil {
		r.tb.Fatalf("partition: %v", err)
	}
	r.mu.Lock()
	o, ok := r.offsets[string(canonical)]
	r.mu.Unlock()
	if !ok {
		return nil
	}
	f, err := o.Offset.Fields()
	if err != nil {
		r.tb.Fatalf("offset stored for %s: %v", canonical, err)
	}
	return f
}

// Offsets returns all committed offsets, sorted by canonical partition.
func (r *Runner) Offsets() []source.PartitionOffset {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []source.PartitionOffset
	for _, k := range slices.Sorted(maps.Keys(r.offsets)) {
		out = append(out, r.offsets[k])
	}
	return out
}

// store keeps one offset. The caller holds mu, or is New.
func (r *Runner) store(o source.PartitionOffset) {
	canonical, err := source.Canonical(o.Partition)
	if err != nil {
		r.tb.Errorf("stored partition %s: %v", o.Partition, err)
		return
	}
	r.offsets[string(canonical)] = o
}

func (r *Runner) lookup(partitions []source.JSON) ([]source.PartitionOffset, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := make([]source.PartitionOffset, len(partitions))
	for i, p := range partitions {
		canonical, err := source.Canonical(p)
		if err != nil {
			return nil, fmt.Errorf("look up %s: %w", p, err)
		}
		out[i] = source.PartitionOffset{Partition: p, Offset: r.offsets[string(canonical)].Offset}
	}
	return out, nil
}

// Values returns the records' values as texts.
func Values(records []Record) []string {
	out := make([]string, len(records))
	for i, r := range records {
		out[i] = string(r.Value)
	}
	return out
}
