package numbers

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/sdk/go/source"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func plugin() source.Plugin { return source.New("generator", "0.0.0", Connector{}) }

func config(extra map[string]string) sourcetest.Config {
	c := map[string]string{"topic": "t", "size": "1"}
	maps.Copy(c, extra)
	return sourcetest.Config{Plugin: plugin(), Config: c}
}

func TestEveryNumberOnceThroughCrashes(t *testing.T) {
	want := []string{"0:1", "0:2", "1:1", "1:2", "2:1", "2:2", "0:3", "0:4", "1:3", "2:3"}
	cfg := config(map[string]string{"count": "10", "partitions": "3", "batch.records": "2"})
	r := sourcetest.New(t, cfg)
	task := r.Start(r.Plan(1)[0])
	sourcetest.CheckExact(t, "without a crash", sourcetest.Values(task.WaitIdle()), want)

	// With crashes the partitions' turn begins again, so each is in order for itself.
	cfg = config(map[string]string{"count": "7", "batch.records": "2"})
	sourcetest.Exact(t, cfg, []string{"0:1", "0:2", "0:3", "0:4", "0:5", "0:6", "0:7"})
}

func TestPartitionsAreDividedAmongTasks(t *testing.T) {
	r := sourcetest.New(t, config(map[string]string{"count": "4", "partitions": "5"}))
	tasks := r.Plan(3)
	if len(tasks) != 3 || len(r.Plan(9)) != 5 {
		t.Fatalf("%d tasks of at most 3, %d of at most 9", len(tasks), len(r.Plan(9)))
	}
	seen := map[string]int{}
	for _, spec := range tasks {
		task := r.Start(spec)
		records := task.WaitIdle()
		if len(records) != 4 {
			t.Errorf("a task made %d records", len(records))
		}
		for _, rec := range records {
			seen[string(rec.Value)]++
		}
		task.Stop()
	}
	for _, v := range []string{"0:1", "0:2", "1:1", "1:2", "2:1", "2:2", "2:3", "2:4", "3:1", "3:2", "4:1", "4:2"} {
		if seen[v] != 1 {
			t.Errorf("%s is there %d times", v, seen[v])
		}
	}
	if o := r.Offset(source.Fields{"generator": "2"}); o["n"] != int64(4) {
		t.Errorf("offset %v", o)
	}
}

func TestRecordsHaveTheFormThatWasAskedFor(t *testing.T) {
	before := time.Now().Truncate(time.Millisecond)
	r := sourcetest.New(t, config(map[string]string{"count": "11", "size": "8", "key.space": "3", "timestamps": "true", "headers": "2"}))
	task := r.Start(r.Plan(1)[0])
	records := task.WaitIdle()
	first, last := records[0], records[10]
	if string(first.Value) != "0:1....." || string(last.Value) != "0:11...." || string(first.Key) != "00000001" || string(last.Key) != "00000002" {
		t.Errorf("got %q %q and %q %q", first.Key, first.Value, last.Key, last.Value)
	}
	if len(first.Headers) != 2 || first.Headers[1].Name != "header-1" || len(first.Headers[1].Value) != 8 || first.Topic != "t" {
		t.Errorf("got %+v", first)
	}
	if first.Timestamp.Before(before) || first.Timestamp.After(time.Now()) {
		t.Errorf("timestamp %v", first.Timestamp)
	}
	r = sourcetest.New(t, config(map[string]string{"count": "1", "key.space": "0"}))
	plain := r.Start(r.Plan(1)[0]).WaitIdle()[0]
	if plain.Key != nil || !plain.Timestamp.IsZero() || plain.Headers != nil || string(plain.Value) != "0:1" {
		t.Errorf("got %+v", plain)
	}
}

func TestRecordsComeWhenTheyAreDue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sourcetest.New(t, config(map[string]string{"rate": "100", "timestamps": "true"}))
		start := time.Now()
		task := r.Start(r.Plan(1)[0])
		<-time.After(995 * time.Millisecond)
		synctest.Wait()
		records := task.Uncommitted()
		if len(records) != 100 {
			t.Fatalf("%d records in a second", len(records))
		}
		for i, rec := range records {
			if want := start.Add(time.Duration(i) * 10 * time.Millisecond); rec.Timestamp.Sub(want).Abs() > time.Millisecond {
				t.Fatalf("record %d is of %v, not %v", i, rec.Timestamp.Sub(start), want.Sub(start))
			}
		}
		task.Stop()
	})
}

