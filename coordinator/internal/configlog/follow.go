package configlog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// leaderKey is the record that a leader's first write carries.
const leaderKey = "meta/leader"

// metadataMinAge is how soon a topic that is just being created is looked for again.
const metadataMinAge = 250 * time.Millisecond

// fetchMaxWait is how long a fetch waits for something new: a broker that doesn't wake it for a commit makes nobody wait longer for the next leader's name.
const fetchMaxWait = 250 * time.Millisecond

// leaderVersion is the version of its form.
const leaderVersion = 1

// leaderValue has the form of every record of the log.
type leaderValue struct {
	V int `json:"v"`
	B struct {
		Address string `json:"address"`
		ID      string `json:"id,omitempty"`
	} `json:"b"`
}

func leaderRecord(self state.Coordinator) state.Record {
	value := leaderValue{V: leaderVersion}
	value.B.Address, value.B.ID = self.Address, self.ID
	body, err := json.Marshal(value)
	if err != nil {
		panic(fmt.Sprintf("leader record of %q: %v", self.Address, err)) // A struct of plain data.
	}
	return state.Record{Key: leaderKey, Value: body}
}

// Follow reads the log as it grows, for Heard, until ctx ends; then it returns nil. It calls changed with each new leader's address, though not with those that were
// followed by another at once, from the goroutine that called Follow.
func (l *Log) Follow(ctx context.Context, changed func(address string)) error {
	client, err := l.config.Settings.NewClient(l.consumer()...)
	if err != nil {
		return err
	}
	defer client.Close()
	var told Heard
	quiet := quiet{log: l, stable: -1}
	for {
		poll, cancel := context.WithTimeout(ctx, l.config.Quiet)
		fetches := client.PollFetches(poll)
		nothing := poll.Err() != nil && fetches.NumRecords() == 0
		cancel()
		if ctx.Err() != nil || fetches.IsClientClosed() {
			return nil
		}
		if nothing {
			quiet.look(ctx)
			continue
		}
		if fetches.NumRecords() > 0 {
			quiet.over()
		}
		// Errors are those of a broker or topic that isn't there yet; the client goes on by itself.
		fetches.EachError(func(_ string, _ int32, err error) { l.log.Debug("following the config log", "error", err) })
		fetches.EachRecord(l.note)
		// A leader has heard of itself before it reads so here.
		if now := l.Heard(); fetches.NumRecords() > 0 && (now.Leader != told.Leader || now.LeaderID != told.LeaderID) {
			told = now
			changed(now.Leader)
		}
		if fetches.NumRecords() > 0 {
			select {
			case l.grown <- struct{}{}:
			default:
			}
		}
	}
}

// quiet is what Follow finds out where nothing comes for a while: whether the log is held, so that nobody can read on.
type quiet struct {
	log    *Log
	stable int64 // where the log was held when it was looked last; -1 is nowhere
	said   time.Time
}

// over notes that the log can be read.
func (q *quiet) over() {
	if q.log.held.Swap(nil) != nil {
		q.log.log.Info("the config log isn't held any more", "topic", q.log.topic)
	}
	q.stable, q.said = -1, time.Time{}
}

// look looks whether the log is held at the same place as the last time, and says by whom, once and now and then. What can't be asked now is asked the next time.
func (q *quiet) look(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, q.log.config.ReadTimeout)
	defer cancel()
	now, err := q.log.spans(ctx)
	if err != nil || now == nil {
		return
	}
	if now.stable >= now.end {
		q.over()
		return
	}
	if q.stable != now.stable { // A write may be under way.
		q.stable = now.stable
		return
	}
	holder, err := q.log.config.Fencer.Holding(ctx, q.log.topic, partition)
	if err != nil || holder == nil {
		return
	}
	trouble := fmt.Errorf("%w since offset %d by %v: what comes after it can be read by nobody, and no coordinator can lead; the one that is elected ends it, or says what to do", ErrHeld, holder.Start, holder)
	q.log.held.Store(&trouble)
	if time.Since(q.said) >= sayAgain {
		q.said = time.Now()
		q.log.log.Warn("waiting, the config log is held", "topic", q.log.topic, "cause", trouble)
	}
}

// note keeps what a record says of the cluster.
func (l *Log) note(r *kgo.Record) {
	if r.Attrs.IsControl() {
		return
	}
	if !ours(r) { // Said while it is new: the next leader restores what stood there.
		l.log.Warn("somebody else has written into the config log; it doesn't count", "topic", l.topic, "offset", r.Offset, "key", string(r.Key))
		return
	}
	switch key := string(r.Key); key {
	case leaderKey:
		var value leaderValue
		if err := json.Unmarshal(r.Value, &value); err != nil || value.V != leaderVersion {
			l.log.Warn("the config log names its leader in a form that isn't known here", "offset", r.Offset, "error", err)
			return
		}
		l.hear(func(h *Heard) { h.Leader, h.LeaderID = value.B.Address, value.B.ID })
	default:
		if cluster, is := state.ReadCluster(state.Record{Key: key, Value: r.Value}); is {
			l.hear(func(h *Heard) { h.Term, h.Level = cluster.Term, cluster.Level })
		}
	}
}

// consumer reads the whole log, committed transactions only. Control records show how far a read has come where the last transaction was aborted.
func (l *Log) consumer() []kgo.Opt {
	return []kgo.Opt{
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{l.topic: {partition: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.MetadataMinAge(metadataMinAge), kgo.FetchMaxWait(fetchMaxWait),
	}
}
