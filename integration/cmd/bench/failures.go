package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/reader"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// How long something that fails may be away before the part is given up.
const patience = time.Minute

// cluster is a bed with several coordinators and runners.
type cluster struct {
	*harness.Bed
	b            *bench
	coordinators map[string]*process.Process // by address
	runners      map[string]*process.Process // by name
	env          []string
}

// cluster starts coordinators and runners named a, b and so on.
func (b *bench) cluster(name string, coordinators, runners int) *cluster {
	c := &cluster{Bed: harness.NewWith(b, name, b.broker.Addr, b.binaries), b: b, coordinators: map[string]*process.Process{}, runners: map[string]*process.Process{}}
	p := c.StartCoordinator()
	c.coordinators[c.Coordinator] = p
	for range coordinators - 1 {
		p, address := c.AddCoordinator()
		c.coordinators[address] = p
	}
	for i := range runners {
		c.runner(string(rune('a' + i)))
	}
	return c
}

func (c *cluster) runner(name string, args ...string) {
	c.runners[name] = c.StartRunner(name, c.env, args...)
}

// numbers creates a connector of the generator with a source partition for each task, and a watch of its topic.
func (c *cluster) numbers(name string, tasks int, rate float64, more ...string) *watched {
	topic := c.Cluster + "." + name
	harness.CreateTopic(c.b, c.Bootstrap, topic, topicPartitions)
	w := &watched{cluster: c, name: name, config: map[string]string{
		"connector.class": "generator", "topic": topic, "tasks.max": strconv.Itoa(tasks), "partitions": strconv.Itoa(tasks), "rate": strconv.FormatFloat(rate, 'f', -1, 64),
	}}
	for i := 0; i < len(more); i += 2 {
		w.config[more[i]] = more[i+1]
	}
	w.Watch = reader.StartWatch(c.b.Context(), c.Bootstrap, topic, reader.Generated{})
	c.b.Cleanup(func() {
		if err := w.Stop(); err != nil {
			c.b.Errorf("watch %s: %v", topic, err)
		}
		c.b.deleteTopics(topic)
	})
	c.Create(name, w.config)
	w.flows(time.Now())
	return w
}

// watched is a connector of the generator with its readable records.
type watched struct {
	*reader.Watch
	cluster *cluster
	name    string
	config  map[string]string
}

// tasks are the source partitions of the tasks that a runner holds; of every task, where the runner is "".
func (w *watched) tasks(runner string) []string {
	c, err := w.cluster.Connector(w.cluster.b.Context(), w.name)
	w.cluster.b.check(err)
	var partitions []string
	for _, task := range c.GetTasks() {
		if runner == "" || task.GetRunner() == runner {
			partitions = append(partitions, strconv.Itoa(int(task.GetTask())))
		}
	}
	return partitions
}

// back waits until every source partition has a record for which ok is true, and says how long after a moment the slowest had.
func (w *watched) back(since time.Time, partitions []string, ok func(reader.Record) bool) float64 {
	b := w.cluster.b
	if len(partitions) == 0 {
		b.Fatalf("%s: nothing to wait for", w.name)
	}
	var slowest time.Duration
	harness.Wait(b, patience, w.name+" delivers", func(context.Context) (err error) {
		slowest, err = w.Back(since, partitions, ok)
		return err
	})
	return slowest.Seconds()
}

// flows waits until every task delivers.
func (w *watched) flows(since time.Time) {
	harness.Wait(w.cluster.b, patience, w.name+" runs", func(ctx context.Context) error {
		c, err := w.cluster.Connector(ctx, w.name)
		if err == nil && (c.GetState() != "RUNNING" || len(c.GetTasks()) == 0) {
			err = fmt.Errorf("it is %s: %s", c.GetState(), c.GetMessage())
		}
		return err
	})
	w.back(since, w.tasks(""), reader.MadeAfter(since))
}

// holder is a runner with tasks: the one that holds the plan, or another one where the plan's shall stay and there is one.
func (w *watched) holder(planner bool) string {
	b := w.cluster.b
	c, err := w.cluster.Connector(b.Context(), w.name)
	b.check(err)
	found := ""
	for _, task := range c.GetTasks() {
		if found = task.GetRunner(); (found == c.GetPlanner()) == planner {
			break
		}
	}
	return found
}

