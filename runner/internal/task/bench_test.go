package task

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// nowhere is a Publisher that takes everything at once.
type nowhere struct{}

func (nowhere) Init(context.Context) error                             { return nil }
func (nowhere) Begin() error                                           { return nil }
func (nowhere) Produce(context.Context, *source.Batch, []string) error { return nil }
func (nowhere) Commit(context.Context) error                           { return nil }
func (nowhere) Abort(context.Context) error                            { return nil }
func (nowhere) Close(context.Context) error                            { return nil }
func (nowhere) Reaches(time.Duration) bool                             { return true }
func (nowhere) BrokerLost() bool                                       { return false }
func (nowhere) Topics(_ context.Context, names []string) (map[string]publish.TopicInfo, error) {
	infos := map[string]publish.TopicInfo{}
	for _, n := range names {
		infos[n] = publish.TopicInfo{Exists: true, Partitions: 1}
	}
	return infos, nil
}

// BenchmarkPipeline is what the stages cost beside the plugin and the publisher, a batch.
func BenchmarkPipeline(b *testing.B) {
	for _, records := range []int{1, 1000, 8000} {
		b.Run(fmt.Sprintf("records=%d", records), func(b *testing.B) {
			var all source.Builder
			for range records {
				all.Add(source.RecordView{Key: []byte("12345678"), Value: bytes.Repeat([]byte("v"), 100), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: source.NoTimestamp})
			}
			template := all.Batch(0)
			bed := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
				if err := opened(ctx, host); err != nil {
					return err
				}
				var credit int64
				var open, limit uint64
				seq, committed := uint64(0), uint64(0)
				return untilStopped(ctx, host, func(s source.Signal) {
					switch s.Kind {
					case source.SignalCredit:
						credit += int64(s.Bytes)
						limit = max(limit, s.MaxUncommitted)
					case source.SignalCommitted:
						open -= (s.Seq - committed) * uint64(records)
						committed = s.Seq
						if int(committed) == b.N {
							close(bedDone)
						}
					}
					for credit > 0 && open < limit && int(seq) < b.N {
						seq++
						batch := *template
						batch.Seq = seq
						batch.Offsets = []source.Reached{{Partition: 1, Offset: source.JSON(fmt.Sprintf(`{"n":%d}`, seq))}}
						credit -= int64(batch.Size())
						open += uint64(records)
						if host.Send(ctx, &batch) != nil {
							return
						}
					}
				})
			})
			bedDone = make(chan struct{})
			bed.cfg.NewPublisher = func() (Publisher, error) { return nowhere{}, nil }
			b.ReportAllocs()
			b.ResetTimer()
			end := bed.start(b.Context())
			select {
			case <-bedDone:
			case <-time.After(time.Minute):
				b.Error("not everything was committed")
			}
			b.StopTimer()
			close(bed.drain)
			if err := <-end; err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(records), "ns/record")
		})
	}
}

// bedDone is closed when the last batch of a run is committed.
var bedDone chan struct{}
