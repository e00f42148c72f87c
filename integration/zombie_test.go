package integration

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// zombiesOfARound is how many tasks a runner has that is made to sleep.
const zombiesOfARound = 20

// zombieLease is so long that whoever slept until its tasks were elsewhere wakes up within two leases: after that a runner lets go of a task by itself, and never asks Kafka.
const zombieLease = "6s"

// nap is where the tasks of a runner sleep, and how they are woken.
type nap struct {
	name string
	// fault holds each of the tasks at a point.
	fault string
	// begun: the tasks have not been confirmed yet; their confirmation is refused. The others are refused by Kafka.
	begun bool
	// takesBack: they initialise after they have woken, and so take the ids back from their successors.
	takesBack bool
	// deposed: they are awake all the time, and connected to a leader that has lost the log and doesn't know it.
	deposed bool
}

var naps = []nap{
	{name: "in the middle of transactions", fault: "X0:wait:40:3,X1:wait:40:3,X2:wait:40:3,X3:wait:40:3,X4:wait:40:3,X5:wait:40:3,X6:wait:40:2"},
	{name: "between the check and the initialisation", fault: "S1:wait:1", begun: true, takesBack: true},
	{name: "between the initialisation and the confirmation", fault: "S2:wait:1", begun: true},
	{name: "after the plugin was told", fault: "X7:wait:40"},
	{name: "between the initialisation and the confirmation, with a deposed leader still connected", fault: "S2:wait:1", begun: true, deposed: true},
}

// TestZombie: rounds of tasks that sleep while others take their work, and wake up: in the middle of transactions (X0 to X7), between the check and the initialisation (S1), between the initialisation and the confirmation
// (S2), and there with a deposed leader that is still connected. Not one record of theirs is readable. A zombie counts only if after its successor's first commit Kafka refused its produce or commit; where it had not been confirmed
// yet, if the leader refused its confirmation then. Of each kind at least half of its share must count.
func TestZombie(t *testing.T) {
	t.Parallel()
	// A short session makes a deposed leader believe in itself for some seconds: it gives up only when a write has had no answer for ten.
	broker := harness.LinkedKafkaWith(t, 1, kafka.Options{Properties: map[string]string{"group.min.session.timeout.ms": "1000"}})
	times := []string{"--lease-ttl", zombieLease, "--session-timeout", "3s"}
	bed := harness.New(t, "zombies", broker.Links[0].Addr())
	s := scene.NewWithWays(bed, 1, times...)
	g := &graveyard{t: t, Scene: s, broker: broker, cut: s.Coordinator}
	s.Admin, bed.Bootstrap = broker.Addr, broker.Addr
	s.CoordinateByWay(times...)

	want, counted := tenth(1000), map[string]int{}
	missing := func() bool {
		for _, nap := range naps {
			if counted[nap.name] < want/(2*len(naps)) {
				return true
			}
		}
		return false
	}
	for n := 0; g.count < want || missing(); n++ {
		if n >= 2*(want/zombiesOfARound+len(naps)) {
			t.Fatalf("after %d rounds %d zombies count, want %d: %v", n, g.count, want, counted)
		}
		nap := naps[n%len(naps)]
		before := g.count
		g.round(n, nap)
		counted[nap.name] += g.count - before
		if t.Failed() {
			return
		}
	}
	t.Logf("%d zombies count: %v", g.count, counted)
	s.StopAll()
}

// graveyard has two coordinators; the way of one to the broker can be cut.
type graveyard struct {
	*scene.Scene
	t      *testing.T
	broker *harness.Links
	cut    string
	count  int
}

