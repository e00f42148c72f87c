package app

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// electing is a coordinator that answers each call by the next step of a script; the last one stays.
type electing struct {
	controlv1.UnimplementedControlServer
	mu    sync.Mutex
	steps []step
	asked int
}

// step is one state of a coordinator: the term that it leads in before and after it answers a request, 0 is none, and the answer.
type step struct {
	before, after uint64
	err           error
	state         string // the connector's; empty is RUNNING
	config        map[string]string
}

// now is the step at hand; a request's answer goes on to the next.
func (e *electing) now() *step { return &e.steps[min(e.asked/2, len(e.steps)-1)] }

func (e *electing) GetCluster(context.Context, *controlv1.GetClusterRequest) (*controlv1.GetClusterResponse, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.now()
	led := s.before
	if e.asked%2 == 1 { // the request of this step was answered
		led = s.after
		e.asked++
	}
	return &controlv1.GetClusterResponse{Leading: led > 0, Term: led}, nil
}

func (e *electing) answer() (*controlv1.Connector, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := e.now()
	e.asked++
	if s.before == 0 || s.err == nil || status.Code(s.err) != codes.Unavailable { // Nobody asks afterwards.
		e.asked++
	}
	return &controlv1.Connector{Name: "a", State: cmp.Or(s.state, "RUNNING"), Config: s.config}, s.err
}

func (e *electing) GetConnector(context.Context, *controlv1.GetConnectorRequest) (*controlv1.GetConnectorResponse, error) {
	c, err := e.answer()
	return &controlv1.GetConnectorResponse{Connector: c}, err
}

func (e *electing) CreateConnector(context.Context, *controlv1.CreateConnectorRequest) (*controlv1.CreateConnectorResponse, error) {
	c, err := e.answer()
	return &controlv1.CreateConnectorResponse{Connector: c}, err
}

func (e *electing) DeleteConnector(context.Context, *controlv1.DeleteConnectorRequest) (*controlv1.DeleteConnectorResponse, error) {
	_, err := e.answer()
	return &controlv1.DeleteConnectorResponse{}, err
}

// hanging is an address where connections are made and nobody speaks, as with a process that is stopped.
func hanging(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener.Addr().String()
}

func TestACoordinatorThatHangsIsPassedOver(t *testing.T) {
	t.Parallel()
	alive := serve(t, &fakeControl{connector: &controlv1.Connector{Name: "a", State: "RUNNING"}})
	code, stdout, stderr := run("get", "a", "--coordinator", hanging(t)+","+alive, "--timeout", "20s")
	if code != exitDone || !strings.Contains(stdout, "RUNNING") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestOnlyHangingCoordinatorsAreSaidToBeUnreachable(t *testing.T) {
	t.Parallel()
	address := hanging(t)
	code, _, stderr := run("get", "--coordinator", address)
	if code != exitUnreachable || !strings.Contains(stderr, address+" doesn't answer") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func unavailable(text string) error { return status.Error(codes.Unavailable, text) }

func TestAnElectionIsWaitedFor(t *testing.T) {
	t.Parallel()
	address := serve(t, &electing{steps: []step{{err: unavailable("nobody leads")}, {err: unavailable("nobody leads")}, {before: 2, after: 2}}})
	code, stdout, stderr := run("get", "a", "--coordinator", address)
	if code != exitDone || !strings.Contains(stdout, "RUNNING") || strings.Count(stderr, "asking again") != 1 {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestTheWaitForAnElectionEndsWithTheTimeout(t *testing.T) {
	t.Parallel()
	began := time.Now()
	code, _, stderr := run("get", "a", "--coordinator", serve(t, &electing{steps: []step{{err: unavailable("nobody leads")}}}), "--timeout", "1s")
	if took := time.Since(began); code != exitUnreachable || !strings.Contains(stderr, "Error: nobody leads") || took > 10*time.Second {
		t.Errorf("exit %d after %v, %q", code, took, stderr)
	}
}

func TestALeadersOwnRefusalIsFinal(t *testing.T) {
	t.Parallel()
	code, _, stderr := run("get", "a", "--coordinator", serve(t, &electing{steps: []step{{before: 1, after: 1, err: unavailable("no runner has the plugin")}, {before: 1, after: 1}}}))
	if code != exitUnreachable || !strings.Contains(stderr, "no runner has the plugin") || strings.Contains(stderr, "asking again") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// TestARepeatedRequestKeepsItsMeaning: a leader that was lost may have stored what it didn't answer, and then the next one's refusal isn't one. A coordinator that doesn't lead stores nothing.
func TestARepeatedRequestKeepsItsMeaning(t *testing.T) {
	file := writeFile(t, "name: a\nconfig: {x: 1}")
	ours, theirs := map[string]string{"x": "1"}, map[string]string{"x": "2"}
	lost, standby := step{before: 1, err: unavailable("lost")}, step{err: unavailable("nobody leads")}
	exists, gone := step{before: 2, after: 2, err: status.Error(codes.AlreadyExists, "exists")}, step{before: 2, after: 2, err: status.Error(codes.NotFound, "there is none")}
	for name, tc := range map[string]struct {
		args  []string
		steps []step
		code  int
	}{
		"created by the lost leader":      {[]string{"create", "-f", file}, []step{lost, exists, {before: 2, after: 2, config: ours}}, exitDone},
		"created by somebody else":        {[]string{"create", "-f", file}, []step{lost, exists, {before: 2, after: 2, config: theirs}}, exitConflict},
		"there before, a standby asked":   {[]string{"create", "-f", file}, []step{standby, exists, {before: 2, after: 2, config: ours}}, exitConflict},
		"deleted by the lost leader":      {[]string{"delete", "a"}, []step{lost, gone}, exitDone},
		"never there, a standby asked":    {[]string{"delete", "a"}, []step{standby, gone}, exitNotFound},
		"lost, and not stored: once more": {[]string{"create", "-f", file}, []step{lost, {before: 2, after: 2}}, exitDone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := run(append(tc.args, "--coordinator", serve(t, &electing{steps: tc.steps}))...)
			if code != tc.code {
				t.Errorf("exit %d, want %d\n%s%s", code, tc.code, stdout, stderr)
			}
		})
	}
}

// TestWaitIsNotContentWithAMoment: RUNNING is believed when it lasts.
func TestWaitIsNotContentWithAMoment(t *testing.T) {
	file, runs := writeFile(t, "name: a\nconfig: {x: 1}"), step{before: 1, after: 1}
	failed, retries := step{before: 1, after: 1, state: "FAILED"}, step{before: 1, after: 1, state: "RETRYING"}
	for name, tc := range map[string]struct {
		steps []step
		code  int
	}{
		"runs on":      {[]step{runs}, exitDone},
		"fails":        {[]step{runs, runs, runs, runs, failed}, exitFailed},
		"runs by fits": {slices.Concat(slices.Repeat([]step{runs, runs, runs, retries}, 5), []step{failed}), exitFailed},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stdout, stderr := run("create", "-f", file, "--wait", "20s", "--coordinator", serve(t, &electing{steps: tc.steps}))
			if code != tc.code {
				t.Errorf("exit %d, want %d\n%s%s", code, tc.code, stdout, stderr)
			}
		})
	}
}

func TestATimeoutIsMoreThanNothing(t *testing.T) {
	for _, timeout := range []string{"0", "0s", "-1s"} {
		if code, _, stderr := run("get", "--timeout", timeout); code != exitUsage || !strings.Contains(stderr, "--timeout") {
			t.Errorf("%s: exit %d, %q", timeout, code, stderr)
		}
	}
}
