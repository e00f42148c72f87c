package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"
)

const (
	// latencyRecords a run are twenty seconds; the first two are the warm-up.
	latencyRecords = 2000
	latencyWarmUp  = 200
	latencyRate    = 100
)

// latency is the time from the source to a read_committed reader, at 100 records a second, one record a poll. Beside it, on the same schedule, the bare client with one record a commit.
func (b *bench) latency() {
	var p50, p99, bare50, bare99 []float64
	for n := range b.runs {
		b.once(func() {
			all := b.readable(fmt.Sprintf("bare-%d", n), func(topic string) {
				b.bare("-topic", topic, "-records", strconv.Itoa(latencyRecords), "-rate", strconv.Itoa(latencyRate), "-transaction-records", "1", "-size", "100")
			})
			bare50, bare99 = append(bare50, percentile(all, 0.5)), append(bare99, percentile(all, 0.99))
		})
		b.once(func() {
			topic := fmt.Sprintf("latency-%d", n)
			bed, _ := b.bed("bench-" + topic)
			all := b.readable(topic, func(topic string) {
				bed.Create(topic, map[string]string{
					"connector.class": "generator", "topic": topic, "size": "100", "count": strconv.Itoa(latencyRecords), "rate": strconv.Itoa(latencyRate),
					"batch.records": "1", "timestamps": "true",
				})
			})
			bed.StopAll()
			p50, p99 = append(p50, percentile(all, 0.5)), append(p99, percentile(all, 0.99))
		})
	}
	b.results.add("latency_p50_ms", "ms", p50...)
	b.results.add("latency_p99_ms", "ms", p99...)
	b.results.add("latency_bare_p50_ms", "ms", bare50...)
	b.results.add("latency_bare_p99_ms", "ms", bare99...)
	b.results.add("latency_p99_ratio_bare", "x", ratios(p99, bare99)...)
}

// readable follows a new topic while write fills it, and says for each record how long after its timestamp a read_committed reader had it, in ms. A timestamp is cut to whole milliseconds, so each figure is up
// to one too large.
func (b *bench) readable(topic string, write func(topic string)) []float64 {
	harness.CreateTopic(b, b.broker.Addr, topic, 1)
	defer b.deleteTopics(topic)
	ctx, cancel := context.WithCancel(b.Context())
	times, followed := make(chan float64, latencyRecords), make(chan error, 1)
	go func() {
		followed <- reader.Follow(ctx, b.broker.Addr, topic, func(r *kgo.Record) {
			times <- float64(time.Now().UnixMicro())/1e3 - float64(r.Timestamp.UnixMilli())
		})
	}()
	b.Cleanup(cancel)
	write(topic)
	var all []float64
	for late := time.After(2 * latencyRecords / latencyRate * time.Second); len(all) < latencyRecords; {
		select {
		case ms := <-times:
			all = append(all, ms)
		case err := <-followed:
			b.Fatalf("%s: %v", topic, err)
		case <-late:
			b.Fatalf("%s: %d records have arrived, want %d", topic, len(all), latencyRecords)
		}
	}
	return all[latencyWarmUp:]
}
