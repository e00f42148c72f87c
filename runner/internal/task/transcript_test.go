package task

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// TestTranscripts plays what a plugin does at given times, and shows what reaches Kafka and when. Times are a bubble's, so they are exact.
//
//	run [rule=…] [records=N] [bytes=N] [ms=N] [interval=N] [shrink=N] [commit=DURATION] [until=DURATION]
//	TIME batch [part=a] [n=1] [offset=N] [mark=source|commit|abort] [continues]
//	TIME idle
//	TIME dropped [part=a] [n=1] [offset=N]
//
// The offset of a batch is the number of its partition's records so far, unless it is given; 0 is none. A commit takes 1 ms unless it is given. acks are what the plugin is told.
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out string
			// A bubble can't be made inside of datadriven's own subtests by another goroutine, so it is made for each command.
			t.Run("", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { out = play(t, d) })
			})
			return out
		})
	})
}

var ruleNames = map[string]source.BoundaryRule{
	"adaptive": source.Adaptive, "poll": source.PerPoll, "interval": source.Interval, "source": source.PerSource, "connector": source.ByConnector,
}

func play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	b := newBench(nil)
	bound := &b.cfg.Settings.Boundary
	until := time.Second
	b.k.slow["commit"] = time.Millisecond
	for _, arg := range d.CmdArgs {
		v := arg.Vals[0]
		n, _ := strconv.Atoi(v)
		switch arg.Key {
		case "rule":
			bound.Rule = ruleNames[v]
		case "records":
			bound.MaxRecords = n
		case "bytes":
			bound.MaxBytes = int64(n)
		case "ms":
			bound.MaxTime = time.Duration(n) * time.Millisecond
		case "interval":
			bound.Interval = time.Duration(n) * time.Millisecond
		case "shrink":
			b.cfg.Shrink = n
		case "commit":
			b.k.slow["commit"] = duration(t, d, v)
		case "until":
			until = duration(t, d, v)
		default:
			d.Fatalf(t, "unknown argument %s", arg.Key)
		}
	}
	s := script{t: t, d: d, b: b, start: time.Now()}
	b.cfg.Plugin = pluginFunc(s.run)
	end := b.start(t.Context())
	passes(until)
	close(b.drain)
	err := <-end
	var out strings.Builder
	acks := "acks  "
	for _, e := range b.k.log() {
		switch fields := strings.Fields(e); fields[1] {
		case "prepare", "init", "confirm", "look", "load", "record", "topics", "close":
		case "ack":
			// What happens at one moment in two goroutines has no order, so these are apart.
			acks += fmt.Sprintf(" %s at %s,", fields[2], fields[0])
		default:
			fmt.Fprintln(&out, strings.TrimRight(e, " "))
		}
	}
	fmt.Fprintln(&out, strings.TrimSuffix(acks, ","))
	if err != nil {
		fmt.Fprintf(&out, "end: %v\n", err)
	}
	return out.String()
}

func duration(t *testing.T, d *datadriven.TestData, text string) time.Duration {
	t.Helper()
	v, err := time.ParseDuration(text)
	if err != nil {
		d.Fatalf(t, "%v", err)
	}
	return v
}

// script is a plugin that does what a transcript says.
type script struct {
	t     *testing.T
	d     *datadriven.TestData
	b     *bench
	start time.Time

	seq  uint64
	sent [3]int // records so far, by partition
}

func (s *script) run(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
	if err := opened(ctx, host); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for _, line := range strings.Split(strings.TrimSpace(s.d.Input), "\n") {
			fields := strings.Fields(line)
			if len(fields) < 2 {
				continue
			}
			select {
			case <-time.After(time.Until(s.start.Add(duration(s.t, s.d, fields[0])))):
			case <-ctx.Done():
				return
			}
			if host.Send(ctx, s.message(fields[1], fields[2:])) != nil {
				return
			}
		}
	}()
	err := untilStopped(ctx, host, func(sig source.Signal) {
		if sig.Kind == source.SignalCommitted {
			s.b.k.note(ctx, "ack", " %d", sig.Seq)
		}
		if sig.Kind == source.SignalDrain {
			<-done
		}
	})
	<-done
	return err
}

