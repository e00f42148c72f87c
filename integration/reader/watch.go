package reader

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// Watch follows a topic as a read_committed reader and notes when each record became readable: how long a failure was felt is seen from outside.
//
// A record is dated by the timestamp that its producer gave it, in whole milliseconds. All processes of a test share one clock, so a record that is dated after a process was killed is its successor's.
type Watch struct {
	source Source
	cancel context.CancelFunc
	done   chan error

	mu    sync.Mutex
	lines map[string][]arrival
	wrong error
}

// arrival is a record that became readable.
type arrival struct {
	number   uint64
	made, at time.Time
	length   int
}

// Record is a record as a Watch saw it.
type Record struct {
	Place
	// Made is its timestamp, At when it was readable, Length that of its value.
	Made, At time.Time
	Length   int
}

// StartWatch follows a topic until Stop, or until the context ends.
func StartWatch(ctx context.Context, bootstrap, topic string, source Source) *Watch {
	ctx, cancel := context.WithCancel(ctx)
	w := &Watch{source: source, cancel: cancel, done: make(chan error, 1), lines: map[string][]arrival{}}
	go func() { w.done <- Follow(ctx, bootstrap, topic, w.take) }()
	return w
}

func (w *Watch) take(r *kgo.Record) {
	at := time.Now()
	place, err := w.source.Place(r)
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		w.wrong = fmt.Errorf("%s/%d offset %d: %w", r.Topic, r.Partition, r.Offset, err)
		return
	}
	w.lines[place.Partition] = append(w.lines[place.Partition], arrival{number: place.Number, made: r.Timestamp, at: at, length: len(r.Value)})
}

// Stop ends the watch, and says what went wrong.
func (w *Watch) Stop() error {
	w.cancel()
	err := <-w.done
	w.done <- err // for the next Stop
	w.mu.Lock()
	defer w.mu.Unlock()
	if err == nil {
		err = w.wrong
	}
	return err
}

// Count is how many records have become readable.
func (w *Watch) Count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
	for _, line := range w.lines {
		n += len(line)
	}
	return n
}

// First finds the first record of a source partition for which ok is true.
func (w *Watch) First(partition string, ok func(Record) bool) (Record, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, a := range w.lines[partition] {
		r := Record{Place: Place{Partition: partition, Number: a.number}, Made: a.made, At: a.at, Length: a.length}
		if ok(r) {
			return r, true
		}
	}
	return Record{}, false
}

// MadeAfter is for First: the records that were made later than at a moment, whose millisecond doesn't count.
func MadeAfter(t time.Time) func(Record) bool {
	return func(r Record) bool { return r.Made.After(t) }
}

// Back says how long after since the slowest of the source partitions had a record for which ok is true; an error names the one that has none yet.
func (w *Watch) Back(since time.Time, partitions []string, ok func(Record) bool) (time.Duration, error) {
	var slowest time.Duration
	for _, partition := range partitions {
		r, found := w.First(partition, ok)
		if !found {
			return 0, fmt.Errorf("source partition %s has no record since", partition)
		}
		slowest = max(slowest, r.At.Sub(since))
	}
	return slowest, nil
}

// Pause is the longest time between from and to in which no record of a source partition became readable.
func (w *Watch) Pause(partition string, from, to time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	var longest time.Duration
	last := from
	for _, a := range w.lines[partition] {
		if a.at.Before(from) || a.at.After(to) {
			continue
		}
		longest = max(longest, a.at.Sub(last))
		last = a.at
	}
	return max(longest, to.Sub(last))
}

// Last is the number of the last record of each source partition that was seen.
func (w *Watch) Last() map[string]uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := map[string]uint64{}
	for partition, line := range w.lines {
		last[partition] = slices.MaxFunc(line, func(a, b arrival) int { return int(a.number) - int(b.number) }).number //nolint:gosec // numbers are small
	}
	return last
}