func TestWrongConfigurationsAreNamed(t *testing.T) {
	for config, want := range map[string]string{
		"rate=fast":           `rate: "fast" is not a decimal number`,
		"size=-1":             `size: "-1" is not a size`,
		"size=0":              `size: "0" is too small`,
		"partitions=0":        `partitions: "0" is too small`,
		"batch.records=1e3":   `batch.records: "1e3" is not a whole number`,
		"key.space=100000001": `key.space: "100000001" is too large`,
		"keyspace=1":          `keyspace: unknown key`,
	} {
		k, v, _ := strings.Cut(config, "=")
		answer, err := plugin().Validate(t.Context(), &source.ValidateRequest{Type: "generator", Config: map[string]string{"topic": "t", k: v}})
		if err != nil || len(answer.Problems) != 1 || !strings.Contains(answer.Problems[0].Key+": "+answer.Problems[0].Message, want) {
			t.Errorf("%s: got %+v, %v", config, answer, err)
		}
	}
	if v, err := plugin().Validate(t.Context(), &source.ValidateRequest{Type: "generator", Config: Connector{}.Type().Example}); err != nil || len(v.Problems) > 0 || v.ExactlyOnce != source.Yes {
		t.Errorf("the example: %+v, %v", v, err)
	}
}

func TestStoredOffsetThatIsNoneEndsTheTask(t *testing.T) {
	for _, offset := range []string{`{"n":"1"}`, `{"n":-1}`, `{"m":1}`} {
		cfg := config(nil)
		cfg.Stored = []source.PartitionOffset{{Partition: source.JSON(`{"generator":"0"}`), Offset: source.JSON(offset)}}
		if err := sourcetest.New(t, cfg).Start(source.TaskSpec{}).End(); err == nil || !strings.Contains(err.Error(), `{"generator":"0"}`) {
			t.Errorf("%s: got %v", offset, err)
		}
	}
}

func TestValueKeepsItsLengthWhileItsNumberGrows(t *testing.T) {
	v := newValue(7, 5, 0)
	for _, c := range []struct {
		n    int64
		want string
	}{{9, "7:9.."}, {10, "7:10."}, {999, "7:999"}, {1000, "7:1000"}, {123456789, "7:123456789"}, {999999999999, "7:999999999999"}} {
		if got := string(v.with(c.n)); got != c.want {
			t.Errorf("%d: got %s", c.n, got)
		}
	}
}

func TestValuesOfManySizesAreTheSameWheneverTheyAreMade(t *testing.T) {
	cfg := config(map[string]string{"count": "200", "size": "10", "size.max": "300"})
	sizes := map[int]bool{}
	var before []string
	for range 2 {
		r := sourcetest.New(t, cfg)
		values := sourcetest.Values(r.Start(r.Plan(1)[0]).WaitIdle())
		if before != nil && !slices.Equal(values, before) {
			t.Error("another value")
		}
		before = values
	}
	for i, v := range before {
		if len(v) < 10 || len(v) > 300 || strings.TrimRight(v, ".") != fmt.Sprintf("0:%d", i+1) {
			t.Fatalf("value %d has %d bytes: %.20s", i+1, len(v), v)
		}
		sizes[len(v)] = true
	}
	if len(sizes) < 100 {
		t.Errorf("200 values have %d sizes", len(sizes))
	}
}

func TestABurstComesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := sourcetest.New(t, config(map[string]string{"rate": "10", "burst": "2s"}))
		task := r.Start(r.Plan(1)[0])
		for _, want := range []int{1, 1, 21, 21, 41} { // 1, 3, 5 s and so on after the first record of a burst
			synctest.Wait()
			if n := len(task.Uncommitted()); n != want {
				t.Errorf("%d records, want %d", n, want)
			}
			<-time.After(time.Second)
		}
		task.Stop()
	})
}

// sink is a RunHost that takes everything and counts.
type sink struct {
	signals chan source.Signal
	records int
	until   int
}

func (s *sink) Send(_ context.Context, m source.Message) error {
	if b, ok := m.(*source.Batch); ok {
		if s.records += b.Count; s.records >= s.until && s.until > 0 {
			s.until = 0
			s.signals <- source.Signal{Kind: source.SignalStop}
		}
	}
	return nil
}

// Copies makes it as cheap as the host of a process.
func (s *sink) Copies() {}

func (s *sink) Lookup(context.Context, []source.JSON) ([]source.PartitionOffset, error) {
	return nil, nil
}

func (s *sink) Signals() <-chan source.Signal { return s.signals }

// BenchmarkRun is a task as fast as possible, without a wire.
func BenchmarkRun(b *testing.B) {
	for _, size := range []string{"100B", "1KiB"} {
		for _, full := range []bool{false, true} {
			b.Run(fmt.Sprintf("size=%s/full=%v", size, full), func(b *testing.B) {
				const records = 100_000
				config := map[string]string{"topic": "t", "size": size}
				if full {
					config["timestamps"], config["headers"] = "true", "2"
				}
				b.ReportAllocs()
				for b.Loop() {
					s := &sink{signals: make(chan source.Signal, 2), until: records}
					s.signals <- source.Signal{Kind: source.SignalCredit, Bytes: 1 << 40}
					if err := plugin().Run(b.Context(), &source.RunOpen{Type: "generator", Config: config}, s); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*records), "ns/record")
			})
		}
	}
}
