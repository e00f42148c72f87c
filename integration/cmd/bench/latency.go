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
	// latencyRecords a run are twenty seconds of 100 records a second; the first tenth is the warm-up.
	latencyRecords = 2000
	latencyRate    = 100
)

// latency is the time from the source to a read_committed reader, at 100 records a second, one record a poll.
func (b *bench) latency() {
	var p50, p99 []float64
	for n := range b.runs {
		topic := fmt.Sprintf("latency-%d", n)
		harness.CreateTopic(b, b.broker.Addr, topic, 1)
		bed, _ := b.bed("bench-" + topic)
		times := make(chan float64, latencyRecords)
		ctx, cancel := context.WithCancel(b.Context())
		followed := make(chan error, 1)
		go func() {
			followed <- reader.Follow(ctx, b.broker.Addr, topic, func(r *kgo.Record) {
				if made, err := strconv.ParseInt(headerOf(r, timeHeader), 10, 64); err == nil {
					times <- float64(time.Now().UnixNano()-made) / 1e6
				}
			})
		}()
		bed.Create(topic, steady(topic))
		var all []float64
		for len(all) < latencyRecords {
			select {
			case ms := <-times:
				all = append(all, ms)
			case err := <-followed:
				cancel()
				b.Fatalf("latency: %v", err)
			case <-time.After(30 * time.Second):
				cancel()
				b.Fatalf("latency: %d records have arrived, want %d", len(all), latencyRecords)
			}
		}
		cancel()
		<-followed
		all = all[latencyRecords/10:]
		p50, p99 = append(p50, percentile(all, 0.5)), append(p99, percentile(all, 0.99))
		bed.StopAll()
	}
	b.results.add("latency_p50_ms", "ms", p50...)
	b.results.add("latency_p99_ms", "ms", p99...)
}

func headerOf(r *kgo.Record, name string) string {
	for _, h := range r.Headers {
		if h.Key == name {
			return string(h.Value)
		}
	}
	return ""
}