func (s *script) message(action string, args []string) source.Message {
	part, n, offset, mark, continues := uint32(1), 1, -1, source.NoMark, false
	for _, a := range args {
		key, v, _ := strings.Cut(a, "=")
		number, _ := strconv.Atoi(v)
		switch key {
		case "part":
			part = uint32(v[0]-'a') + 1
		case "n":
			n = number
		case "offset":
			offset = number
		case "mark":
			mark = map[string]source.Mark{"source": source.MarkSource, "commit": source.MarkCommit, "abort": source.MarkAbort}[v]
		case "continues":
			continues = true
		}
	}
	s.seq++
	first := s.sent[part]
	s.sent[part] += n
	if offset < 0 {
		offset = s.sent[part]
	}
	position := source.JSON(fmt.Sprintf(`{"n":%d}`, offset))
	switch action {
	case "idle":
		return &source.Idle{Seq: s.seq}
	case "dropped":
		return &source.Dropped{Seq: s.seq, Count: uint64(n), Reason: "a rule", Offsets: []source.Reached{{Partition: part, Offset: position}}}
	case "batch":
		b := numbered(s.seq, part, first, s.sent[part]-1)
		b.Offsets = nil
		if n > 0 || offset != 0 {
			b.Offsets = []source.Reached{{Partition: part, Offset: position}}
		}
		b.Boundary, b.Continues = mark, continues
		return b
	}
	s.d.Fatalf(s.t, "unknown action %s", action)
	return nil
}

// TestABusyStreamGetsLargeTransactionsAndAQuietOneSmallDelays measures what boundary.go promises, with commits of 3 ms.
func TestABusyStreamGetsLargeTransactionsAndAQuietOneSmallDelays(t *testing.T) {
	for _, c := range []struct {
		every        time.Duration
		perBatch     int
		least, most  float64 // records a transaction
		slowestDelay time.Duration
	}{
		{10 * time.Millisecond, 1, 1, 1, 0},
		{time.Millisecond, 1, 1, 5, 5 * time.Millisecond},
		{time.Millisecond, 5, 30, 80, 15 * time.Millisecond},         // 5,000 a second
		{time.Millisecond, 50, 3_000, 7_000, 110 * time.Millisecond}, // 50,000 a second
		{time.Millisecond, 300, 20_000, 40_000, 110 * time.Millisecond},
	} {
		t.Run(fmt.Sprintf("%d each %s", c.perBatch, c.every), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(nil)
				b.k.slow["commit"] = 3 * time.Millisecond
				const batches = 300
				var opening time.Time
				var slowest time.Duration
				acked := 0
				b.cfg.Plugin = pluginFunc(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
					if err := opened(ctx, host); err != nil {
						return err
					}
					opening = time.Now()
					done := make(chan struct{})
					go func() {
						defer close(done)
						for n := 0; n < batches*c.perBatch; n += c.perBatch {
							passes(c.every)
							if host.Send(ctx, numbered(uint64(n/c.perBatch+1), 1, n, n+c.perBatch-1)) != nil {
								return
							}
						}
					}()
					err := untilStopped(ctx, host, func(s source.Signal) {
						if s.Kind == source.SignalCommitted {
							for ; acked < int(s.Seq); acked++ {
								slowest = max(slowest, time.Since(opening.Add(time.Duration(acked+1)*c.every)))
							}
						}
					})
					<-done
					return err
				})
				end := b.start(t.Context())
				passes(batches*c.every + time.Second)
				close(b.drain)
				if err := <-end; err != nil {
					t.Fatal(err)
				}
				s := b.status()
				if mean := float64(s.Records) / float64(s.Commits); mean < c.least || mean > c.most {
					t.Errorf("%d records in %d transactions: %.1f each, want %.0f to %.0f", s.Records, s.Commits, mean, c.least, c.most)
				}
				if limit := c.slowestDelay + 10*time.Millisecond; slowest > limit {
					t.Errorf("a record waited for %s, want at most %s", slowest, limit)
				}
			})
		})
	}
}

func TestShrinkHalvesTheLimits(t *testing.T) {
	r := newRule(settings.Boundary{MaxRecords: 100_000, MaxBytes: 16 << 20, MaxTime: 500 * time.Millisecond, Interval: time.Second}, 2)
	if r.MaxRecords != 25_000 || r.MaxBytes != 4<<20 || r.MaxTime != 125*time.Millisecond || r.Interval != 250*time.Millisecond {
		t.Errorf("got %+v", r)
	}
	if r := newRule(settings.Boundary{MaxRecords: 3, MaxBytes: 3, MaxTime: 3, Interval: 3}, 99); r.MaxRecords != 1 || r.MaxBytes != 1 || r.MaxTime <= 0 {
		t.Errorf("got %+v, want limits that still let something through", r)
	}
}

func TestHoldGrowsWithWhatArrived(t *testing.T) {
	for n, want := range map[uint64]time.Duration{0: 0, 1: 0, 12: 0, 50: 10 * time.Millisecond, 800: 40 * time.Millisecond, 5000: 100 * time.Millisecond, 1e9: 100 * time.Millisecond} {
		if got := hold(n); got != want {
			t.Errorf("hold(%d) is %s, want %s", n, got, want)
		}
	}
}
