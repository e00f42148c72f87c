package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// scene is a cluster on the broker, with runners named a, b and so on.
func (b *bench) scene(name string, coordinators, runners int) *scene.Scene {
	s := scene.New(harness.NewWith(b, name, b.broker.Addr, b.binaries), coordinators)
	for i := range runners {
		s.Runner(string(rune('a'+i)), nil)
	}
	return s
}

// failover is the time until the tasks of a runner deliver again that was killed, or stopped; and the time until another coordinator leads. Each failure hits the same cluster, which is whole again before the next.
func (b *bench) failover() {
	c := b.scene("bench-failover", 2, 2)
	w := c.Numbers("numbers", 4, 20)
	var killed, silent, led, left []float64
	for n := range 2 * b.runs {
		killed = append(killed, fail(c, w, w.Holder(n%2 == 0), func(p *process.Process) { p.Kill() }))
	}
	b.results.add("failover_s", "s", killed...)
	for range max(1, b.runs-1) {
		silent = append(silent, fail(c, w, w.Holder(true), func(p *process.Process) { b.check(p.Signal(syscall.SIGSTOP)) }))
	}
	b.results.add("failover_silent_s", "s", silent...)
	for range b.runs {
		led = append(led, c.Depose(func(p *process.Process) { p.Kill() }).Seconds())
	}
	b.results.add("leader_failover_s", "s", led...)
	for range b.runs {
		left = append(left, c.Depose(func(p *process.Process) { b.check(p.Signal(syscall.SIGTERM)) }).Seconds())
	}
	b.results.add("leader_stop_s", "s", left...)
	w.Exact()
}

// fail makes one runner fail, says how long its tasks were away, and starts it anew.
func fail(s *scene.Scene, w *scene.Watched, name string, how func(*process.Process)) float64 {
	p, partitions := s.Runners[name], w.Tasks(name)
	since := time.Now()
	how(p)
	took := w.Await(since, partitions, reader.MadeAfter(since))
	p.Kill()
	s.Runner(name, nil)
	w.Flows(time.Now())
	return took.Seconds()
}

// reconfigure is the time from a changed configuration to the first record of every task that was made by the new one.
func (b *bench) reconfigure() {
	for _, tasks := range []int{1, 50} {
		b.once(func() {
			c := b.scene("bench-change-"+strconv.Itoa(tasks), 1, 1)
			w := c.Numbers("numbers", tasks, 2)
			var took []float64
			for n := range b.runs {
				size := 101 + n
				w.Config["size"] = strconv.Itoa(size)
				file := c.ConnectorFile(w.Name, w.Config)
				since := time.Now()
				c.MustCLI("apply", "-f", file)
				took = append(took, w.Await(since, w.Tasks(""), func(r reader.Record) bool { return r.Length == size }).Seconds())
			}
			b.results.add(fmt.Sprintf("reconfigure_%d_s", tasks), "s", took...)
			w.Exact()
		})
	}
}

// brokerAway is how long the broker is away.
const brokerAway = time.Minute

// brokerReturn is the time from the return of a broker to the first new record of every task.
func (b *bench) brokerReturn() {
	c := b.scene("bench-broker", 1, 1)
	w := c.Numbers("numbers", 10, 10)
	b.check(b.broker.Stop(b.Context()))
	b.sleep(time.Duration(min(1, b.scale) * float64(brokerAway)))
	b.check(b.broker.Start(b.Context()))
	since := time.Now()
	b.results.add("broker_return_s", "s", w.Await(since, w.Tasks(""), reader.MadeAfter(since)).Seconds())
	w.Flows(time.Now())
	w.Exact()
}

// The tasks of placeRest, and how many of them only one runner may have.
const (
	restTasks  = 40
	boundTasks = 10
)

