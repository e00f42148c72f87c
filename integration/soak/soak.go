// Package soak is the proof by faults: real coordinators, runners, plugins and brokers as processes, faults at random from a seed, and the verdict of Apache Kafka's own consumer on what came of it.
//
// A world (world.go) delivers five connectors' numbered records for as long as the faults go on (fault.go has them, schedule.go draws them). A fault counts only where the logs show that it aborted a
// transaction, moved a lease or dropped a session (evidence.go), and where every connector delivered again afterwards: a world that doesn't is stuck. In the end everything is stopped, and what is
// readable is judged twice (Verdict.java, watch.go): of each source partition every number once and in order, and the stored offset that of the last.
//
// What broke can be repeated from the schedule, and made shorter (shrink.go). A run touches nothing outside of what it started: its processes, a folder, and network namespaces of its own.
//
// Where to read next: this file from Run on, then fault.go.
package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

// Config says what to run. Fencepost, Plugins and Length are required, or Schedule in the place of the latter.
type Config struct {
	// Fencepost is the binary, and Plugins the folder of plugins.
	Fencepost, Plugins string
	// Length is how long the faults go on.
	Length time.Duration
	// Seed is what the faults are drawn from.
	Seed uint64
	// Schedule, where set, is repeated in the place of one that is drawn.
	Schedule *Schedule
	// Brokers is 1 or 3, 3 by default; Coordinators and Runners are 3 by default.
	Brokers, Coordinators, Runners int
	// Kinds are the only kinds of faults; none is all.
	Kinds []string
	// Env is added to the runners' environment.
	Env []string
	// Dir is where the run makes its folder. Its name must be short, since sockets are made below it. Default: the system's folder for temporary files.
	Dir string
	// Keep leaves the folder there.
	Keep bool
	// Out gets a line for each thing that happens.
	Out io.Writer

	canCut bool
	mu     *sync.Mutex
	began  time.Time
}

// stuckAfter is how long after the end of a fault a connector may deliver nothing, not counting the time in which Kafka takes nothing from anybody.
const stuckAfter = 60 * time.Second

// healTimeout is how long a fault may take to be undone: a broker that is killed again by a start that took too long is started once more.
const healTimeout = 5 * time.Minute

