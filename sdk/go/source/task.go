package source

import (
	"bytes"
	"context"
	"fmt"
	"maps"
)

// Task is what a Connector's Open works with, and its Reader may keep. Its methods may be called by one goroutine at a time.
type Task struct {
	open   *RunOpen
	host   RunHost
	config Config

	partitions map[string]*Partition // by canonical form
	inSet      map[string]bool       // of a claim by Set
	stored     []*Partition          // with a stored offset, in the order they came
	pending    Declare               // not sent yet
	topics     map[string]uint32
	schemas    map[*Schema]uint32
	declared   uint32 // partitions so far
}

// Partition is a source partition of a task. Two calls of Task.Partition with equal fields give the same pointer.
type Partition struct {
	task      *Task
	canonical string
	json      JSON
	stored    JSON
	number    uint32 // 0 until it is first used

	// What Records keeps, so that a record needs no map.
	offset    []byte // the latest offset, canonical; at first the stored one
	touched   bool   // is in Records.touched
	uncovered bool   // has records that no offset covers yet
}

func newTask(open *RunOpen, host RunHost, config Config) (*Task, error) {
	t := &Task{
		open: open, host: host, config: config,
		partitions: make(map[string]*Partition, len(open.Stored)),
		topics:     make(map[string]uint32),
		schemas:    make(map[*Schema]uint32),
	}
	if open.Claim.Set != nil {
		t.inSet = make(map[string]bool, len(open.Claim.Set))
		for _, p := range open.Claim.Set {
			canonical, err := Canonical(p)
			if err != nil {
				return nil, Fatalf("partition %.200s of the claim %w", p, err)
			}
			t.inSet[string(canonical)] = true
		}
	}
	for _, s := range open.Stored {
		if s.Offset == nil {
			continue
		}
		canonical, err := Canonical(s.Partition)
		if err != nil {
			return nil, Fatalf("stored partition %.200s %w", s.Partition, err)
		}
		offset, err := Canonical(s.Offset)
		if err != nil {
			return nil, Fatalf("offset %.200s stored for %s %w", s.Offset, canonical, err)
		}
		p, again := t.partitions[string(canonical)]
		if !again {
			p = t.add(canonical, s.Partition)
			t.stored = append(t.stored, p)
		}
		p.stored, p.offset = s.Offset, offset
	}
	return t, nil
}

// Connector is the connector's name.
func (t *Task) Connector() string { return t.open.Connector }

// Number is the task's number, from 0.
func (t *Task) Number() int { return t.open.Task }

// Config is the connector's configuration.
func (t *Task) Config() Config { return t.config }

// TaskConfig is what the plan said of this task.
func (t *Task) TaskConfig() map[string][]byte { return maps.Clone(t.open.TaskConfig) }

// Claim is the task's claim.
func (t *Task) Claim() Claim { return t.open.Claim }

// Generation and Epoch grow with each grant of the task, the generation first: for sources that can fence by a number of their own.
func (t *Task) Generation() (generation, epoch uint64) { return t.open.Generation, t.open.Epoch }

// Limits are the limits of a record and of a batch.
func (t *Task) Limits() Limits { return t.open.Limits.orMax() }

// Boundary is the rule by which the runner commits.
func (t *Task) Boundary() BoundaryRule { return t.open.Boundary }

// Has says whether the task may read the partition.
func (t *Task) Has(partition Fields) bool {
	canonical, err := partition.JSON()
	return err == nil && t.has(canonical)
}

func (t *Task) has(canonical []byte) bool {
	if t.inSet != nil {
		return t.inSet[string(canonical)]
	}
	return t.open.Claim.Has(canonical)
}

// Partition returns the source partition with these fields. It fails where the task's claim doesn't have it.
func (t *Task) Partition(fields Fields) (*Partition, error) {
	canonical, err := fields.JSON()
	if err != nil {
		return nil, Fatalf("a source partition %w", err)
	}
	if p, ok := t.partitions[string(canonical)]; ok {
		return p, nil
	}
	// I8: a partition belongs to one task.
	if !t.has(canonical) {
		return nil, &Error{Kind: Fatal, Partition: canonical, Message: fmt.Sprintf("task %d may not read it: it is outside the claim that the plan made for the task", t.open.Task)}
	}
	return t.add(canonical, canonical), nil
}

