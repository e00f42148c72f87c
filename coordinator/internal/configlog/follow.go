package configlog

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// leaderKey is the record that a leader's first write carries.
const leaderKey = "meta/leader"

// metadataMinAge is how soon a topic that is just being created is looked for again.
const metadataMinAge = 250 * time.Millisecond

// leaderVersion is the version of its form.
const leaderVersion = 1

// leaderValue has the form of every record of the log.
type leaderValue struct {
	V int `json:"v"`
	B struct {
		Address string `json:"address"`
	} `json:"b"`
}

func leaderRecord(address string) state.Record {
	value := leaderValue{V: leaderVersion}
	value.B.Address = address
	body, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("leader record of %q: %v", address, err)) // A struct of plain data.
	}
	return state.Record{Key: leaderKey, Value: body}
}

// Follow reads the log as it grows, for Leader, until ctx ends; then it returns nil. It calls changed with each new leader's address, though not with those that were
// followed by another at once, from the goroutine that called Follow.
func (l *Log) Follow(ctx context.Context, changed func(address string)) error {
	client, err := l.config.Settings.NewClient(l.consumer()...)
	if err != nil {
		return err
	}
	defer client.Close()
	for {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return nil
		}
		// Errors are those of a broker or topic that isn't there yet; the client goes on by itself.
		fetches.EachError(func(_ string, _ int32, err error) { l.log.Debug("following the config log", "error", err) })
		before := l.Leader()
		fetches.EachRecord(l.note)
		if after := l.Leader(); after != before {
			changed(after)
		}
	}
}

// note keeps what a record says of the leader.
func (l *Log) note(r *kgo.Record) {
	if string(r.Key) != leaderKey || r.Attrs.IsControl() {
		return
	}
	var value leaderValue
	if err := json.Unmarshal(r.Value, &value); err != nil || value.V != leaderVersion {
		l.log.Warn("the config log names its leader in a form that isn't known here", "offset", r.Offset, "error", err)
		return
	}
	l.leader.Store(value.B.Address)
}

// consumer reads the whole log, committed transactions only. Control records show how far a read has come where the last transaction was aborted.
func (l *Log) consumer() []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.topic: {partition: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.MetadataMinAge(metadataMinAge),
	}
}

// read reads the log up to end, which must be settled.
func (l *Log) read(ctx context.Context, end span) ([]state.Record, error) {
	if end.start >= end.end {
		return nil, nil
	}
	client, err := l.config.Settings.NewClient(l.consumer()...)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	var records []state.Record
	for next := end.start; next < end.end; {
		poll, cancel := context.WithTimeoutCause(ctx, l.config.ReadTimeout, fmt.Errorf("nothing came for %v after offset %d of %d in topic %q", l.config.ReadTimeout, next, end.end, l.topic))
		fetches := client.PollFetches(poll)
		cause := context.Cause(poll)
		cancel()
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() && r.Offset < end.end && string(r.Key) != leaderKey {
				records = append(records, state.Record{Key: string(r.Key), Value: r.Value})
			}
		})
		if cause != nil {
			return nil, cause
		}
		if err := fetches.Err(); err != nil && fetches.NumRecords() == 0 {
			return nil, l.explain(err)
		}
	}
	return newest(records), nil
}

// newest keeps what compaction would keep.
func newest(records []state.Record) []state.Record {
	last := make(map[string]int, len(records))
	for i, r := range records {
		last[r.Key] = i
	}
	var kept []state.Record
	for i, r := range records {
		if last[r.Key] == i && r.Value != nil {
			kept = append(kept, r)
		}
	}
	return slices.Clip(kept)
}