// say prints a line.
func (c *Config) say(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fmt.Fprintf(c.Out, "%6.1fs  %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

func (c *Config) check() error {
	if s := c.Schedule; s != nil {
		c.Seed, c.Brokers, c.Coordinators, c.Runners, c.Length = s.Seed, s.Brokers, s.Coordinators, s.Runners, s.Length
	}
	for _, n := range []*int{&c.Brokers, &c.Coordinators, &c.Runners} {
		if *n == 0 {
			*n = 3
		}
	}
	if c.Out == nil {
		c.Out = io.Discard
	}
	c.mu, c.began = &sync.Mutex{}, time.Now()
	for _, name := range c.Kinds {
		if kindOf(name) == nil {
			return fmt.Errorf("there is no kind of fault %q", name)
		}
	}
	if c.Fencepost == "" || c.Plugins == "" || c.Length <= 0 {
		return errors.New("soak: Config is incomplete")
	}
	// Whether this user may make networks is asked once, before the faults are drawn.
	n, err := newNetwork(nil, nil)
	if err == nil {
		n.close()
	}
	c.canCut = err == nil
	if c.Schedule == nil {
		return nil
	}
	for _, step := range c.Schedule.Steps {
		if k := kindOf(step.Kind); k != nil && k.cut && !c.canCut {
			return fmt.Errorf("soak: %s needs a network of the runner's own: %w", step.Kind, err)
		}
	}
	return nil
}

// outcome is what became of one fault.
type outcome struct {
	Step
	kind *kind
	// left says why it wasn't done; empty where it was.
	left           string
	struck, healed time.Time
	// flowed is how long it took, from when it was healed, until every connector had delivered again.
	flowed   time.Duration
	evidence *event
}

// counts says whether the fault counts.
func (o *outcome) counts() bool { return o.left == "" && o.evidence != nil }

// run is one run.
type run struct {
	cfg      *Config
	schedule *Schedule
	world    *world
	watch    *watch
	evidence *evidence
	usage    *usage

	mu         sync.Mutex
	held       map[string]bool // targets of faults that go on
	outcomes   []*outcome
	violations []string
	broken     chan struct{} // closed with the first violation
}

// Run is one run. The error says that it couldn't be done; what was violated is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	r := &run{cfg: &cfg, schedule: cfg.Schedule, watch: newWatch(), evidence: newEvidence(), usage: &usage{}, held: map[string]bool{}, broken: make(chan struct{})}
	if r.schedule == nil {
		r.schedule = newSchedule(&cfg)
	}
	var err error
	r.world, err = newWorld(ctx, &cfg)
	defer r.world.close()
	if err != nil {
		return nil, fmt.Errorf("start of the world: %w", err)
	}
	return r.all(ctx)
}

// all is the run once everything has been started.
func (r *run) all(ctx context.Context) (*Report, error) {
	following, end := context.WithCancel(ctx)
	var followers sync.WaitGroup
	defer followers.Wait()
	defer end()
	members := append(slices.Clone(r.world.coordinators), r.world.runners...)
	for _, m := range members {
		followers.Go(func() {
			if err := r.evidence.follow(following, m); err != nil {
				r.violated("the log of %s can't be read: %v", m.name, err)
			}
		})
	}
	followers.Go(func() { r.usage.watch(following, members) })
	followers.Go(func() { r.watch.canary.run(following, r.world.brokerAddresses()) })
	followers.Go(func() {
		if err := r.watch.follow(following, r.world.brokerAddresses()); err != nil {
			r.violated("%v", err)
		}
	})
	if err := r.watch.allFlow(ctx, time.Time{}, startTimeout); err != nil {
		return nil, fmt.Errorf("start of the world: %w", err)
	}
	r.cfg.say("every source partition flows; %d faults follow", len(r.schedule.Steps))
	r.strikeAll(ctx)
	findings, err := r.finish(ctx)
	if err != nil {
		return nil, err
	}
	end()
	followers.Wait()
	r.evidence.judge(r.outcomes)
	return r.report(findings), nil
}

// violated takes note of something that must not be.
func (r *run) violated(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	text := fmt.Sprintf(format, args...)
	if len(r.violations) == 0 {
		close(r.broken)
	}
	r.violations = append(r.violations, text)
	r.cfg.say("VIOLATION: %s", text)
}

// strikeAll does every step at its time, and ends early where something is violated.
func (r *run) strikeAll(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var faults sync.WaitGroup
	defer faults.Wait()
	began := time.Now()
	for _, step := range r.schedule.Steps {
		if !r.await(ctx, began.Add(step.At)) {
			return
		}
		o := &outcome{Step: step, kind: kindOf(step.Kind)}
		r.outcomes = append(r.outcomes, o)
		if !r.hold(step.Target) {
			o.left = "its target was still in another fault"
			continue
		}
		faults.Go(func() {
			r.strike(ctx, o)
			if o.left != "" {
				r.cfg.say("%s left out: %s", step, o.left)
			}
		})
	}
	r.await(ctx, began.Add(r.schedule.Length))
}

// await waits until a moment; false is that the run is over.
func (r *run) await(ctx context.Context, until time.Time) bool {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-r.watch.bad:
	case <-r.broken:
	case <-ctx.Done():
	}
	return false
}

// lost says whether anything has been violated.
func (r *run) lost() bool {
	select {
	case <-r.watch.bad:
		return true
	case <-r.broken:
		return true
	default:
		return false
	}
}

// hold takes a target for one fault. What strikes everything waits for nobody, and nobody for it.
func (r *run) hold(target string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.held[target] || r.held[everything] || target == everything && len(r.held) > 0 {
		return false
	}
	r.held[target] = true
	return true
}

func (r *run) release(target string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.held, target)
}

