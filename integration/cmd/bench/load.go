package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// runnerSettings are the runner's own client settings (runner/internal/publish), which the baseline shares. What isn't here is librdkafka's default in both.
var runnerSettings = map[string]string{
	"linger.ms": "5", "batch.size": "1000000", "message.max.bytes": "8650752", "queue.buffering.max.messages": "100000", "queue.buffering.max.kbytes": "65536",
	"compression.codec": "none", "partitioner": "murmur2_random", "enable.idempotence": "true", "acks": "all", "transaction.timeout.ms": "60000", "message.timeout.ms": "30000",
	"socket.keepalive.enable": "true", "reconnect.backoff.max.ms": "1000",
}

const (
	// topicPartitions is how many partitions the topics of both have, apart from the baseline's run with one.
	topicPartitions = 6
	// warmUp is how many records each program writes before it is measured.
	warmUp = 50_000
	// usualTransaction is the baseline's transaction; with a smaller one the runner is kept to the same.
	usualTransaction = 50_000
)

// load is a comparison of the runner with the baseline.
type load struct {
	suffix  string
	size    int // bytes of a value
	records int
	inTxn   int
	full    bool // a timestamp and two headers on each record
}

// generator is the connector that makes the load.
func (l load) generator(topic string, records int) map[string]string {
	config := map[string]string{
		"connector.class": "generator", "topic": topic, "size": strconv.Itoa(l.size), "count": strconv.Itoa(records), "key.space": "100000000",
	}
	if l.inTxn < usualTransaction {
		config["transaction.boundary.max.records"] = strconv.Itoa(l.inTxn)
	}
	if l.full {
		config["timestamps"], config["headers"] = "true", "2"
	}
	return config
}

// spent is what one program needed.
type spent struct {
	runner, plugin float64 // CPU seconds per million records
	perSecond      float64 // records
	rss            float64 // MB, the most that was seen
	inTxn          float64 // records of a transaction
}

// load runs baseline and Fencepost in turn and compares them pair by pair.
func (b *bench) load(l load) {
	l.records = max(l.inTxn, int(float64(l.records)*b.scale)/l.inTxn*l.inTxn)
	var bare, ours []spent
	for n := range b.runs {
		b.once(func() { bare = append(bare, b.runBaseline(l, n, topicPartitions)) })
		b.once(func() { ours = append(ours, b.runFencepost(l, n)) })
	}
	runner := func(s spent) float64 { return s.runner }
	plugin := func(s spent) float64 { return s.plugin }
	both := func(s spent) float64 { return s.runner + s.plugin }
	perSecond := func(s spent) float64 { return s.perSecond }
	b.results.add("runner_cpu_ratio_"+l.suffix, "x", ratios(each(ours, runner), each(bare, runner))...)
	b.results.add("pipeline_cpu_ratio_"+l.suffix, "x", ratios(each(ours, both), each(bare, runner))...)
	b.results.add("baseline_cpu_"+l.suffix, "cpu-s/Mrec", each(bare, runner)...)
	b.results.add("runner_cpu_"+l.suffix, "cpu-s/Mrec", each(ours, runner)...)
	b.results.add("plugin_cpu_"+l.suffix, "cpu-s/Mrec", each(ours, plugin)...)
	b.results.add("runner_txn_records_"+l.suffix, "records", each(ours, func(s spent) float64 { return s.inTxn })...)
	b.results.add("baseline_rps_"+l.suffix, "rec/s", each(bare, perSecond)...)
	if l.full || l.inTxn < usualTransaction {
		b.results.add("runner_rps_"+l.suffix, "rec/s", each(ours, perSecond)...)
		return
	}
	b.results.add("throughput_rps_go_"+l.suffix, "rec/s", each(ours, perSecond)...)
	b.once(func() {
		b.results.add("baseline_cpu_1p_"+l.suffix, "cpu-s/Mrec", b.runBaseline(l, b.runs, 1).runner)
	})
	if l.size == 1<<10 {
		b.results.add("runner_rss_mb", "MB", each(ours, func(s spent) float64 { return s.rss })...)
	}
}

func each(all []spent, field func(spent) float64) []float64 {
	out := make([]float64, len(all))
	for i, s := range all {
		out[i] = field(s)
	}
	return out
}

// runBaseline runs the baseline on a new topic. It measures itself, after its warm-up.
func (b *bench) runBaseline(l load, n int, partitions int32) spent {
	topic := fmt.Sprintf("baseline-%s-%d", l.suffix, n)
	harness.CreateTopic(b, b.broker.Addr, topic, partitions)
	defer b.deleteTopics(topic)
	result := b.bare("-topic", topic, "-records", strconv.Itoa(l.records), "-size", strconv.Itoa(l.size), "-warm-up", strconv.Itoa(warmUp),
		"-transaction-records", strconv.Itoa(l.inTxn), fmt.Sprintf("-full=%v", l.full))
	b.count(topic, l.records+warmUp)
	return spent{runner: result.CPUSeconds / float64(l.records) * 1e6, perSecond: float64(l.records) / result.Seconds}
}