// placeRest kills the runner of fifty tasks between their offsets and their commit, where ten of them fit on no other runner, and is the time until the forty others deliver. All share an offsets topic, on which the
// transactions of the ten are open too.
func (b *bench) placeRest() {
	faults := *b.binaries
	faults.Fencepost = filepath.Join(b.TempDir(), "fencepost")
	harness.BuildPackage(b, "./cmd/fencepost", faults.Fencepost)
	var took []float64
	for n := range max(1, b.runs-1) {
		b.once(func() {
			whole := b.binaries
			b.binaries = &faults
			defer func() { b.binaries = whole }()
			c := b.scene("bench-rest-"+strconv.Itoa(n), 1, 0)
			mark := filepath.Join(b.TempDir(), "mark")
			gate := mark + ".gate"
			b.check(os.WriteFile(gate, nil, 0o600))
			env := []string{"FENCEPOST_FAULT=X4:wait:1", "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + gate}
			c.Runner("a", env, "--label", "disk=fast")
			shared := c.Cluster + ".shared-offsets"
			bound := c.Numbers("bound", boundTasks, 20, "offsets.storage.topic", shared, "placement.labels", "disk=fast")
			rest := c.Numbers("rest", restTasks, 20, "offsets.storage.topic", shared)
			b.check(os.Remove(gate)) // All of them run: now each waits at its next passing.
			waitLines(b, mark, boundTasks+restTasks)
			c.Runner("b", nil)
			since := time.Now()
			c.Runners["a"].Kill()
			took = append(took, rest.Await(since, rest.Tasks(""), reader.MadeAfter(since)).Seconds())
			c.Runner("a", nil, "--label", "disk=fast")
			bound.Flows(time.Now())
			rest.Exact()
			bound.Exact()
		})
	}
	b.results.add("place_rest_s", "s", took...)
}

// manyCommits is how many commits the offsets topic of failover100k has seen, and manyTasks how many tasks share it.
const (
	manyCommits = 100_000
	manyTasks   = 4
)

// failover100k is failover after 100,000 commits to the offsets topic.
func (b *bench) failover100k() {
	c := b.scene("bench-many", 1, 2)
	w := c.Numbers("numbers", manyTasks, 20)
	c.MustCLI("stop", w.Name)
	w.Fill(int(manyCommits * min(1, b.scale)))
	c.MustCLI("resume", w.Name)
	w.Flows(time.Now())
	var took []float64
	for n := range max(1, b.runs-1) {
		took = append(took, fail(c, w, w.Holder(n%2 == 0), func(p *process.Process) { p.Kill() }))
	}
	b.results.add("failover_100k_s", "s", took...)
	w.Exact()
}

// idleLock cuts a runner off from the coordinator alone, whose idle task holds a lock, and is the time until another runner has it: nothing but the runner itself can end the task that holds it.
func (b *bench) idleLock() {
	var took []float64
	for n := range max(1, b.runs-1) {
		b.once(func() {
			c := scene.NewWithWays(harness.NewWith(b, "bench-lock-"+strconv.Itoa(n), b.broker.Addr, b.binaries), 1)
			harness.BuildPackage(b, "./integration/rogue", filepath.Join(c.Plugins, "rogue-lock"))
			c.RunnerAt(c.Way(c.Coordinator), c.Bootstrap, "a", nil)
			topic, lock := c.Cluster+".locked", filepath.Join(b.TempDir(), "lock")
			harness.CreateTopic(b, c.Bootstrap, topic, 1)
			c.Create("locked", map[string]string{"connector.class": "rogue-lock", "topic": topic, "lock": lock})
			holds := func(n int) {
				harness.Wait(b, scene.Patience, fmt.Sprintf("the lock is held for time %d", n), func(context.Context) error {
					text, err := os.ReadFile(lock)
					if got := strings.Count(string(text), "got "); err == nil && got < n {
						err = fmt.Errorf("the lock says %q", text)
					}
					return err
				})
			}
			holds(1)
			c.AwaitState(scene.Patience, "locked", "RUNNING")
			c.Runner("b", nil)
			since := time.Now()
			c.SetWays(proxy.Swallow)
			holds(2)
			took = append(took, time.Since(since).Seconds())
		})
	}
	b.results.add("failover_idle_lock_s", "s", took...)
}
