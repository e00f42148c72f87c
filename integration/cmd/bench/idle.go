package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

// idleSpan is how long an idle runner is watched.
const idleSpan = 20 * time.Second

// idle is what a runner with one task that has nothing to do costs.
func (b *bench) idle() {
	const topic = "idle"
	harness.CreateTopic(b, b.broker.Addr, topic, 1)
	bed, pid := b.bed("bench-idle")
	dir := b.TempDir()
	b.check(os.WriteFile(filepath.Join(dir, "one.log"), []byte("one line\n"), 0o600))
	bed.Create(topic, map[string]string{"connector.class": "file", "paths": filepath.Join(dir, "*.log"), "topic": topic})
	bed.AwaitCaughtUp(time.Minute, topic)
	before, err := process.CPU(pid)
	b.check(err)
	start := time.Now()
	select {
	case <-time.After(idleSpan):
	case <-b.Context().Done():
		b.Fatal(context.Cause(b.Context()))
	}
	after, err := process.CPU(pid)
	b.check(err)
	span := time.Since(start)
	rss, err := process.RSS(pid)
	b.check(err)
	threads, err := process.Threads(pid)
	b.check(err)
	b.results.add("idle_runner_rss_mb", "MB", float64(rss)/1e6)
	b.results.add("idle_runner_cpu_percent", "%", 100*(after-before).Seconds()/span.Seconds())
	b.results.add("idle_runner_threads", "threads", float64(threads))
	bed.StopAll()
}

// start is how long a user waits: until `dev` is ready, and until the quick start has shown everything.
func (b *bench) start() {
	var ready, once []float64
	for range b.runs {
		ready = append(ready, b.timeDev(false))
		once = append(once, b.timeDev(true))
	}
	b.results.add("dev_ready_s", "s", ready...)
	b.results.add("quickstart_once_s", "s", once...)
}

// timeDev starts the quick start, and waits until it has printed its addresses, or until it has ended.
func (b *bench) timeDev(once bool) float64 {
	root, err := harness.Root()
	b.check(err)
	args := []string{"dev", "-f", "docs/examples/quickstart.yaml", "--plugin-path", b.binaries.Plugins}
	if once {
		args = append(args, "--once")
	}
	log := filepath.Join(b.TempDir(), "dev.log")
	start := time.Now()
	p, err := process.Start(process.Spec{Name: "dev", Path: b.binaries.Fencepost, Args: args, Dir: root, Log: log})
	b.check(err)
	defer p.Kill()
	if once {
		code, err := p.Wait(b.Context())
		b.check(err)
		took := time.Since(start)
		if code != 0 {
			b.Fatalf("dev --once: exit code %d\n%s", code, p.Tail(20))
		}
		return took.Seconds()
	}
	harness.Wait(b, time.Minute, "dev is ready", func(context.Context) error {
		text, err := os.ReadFile(log)
		if err == nil && !bytes.Contains(text, []byte("coordinator")) {
			err = errors.New("no addresses yet: " + strings.TrimSpace(string(text)))
		}
		return err
	})
	return time.Since(start).Seconds()
}
