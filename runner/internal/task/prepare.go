package task

import (
	"context"
	"errors"
	"fmt"

	"github.com/fencepost-io/fencepost/runner/internal/convert"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// preparedAhead is how many entries may be converted and not yet produced. Credit bounds their bytes; this only lets the two stages overlap.
const preparedAhead = 16

// preparer is the stage between the inlet and the writer: it claims partitions and converts records, while the writer produces and commits what came before.
type preparer struct {
	cfg       *Config
	in        *inlet
	converter *convert.Converter
	out       chan *entry
	// claimed has the partitions that are claimed, by number, where the plan left the claim unknown.
	claimed []bool
}

func newPreparer(cfg *Config, in *inlet) (*preparer, error) {
	c, err := convert.New(cfg.Settings.KeyConverter, cfg.Settings.ValueConverter)
	if err != nil {
		return nil, failure(Fail, CauseConfig, "%w", err)
	}
	return &preparer{cfg: cfg, in: in, converter: c, out: make(chan *entry, preparedAhead)}, nil
}

// run prepares entries until the last one, or the end of ctx.
func (p *preparer) run(ctx context.Context) {
	for {
		entries := p.in.next(ctx)
		if entries == nil {
			return
		}
		for _, e := range entries {
			if e.end == nil {
				if err := p.prepare(ctx, e); err != nil {
					// What came before this entry is good, and is committed first.
					e = &entry{end: &ending{err}}
				}
			}
			select {
			case p.out <- e:
			case <-ctx.Done():
				return
			}
			if e.end != nil {
				return
			}
		}
	}
}

func (p *preparer) prepare(ctx context.Context, e *entry) error {
	if !p.cfg.Open.Claim.Known() {
		if err := p.claim(ctx, e); err != nil {
			return err
		}
	}
	if e.batch == nil || e.batch.Count == 0 {
		return nil
	}
	converted, err := p.converter.Convert(e.batch, e.schemas)
	if err != nil {
		return p.unconvertible(e, err)
	}
	e.batch = converted
	return nil
}

// claim claims what this entry is the first to use. I8: before its first commit, and so before it is produced.
func (p *preparer) claim(ctx context.Context, e *entry) error {
	var numbers []uint32
	var canonical [][]byte
	for _, o := range e.offsets {
		if claimed, _ := at(p.claimed, o.Partition); claimed {
			continue
		}
		form, err := source.Canonical(e.names[o.Partition])
		if err != nil {
			return failure(Fail, CauseBug, "source partition %s: %w", clip(e.names[o.Partition]), err)
		}
		numbers, canonical = append(numbers, o.Partition), append(canonical, form)
	}
	if len(numbers) == 0 {
		return nil
	}
	if err := p.cfg.Coordinator.ClaimPartitions(ctx, p.cfg.Lease, canonical); err != nil {
		return fromCoordinator(err)
	}
	for _, n := range numbers {
		p.claimed = put(p.claimed, n, true)
	}
	return nil
}

// unconvertible names the record by where it comes from.
func (p *preparer) unconvertible(e *entry, err error) error {
	var record *convert.RecordError
	if !errors.As(err, &record) {
		return failure(Fail, CauseRecord, "batch %d: %w", e.seq, err)
	}
	return failure(Fail, CauseRecord, "%s: %w", origin(e, record.Index), err)
}

// origin says which record of a batch it is: the source partition and the offset that covers it.
func origin(e *entry, index int) string {
	number := e.batch.DefaultPartition
	if len(e.batch.Partition) > 0 {
		number = e.batch.Partition.At(index)
	}
	place := fmt.Sprintf("record %d of %d", index+1, e.batch.Count)
	for _, o := range e.offsets {
		if o.Partition == number {
			place += fmt.Sprintf(" up to offset %s", clip(o.Offset))
		}
	}
	name, _ := at(e.names, number)
	return fmt.Sprintf("%s of source partition %s", place, clip(name))
}
