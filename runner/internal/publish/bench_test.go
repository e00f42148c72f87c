package publish

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	broker "github.com/fencepost-io/fencepost/integration/kafka"
)

// benchBed is a real broker where there is one, and kfake otherwise.
func benchBed(b *testing.B) string {
	b.Helper()
	if os.Getenv("FENCEPOST_KAFKA_LIBS") != "" {
		kafka, err := broker.Start(b.Context(), broker.Options{Dir: b.TempDir()})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(kafka.Kill)
		return kafka.Addr
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cluster.Close)
	return cluster.ListenAddrs()[0]
}

func benchProducer(b *testing.B, addr string) *Producer {
	b.Helper()
	p, err := New(Config{TransactionalID: "bench", Client: map[string]string{keyBootstrap: addr}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = p.Close(b.Context()) })
	if err := p.Init(b.Context()); err != nil {
		b.Fatal(err)
	}
	return p
}

// BenchmarkProduce is one batch of 1,000 records; every fiftieth ends a transaction, outside the measured time.
func BenchmarkProduce(b *testing.B) {
	addr := benchBed(b)
	newBed(b, addr).namedTopic(b, "bench", 6, nil)
	for _, size := range []int{100, 1024} {
		b.Run(fmt.Sprintf("%dB", size), func(b *testing.B) {
			p := benchProducer(b, addr)
			batch, topics := numbered(0, 1000, size), []string{"", "bench"}
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				b.StopTimer()
				if n%50 == 0 {
					if n > 0 {
						if err := p.Commit(b.Context()); err != nil {
							b.Fatal(err)
						}
					}
					if err := p.Begin(); err != nil {
						b.Fatal(err)
					}
				}
				n++
				b.StartTimer()
				if err := p.Produce(b.Context(), batch, topics); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n*1000), "ns/record")
		})
	}
}

// BenchmarkTransactionOfOneRecord is what a quiet stream waits for, at 100 records a second. On a real broker it is 2.6 to 3.0 ms with bare librdkafka. A transaction that begins less than a
// millisecond or two after the last one was committed takes 20 ms longer: the broker is still writing that one's markers then, and librdkafka waits as long before it asks again.
func BenchmarkTransactionOfOneRecord(b *testing.B) {
	addr := benchBed(b)
	newBed(b, addr).namedTopic(b, "bench", 6, nil)
	p := benchProducer(b, addr)
	batch, topics := numbered(0, 1, 100), []string{"", "bench"}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	b.ReportAllocs()
	var took []time.Duration
	for b.Loop() {
		<-tick.C
		started := time.Now()
		if err := p.Begin(); err != nil {
			b.Fatal(err)
		}
		if err := p.Produce(b.Context(), batch, topics); err != nil {
			b.Fatal(err)
		}
		if err := p.Commit(b.Context()); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(started))
	}
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
}

// BenchmarkStart is a producer from New to Close, initialised.
func BenchmarkStart(b *testing.B) {
	addr := benchBed(b)
	for b.Loop() {
		p, err := New(Config{TransactionalID: "start", Client: map[string]string{keyBootstrap: addr}})
		if err != nil {
			b.Fatal(err)
		}
		started := time.Now()
		if err := p.Init(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.ReportMetric(float64(time.Since(started).Microseconds())/1000, "init-ms")
		if err := p.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}