// bareResult is what the baseline prints.
type bareResult struct {
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

// bare runs the baseline program to its end.
func (b *bench) bare(args ...string) bareResult {
	printed := filepath.Join(b.TempDir(), "result")
	stdout, err := os.Create(printed)
	b.check(err)
	defer stdout.Close()
	args = append([]string{"-bootstrap-servers", b.broker.Addr}, args...)
	for _, key := range slices.Sorted(maps.Keys(runnerSettings)) {
		args = append(args, "-set", key+"="+runnerSettings[key])
	}
	p, err := process.Start(process.Spec{Name: "baseline", Path: b.baseline, Args: args, Log: printed + ".log", Stdout: stdout})
	b.check(err)
	code, err := p.Wait(b.Context())
	if err != nil || code != 0 {
		p.Kill()
		b.Fatalf("baseline: exit code %d, %v\n%s", code, err, p.Tail(20))
	}
	text, err := os.ReadFile(printed)
	b.check(err)
	var result bareResult
	b.check(json.Unmarshal(text, &result))
	return result
}

// runFencepost runs one task of the generator on a new topic. The runner has had a connector before; what counts is all that its process uses from before the connector is created until it has caught up.
func (b *bench) runFencepost(l load, n int) spent {
	name := fmt.Sprintf("run-%s-%d", l.suffix, n)
	warm := "warm-" + name
	harness.CreateTopic(b, b.broker.Addr, name, topicPartitions)
	harness.CreateTopic(b, b.broker.Addr, warm, topicPartitions)
	defer b.deleteTopics(name, warm)
	bed, pid := b.bed("bench-" + strconv.FormatInt(time.Now().UnixMilli(), 36))
	bed.Create(warm, l.generator(warm, warmUp))
	bed.AwaitCaughtUp(3*time.Minute, warm)
	bed.MustCLI("delete", warm)
	bed.PluginProcesses(time.Minute, 0)

	before, err := process.CPU(pid)
	b.check(err)
	peak := b.watchRSS(pid)
	bed.Create(name, l.generator(name, l.records))
	c := bed.AwaitCaughtUp(3*time.Minute, name)
	end := time.Now()
	after, err := process.CPU(pid)
	b.check(err)
	s := b.counted(name, c, l.records)
	million := float64(l.records) / 1e6
	s.runner, s.plugin, s.rss = (after-before).Seconds()/million, b.pluginCPU(bed).Seconds()/million, peak()
	s.perSecond = float64(l.records) / end.Sub(b.firstRecord(name)).Seconds()
	bed.StopAll()
	b.verify(name, l.records)
	return s
}

// counted compares what the runner reports with what there is.
func (b *bench) counted(name string, c *controlv1.Connector, want int) spent {
	var records, commits uint64
	for _, task := range c.GetTasks() {
		records, commits = records+task.GetRecords(), commits+task.GetCommits()
	}
	if records != uint64(want) {
		b.Fatalf("%s: %d records are reported, want %d", name, records, want)
	}
	return spent{inTxn: float64(records) / float64(max(1, commits))}
}

// pluginCPU is what the bed's plugin processes have used in their lives.
func (b *bench) pluginCPU(bed *harness.Bed) time.Duration {
	plugins, err := process.Below(bed.Plugins)
	b.check(err)
	var all time.Duration
	for _, pid := range plugins {
		used, err := process.CPU(pid)
		b.check(err)
		all += used
	}
	return all
}

// watchRSS looks at a process's memory until the function that it returns is called, which says what the most was, in MB.
func (b *bench) watchRSS(pid int) func() float64 {
	stop, done := make(chan struct{}), make(chan struct{})
	b.Cleanup(func() { <-done })
	var most int64
	go func() {
		defer close(done)
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			if rss, err := process.RSS(pid); err == nil {
				most = max(most, rss)
			}
			select {
			case <-tick.C:
			case <-stop:
				return
			case <-b.Context().Done():
				return
			}
		}
	}()
	return func() float64 {
		close(stop)
		<-done
		return float64(most) / 1e6
	}
}

// firstRecord is when the first record of a topic was handed to Kafka's client.
func (b *bench) firstRecord(topic string) time.Time {
	listed, err := harness.Admin(b, b.broker.Addr).ListOffsetsAfterMilli(b.Context(), 0, topic)
	b.check(errors.Join(err, listed.Error()))
	first := int64(math.MaxInt64)
	listed.Each(func(o kadm.ListedOffset) {
		if o.Timestamp > 0 {
			first = min(first, o.Timestamp)
		}
	})
	return time.UnixMilli(first)
}

func (b *bench) deleteTopics(topics ...string) {
	responses, err := harness.Admin(b, b.broker.Addr).DeleteTopics(b.Context(), topics...)
	if err = errors.Join(err, responses.Error()); err != nil {
		b.Logf("delete topics %v: %v", topics, err)
	}
}
