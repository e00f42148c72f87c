package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

// runnerSettings are the runner's own client settings (runner/internal/publish), which the baseline shares. What isn't here is librdkafka's default in both.
var runnerSettings = []string{
	"linger.ms=5", "batch.size=1000000", "message.max.bytes=8650752", "queue.buffering.max.messages=100000", "queue.buffering.max.kbytes=65536",
	"compression.codec=none", "partitioner=murmur2_random", "enable.idempotence=true", "acks=all", "transaction.timeout.ms=60000", "message.timeout.ms=30000",
}

// load is a comparison of the runner with the baseline.
type load struct {
	suffix  string
	size    int // bytes of a value
	records int
	inTxn   int
	full    bool // a timestamp and two headers on each record
}

// spent is what one program needed.
type spent struct {
	runner, plugin float64 // CPU seconds per million records
	perSecond      float64 // records
}

// load runs baseline and Fencepost in turn and compares them pair by pair.
func (b *bench) load(l load) {
	l.records = max(l.inTxn, int(float64(l.records)*b.scale)/l.inTxn*l.inTxn)
	var base, runner, both, perSecond []float64
	for n := range b.runs {
		bare := b.runBaseline(l, n, 6)
		ours := b.runFencepost(l, n)
		base, runner, both = append(base, bare.runner), append(runner, ours.runner), append(both, ours.runner+ours.plugin)
		perSecond = append(perSecond, ours.perSecond)
	}
	b.results.add("baseline_cpu_"+l.suffix, "cpu-s/Mrec", base...)
	b.results.add("runner_cpu_"+l.suffix, "cpu-s/Mrec", runner...)
	b.results.add("runner_cpu_ratio_"+l.suffix, "x", ratios(runner, base)...)
	b.results.add("pipeline_cpu_ratio_"+l.suffix, "x", ratios(both, base)...)
	if l.full || l.inTxn < 50_000 {
		return
	}
	b.results.add("throughput_rps_go_"+l.suffix, "rec/s", perSecond...)
	b.results.add("baseline_cpu_1p_"+l.suffix, "cpu-s/Mrec", b.runBaseline(l, b.runs, 1).runner)
}

// runBaseline runs the baseline on a new topic.
func (b *bench) runBaseline(l load, n int, partitions int32) spent {
	topic := fmt.Sprintf("baseline-%s-%d", l.suffix, n)
	harness.CreateTopic(b, b.broker.Addr, topic, partitions)
	defer b.deleteTopic(topic)
	printed := filepath.Join(b.TempDir(), "result")
	stdout, err := os.Create(printed)
	b.check(err)
	defer stdout.Close()
	args := []string{
		"-bootstrap-servers", b.broker.Addr, "-topic", topic, "-records", strconv.Itoa(l.records), "-size", strconv.Itoa(l.size),
		"-transaction-records", strconv.Itoa(l.inTxn), fmt.Sprintf("-full=%v", l.full),
	}
	for _, s := range runnerSettings {
		args = append(args, "-set", s)
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
	var result struct {
		Records    int     `json:"records"`
		Seconds    float64 `json:"seconds"`
		CPUSeconds float64 `json:"cpu_seconds"`
	}
	b.check(json.Unmarshal(text, &result))
	return spent{runner: result.CPUSeconds / float64(result.Records) * 1e6, perSecond: float64(result.Records) / result.Seconds}
}

// runFencepost runs one task of the generator on a new topic. The runner's process is up before; what counts is what it uses for the connector.
func (b *bench) runFencepost(l load, n int) spent {
	name := fmt.Sprintf("run-%s-%d", l.suffix, n)
	part := b.session
	b.session = part.child()
	defer func() {
		b.check(b.end())
		b.session = part
	}()
	harness.CreateTopic(b, b.broker.Addr, name, 6)
	defer b.deleteTopic(name)
	bed, pid := b.bed("bench-" + strconv.FormatInt(time.Now().UnixMilli(), 36))
	before, err := process.CPU(pid)
	b.check(err)
	bed.Create(name, generator(l, name))
	c := bed.AwaitCaughtUp(3*time.Minute, name)
	after, err := process.CPU(pid)
	b.check(err)
	plugins, err := process.Below(bed.Plugins)
	b.check(err)
	var plugin time.Duration
	for _, pid := range plugins {
		used, err := process.CPU(pid)
		b.check(err)
		plugin += used
	}
	var records, commits uint64
	for _, task := range c.GetTasks() {
		records, commits = records+task.GetRecords(), commits+task.GetCommits()
	}
	if records != uint64(l.records) {
		b.Fatalf("%s: %d records, want %d", name, records, l.records)
	}
	b.Logf("%s: %.0f records a transaction", name, float64(records)/float64(max(1, commits)))
	million := float64(records) / 1e6
	return spent{runner: (after - before).Seconds() / million, plugin: plugin.Seconds() / million, perSecond: b.perSecond(name, records)}
}

// perSecond is the records of a topic over the time between the first and the last one's time of publishing.
func (b *bench) perSecond(topic string, records uint64) float64 {
	admin := harness.Admin(b, b.broker.Addr)
	first, err := admin.ListOffsetsAfterMilli(b.Context(), 0, topic)
	b.check(errors.Join(err, first.Error()))
	last, err := admin.ListMaxTimestampOffsets(b.Context(), topic)
	b.check(errors.Join(err, last.Error()))
	from, until := int64(math.MaxInt64), int64(0)
	first.Each(func(o kadm.ListedOffset) { from = min(from, o.Timestamp) })
	last.Each(func(o kadm.ListedOffset) { until = max(until, o.Timestamp) })
	return float64(records) / (float64(max(1, until-from)) / 1000)
}

func (b *bench) deleteTopic(topic string) {
	responses, err := harness.Admin(b, b.broker.Addr).DeleteTopics(b.Context(), topic)
	if err = errors.Join(err, responses.Error()); err != nil {
		b.Logf("delete topic %s: %v", topic, err)
	}
}
