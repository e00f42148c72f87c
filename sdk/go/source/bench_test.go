package source

import (
	"bytes"
	"testing"
	"time"
)

// BenchmarkAdd is the author's hot path: the batches are thrown away.
func BenchmarkAdd(b *testing.B) {
	key, value := []byte("12345678"), bytes.Repeat([]byte("x"), 100)
	for name, c := range map[string]struct {
		rec    Record
		offset bool
	}{
		"reach":  {Record{Topic: "topic", Key: key, Value: value}, false},
		"offset": {Record{Topic: "topic", Key: key, Value: value}, true},
		"full":   {Record{Topic: "topic", Key: key, Value: value, Timestamp: time.UnixMilli(1e12), Headers: []Header{{"a", value[:8]}, {"b", value[:8]}}}, false},
	} {
		b.Run(name, func(b *testing.B) {
			task, err := newTask(&RunOpen{}, nil, nil)
			if err != nil {
				b.Fatal(err)
			}
			out := newRecords(task, func(outgoing) error { return nil })
			p, _ := task.Partition(Fields{"f": "a"})
			rec := c.rec
			rec.Partition = p
			var n int64
			offset := Fields{"n": n}
			b.ReportAllocs()
			for b.Loop() {
				if c.offset {
					rec.Offset = offset
				}
				if err := out.Add(rec); err != nil {
					b.Fatal(err)
				}
				if n++; out.Full() {
					if err := out.Reach(p, Fields{"n": n}); err != nil {
						b.Fatal(err)
					}
					if err := out.flush(); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}

// BenchmarkRecords is the way back: what a receiver pays for the view.
func BenchmarkRecords(b *testing.B) {
	batch := benchBatch()
	b.ReportAllocs()
	var total int
	for b.Loop() {
		for _, v := range batch.Records() {
			total += len(v.Value)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch.Count), "ns/record")
}

func BenchmarkCheck(b *testing.B) {
	batch := benchBatch()
	b.ReportAllocs()
	for b.Loop() {
		if err := batch.Check(Limits{}); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*batch.Count), "ns/record")
}

func benchBatch() *Batch {
	var build Builder
	for range 1000 {
		build.Add(RecordView{Key: []byte("12345678"), Value: make([]byte, 100), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: 1e12})
	}
	return build.Batch(1)
}
