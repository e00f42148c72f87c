package soak

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
)

// scope says what a kind of fault may strike.
type scope uint8

const (
	// mortals are the runners but the last, which is never killed, so that there is one whose memory can be watched for all of a run.
	mortals scope = iota
	anyRunner
	aLeader
	aConnector
	aBroker
	// all strikes everything at once: no other fault goes on meanwhile.
	all
)

const (
	leader = "leader"
	// everything is the target of a fault that strikes all brokers.
	everything = "all brokers"
)

// kind is one kind of fault.
type kind struct {
	name  string
	scope scope
	// least and most are how long it lasts.
	least, most time.Duration
	// shows are the kinds of evidence that can be its own; none is all.
	shows []what
	// cut says that it needs a network of the runner's own.
	cut bool
	// brokers is how many it needs.
	brokers int
	// strike does it, and gives what undoes it.
	strike func(ctx context.Context, w *world, s Step) (heal func(context.Context) error, err error)
}

// short is less than a lease, long is more than one.
const (
	short = leaseTTL / 2
	long  = leaseTTL + time.Second
)

// kinds are all kinds of faults; docs/proof.md says what each does.
var kinds = []kind{
	{name: "kill-runner", scope: mortals, least: 200 * time.Millisecond, most: 6 * time.Second, strike: killRunner},
	{name: "term-runner", scope: mortals, least: 100 * time.Millisecond, most: 3 * time.Second, strike: termRunner},
	{name: "drain-runner", scope: anyRunner, least: time.Second, most: 5 * time.Second, shows: []what{moved}, strike: drainRunner},
	{name: "nap-runner", scope: anyRunner, least: 300 * time.Millisecond, most: short, strike: freezeRunner},
	{name: "freeze-runner", scope: anyRunner, least: long, most: 2 * leaseTTL, strike: freezeRunner},
	{name: "kill-plugin", scope: anyRunner, least: 100 * time.Millisecond, most: time.Second, shows: []what{aborted}, strike: killPlugin},
	{name: "freeze-plugin", scope: anyRunner, least: short, most: 2 * leaseTTL, shows: []what{aborted}, strike: freezePlugin},
	{name: "kill-leader", scope: aLeader, least: 500 * time.Millisecond, most: 6 * time.Second, shows: []what{dropped}, strike: killLeader},
	{name: "term-leader", scope: aLeader, least: 100 * time.Millisecond, most: 3 * time.Second, shows: []what{dropped}, strike: termLeader},
	{name: "freeze-leader", scope: aLeader, least: sessionTimeout + time.Second, most: 2 * sessionTimeout, shows: []what{dropped}, strike: freezeLeader},
	{name: "cut-coordinators", scope: anyRunner, least: long, most: 2 * leaseTTL, cut: true, strike: cutCoordinators(weather{up: hold, down: hold})},
	{name: "half-coordinators", scope: anyRunner, least: long, most: 2 * leaseTTL, cut: true, strike: halfCoordinators},
	{name: "refuse-coordinators", scope: anyRunner, least: 200 * time.Millisecond, most: leaseTTL, cut: true, strike: cutCoordinators(weather{refuse: true})},
	{name: "cut-brokers", scope: anyRunner, least: 7 * time.Second, most: 12 * time.Second, cut: true, strike: cutBrokers(weather{up: hold, down: hold})},
	{name: "half-brokers", scope: anyRunner, least: 7 * time.Second, most: 12 * time.Second, cut: true, strike: halfBrokers},
	{name: "refuse-brokers", scope: anyRunner, least: 7 * time.Second, most: 12 * time.Second, cut: true, strike: cutBrokers(weather{refuse: true})},
	{name: "isolate-runner", scope: anyRunner, least: long, most: 2 * leaseTTL, cut: true, strike: isolateRunner},
	{name: "slow-runner", scope: anyRunner, least: 5 * time.Second, most: 10 * time.Second, cut: true, strike: slowRunner},
	{name: "full-disk", scope: anyRunner, least: 2 * time.Second, most: 6 * time.Second, cut: true, shows: []what{aborted}, strike: fillDisk},
	{name: "term-broker", scope: aBroker, least: 100 * time.Millisecond, most: 4 * time.Second, strike: termBroker},
	{name: "kill-broker", scope: aBroker, least: 500 * time.Millisecond, most: 6 * time.Second, brokers: 3, strike: killBroker},
	{name: "freeze-broker", scope: aBroker, least: 2 * time.Second, most: 8 * time.Second, brokers: 3, strike: freezeBroker},
	{name: "kill-brokers", scope: all, least: 100 * time.Millisecond, most: 3 * time.Second, brokers: 3, strike: killBrokers},
	{name: "change-config", scope: aConnector, shows: []what{moved, aborted}, strike: changeConfig},
	{name: "change-tasks", scope: aConnector, shows: []what{moved, aborted}, strike: changeTasks},
	{name: "pause", scope: aConnector, least: 200 * time.Millisecond, most: 3 * time.Second, shows: []what{moved, aborted}, strike: pauseConnector},
	{name: "stop", scope: aConnector, least: 200 * time.Millisecond, most: 3 * time.Second, shows: []what{moved, aborted}, strike: stopConnector},
	{name: "restart", scope: aConnector, shows: []what{moved, aborted}, strike: restartConnector},
}

