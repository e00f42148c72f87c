package host

import (
	"context"
	"errors"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

type planStream = grpc.BidiStreamingServer[pluginv1.PlanRequest, pluginv1.PlanResponse]

// planner is the PlanHost of a test.
type planner struct {
	setTasks func([]source.TaskSpec) error
}

func (p *planner) SetTasks(_ context.Context, tasks []source.TaskSpec) error {
	return p.setTasks(tasks)
}

func (p *planner) Lookup(context.Context, []source.JSON) ([]source.PartitionOffset, error) {
	return nil, errors.New("not here")
}

func tasks(version uint64, n int) *pluginv1.PlanResponse {
	set := &pluginv1.TaskSet{Version: version}
	for range n {
		set.Tasks = append(set.Tasks, &pluginv1.Task{Config: map[string][]byte{"a": []byte("b")}, Claim: &pluginv1.Claim{Rule: &pluginv1.Claim_Prefix{}}})
	}
	return &pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_TaskSet{TaskSet: set}}
}

func TestPlanHandsOnTaskSetsAndRefusalsUntilStopped(t *testing.T) {
	c := start(t, &script{plan: func(stream planStream) error {
		open, err := stream.Recv()
		if err != nil || open.GetOpen().GetTasksMax() != 4 {
			return status.Errorf(codes.Internal, "first: %v %v", open, err)
		}
		_ = stream.Send(tasks(1, 2))
		refused, err := stream.Recv()
		if err != nil || refused.GetRefused().GetVersion() != 1 || refused.GetRefused().GetReason() != "claims overlap" {
			return status.Errorf(codes.Internal, "second: %v %v", refused, err)
		}
		_ = stream.Send(tasks(2, 1))
		stop, err := stream.Recv()
		if err != nil || stop.GetStop() == nil {
			return status.Errorf(codes.Internal, "third: %v %v", stop, err)
		}
		return nil
	}})
	ctx, cancel := context.WithCancel(t.Context())
	var seen []int
	host := &planner{setTasks: func(tasks []source.TaskSpec) error {
		seen = append(seen, len(tasks))
		if tasks[0].Claim.Prefix == nil {
			t.Error("an empty prefix became no claim")
		}
		if len(tasks) == 2 {
			return errors.New("claims overlap")
		}
		cancel()
		return nil
	}}
	if err := c.Plan(ctx, &source.PlanOpen{TasksMax: 4}, host); err != nil {
		t.Fatal(err)
	}
	if len(seen) != 2 || seen[0] != 2 || seen[1] != 1 {
		t.Fatalf("task sets %v", seen)
	}
}

func TestPlanBreaksNoRuleInSilence(t *testing.T) {
	large := tasks(1, 1)
	large.GetTaskSet().GetTasks()[0].Config["x"] = make([]byte, 1<<20)
	cases := map[string]struct {
		plan func(planStream) error
		kind source.ErrorKind
		want string
	}{
		"no task set": {func(s planStream) error { <-s.Context().Done(); return nil }, source.Retriable, "no task set within"},
		"version": {func(s planStream) error {
			_ = s.Send(tasks(2, 1))
			_ = s.Send(tasks(2, 1))
			<-s.Context().Done()
			return nil
		}, source.Fatal, "version 2 after version 2"},
		"task configuration": {func(s planStream) error { _ = s.Send(large); <-s.Context().Done(); return nil }, source.Fatal, "1 MiB"},
		"unknown":            {func(s planStream) error { _ = s.Send(&pluginv1.PlanResponse{}); <-s.Context().Done(); return nil }, source.Fatal, "none of the messages"},
		"ended":              {func(planStream) error { return nil }, source.Retriable, "without having been asked"},
		"error": {func(s planStream) error {
			return s.Send(&pluginv1.PlanResponse{Message: &pluginv1.PlanResponse_Error{Error: &pluginv1.Error{Message: "boom"}}})
		}, source.Fatal, "boom"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			c := start(t, &script{plan: tc.plan})
			err := c.Plan(t.Context(), &source.PlanOpen{TasksMax: 1}, &planner{setTasks: func([]source.TaskSpec) error { return nil }})
			wantError(t, err, tc.kind, tc.want)
		})
	}
}

func TestPlanThatIgnoresStopIsCutOff(t *testing.T) {
	c := start(t, &script{plan: func(s planStream) error { <-s.Context().Done(); return nil }})
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := c.Plan(ctx, &source.PlanOpen{TasksMax: 1}, &planner{}); err != nil {
		t.Fatal(err)
	}
}