// failover is the time until the tasks of a runner deliver again that was killed, or stopped; and the time until another coordinator leads. Each failure hits the same cluster, which is whole again before the next.
func (b *bench) failover() {
	c := b.cluster("bench-failover", 2, 2)
	w := c.numbers("numbers", 4, 20)
	var killed, silent, led, left []float64
	for n := range 2 * b.runs {
		killed = append(killed, w.fail(w.holder(n%2 == 0), func(p *process.Process) { p.Kill() }))
	}
	b.results.add("failover_s", "s", killed...)
	for range max(1, b.runs-1) {
		silent = append(silent, w.fail(w.holder(true), func(p *process.Process) { b.check(p.Signal(syscall.SIGSTOP)) }))
	}
	b.results.add("failover_silent_s", "s", silent...)
	for range b.runs {
		led = append(led, c.depose(func(p *process.Process) { p.Kill() }))
	}
	b.results.add("leader_failover_s", "s", led...)
	for range b.runs {
		left = append(left, c.depose(func(p *process.Process) { b.check(p.Signal(syscall.SIGTERM)) }))
	}
	b.results.add("leader_stop_s", "s", left...)
	b.exact(w)
}

// fail makes one runner fail, says how long its tasks were away, and starts it anew.
func (w *watched) fail(name string, how func(*process.Process)) float64 {
	p := w.cluster.runners[name]
	partitions := w.tasks(name)
	since := time.Now()
	how(p)
	took := w.back(since, partitions, reader.MadeAfter(since))
	p.Kill()
	w.cluster.runner(name)
	w.flows(time.Now())
	return took
}

// depose makes the leader fail, says how long nobody led, and starts it anew.
func (c *cluster) depose(how func(*process.Process)) float64 {
	leader := c.Leader(c.b.Context())
	if leader == "" {
		c.b.Fatalf("nobody leads")
	}
	old := c.coordinators[leader]
	since := time.Now()
	how(old)
	harness.Wait(c.b, patience, "another coordinator leads", func(ctx context.Context) error {
		if now := c.Leader(ctx); now == "" || now == leader {
			return errors.New("none does")
		}
		return nil
	})
	took := time.Since(since)
	old.Kill()
	c.coordinators[leader] = c.RestartCoordinator(leader)
	harness.Wait(c.b, patience, "the coordinator serves", func(ctx context.Context) error {
		_, err := c.At(leader).GetCluster(ctx, &controlv1.GetClusterRequest{})
		return err
	})
	return took.Seconds()
}

// exact stops a connector and looks at everything that it wrote.
func (b *bench) exact(w *watched) {
	w.cluster.MustCLI("stop", w.name)
	c, err := w.cluster.Connector(b.Context(), w.name)
	b.check(err)
	want := reader.Expect{Topic: w.config["topic"], OffsetsTopic: c.GetOffsetsTopic(), Connector: w.name, First: 1, Last: w.Last()}
	// The watch may not have seen the last records yet: what is stored says how many there are.
	stored, err := reader.Stored(b.Context(), b.broker.Addr, c.GetOffsetsTopic(), w.name)
	b.check(err)
	for _, o := range stored {
		place, err := reader.Generated{}.Covered(o.Partition, o.Offset)
		b.check(err)
		want.Last[place.Partition] = place.Number
	}
	b.check(reader.Exact(b.Context(), b.broker.Addr, reader.Generated{}, want))
}

// reconfigure is the time from a changed configuration to the first record of every task that was made by the new one.
func (b *bench) reconfigure() {
	for _, tasks := range []int{1, 50} {
		b.once(func() {
			c := b.cluster("bench-change-"+strconv.Itoa(tasks), 1, 1)
			w := c.numbers("numbers", tasks, 2)
			var took []float64
			for n := range b.runs {
				size := 101 + n
				w.config["size"] = strconv.Itoa(size)
				file := c.ConnectorFile(w.name, w.config)
				since := time.Now()
				c.MustCLI("apply", "-f", file)
				took = append(took, w.back(since, w.tasks(""), func(r reader.Record) bool { return r.Length == size }))
			}
			b.results.add(fmt.Sprintf("reconfigure_%d_s", tasks), "s", took...)
			b.exact(w)
		})
	}
}

// brokerAway is how long the broker is away.
const brokerAway = time.Minute

