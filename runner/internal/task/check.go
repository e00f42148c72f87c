package task

import (
	"bytes"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// reserved is how the canonical form of a key of Fencepost's own in the offsets topic begins.
var reserved = []byte(`{"` + source.ReservedField + `"`)

// checker holds a plugin to the protocol: a plugin is hostile (house rule), so its numbers, order, offsets and partitions are checked before anything else sees them. One goroutine uses it, the
// one that calls Send. What it returns is the end of the attempt, naming the rule.
type checker struct {
	limits source.Limits
	rule   source.BoundaryRule
	claim  source.Claim
	// set has the claim's partitions in canonical form, where the claim is a set.
	set map[string]bool

	opened bool
	seq    uint64
	// What the numbers mean, see put.
	names   []source.JSON
	topics  []string
	schemas []*source.Schema
	// numbers has the declared partitions' numbers by canonical form, progress what is known about each.
	numbers  map[string]uint32
	progress []progress
	// batches counts the batches, to mark which partitions one of them has an offset for.
	batches uint64
}

// progress is how far a partition has come.
type progress struct {
	// offset is the last one, in canonical form, and seq the last batch that had records with it.
	offset []byte
	seq    uint64
	// batch is the number of the last batch that had an offset for the partition.
	batch uint64
}

func newChecker(open *source.RunOpen) *checker {
	c := &checker{limits: open.Limits, rule: open.Boundary, claim: open.Claim, numbers: map[string]uint32{}}
	if open.Claim.Set != nil {
		c.set = make(map[string]bool, len(open.Claim.Set))
		for _, p := range open.Claim.Set {
			if canonical, err := source.Canonical(p); err == nil {
				c.set[string(canonical)] = true
			}
		}
	}
	return c
}

// open takes Opened.
func (c *checker) open() error {
	if c.opened {
		return broken("Opened came twice")
	}
	c.opened = true
	return nil
}

// next takes the next sequence number.
func (c *checker) next(what string, seq uint64) error {
	if !c.opened {
		return broken("%s came before Opened", what)
	}
	if seq != c.seq+1 {
		return broken("%s has number %d where %d comes next", what, seq, c.seq+1)
	}
	c.seq = seq
	return nil
}

// declare takes numbers for partitions, topics and schemas.
func (c *checker) declare(d *source.Declare) error {
	for _, p := range d.Partitions {
		if err := c.partition(p); err != nil {
			return err
		}
	}
	for _, t := range d.Topics {
		if t.Number == 0 || t.Number > source.MaxDeclaredTopics {
			return broken("topic %q is declared with number %d, allowed is 1 to %d", t.Name, t.Number, source.MaxDeclaredTopics)
		}
		if t.Name == "" {
			return broken("topic %d is declared without a name", t.Number)
		}
		if have, ok := at(c.topics, t.Number); ok && have != "" {
			return broken("topic number %d is declared twice, for %q and %q", t.Number, have, t.Name)
		}
		c.topics = put(c.topics, t.Number, t.Name)
	}
	for _, s := range d.Schemas {
		if s.Number < source.SchemaFirstDeclared || s.Number >= source.SchemaFirstDeclared+source.MaxDeclaredSchemas || s.Schema == nil {
			return broken("a schema is declared with number %d, allowed is %d to %d", s.Number, source.SchemaFirstDeclared, source.SchemaFirstDeclared+source.MaxDeclaredSchemas-1)
		}
		if have, ok := at(c.schemas, s.Number); ok && have != nil {
			return broken("schema number %d is declared twice", s.Number)
		}
		c.schemas = put(c.schemas, s.Number, s.Schema)
	}
	return nil
}

func (c *checker) partition(p source.DeclaredPartition) error {
	if p.Number == 0 || p.Number > source.MaxDeclaredPartitions {
		return broken("source partition %s is declared with number %d, allowed is 1 to %d", clip(p.Partition), p.Number, source.MaxDeclaredPartitions)
	}
	canonical, err := source.Canonical(p.Partition)
	if err != nil {
		return broken("source partition %s, declared as %d: %w", clip(p.Partition), p.Number, err)
	}
	if have, ok := at(c.names, p.Number); ok && have != nil {
		return broken("source partition number %d is declared twice, for %s and %s", p.Number, clip(have), clip(p.Partition))
	}
	if have, ok := c.numbers[string(canonical)]; ok {
		return broken("source partition %s has two numbers, %d and %d", clip(p.Partition), have, p.Number)
	}
	if bytes.HasPrefix(canonical, reserved) {
		return broken("source partition %s is Fencepost's own: a field %q may not be the first of a source partition", clip(p.Partition), source.ReservedField)
	}
	// I8: a partition outside the claim may be another task's.
	if !c.inside(canonical) {
		return broken("source partition %s isn't in the task's claim", clip(p.Partition))
	}
	c.numbers[string(canonical)] = p.Number
	c.names = put(c.names, p.Number, p.Partition)
	c.progress = put(c.progress, p.Number, progress{})
	return nil
}

// inside says whether a partition in canonical form belongs to the claim.
func (c *checker) inside(canonical []byte) bool {
	if c.set != nil {
		return c.set[string(canonical)]
	}
	return c.claim.Has(canonical)
}

// batch takes a batch. The answer says since which earlier batch it must stay together with what came before, because it has a record with the same offset; 0 is not at all.
func (c *checker) batch(b *source.Batch) (joins uint64, err error) {
	if err := b.Check(c.limits); err != nil {
		return 0, broken("batch %d: %w", b.Seq, err)
	}
	if err := c.next("a batch", b.Seq); err != nil {
		return 0, err
	}
	if b.Boundary >= source.MarkCommit && c.rule != source.ByConnector {
		return 0, broken("batch %d has a mark to commit or abort, and transaction.boundary isn't connector", b.Seq)
	}
	c.batches++
	for _, o := range b.Offsets {
		canonical, err := c.offset(o, "batch", b.Seq)
		if err != nil {
			return 0, err
		}
		p := &c.progress[o.Partition]
		p.batch = c.batches
		same := bytes.Equal(canonical, p.offset)
		if same && b.Count > 0 && p.seq > 0 && (joins == 0 || p.seq < joins) {
			joins = p.seq
		}
		if !same {
			p.offset, p.seq = canonical, 0
		}
	}
	if b.Count == 0 {
		return 0, nil
	}
	if err := c.topicNumbers(b); err != nil {
		return 0, err
	}
	return joins, c.partitionNumbers(b)
}

// offset checks that an offset is a position, for a partition that is known. (An empty one would wipe out the good one that is stored.)
func (c *checker) offset(o source.Reached, what string, seq uint64) (canonical []byte, err error) {
	name, ok := at(c.names, o.Partition)
	if !ok || name == nil {
		return nil, broken("%s %d has an offset for source partition number %d, which wasn't declared", what, seq, o.Partition)
	}
	canonical, err = source.Canonical(o.Offset)
	if err != nil {
		return nil, broken("%s %d: the offset %s of source partition %s: %w", what, seq, clip(o.Offset), clip(name), err)
	}
	return canonical, nil
}

func (c *checker) topicNumbers(b *source.Batch) error {
	last := uint32(0)
	check := func(n uint32) error {
		if n == last {
			return nil
		}
		last = n
		if name, ok := at(c.topics, n); !ok || name == "" {
			return broken("batch %d has a record for topic number %d, which wasn't declared", b.Seq, n)
		}
		return nil
	}
	if len(b.Topic) == 0 {
		return check(b.DefaultTopic)
	}
	for i := range b.Count {
		if err := check(b.Topic.At(i)); err != nil {
			return err
		}
	}
	return nil
}

// partitionNumbers checks that each partition with a record here has an offset here, and notes that it has.
func (c *checker) partitionNumbers(b *source.Batch) error {
	last := uint32(0)
	check := func(n uint32) error {
		if n == last {
			return nil
		}
		last = n
		name, ok := at(c.names, n)
		if !ok || name == nil {
			return broken("batch %d has a record of source partition number %d, which wasn't declared", b.Seq, n)
		}
		// I1: a record without the offset that covers it would be published again.
		if c.progress[n].batch != c.batches {
			return broken("batch %d has a record of source partition %s and no offset for it", b.Seq, clip(name))
		}
		c.progress[n].seq = b.Seq
		return nil
	}
	if len(b.Partition) == 0 {
		return check(b.DefaultPartition)
	}
	for i := range b.Count {
		if err := check(b.Partition.At(i)); err != nil {
			return err
		}
	}
	return nil
}

// dropped takes records that were left out.
func (c *checker) dropped(d *source.Dropped) error {
	if err := c.next("Dropped", d.Seq); err != nil {
		return err
	}
	for _, o := range d.Offsets {
		canonical, err := c.offset(o, "Dropped", d.Seq)
		if err != nil {
			return err
		}
		if p := &c.progress[o.Partition]; !bytes.Equal(canonical, p.offset) {
			p.offset, p.seq = canonical, 0
		}
	}
	return nil
}

// checkNotice bounds what is shown to people.
func checkNotice(n *source.Notice) error {
	if len(n.Texts) > maxNotices {
		return broken("a notice has %d texts, the limit is %d", len(n.Texts), maxNotices)
	}
	for _, t := range n.Texts {
		if len(t) > maxNoticeBytes {
			return broken("a text of a notice has %d bytes, the limit is %d", len(t), maxNoticeBytes)
		}
	}
	return nil
}

// at returns element n, where there is one.
func at[T any](s []T, n uint32) (T, bool) {
	if uint64(n) < uint64(len(s)) {
		return s[n], true
	}
	var none T
	return none, false
}

// put sets element n, which isn't set yet. Others may hold the slice meanwhile: they read no element but those that were set before they got it.
func put[T any](s []T, n uint32, v T) []T {
	if uint64(n) >= uint64(len(s)) {
		s = append(s, make([]T, int(n)+1-len(s))...)
	}
	s[n] = v
	return s
}

// maxShown is how much of a partition or an offset an error quotes.
const maxShown = 200

// clip is a partition or an offset for an error.
func clip(j source.JSON) string {
	if len(j) <= maxShown {
		return string(j)
	}
	return string(j[:maxShown]) + "…"
}