// Stored gives the partitions of the task that have a stored offset.
func (t *Task) Stored() []*Partition { return append([]*Partition(nil), t.stored...) }

// Lookup reads stored offsets of any partitions of the connector, in the same order; nil where none is stored. It asks for what is committed now.
func (t *Task) Lookup(ctx context.Context, partitions ...Fields) ([]Fields, error) {
	return lookup(ctx, t.host, partitions)
}

// Schema returns a number for a schema of keys or values. The same pointer gives the same number; the schema must not change after that.
func (t *Task) Schema(s *Schema) (uint32, error) {
	if n, ok := t.schemas[s]; ok {
		return n, nil
	}
	if len(t.schemas) >= MaxDeclaredSchemas {
		return 0, Fatalf("the task has more than %d schemas", MaxDeclaredSchemas)
	}
	n := SchemaFirstDeclared + uint32(len(t.schemas))
	t.schemas[s] = n
	t.pending.Schemas = append(t.pending.Schemas, DeclaredSchema{Number: n, Schema: s})
	return n, nil
}

func (t *Task) add(canonical []byte, spelling JSON) *Partition {
	p := &Partition{task: t, canonical: string(canonical), json: bytes.Clone(spelling)}
	t.partitions[p.canonical] = p
	return p
}

// topic returns the number of a topic, and declares it the first time.
func (t *Task) topic(name string) (uint32, error) {
	if n, ok := t.topics[name]; ok {
		return n, nil
	}
	if err := CheckTopic(name); err != nil {
		return 0, err
	}
	if len(t.topics) >= MaxDeclaredTopics {
		return 0, Fatalf("the task writes to more than %d topics", MaxDeclaredTopics)
	}
	n := uint32(len(t.topics)) + 1
	t.topics[name] = n
	t.pending.Topics = append(t.pending.Topics, DeclaredTopic{Number: n, Name: name})
	return n, nil
}

// declare gives the partition its number, the first time that it is used.
func (t *Task) declare(p *Partition) error {
	if p.number != 0 {
		return nil
	}
	if t.declared >= MaxDeclaredPartitions {
		return Fatalf("the task has more than %d source partitions", MaxDeclaredPartitions)
	}
	t.declared++
	p.number = t.declared
	t.pending.Partitions = append(t.pending.Partitions, DeclaredPartition{Number: p.number, Partition: p.json})
	return nil
}

// CheckTopic says what is wrong with a topic name, for a Validator: Kafka takes 1 to 249 of [a-zA-Z0-9._-]. The runtime refuses a record for any other.
func CheckTopic(name string) error {
	if name == "" {
		return Fatalf("a record has no topic")
	}
	if len(name) > 249 || name == "." || name == ".." {
		return Fatalf("%.260q is not a topic: a topic has 1 to 249 of [a-zA-Z0-9._-]", name)
	}
	for _, c := range []byte(name) {
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '.' && c != '_' && c != '-' {
			return Fatalf("%.260q is not a topic: a topic has 1 to 249 of [a-zA-Z0-9._-]", name)
		}
	}
	return nil
}

// Stored is the offset that is stored for the partition, at the time the task was opened; false where there is none.
func (p *Partition) Stored() (Fields, bool) {
	if p.stored == nil {
		return nil, false
	}
	// newTask has read it already.
	f, err := p.stored.Fields()
	return f, err == nil
}

// Fields are the fields of the partition.
func (p *Partition) Fields() Fields {
	f, err := p.json.Fields()
	if err != nil {
		panic(fmt.Sprintf("partition %s was read before: %v", p.canonical, err))
	}
	return f
}

// Canonical is the canonical form, the same for every spelling of the partition.
func (p *Partition) Canonical() string { return p.canonical }