func kindOf(name string) *kind {
	for i := range kinds {
		if kinds[i].name == name {
			return &kinds[i]
		}
	}
	return nil
}

// fits says whether a kind can be had in a world.
func (k *kind) fits(cfg *Config) bool {
	return (len(cfg.Kinds) == 0 || slices.Contains(cfg.Kinds, k.name)) && k.brokers <= cfg.Brokers && (!k.cut || cfg.canCut)
}

// targets lists what it may strike.
func (k *kind) targets(cfg *Config) []string {
	names := func(prefix string, n int) (list []string) {
		for i := range n {
			list = append(list, prefix+strconv.Itoa(i+1))
		}
		return list
	}
	switch k.scope {
	case mortals:
		return names("r", cfg.Runners-1)
	case anyRunner:
		return names("r", cfg.Runners)
	case aLeader:
		return []string{leader}
	case aBroker:
		return names("b", cfg.Brokers)
	case aConnector:
		var list []string
		for i := range loads {
			list = append(list, loads[i].name)
		}
		return list
	}
	return []string{everything}
}

// index reads a target's number.
func index(target string) int {
	n, err := strconv.Atoi(target[1:])
	if err != nil {
		panic(fmt.Sprintf("target %q has no number", target))
	}
	return n - 1
}

func (w *world) runnerOf(s Step) *member       { return w.runners[index(s.Target)] }
func (w *world) networkOf(s Step) *network     { return w.networks[index(s.Target)] }
func (w *world) brokerOf(s Step) *kafka.Broker { return w.kafka.Brokers[index(s.Target)] }

// leaderNow finds who leads, also through an election.
func (w *world) leaderNow(ctx context.Context) (*member, error) {
	var found *member
	err := harness.Poll(ctx, 3*sessionTimeout, func(ctx context.Context) error {
		i, err := w.control.leader(ctx)
		if err == nil {
			found = w.coordinators[i]
		}
		return err
	})
	return found, err
}

func starting(m *member) func(context.Context) error {
	return func(context.Context) error { return m.start() }
}

func thawing(m *member) func(context.Context) error {
	return func(context.Context) error { return m.thaw() }
}

func killRunner(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	m := w.runnerOf(s)
	m.kill()
	return starting(m), nil
}

func termRunner(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	m := w.runnerOf(s)
	return starting(m), m.stop(stopTimeout)
}

func drainRunner(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	takeBack := func(ctx context.Context) error { return w.control.drain(ctx, s.Target, true) }
	return takeBack, w.control.drain(ctx, s.Target, false)
}

func freezeRunner(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	m := w.runnerOf(s)
	return thawing(m), m.freeze()
}

func killLeader(ctx context.Context, w *world, _ Step) (func(context.Context) error, error) {
	m, err := w.leaderNow(ctx)
	if err != nil {
		return nil, err
	}
	m.kill()
	return starting(m), nil
}

func termLeader(ctx context.Context, w *world, _ Step) (func(context.Context) error, error) {
	m, err := w.leaderNow(ctx)
	if err != nil {
		return nil, err
	}
	return starting(m), m.stop(stopTimeout)
}

func freezeLeader(ctx context.Context, w *world, _ Step) (func(context.Context) error, error) {
	m, err := w.leaderNow(ctx)
	if err != nil {
		return nil, err
	}
	return thawing(m), m.freeze()
}

// errNoPlugin says that a runner has no plugin process just then.
var errNoPlugin = errors.New("the runner runs no plugin just now")

// pluginOf chooses a plugin process of a runner.
func (w *world) pluginOf(s Step) (int, error) {
	pids, err := process.Below(w.plugins)
	if err != nil {
		return 0, err
	}
	parent := "PPid:\t" + strconv.Itoa(w.runnerOf(s).now().PID()) + "\n"
	pids = slices.DeleteFunc(pids, func(pid int) bool {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		return err != nil || !strings.Contains(string(status), parent)
	})
	if len(pids) == 0 {
		return 0, errNoPlugin
	}
	slices.Sort(pids)
	return pids[s.Choice%len(pids)], nil
}

func healed(context.Context) error { return nil }