// strike does one fault, heals it, and waits until everything flows again.
func (r *run) strike(ctx context.Context, o *outcome) {
	o.struck = time.Now()
	heal, err := o.kind.strike(ctx, r.world, o.Step)
	if err != nil && heal == nil {
		r.release(o.Target)
		o.left = err.Error()
		return
	}
	if err != nil {
		r.violated("%s: %v", o.Step, err)
	}
	r.cfg.say("%s", o.Step)
	r.await(ctx, time.Now().Add(o.For))
	undoing, cancel := context.WithTimeout(context.WithoutCancel(ctx), healTimeout) // also at the end of the run, so that it can be judged
	defer cancel()
	if err := harness.Poll(undoing, healTimeout, heal); err != nil {
		r.violated("%s can't be undone: %v", o.Step, err)
	}
	o.healed = time.Now()
	r.release(o.Target)
	if r.lost() {
		return // there is nothing to wait for
	}
	if err := r.watch.flows(ctx, o.healed, stuckAfter); err != nil && ctx.Err() == nil {
		r.violated("stuck: %s after the end of %s: %v", stuckAfter, o.Step, err)
	}
	o.flowed = time.Since(o.healed)
}

// finish ends the world in an orderly way, once every source partition flows again, and has everything read.
func (r *run) finish(ctx context.Context) (*findings, error) {
	if r.lost() {
		r.describe(ctx)
	} else if err := r.watch.allFlow(ctx, time.Now(), stuckAfter); err != nil {
		r.violated("stuck: %s after the last fault: %v", stuckAfter, err)
		r.describe(ctx)
	}
	r.cfg.say("all faults are over; stopping everything")
	r.stopAll(ctx)
	if pids, err := process.Below(r.world.plugins); err != nil || len(pids) > 0 {
		r.violated("plugin processes are left: %v %v", pids, err)
	}
	for _, text := range r.world.unasked() {
		r.violated("%s", text)
	}
	err := r.world.admin(func(admin *kadm.Client) error {
		if err := harness.Poll(ctx, 15*time.Second, func(ctx context.Context) error { return noneOpen(ctx, admin) }); err != nil {
			r.violated("%v", err)
		}
		if err := r.watch.reachEnd(ctx, admin, 30*time.Second); err != nil {
			r.violated("%v", err)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	found, err := askKafkasConsumer(ctx, r.world.dir, r.world.kafka.Addr())
	if err != nil {
		return nil, err
	}
	for _, text := range append(found.violations(r.watch.counts()), r.watch.said()...) {
		r.violated("%s", text)
	}
	for _, g := range r.usage.growths() {
		if g.gross() {
			r.violated("memory or threads grow: %s", g)
		}
	}
	return found, nil
}

// stopAll stops the connectors, then the runners, then the coordinators, as users would.
func (r *run) stopAll(ctx context.Context) {
	together := func(n int, stop func(i int) error) {
		var group sync.WaitGroup
		for i := range n {
			group.Go(func() {
				if err := stop(i); err != nil {
					r.violated("%v", err)
				}
			})
		}
		group.Wait()
	}
	together(len(loads), func(i int) error { return r.world.control.stop(ctx, loads[i].name) })
	for _, members := range [][]*member{r.world.runners, r.world.coordinators} {
		together(len(members), func(i int) error { return members[i].stop(stopTimeout) })
	}
}

// describe says what users would see of connectors that don't flow.
func (r *run) describe(ctx context.Context) {
	connectors, err := r.world.control.connectors(ctx)
	if err != nil {
		r.cfg.say("%v", err)
	}
	for _, c := range connectors {
		r.cfg.say("%s is %s: %s", c.GetName(), c.GetState(), c.GetMessage())
		for _, t := range c.GetTasks() {
			r.cfg.say("  task %d on %s: %s %s %s", t.GetTask(), t.GetRunner(), t.GetState(), t.GetPhase(), t.GetError())
		}
	}
}

// noneOpen says which transactions are open.
func noneOpen(ctx context.Context, admin *kadm.Client) error {
	open, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort"})
	if err != nil {
		return err
	}
	var names []string
	for _, txn := range open.Sorted() {
		if txn.TxnID == canaryTopic {
			continue
		}
		names = append(names, txn.TxnID+" "+txn.State)
	}
	if len(names) > 0 {
		return fmt.Errorf("transactions are open after everything was stopped: %s", strings.Join(names, ", "))
	}
	return nil
}
