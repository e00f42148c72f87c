package configlog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// ErrDamaged says that the log can't be led as it is: somebody else wrote over what a coordinator had written.
var ErrDamaged = errors.New("the config log is damaged")

// Content is what the log holds.
type Content struct {
	// Records are the newest of each key, oldest first, without deleted keys.
	Records []state.Record
	// Begin is the first offset. It is 0 unless records were deleted from the log: compaction leaves it alone.
	Begin int64

	// overwritten is what coordinators wrote last under keys that somebody else has written since. The next leader writes it again, before compaction removes it.
	overwritten []state.Record
}

// Peek reads what the log holds, for a coordinator that doesn't lead. nil means that the broker that was asked knows no log yet; it may be behind, and nothing follows from it: whoever is elected asks the controller.
func (l *Log) Peek(ctx context.Context) (*Content, error) {
	ends, err := l.spans(ctx)
	if err != nil || ends == nil {
		return nil, err
	}
	return l.read(ctx, span{ends.start, ends.stable})
}

// spans is how far the log goes, and how far it can be read.
type spans struct{ start, stable, end int64 }

// spans asks for them. nil is as for Peek.
func (l *Log) spans(ctx context.Context) (*spans, error) {
	admin := kadm.NewClient(l.config.Direct.Client())
	var found spans
	for _, ask := range []struct {
		what string
		list func(context.Context, ...string) (kadm.ListedOffsets, error)
		to   *int64
	}{{"beginning", admin.ListStartOffsets, &found.start}, {"committed end", admin.ListCommittedOffsets, &found.stable}, {"end", admin.ListEndOffsets, &found.end}} {
		listed, err := ask.list(ctx, l.topic)
		if err != nil {
			return nil, fmt.Errorf("find the %s of the config log: %w", ask.what, l.explain(err))
		}
		offset, _ := listed.Lookup(l.topic, partition)
		if errors.Is(offset.Err, kerr.UnknownTopicOrPartition) {
			return nil, nil
		}
		if offset.Err != nil {
			return nil, fmt.Errorf("find the %s of the config log: %w", ask.what, l.explain(offset.Err))
		}
		*ask.to = offset.Offset
	}
	return &found, nil
}

// read reads the log up to end, which must be settled.
func (l *Log) read(ctx context.Context, end span) (*Content, error) {
	if end.start >= end.end {
		return &Content{Begin: end.start}, nil
	}
	client, err := l.config.Settings.NewClient(l.consumer()...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	content := contents{mine: map[string]found{}, foreign: map[string]found{}}
	for next := end.start; next < end.end; {
		poll, cancel := context.WithTimeoutCause(ctx, l.config.ReadTimeout, fmt.Errorf("nothing came for %v after offset %d of %d in topic %q", l.config.ReadTimeout, next, end.end, l.topic))
		fetches := client.PollFetches(poll)
		cause := context.Cause(poll)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() && r.Offset < end.end && string(r.Key) != leaderKey {
				content.add(r)
			}
		})
		if cause != nil {
			return nil, cause
		}
		if err := fetches.Err(); err != nil && fetches.NumRecords() == 0 {
			return nil, l.explain(err)
		}
	}
	return l.settled(end.start, content)
}

// ours says that a coordinator wrote a record: each of them writes in transactions only. What people and tools write into the log by hand is not.
func ours(r *kgo.Record) bool { return r.Attrs.IsTransactional() }

// found is a record and where it is.
type found struct {
	state.Record
	offset int64
}

// contents has the newest record of each key: of coordinators, and of anybody else.
type contents struct{ mine, foreign map[string]found }

func (c contents) add(r *kgo.Record) {
	of := c.foreign
	if ours(r) {
		of = c.mine
	}
	of[string(r.Key)] = found{state.Record{Key: string(r.Key), Value: r.Value}, r.Offset}
}

// settled keeps what compaction would keep if nobody else had written. A key of ours that only somebody else has written is damage: compaction may have removed what stood there before.
func (l *Log) settled(begin int64, all contents) (*Content, error) {
	content := &Content{Begin: begin}
	var damage []error
	for _, f := range byOffset(all.foreign) {
		mine, is := all.mine[f.Key]
		switch {
		case is && mine.offset > f.offset: // It was overwritten in turn.
		case is:
			l.log.Warn("a record of the config log wasn't written by a coordinator and doesn't count: what a coordinator wrote there is restored", "topic", l.topic, "offset", f.offset, "key", f.Key)
			content.overwritten = append(content.overwritten, mine.Record)
		case f.Value == nil || !state.Known(f.Key):
			l.log.Warn("a record of the config log wasn't written by a coordinator and doesn't count", "topic", l.topic, "offset", f.offset, "key", f.Key)
		default:
			damage = append(damage, fmt.Errorf("%w: the record at offset %d of topic %q, key %q, wasn't written by a coordinator, and what a coordinator wrote under that key may be gone; where nothing was, write that key once more without a value",
				ErrDamaged, f.offset, l.topic, f.Key))
		}
	}
	for _, f := range byOffset(all.mine) {
		if f.Value != nil {
			content.Records = append(content.Records, f.Record)
		}
	}
	return content, errors.Join(damage...)
}

func byOffset(all map[string]found) []found {
	sorted := make([]found, 0, len(all))
	for _, f := range all {
		sorted = append(sorted, f)
	}
	slices.SortFunc(sorted, func(a, b found) int { return int(a.offset - b.offset) })
	return sorted
}
