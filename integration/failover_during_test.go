package integration

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/proxy"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// brokerDelay makes each step of a leader long enough to be hit.
const brokerDelay = 60 * time.Millisecond

// during is a command, and when the leader is killed in it.
type during struct {
	name    string
	command func(w *scene.Watched) []string
	// struck says whether the command has come to where the leader is killed; nil is right after it began.
	struck func(*controlv1.Connector) bool
	// done says whether a connector is as the command wants it; nil is a deletion.
	done func(*controlv1.Connector) bool
}

func inState(states ...string) func(*controlv1.Connector) bool {
	return func(c *controlv1.Connector) bool {
		for _, state := range states {
			if c.GetState() == state {
				return true
			}
		}
		return false
	}
}

// TestFailoverOfTheCoordinatorDuring a command: it is answered, or fails in a way that may be tried again, and then works. Whatever was begun ends well, and every record is there once.
func TestFailoverOfTheCoordinatorDuring(t *testing.T) {
	change := func(w *scene.Watched) []string {
		w.Config["size"] = "150"
		return []string{"apply", "-f", w.File()}
	}
	named := func(command string) func(*scene.Watched) []string {
		return func(w *scene.Watched) []string { return []string{command, w.Name} }
	}
	cases := []during{
		{"create", func(w *scene.Watched) []string { return []string{"apply", "-f", w.File()} }, nil, inState("RUNNING")},
		{"reconfiguration", change, func(c *controlv1.Connector) bool { return c.GetConfig()["size"] == "150" }, inState("RUNNING")},
		{"fencing-round", change, inState("FENCING"), inState("RUNNING")},
		{"stop", named("stop"), func(c *controlv1.Connector) bool { return c.GetTarget() == controlv1.TargetState_TARGET_STATE_STOPPED }, inState("STOPPED")},
		{"delete", named("delete"), inState("DELETING"), nil},
	}
	broker := harness.LinkedKafka(t, len(cases))
	for i, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			duringCommand(t, broker, i, tc)
		})
	}
}

func duringCommand(t *testing.T, broker *harness.Links, i int, tc during) {
	link := broker.Links[i]
	bed := harness.New(t, "during-"+tc.name, link.Addr())
	s := scene.New(bed, 1)
	// The first coordinator leads, and has a way to the broker that can be made slow.
	s.Admin, bed.Bootstrap = broker.Addr, broker.Addr
	s.Coordinate()
	s.Runner("a", nil)
	s.Runner("b", nil)
	w := s.Prepare("numbers", 4, 50)
	if tc.name != "create" {
		s.Create(w.Name, w.Config)
		w.Flows(time.Now())
	}
	leader, p := s.Leads()
	at := s.At(leader)
	link.SetDelay(brokerDelay)
	harness.Cut(t, link, proxy.Delay)
	args := tc.command(w)
	result := make(chan harness.Result, 1)
	go func() { result <- s.CLI(args...) }()
	if tc.struck != nil {
		harness.Wait(t, scene.Patience, "the command is under way", func(ctx context.Context) error {
			got, err := at.GetConnector(ctx, &controlv1.GetConnectorRequest{Name: w.Name})
			if err == nil && !tc.struck(got.GetConnector()) {
				err = fmt.Errorf("it is %s", got.GetConnector().GetState())
			}
			return err
		})
	}
	p.Kill()
	r := <-result
	t.Logf("%s: exit code %d %s", tc.name, r.Code, r.Stderr)
	if r.Code != 0 && r.Code != 5 {
		t.Errorf("it was neither answered nor said to be worth another try: exit code %d\n%s", r.Code, r.Stderr)
	}
	s.AwaitOther(scene.Patience, leader)
	if tc.done == nil {
		// A command that was lost is given again; one that was stored goes on by itself.
		harness.Wait(t, scene.Patience, "it is deleted", func(context.Context) error {
			if r := s.CLI(args...); r.Code != 0 && r.Code != 3 {
				return fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
			}
			return nil
		})
		bed.NothingRuns()
		w.Judge(s.Cluster + ".offsets." + w.Name)
		s.Create(w.Name, w.Config) // and can be created again, and goes on where it was
		w.Flows(time.Now())
		w.Exact()
		s.StopAll()
		return
	}
	if r.Code != 0 {
		s.MustCLI(args...)
	}
	harness.Wait(t, scene.Patience, "what was asked is so", func(ctx context.Context) error {
		c, err := s.Connector(ctx, w.Name)
		if err == nil && !tc.done(c) {
			err = fmt.Errorf("it is %s: %s", c.GetState(), c.GetMessage())
		}
		return err
	})
	if tc.name == "stop" {
		bed.NothingRuns()
		bed.NoTransactionOpen()
	} else {
		w.Flows(time.Now())
		if got := w.State().GetConfig()["size"]; got != w.Config["size"] {
			t.Errorf("the configuration has size %q, want %q", got, w.Config["size"])
		}
	}
	w.Exact()
	s.StopAll()
}
