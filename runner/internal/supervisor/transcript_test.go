package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sort"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestTranscripts replays what a coordinator and the world do to a supervisor, and compares what it does. Each file is one runner's life, in a bubble of its own; times in it are fake.
//
// Commands: grant, revoke, lost, plan, stop-plan, refused, validate, offsets, alter, warm-up, drain (the coordinator's) · end, end-crashed (with the error of its process), panic, report (an attempt's) · crash (a plugin's) · plugins (versions of what is found on disk) · tasks, plan-ends (a plan's) ·
// wait, shutdown (time and the operator's).
func TestTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer w.shutdown()
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				t.Helper()
				return w.command(t, d)
			})
		})
	})
}

// world is everything around a supervisor.
type world struct {
	s        *supervisor.Supervisor
	v        *supervisor.Validator
	stop     context.CancelFunc
	ended    chan error
	over     bool
	parallel bool // Tasks work at the same time: lines are sorted by what they begin with.
	mu       sync.Mutex
	lines    []string
	running  map[string]*attempt
	procs    map[string]*process
	plans    map[string]*planCall
	fail     map[string]error // Connectors whose plugin doesn't start.
	stubborn map[string]bool  // Tasks whose attempts don't end when they are told to.
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{ended: make(chan error, 1), running: map[string]*attempt{}, procs: map[string]*process{}, plans: map[string]*planCall{}, fail: map[string]error{}, stubborn: map[string]bool{}}
	v := supervisor.NewValidator(w.start, checkOverrides, hclog.NewNullLogger())
	v.SetPlugins([]supervisor.Plugin{{Description: description("1.0.0"), Path: "/p/seq", SHA256: "aa"}, {Description: description("1.1.0"), Path: "/p/seq-new", SHA256: "bb"}})
	w.v = v
	var err error
	w.s, err = supervisor.New(supervisor.Config{Validator: v, RunTask: w.runTask, LoadOffsets: loadOffsets, Logger: hclog.NewNullLogger()})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	w.stop = stop
	go func() { w.ended <- w.s.Run(ctx, (*fakeSession)(w)) }()
	if err := w.s.Deliver(&session.Welcomed{Cluster: "test", LeaseTTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	return w
}

func description(version string) *source.Description {
	return &source.Description{Name: "seq", Version: version, Types: []source.Type{{Name: "seq", Config: []source.Key{{Name: "count", Type: source.Long}}}}}
}

// say adds a line to what the next command shows.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lines = append(w.lines, fmt.Sprintf(format, args...))
}

func (w *world) said() string {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	lines := w.lines
	w.lines = nil
	if w.parallel {
		sort.SliceStable(lines, func(i, j int) bool { return about(lines[i]) < about(lines[j]) })
	}
	if len(lines) == 0 {
		return "nothing\n"
	}
	return strings.Join(lines, "\n") + "\n"
}

// about is what a line is about: a task, a process, or whatever else of a connector.
func about(line string) string {
	words := strings.Fields(line)
	if len(words) > 1 && words[1] == "process" {
		return words[0] + " process"
	}
	return words[0]
}

func (w *world) shutdown() {
	if w.over {
		return
	}
	w.over = true
	w.mu.Lock()
	clear(w.stubborn)
	w.mu.Unlock()
	w.stop()
	if err := <-w.ended; err != nil {
		w.say("run: %v", err)
	}
}

// command carries out one command.
func (w *world) command(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	arg := func(name, otherwise string) string {
		for _, a := range d.CmdArgs {
			if a.Key == name && len(a.Vals) > 0 {
				return a.Vals[0]
			}
		}
		return otherwise
	}
	connector := arg("connector", "orders")
	l := lease.Lease{Connector: connector, Incarnation: arg("incarnation", "i1"), Generation: number(arg("gen", "1")), Task: uint32(number(arg("task", "0"))), Epoch: number(arg("epoch", "1"))}
	ref := session.PlanRef{Connector: connector, Incarnation: "i1", Epoch: number(arg("epoch", "1"))}
	plugin := session.PluginRef{Name: "seq", Version: arg("version", "1.0.0"), Type: "seq"}
	config := map[string]string{"connector.class": "seq"}
	for _, line := range strings.Fields(d.Input) {
		if k, v, ok := strings.Cut(line, "="); ok && d.Cmd != "end" {
			config[k] = v
		}
	}
	deliver := func(e session.Event) {
		if err := w.s.Deliver(e); err != nil {
			t.Fatal(err)
		}
	}
	switch d.Cmd {
	case "grant":
		deliver(&session.Grant{Lease: l, Config: config, Plugin: plugin})
	case "revoke":
		within, err := time.ParseDuration(arg("drain", "0s"))
		if err != nil {
			t.Fatal(err)
		}
		deliver(&session.Revoke{Lease: l, Drain: within > 0, Deadline: within, Reason: arg("reason", "moved")})
	case "lost":
		deliver(&session.Lost{Lease: l})
	case "plan":
		deliver(&session.StartPlan{Plan: ref, Config: config, TasksMax: int(number(arg("tasks-max", "2"))), Plugin: plugin})
	case "stop-plan":
		deliver(&session.StopPlan{Plan: ref})
	case "refused":
		deliver(&session.TaskSetRefused{Plan: ref, Version: number(arg("version", "1")), Reason: arg("reason", "claims overlap")})
	case "validate":
		deliver(&session.Validate{Connector: connector, Config: config})
	case "offsets":
		deliver(&session.ReadOffsets{Connector: connector, Config: config, OffsetsTopic: "test.offsets." + connector})
	case "alter":
		deliver(&session.AlterOffsets{Lease: l, Config: config})
	case "end":
		w.attemptOf(t, l).end(t, failure(arg("class", ""), arg("cause", "source"), strings.TrimSpace(d.Input), d.HasArg("progress")))
	case "end-crashed":
		exit := w.proc(connector).err
		w.attemptOf(t, l).end(t, &task.Failure{Class: task.Again, Cause: task.CauseSource, Err: &source.Error{Kind: source.Retriable, Message: exit.Error(), Err: exit}})
	case "panic":
		w.attemptOf(t, l).end(t, errPanic)
	case "report":
		a := w.attemptOf(t, l)
		a.a.Status(task.Status{Phase: task.Phase(strings.ReplaceAll(arg("phase", "running"), "_", " ")), Records: number(arg("records", "0")), Commits: number(arg("commits", "0")), Waiting: strings.TrimSpace(d.Input)})
	case "crash":
		w.proc(connector).crash(errors.New("plugin of " + connector + " ended with exit code 3"))
	case "plugins":
		var there []supervisor.Plugin
		for _, version := range strings.Fields(d.Input) {
			there = append(there, supervisor.Plugin{Description: description(version), Path: "/p/seq", SHA256: "cc"})
		}
		w.v.SetPlugins(there)
	case "wont-start":
		w.fail[connector] = errors.New(strings.TrimSpace(d.Input))
		if d.HasArg("host") {
			w.fail[connector] = hostFault{w.fail[connector]}
		}
	case "starts":
		delete(w.fail, connector)
	case "parallel":
		w.parallel = true
	case "stubborn":
		w.mu.Lock()
		w.stubborn[fmt.Sprintf("%s-%d", connector, l.Task)] = true
		w.mu.Unlock()
	case "tasks":
		return w.tasks(t, connector, d) + w.said()
	case "lookup":
		return w.lookup(t, connector, d.Input)
	case "plan-ends":
		w.plan(connector).done <- planError(arg("kind", ""), strings.TrimSpace(d.Input))
	case "wait":
		span, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		<-time.After(span)
	case "warm-up":
		deliver(&session.WarmUp{Connector: connector, Plugin: plugin})
	case "drain":
		deliver(&session.Drain{Undo: d.HasArg("undo")})
	case "shutdown":
		w.stop()
	case "finished":
		select {
		case err := <-w.ended:
			w.over = true
			w.say("run: %v", err)
		default:
			w.say("run: goes on")
		}
	default:
		t.Fatalf("unknown command %s", d.Cmd)
	}
	return w.said()
}

func number(s string) uint64 {
	var n uint64
	if _, err := fmt.Sscan(s, &n); err != nil {
		panic(err)
	}
	return n
}

// errPanic makes an attempt panic.
var errPanic = errors.New("panic")

func failure(class, cause, text string, progress bool) error {
	classes := map[string]task.Class{"again": task.Again, "stop": task.Stop, "fail": task.Fail}
	if class == "" {
		return nil
	}
	return &task.Failure{Class: classes[class], Cause: cause, Progress: progress, Err: errors.New(text)}
}

func planError(kind, text string) error {
	kinds := map[string]source.ErrorKind{"retriable": source.Retriable, "configuration": source.Configuration, "fatal": source.Fatal}
	if kind == "" {
		return nil
	}
	return &source.Error{Kind: kinds[kind], Message: text}
}

func checkOverrides(overrides map[string]string) []source.Problem {
	if _, bad := overrides["acks"]; bad {
		return []source.Problem{{Key: "acks", Message: "exactly-once needs all"}}
	}
	return nil
}

type stored struct{}

func (stored) Stored(canonical []byte) (source.PartitionOffset, bool) {
	if string(canonical) == `{"src":"a"}` {
		return source.PartitionOffset{Partition: canonical, Offset: source.JSON(`{"n":9}`)}, true
	}
	return source.PartitionOffset{}, false
}

func (stored) All() []source.PartitionOffset {
	return []source.PartitionOffset{{Partition: source.JSON(`{"src":"a"}`), Offset: source.JSON(`{"n":9}`)}}
}

func loadOffsets(_ context.Context, connector, topic string) (supervisor.Offsets, error) {
	if connector == "unreadable" {
		return nil, fmt.Errorf("topic %s can't be read", topic)
	}
	return stored{}, nil
}

// attempt is an attempt that a test ends.
type attempt struct {
	a    supervisor.Attempt
	done chan error
}

// end ends the attempt, which has to run.
func (a *attempt) end(t *testing.T, err error) {
	t.Helper()
	select {
	case a.done <- err:
	case <-time.After(time.Millisecond):
		t.Fatal("no attempt runs")
	}
}

func (w *world) runTask(ctx context.Context, a supervisor.Attempt) error {
	name := a.Grant.Lease.ID().String()
	extra := ""
	if a.Shrink > 0 {
		extra = fmt.Sprintf(" shrink %d", a.Shrink)
	}
	if a.NameRecords {
		extra += " naming records"
	}
	w.say("%s attempt begins, epoch %d%s", name, a.Grant.Lease.Epoch, extra)
	mine := &attempt{a: a, done: make(chan error)}
	w.mu.Lock()
	w.running[name] = mine
	w.mu.Unlock()
	for {
		select {
		case err := <-mine.done:
			if err == errPanic { //nolint:errorlint // It is a signal of this test.
				panic("index out of range")
			}
			return err
		case <-a.Drain:
			w.say("%s attempt is asked to drain", name)
			a.Drain = nil
		case <-ctx.Done():
			if w.isStubborn(name) {
				<-mine.done
			}
			w.say("%s attempt is told to end: %v", name, context.Cause(ctx))
			return &task.Failure{Class: task.Stop, Cause: task.CauseAbandoned, Err: context.Cause(ctx)}
		}
	}
}

func (w *world) isStubborn(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stubborn[name]
}

func (w *world) attemptOf(t *testing.T, l lease.Lease) *attempt {
	t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	a := w.running[l.ID().String()]
	if a == nil {
		t.Fatalf("no attempt of %s", l)
	}
	return a
}

// fakeSession writes down what the coordinator is told.
type fakeSession world

func (f *fakeSession) say(format string, args ...any) { (*world)(f).say(format, args...) }

func (f *fakeSession) Status(s session.Status) {
	states := map[session.State]string{session.Starting: "STARTING", session.Running: "RUNNING", session.Retrying: "RETRYING", session.Failed: "FAILED", session.Draining: "DRAINING"}
	left := fmt.Sprintf("%d left", s.BudgetLeft)
	if s.Endless {
		left = "no end"
	}
	text := fmt.Sprintf("%s is %s, attempt %d, %s", s.Lease.ID(), states[s.State], s.Attempt, left)
	if s.Phase != "" {
		text += ", " + s.Phase
	}
	if s.Records > 0 || s.Commits > 0 {
		text += fmt.Sprintf(", %d records in %d commits", s.Records, s.Commits)
	}
	if s.RetryIn > 0 {
		text += ", pausing" // For how long is left to chance.
	}
	if s.Error != "" {
		text += fmt.Sprintf(" (%s: %s)", s.Cause, s.Error)
	}
	f.say("%s", text)
}

func (f *fakeSession) Ended(l lease.Lease, clean bool, reason string) {
	f.say("%s ended, epoch %d, clean %v: %s", l.ID(), l.Epoch, clean, reason)
}
func (f *fakeSession) HostFailed(l lease.Lease, reason string) {
	f.say("%s given to another host, epoch %d: %s", l.ID(), l.Epoch, reason)
}
func (f *fakeSession) Draining()                  { f.say("runner says that it drains") }
func (f *fakeSession) DropPlan(p session.PlanRef) { f.say("%s plan %d dropped", p.Connector, p.Epoch) }
func (f *fakeSession) PlanResult(r session.PlanResult) {
	text := fmt.Sprintf("%s plan %d result", r.Plan.Connector, r.Plan.Epoch)
	if r.Error != "" {
		f.say("%s: error %q, failed %v%s", text, r.Error, r.Failed, anotherHost(r.Host))
		return
	}
	var claims []string
	for _, t := range r.Tasks {
		claims = append(claims, fmt.Sprintf("%s", t.Claim.Set))
	}
	f.say("%s: version %d, tasks %v", text, r.Version, claims)
}

func (f *fakeSession) AnswerValidate(_ session.RequestID, problems []source.Problem, host bool, err error) {
	var lines []string
	for _, p := range problems {
		lines = append(lines, fmt.Sprintf("  %s: %s (%s)", p.Key, p.Message, p.Hint))
	}
	slices.Sort(lines)
	f.say("%s", strings.Join(append([]string{fmt.Sprintf("validated: error %v, %d problems%s", err, len(problems), anotherHost(host))}, lines...), "\n"))
}

func anotherHost(host bool) string {
	if host {
		return ", another host is to be asked"
	}
	return ""
}

func (f *fakeSession) AnswerReadOffsets(_ session.RequestID, offsets []source.PartitionOffset, err error) {
	f.say("offsets: error %v, %s", err, offsets)
}

func (f *fakeSession) AnswerWarmUp(_ session.RequestID, err error) {
	(*world)(f).say("warmed up: %v", err)
}

func (f *fakeSession) AnswerAlterOffsets(_ session.RequestID, err error) {
	f.say("altered: error %v", err)
}