func killPlugin(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	pid, err := w.pluginOf(s)
	if err != nil {
		return nil, err
	}
	return healed, syscall.Kill(pid, syscall.SIGKILL)
}

// freezePlugin lets the process go on, or kills it, by the choice: a plugin that only hangs harms nobody.
func freezePlugin(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	pid, err := w.pluginOf(s)
	if err != nil {
		return nil, err
	}
	end := syscall.SIGCONT
	if s.Choice%2 == 0 {
		end = syscall.SIGKILL
	}
	heal := func(context.Context) error {
		if err := syscall.Kill(pid, end); err != nil && !errors.Is(err, syscall.ESRCH) { // its runner may have ended it
			return err
		}
		return nil
	}
	return heal, syscall.Kill(pid, syscall.SIGSTOP)
}

// on makes the weather on some links of a runner, and clears it up in the end.
func on(n *network, links []*link, now weather) func(context.Context) error {
	for _, l := range links {
		l.set(now)
	}
	return func(context.Context) error {
		n.clear()
		return nil
	}
}

func cutCoordinators(now weather) func(context.Context, *world, Step) (func(context.Context) error, error) {
	return func(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
		n := w.networkOf(s)
		return on(n, n.coordinators, now), nil
	}
}

func cutBrokers(now weather) func(context.Context, *world, Step) (func(context.Context) error, error) {
	return func(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
		n := w.networkOf(s)
		return on(n, n.brokers, now), nil
	}
}

// half is a connection that carries one direction only: what goes the other way is held back, or lost.
func half(choice int) weather {
	return []weather{{up: hold}, {down: hold}, {up: swallow}, {down: swallow}}[choice%4]
}

func halfCoordinators(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	return cutCoordinators(half(s.Choice))(ctx, w, s)
}

func halfBrokers(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	return cutBrokers(half(s.Choice))(ctx, w, s)
}

func isolateRunner(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	n := w.networkOf(s)
	return on(n, n.links(), weather{up: hold, down: hold}), nil
}

func slowRunner(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	n := w.networkOf(s)
	return on(n, n.links(), weather{delay: time.Duration(s.Choice+1) * 250 * time.Millisecond}), nil
}

// mostFiles bounds how many files fill a disk.
const mostFiles = 10_000

// fillDisk fills the runner's own file system, and kills a plugin, whose next start finds no room.
func fillDisk(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	m := w.runnerOf(s)
	pid, err := w.pluginOf(s)
	if err != nil {
		return nil, err
	}
	folder := filepath.Join("/proc", strconv.Itoa(m.now().PID()), "root", w.temp(m.name), "full")
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	heal := func(context.Context) error { return os.RemoveAll(folder) }
	for i := range mostFiles {
		err := os.WriteFile(filepath.Join(folder, strconv.Itoa(i)), make([]byte, 1<<20), 0o600)
		if errors.Is(err, syscall.ENOSPC) && i > 0 && !harness.Exists(filepath.Join(folder, strconv.Itoa(i))) {
			return heal, syscall.Kill(pid, syscall.SIGKILL) // not even an empty file can be made
		}
	}
	return heal, fmt.Errorf("%s isn't full with %d files", folder, mostFiles)
}

func termBroker(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	b := w.brokerOf(s)
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	return b.Start, b.Stop(ctx)
}

func killBroker(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	b := w.brokerOf(s)
	b.Kill()
	return b.Start, nil
}

func freezeBroker(_ context.Context, w *world, s Step) (func(context.Context) error, error) {
	p := w.brokerOf(s).Process()
	return func(context.Context) error { return p.Signal(syscall.SIGCONT) }, p.Signal(syscall.SIGSTOP)
}

func killBrokers(_ context.Context, w *world, _ Step) (func(context.Context) error, error) {
	w.kafka.Kill()
	return w.kafka.Start, nil
}

func changeConfig(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	now := w.shapeOf(s.Target)
	now.variant++
	return healed, w.reshape(ctx, s.Target, now)
}

func changeTasks(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	now := w.shapeOf(s.Target)
	now.tasks++
	if len(loadOf(s.Target).tasks) == 1 {
		now.variant++ // it has one source partition, and so one task
	}
	return healed, w.reshape(ctx, s.Target, now)
}

func pauseConnector(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	resume := func(ctx context.Context) error { return w.control.resume(ctx, s.Target) }
	return resume, w.control.pause(ctx, s.Target)
}

func stopConnector(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	resume := func(ctx context.Context) error { return w.control.resume(ctx, s.Target) }
	return resume, w.control.stop(ctx, s.Target)
}

func restartConnector(ctx context.Context, w *world, s Step) (func(context.Context) error, error) {
	return healed, w.control.restart(ctx, s.Target)
}
