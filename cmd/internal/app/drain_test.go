package app

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// draining is a leader whose one runner stands as the script says each time it is asked for; the last state stays.
type draining struct {
	controlv1.UnimplementedControlServer
	mu     sync.Mutex
	states []*controlv1.Runner
	undone bool
}

func (d *draining) next() *controlv1.Runner {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := d.states[0]
	if len(d.states) > 1 {
		d.states = d.states[1:]
	}
	return now
}

func (d *draining) GetCluster(context.Context, *controlv1.GetClusterRequest) (*controlv1.GetClusterResponse, error) {
	return &controlv1.GetClusterResponse{Leading: true, Term: 1}, nil
}

func (d *draining) DrainRunner(_ context.Context, req *controlv1.DrainRunnerRequest) (*controlv1.DrainRunnerResponse, error) {
	if req.GetName() != "r" {
		return nil, status.Error(codes.NotFound, `there is no runner "`+req.GetName()+`"`)
	}
	d.undone = req.GetUndo()
	return &controlv1.DrainRunnerResponse{Runner: d.next()}, nil
}

func (d *draining) ListRunners(context.Context, *controlv1.ListRunnersRequest) (*controlv1.ListRunnersResponse, error) {
	if r := d.next(); r != nil {
		return &controlv1.ListRunnersResponse{Runners: []*controlv1.Runner{r}}, nil
	}
	return &controlv1.ListRunnersResponse{}, nil
}

func left(tasks int, stuck ...*controlv1.StuckTask) *controlv1.Runner {
	r := &controlv1.Runner{Name: "r", State: "DRAINING", Stuck: stuck}
	for i := range tasks {
		r.Tasks = append(r.Tasks, &controlv1.HeldTask{Connector: "c", Task: uint32(i)})
	}
	return r
}

func TestADrainWaitsUntilTheRunnerIsDrained(t *testing.T) {
	stays := &controlv1.StuckTask{Connector: "c", Task: 1, Reason: "no other runner has zone=x"}
	for name, test := range map[string]struct {
		states []*controlv1.Runner
		args   []string
		code   int
		stdout string
		stderr []string
	}{
		"until it is":       {[]*controlv1.Runner{left(2), left(1), {Name: "r", State: "DRAINED"}}, nil, exitDone, "r  drained\n", []string{"r: 2 tasks left", "r: 1 task left", "r: drained"}},
		"until it has gone": {[]*controlv1.Runner{left(2), nil}, nil, exitDone, "r  drained\n", nil},
		"a lost one's tasks move by themselves": {[]*controlv1.Runner{left(2), {Name: "r", State: "LOST", Tasks: left(2).GetTasks()}, {Name: "r", State: "DRAINED"}}, nil, exitDone, "r  drained\n",
			[]string{"r: lost, with 2 tasks"}},
		"not at all":                       {[]*controlv1.Runner{left(2)}, []string{"--wait=false"}, exitDone, "r  2 tasks left\n", nil},
		"no longer than the time given":    {[]*controlv1.Runner{left(2)}, []string{"--timeout", "500ms"}, exitUnreachable, "r  2 tasks left\n", []string{"not drained within 500ms: 2 tasks left"}},
		"while other tasks can move":       {[]*controlv1.Runner{left(2, stays), left(1)}, []string{"--timeout", "1s"}, exitUnreachable, "r  1 task left\n", []string{"r: 2 tasks left; 1 fits on no other runner: c/1: no other runner has zone=x"}},
		"for nothing that can't be":        {[]*controlv1.Runner{left(1, stays)}, nil, exitConflict, "", []string{"1 fits on no other runner: c/1: no other runner has zone=x", "--undo"}},
		"until somebody else has ended it": {[]*controlv1.Runner{left(1), {Name: "r", State: "CONNECTED"}}, nil, exitConflict, "", []string{"isn't being drained any more"}},
		"for no end of it":                 {[]*controlv1.Runner{{Name: "r", State: "CONNECTED"}}, []string{"--undo"}, exitDone, "r  connected, with 0 tasks\n", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			address := serve(t, &draining{states: test.states})
			code, stdout, stderr := run(append([]string{"runners", "drain", "r", "--coordinator", address}, test.args...)...)
			if code != test.code || test.stdout != "" && stdout != test.stdout {
				t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
			}
			for _, text := range test.stderr {
				if !strings.Contains(stderr, text) {
					t.Errorf("no %q in\n%s", text, stderr)
				}
			}
		})
	}
}

func TestADrainIsJSONToo(t *testing.T) {
	address := serve(t, &draining{states: []*controlv1.Runner{left(1), {Name: "r", State: "DRAINED"}}})
	code, stdout, stderr := run("runners", "drain", "r", "--coordinator", address, "-o", "json")
	var runner struct{ Name, State string }
	if err := json.Unmarshal([]byte(stdout), &runner); code != exitDone || err != nil || runner.Name != "r" || runner.State != "DRAINED" {
		t.Errorf("%d %v\n%s%s", code, err, stdout, stderr)
	}
	if code, _, stderr := run("runners", "drain", "s", "--coordinator", address); code != exitNotFound || !strings.Contains(stderr, `there is no runner "s"`) {
		t.Errorf("%d\n%s", code, stderr)
	}
	if code, _, _ := run("runners", "drain", "--coordinator", address); code != exitUsage {
		t.Errorf("without a name: %d", code)
	}
}