// round has one runner of zombies and one of successors.
func (g *graveyard) round(n int, nap nap) {
	t := g.t
	began := time.Now()
	if nap.deposed {
		g.lead(g.cut)
	}
	leader, _ := g.Leads()
	dir, name := t.TempDir(), fmt.Sprintf("round-%d", n)
	mark, gate := filepath.Join(dir, "mark"), filepath.Join(dir, "gate")
	label := "role=" + name
	reach := g.Way(leader)
	if nap.deposed {
		reach = leader
	}
	zombie := g.RunnerAt(reach, g.Bootstrap, "zombie-"+name, []string{"FENCEPOST_FAULT=" + nap.fault, "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + gate}, "--label", label, "--log-format", "json")
	w := g.Prepare(name, zombiesOfARound, 50, "placement.labels", label)
	g.Create(w.Name, w.Config)
	awaitLines(t, mark, zombiesOfARound)

	// Nobody but the test and the successors' runner reaches the coordinators; zombies under a deposed leader reach only that one.
	g.SetWays(proxy.Swallow)
	_, deposed := g.Leads()
	if nap.deposed {
		harness.Cut(t, g.broker.Links[0], proxy.Swallow)
		g.AwaitOther(scene.Patience, leader)
		leader, _ = g.Leads()
	} else {
		signalTo(t, zombie, syscall.SIGSTOP)
	}
	wake := func() (woken time.Time) {
		woken = time.Now()
		if err := os.WriteFile(gate, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		signalTo(t, zombie, syscall.SIGCONT)
		return woken
	}
	var woken time.Time
	if nap.deposed {
		woken = wake() // They ask at once, while the deposed leader still believes in itself.
	}
	at := g.Coordinator // all of them: on a busy machine another one may lead by now
	if nap.deposed {
		at = leader
	}
	heir := g.RunnerAt(at, g.Bootstrap, "heir-"+name, nil, "--label", label, "--log-format", "json")
	w.OnEach(scene.Patience, "heir-"+name)
	succeeded := time.Now()
	if !nap.deposed {
		woken = wake()
	}
	switch {
	case !nap.begun:
		g.refusedByKafka(zombie, woken)
	case nap.takesBack:
		g.refusedByKafka(heir, woken) // by its zombie, which has initialised the id
	}
	harness.Cut(t, g.broker.Links[0], proxy.Pass)
	g.SetWays(proxy.Pass)
	g.ended(zombie, woken)
	refused := fencedTasks
	if nap.begun {
		refused = unconfirmedTasks
	}
	counted := len(refused(t, zombie, succeeded))
	w.Flows(time.Now()) // Some tasks may be on the zombies' runner again, under new leases.
	w.Exact()
	g.MustCLI("delete", w.Name)
	for _, p := range []*process.Process{zombie, heir} {
		if err := p.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if nap.deposed && !noticed(t, deposed, woken) {
		t.Logf("round %d: the leader had noticed before the zombies woke that it leads no more", n)
		counted = 0
	}
	g.count += counted
	t.Logf("round %d, %s: %d of %d count, %s", n, nap.name, counted, zombiesOfARound, time.Since(began).Round(time.Millisecond))
}

// noticed says whether a coordinator lost its lead after a moment, and so believed in itself until then.
func noticed(t *testing.T, p *process.Process, since time.Time) bool {
	t.Helper()
	last := time.Time{}
	for line := range strings.Lines(p.Tail(1000)) {
		stamp, text, _ := strings.Cut(line, " ")
		if at, err := time.Parse(time.RFC3339, stamp); err == nil && strings.Contains(text, "the leadership is lost") {
			last = at
		}
	}
	return last.After(since)
}

// lead sees to it that this coordinator leads.
func (g *graveyard) lead(address string) {
	for {
		leader, p := g.Leads()
		if leader == address {
			return
		}
		signalTo(g.t, p, syscall.SIGTERM)
		awaitEnd(g.t, p)
		g.AwaitOther(scene.Patience, leader)
		g.Revive(leader)
	}
}

// refusedByKafka waits until every task of a runner was refused by Kafka. One whose process noticed something else first is left out.
func (g *graveyard) refusedByKafka(p *process.Process, since time.Time) {
	g.t.Helper()
	err := harness.Poll(g.t.Context(), 10*time.Second, func(context.Context) error {
		if n := len(fencedTasks(g.t, p, since)); n < zombiesOfARound {
			return fmt.Errorf("%d are", n)
		}
		return nil
	})
	if err != nil {
		g.t.Logf("%s: of %d tasks %v refused by Kafka", p.Name, zombiesOfARound, err)
	}
}

// ended waits until the zombie's runner has given up all tasks.
func (g *graveyard) ended(zombie *process.Process, since time.Time) {
	g.t.Helper()
	harness.Wait(g.t, scene.Patience, "every zombie has ended", func(context.Context) error {
		over := tasksThatSay(g.t, zombie, since, func(line map[string]any) bool { return line["@message"] == "task ended" })
		if len(over) < zombiesOfARound {
			return fmt.Errorf("%d have", len(over))
		}
		return nil
	})
}

// fencedTasks are the tasks of a runner whose produce or commit Kafka refused: the client library logs it, whatever becomes of the task after that.
func fencedTasks(t *testing.T, p *process.Process, since time.Time) map[float64]bool {
	t.Helper()
	return tasksThatSay(t, p, since, func(line map[string]any) bool {
		text, _ := line["text"].(string)
		return line["@message"] == "librdkafka" && line["tag"] == "FATAL" && strings.Contains(text, "fenced")
	})
}

// unconfirmedTasks are the tasks of a runner whose confirmation the leader refused.
func unconfirmedTasks(t *testing.T, p *process.Process, since time.Time) map[float64]bool {
	t.Helper()
	return tasksThatSay(t, p, since, func(line map[string]any) bool { return line["@message"] == "confirmation_refused" })
}

// tasksThatSay are the tasks of a runner with such a line in its log, written since a moment.
func tasksThatSay(t *testing.T, p *process.Process, since time.Time, what func(line map[string]any) bool) map[float64]bool {
	t.Helper()
	tasks := map[float64]bool{}
	for _, line := range jsonLog(t, p, since) {
		if task, ok := line["task"].(float64); ok && what(line) {
			tasks[task] = true
		}
	}
	return tasks
}

// jsonLog has the lines of a log in JSON that were written since a moment.
func jsonLog(t *testing.T, p *process.Process, since time.Time) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(p.Log)
	if err != nil {
		t.Fatal(err)
	}
	var lines []map[string]any
	scan := bufio.NewScanner(bytes.NewReader(text))
	scan.Buffer(nil, 1<<20)
	for scan.Scan() {
		var line map[string]any
		if json.Unmarshal(scan.Bytes(), &line) != nil {
			continue // being written
		}
		stamp, _ := line["@timestamp"].(string)
		if at, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", stamp); err == nil && !at.Before(since) {
			lines = append(lines, line)
		}
	}
	return lines
}

// TestZombieThatHangsWhileItsConnectorEnds: stop and delete answer only when the old tasks can't write any more, also those of a runner that hangs in the middle of its transactions. When it goes on, nothing more becomes
// readable.
func TestZombieThatHangsWhileItsConnectorEnds(t *testing.T) {
	for _, command := range []string{"stop", "delete"} {
		t.Run(command, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "hangs-"+command, 1, "--lease-ttl", shortLease)
			dir := t.TempDir()
			mark, gate := filepath.Join(dir, "mark"), filepath.Join(dir, "gate")
			hangs := s.Runner("a", []string{"FENCEPOST_FAULT=X2:wait:8:2,X4:wait:8:2", "FENCEPOST_FAULT_MARK=" + mark, "FENCEPOST_FAULT_GATE=" + gate}, "--log-format", "json")
			w := s.Prepare("numbers", 4, 50)
			s.Create(w.Name, w.Config)
			awaitLines(t, mark, 4)
			offsets := w.State().GetOffsetsTopic()
			signalTo(t, hangs, syscall.SIGSTOP)
			s.MustCLI(command, w.Name)
			s.NoTransactionOpen()
			readable, woken := readableOf(t, s.Admin, w.Config["topic"]), time.Now()
			if err := os.WriteFile(gate, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			signalTo(t, hangs, syscall.SIGCONT)
			harness.Wait(t, scene.Patience, "every task of the runner that hung has ended", func(context.Context) error {
				over := 0
				for _, line := range jsonLog(t, hangs, woken) {
					if line["@message"] == "task ended" {
						over++
					}
				}
				if over < 4 {
					return fmt.Errorf("%d have", over)
				}
				return nil
			})
			if now := readableOf(t, s.Admin, w.Config["topic"]); now != readable {
				t.Errorf("%d records were readable when %s had answered, and %d after the runner went on", readable, command, now)
			}
			w.Judge(offsets)
			if command == "stop" {
				if c := w.State(); c.GetTarget() != controlv1.TargetState_TARGET_STATE_STOPPED {
					t.Errorf("the target is %v", c.GetTarget())
				}
			}
			s.StopAll()
		})
	}
}
