package app

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// clusterControl is a coordinator that says one thing of the cluster.
type clusterControl struct {
	controlv1.UnimplementedControlServer
	says *controlv1.GetClusterResponse
	err  error // of raising the level
}

func (c *clusterControl) GetCluster(context.Context, *controlv1.GetClusterRequest) (*controlv1.GetClusterResponse, error) {
	return c.says, nil
}

func (c *clusterControl) SetClusterLevel(_ context.Context, req *controlv1.SetClusterLevelRequest) (*controlv1.SetClusterLevelResponse, error) {
	return &controlv1.SetClusterLevelResponse{Level: req.GetLevel(), Changed: true}, c.err
}

func led() *controlv1.GetClusterResponse {
	return &controlv1.GetClusterResponse{
		Cluster: "c", Leading: true, Leader: "a:1", Term: 7, Level: 1, LevelMin: 1, LevelMax: 2,
		Coordinators: []*controlv1.Coordinator{{Address: "a:1", Leading: true, Version: "2", LevelMin: 1, LevelMax: 2}, {Address: "b:1", Version: "1", LevelMin: 1, LevelMax: 1}, {Host: "10.0.0.9"}},
		Runners:      []*controlv1.RunnerLevels{{Name: "r", Version: "1", LevelMin: 1, LevelMax: 1}},
		Levels:       []*controlv1.Level{{Level: 1, Brings: "the first"}, {Level: 2, Brings: "more"}},
	}
}

func TestTheClusterIsShown(t *testing.T) {
	address := serve(t, &clusterControl{says: led()})
	code, stdout, stderr := run("cluster", "--coordinator", address)
	for _, want := range []string{"a:1", "leads", "b:1", "waits", "1 to 2", "Term:", "7", "unknown", "10.0.0.9"} {
		if code != exitDone || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, %q is missing:\n%s%s", code, want, stdout, stderr)
		}
	}
	code, stdout, _ = run("cluster", "level", "--coordinator", address)
	for _, want := range []string{"Level:", "2: more", "coordinator b:1", "runner r", "1 to 1"} {
		if code != exitDone || !strings.Contains(stdout, want) {
			t.Errorf("exit %d, %q is missing:\n%s", code, want, stdout)
		}
	}
	if code, stdout, _ = run("cluster", "-o", "json", "--coordinator", address); code != exitDone || !strings.Contains(stdout, `"level_max": 2`) {
		t.Errorf("exit %d\n%s", code, stdout)
	}
}

// TestAnOutageIsShownByWhoeverAnswers: nobody leads, and no election is waited for.
func TestAnOutageIsShownByWhoeverAnswers(t *testing.T) {
	waiting := serve(t, &clusterControl{says: &controlv1.GetClusterResponse{Cluster: "c", Term: 7, Level: 1, Trouble: "this coordinator can't reach Kafka"}})
	code, stdout, stderr := run("cluster", "--coordinator", "127.0.0.1:1,"+waiting)
	if code != exitDone || !strings.Contains(stdout, "can't reach Kafka") || !strings.Contains(stdout, "nobody leads") || strings.Contains(stderr, "asking again") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	// One that waits names the leader, which knows more.
	leader := serve(t, &clusterControl{says: led()})
	waiting = serve(t, &clusterControl{says: &controlv1.GetClusterResponse{Cluster: "c", Leader: leader}})
	if code, stdout, _ = run("cluster", "--coordinator", waiting); code != exitDone || !strings.Contains(stdout, "b:1") {
		t.Errorf("exit %d\n%s", code, stdout)
	}
	if code, _, stderr = run("cluster", "--coordinator", "127.0.0.1:1"); code != exitUnreachable {
		t.Errorf("exit %d, %s", code, stderr)
	}
}

func TestALevelIsRaisedOrRefused(t *testing.T) {
	address := serve(t, &clusterControl{says: led()})
	if code, stdout, stderr := run("cluster", "level", "2", "--coordinator", address); code != exitDone || !strings.Contains(stdout, "works at level 2") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
	for _, text := range []string{"0", "x", "-1", "1.5"} {
		if code, _, stderr := run("cluster", "level", "--coordinator", address, "--", text); code != exitUsage || !strings.Contains(stderr, "is not a level") {
			t.Errorf("%s: exit %d, %s", text, code, stderr)
		}
	}
	address = serve(t, &clusterControl{says: led(), err: status.Error(codes.FailedPrecondition, `the cluster stays at level 1: runner "r"`)})
	if code, _, stderr := run("cluster", "level", "2", "--coordinator", address); code != exitConflict || !strings.Contains(stderr, `runner "r"`) {
		t.Errorf("exit %d, %s", code, stderr)
	}
}