// brokerReturn is the time from the return of a broker to the first new record of every task.
func (b *bench) brokerReturn() {
	c := b.cluster("bench-broker", 1, 1)
	w := c.numbers("numbers", 10, 10)
	b.check(b.broker.Stop(b.Context()))
	b.sleep(time.Duration(min(1, b.scale) * float64(brokerAway)))
	b.check(b.broker.Start(b.Context()))
	since := time.Now()
	b.results.add("broker_return_s", "s", w.back(since, w.tasks(""), reader.MadeAfter(since)))
	w.flows(time.Now())
	b.exact(w)
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
			c := b.cluster("bench-rest-"+strconv.Itoa(n), 1, 0)
			mark := filepath.Join(b.TempDir(), "mark")
			c.env = []string{"FENCEPOST_FAULT=X4:wait:200", "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + mark + ".never"}
			c.runner("a", "--label", "disk=fast")
			shared := c.Cluster + ".shared-offsets"
			bound := c.numbers("bound", boundTasks, 20, "offsets.storage.topic", shared, "placement.labels", "disk=fast")
			rest := c.numbers("rest", restTasks, 20, "offsets.storage.topic", shared)
			waitLines(b, mark, boundTasks+restTasks)
			c.env = nil
			c.runner("b")
			since := time.Now()
			c.runners["a"].Kill()
			took = append(took, rest.back(since, rest.tasks(""), reader.MadeAfter(since)))
			c.runner("a", "--label", "disk=fast")
			bound.flows(time.Now())
			b.exact(rest)
			b.exact(bound)
		})
	}
	b.results.add("place_rest_s", "s", took...)
}

// The commits of failover100k, and the tasks that make them.
const (
	manyCommits = 100_000
	manyTasks   = 20
)

// failover100k is failover after 100,000 commits to one offsets topic.
func (b *bench) failover100k() {
	c := b.cluster("bench-many", 1, 2)
	commits := int(manyCommits * min(1, b.scale))
	w := c.numbers("numbers", manyTasks, 0, "transaction.boundary", "poll", "batch.records", "1", "count", strconv.Itoa(commits/manyTasks))
	harness.Wait(b, 5*time.Minute, fmt.Sprintf("%d commits", commits), func(context.Context) error {
		if n := w.Count(); n < commits {
			return fmt.Errorf("%d", n)
		}
		return nil
	})
	w.config["count"], w.config["rate"] = "0", "5"
	c.MustCLI("apply", "-f", c.ConnectorFile(w.name, w.config))
	w.flows(time.Now())
	var took []float64
	for n := range max(1, b.runs-1) {
		took = append(took, w.fail(w.holder(n%2 == 0), func(p *process.Process) { p.Kill() }))
	}
	b.results.add("failover_100k_s", "s", took...)
	b.exact(w)
}

// idleLock cuts a runner off from the coordinator alone, whose idle task holds a lock, and is the time until another runner has it: nothing but the runner itself can end the task that holds it.
func (b *bench) idleLock() {
	var took []float64
	for n := range max(1, b.runs-1) {
		b.once(func() {
			c := b.cluster("bench-lock-"+strconv.Itoa(n), 1, 0)
			harness.BuildPackage(b, "./integration/locksource", filepath.Join(c.Plugins, "locksource"))
			link, err := proxy.Start(c.Coordinator)
			b.check(err)
			b.Cleanup(link.Close)
			direct := c.Coordinator
			c.Coordinator = link.Addr()
			c.runner("a")
			c.Coordinator = direct
			topic := c.Cluster + ".locked"
			harness.CreateTopic(b, c.Bootstrap, topic, 1)
			c.Create("locked", map[string]string{"connector.class": "locksource", "topic": topic, "lock": filepath.Join(b.TempDir(), "lock")})
			c.AwaitCaughtUp(patience, "locked")
			c.runner("b")
			since := time.Now()
			b.check(link.Set(proxy.Swallow))
			harness.Wait(b, patience, "the other runner reads", func(ctx context.Context) error {
				at, err := c.Connector(ctx, "locked")
				if err == nil && !slices.ContainsFunc(at.GetTasks(), func(t *controlv1.TaskInfo) bool { return t.GetRunner() == "b" && t.GetCaughtUp() }) {
					err = fmt.Errorf("tasks: %v", at.GetTasks())
				}
				return err
			})
			took = append(took, time.Since(since).Seconds())
		})
	}
	b.results.add("failover_idle_lock_s", "s", took...)
}
