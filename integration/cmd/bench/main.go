// Command bench is behind `make bench`: it measures the figures of a runner against a real broker, prints one `name value unit` line a figure, and writes them into a file.
//
// Two programs are compared only within one run, alternating, and a ratio is the median of the pairwise ratios: the machine's own ups and downs then hit both alike.
// What was written is read back and counted before a figure is printed. A target that is missed is no error; a figure that could not be measured is.
//
// load.go has the load and what it costs, verify.go what has to have arrived, latency.go the way from the source to a reader, idle.go the runner that has nothing to do, start.go the time until a
// user sees something, failures.go how long failures and changes are felt, control.go what the control plane costs. docs/benchmarks.md says what each figure means.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

// limit is how long all of it may take. On a machine that is busy with something else, a part that would begin after latest is left out.
const (
	limit  = 15 * time.Minute
	latest = 12 * time.Minute
)

// warmCommits is how many commits the broker has seen of each kind before the first figure.
const warmCommits = 1000

// bench is one run of all figures.
type bench struct {
	*session
	broker   *kafka.Broker
	binaries *harness.Binaries
	baseline string // the binary
	runs     int
	scale    float64
	results  results
}

// part is a group of figures that are measured together.
type part struct {
	name    string
	measure func(*bench)
}

// parts are in the order of their weight: where time runs out, the last ones go without.
var parts = []part{
	{"start", (*bench).start},
	{"idle", (*bench).idle},
	{"latency", (*bench).latency},
	{"failover", (*bench).failover},
	{"reconfigure", (*bench).reconfigure},
	{"fence", (*bench).fence},
	{"control", (*bench).control},
	{"place_rest", (*bench).placeRest},
	{"idle_lock", (*bench).idleLock},
	{"broker_return", (*bench).brokerReturn},
	{"cpu_1KiB", func(b *bench) { b.load(load{suffix: "1KiB", size: 1 << 10, records: 700_000, inTxn: 50_000}) }},
	{"cpu_100B", func(b *bench) { b.load(load{suffix: "100B", size: 100, records: 3_000_000, inTxn: 50_000}) }},
	{"cpu_small_1KiB", func(b *bench) { b.load(load{suffix: "small_1KiB", size: 1 << 10, records: 200_000, inTxn: 1_000}) }},
	{"cpu_small_100B", func(b *bench) { b.load(load{suffix: "small_100B", size: 100, records: 600_000, inTxn: 1_000}) }},
	{"cpu_full_1KiB", func(b *bench) {
		b.load(load{suffix: "1KiB_full", size: 1 << 10, records: 400_000, inTxn: 50_000, full: true})
	}},
	{"cpu_full_100B", func(b *bench) {
		b.load(load{suffix: "100B_full", size: 100, records: 1_500_000, inTxn: 50_000, full: true})
	}},
	{"many_commits", (*bench).failover100k},
}

func main() {
	runs := flag.Int("runs", 3, "how often each program of a comparison runs")
	scale := flag.Float64("scale", 1, "a factor on the number of records")
	only := flag.String("only", "", "measure only the parts that match this regular `expression`")
	out := flag.String("out", "bin/bench/results.json", "the `file` of the results")
	flag.Parse()
	pattern, err := regexp.Compile(*only)
	if err == nil {
		err = measure(*runs, *scale, pattern, *out)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func measure(runs int, scale float64, only *regexp.Regexp, out string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	whole := newSession(ctx)
	defer whole.end()

	b := &bench{session: whole, runs: runs, scale: scale, results: results{}}
	if err := whole.try(b.prepare); err != nil {
		return err
	}
	var failed []error
	start := time.Now()
	for _, p := range parts {
		if !only.MatchString(p.name) {
			continue
		}
		if took := time.Since(start); took > latest {
			b.Logf("%s is left out: the parts before it took %s", p.name, took.Round(time.Second))
			continue
		}
		if err := b.in(func() { p.measure(b) }); err != nil {
			failed = append(failed, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(append(failed, b.results.write(out))...)
}

// in measures something whose processes end with it.
func (b *bench) in(measure func()) error {
	outer := b.session
	b.session = newSession(outer.ctx)
	defer func() {
		b.end()
		b.session = outer
	}()
	return b.try(measure)
}

// once is in for a part of a part: its failure is the part's.
func (b *bench) once(measure func()) { b.check(b.in(measure)) }

// prepare starts the broker and finds the binaries.
func (b *bench) prepare() {
	root, err := harness.Root()
	b.check(err)
	b.binaries = &harness.Binaries{Fencepost: filepath.Join(root, "bin", "fencepost"), Plugins: filepath.Join(root, "bin", "plugins")}
	b.baseline = filepath.Join(b.TempDir(), "baseline")
	harness.BuildPackage(b, "./integration/cmd/baseline", b.baseline)
	b.broker, err = kafka.Start(b.Context(), kafka.Options{Dir: b.TempDir(), Heap: "1g", Properties: map[string]string{
		// Brokers have 50 of each unless somebody changed it; the topics of a run that is over are to be gone before the next one.
		"offsets.topic.num.partitions": "50", "transaction.state.log.num.partitions": "50", "log.segment.delete.delay.ms": "1000",
	}})
	b.check(err)
	b.Cleanup(b.broker.Kill)
	b.warmBroker()
}

// warmBroker makes the broker's Java code fast before anything is measured: a cold one commits for a minute at a tenth of its later pace, too slow even for the bare client at 100 commits a second.
func (b *bench) warmBroker() {
	const topic = "broker-warm-up"
	harness.CreateTopic(b, b.broker.Addr, topic, topicPartitions)
	defer b.deleteTopics(topic)
	for _, inTxn := range []int{1, 500} {
		b.bare("-topic", topic, "-records", strconv.Itoa(warmCommits*inTxn), "-transaction-records", strconv.Itoa(inTxn))
	}
}

// bed is a coordinator with one runner, ready for connectors.
func (b *bench) bed(cluster string) (bed *harness.Bed, runner int) {
	bed = harness.NewWith(b, cluster, b.broker.Addr, b.binaries)
	bed.StartCoordinator()
	return bed, bed.StartRunner("runner", nil).PID()
}
