package main

import (
	"strconv"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

const (
	// settle is how long a runner is left alone before it is watched, idleSpan how long that lasts.
	settle   = 5 * time.Second
	idleSpan = 20 * time.Second
	// moreTasks is how many further tasks of one connector are counted.
	moreTasks = 10
)

// idle is what a runner with one task that has nothing to do costs, and what each further task does.
func (b *bench) idle() {
	var one, many idleCost
	b.once(func() { one = b.idleRunner(1, idleSpan) })
	b.once(func() { many = b.idleRunner(1+moreTasks, idleSpan) })
	b.results.add("idle_runner_rss_mb", "MB", one.rss)
	b.results.add("idle_runner_cpu_percent", "%", one.cpu)
	b.results.add("idle_runner_threads", "threads", one.threads)
	b.results.add("idle_task_rss_mb", "MB", (many.rss-one.rss)/moreTasks)
	b.results.add("idle_task_cpu_percent", "%", (many.cpu-one.cpu)/moreTasks)
	b.results.add("idle_task_threads", "threads", (many.threads-one.threads)/moreTasks)
}

type idleCost struct{ rss, cpu, threads float64 }

// idleRunner watches a runner whose tasks have delivered what they had.
func (b *bench) idleRunner(tasks int, span time.Duration) idleCost {
	topic := "idle-" + strconv.Itoa(tasks)
	harness.CreateTopic(b, b.broker.Addr, topic, 1)
	bed, pid := b.bed("bench-" + topic)
	bed.Create(topic, map[string]string{
		"connector.class": "generator", "topic": topic, "count": "10", "partitions": strconv.Itoa(tasks), "tasks.max": strconv.Itoa(tasks),
	})
	bed.AwaitCaughtUp(time.Minute, topic)
	b.sleep(settle)
	before, err := process.CPU(pid)
	b.check(err)
	start := time.Now()
	b.sleep(span)
	after, err := process.CPU(pid)
	b.check(err)
	took := time.Since(start)
	rss, err := process.RSS(pid)
	b.check(err)
	threads, err := process.Threads(pid)
	b.check(err)
	bed.StopAll()
	return idleCost{rss: float64(rss) / 1e6, cpu: 100 * (after - before).Seconds() / took.Seconds(), threads: float64(threads)}
}
