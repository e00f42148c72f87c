package control

import (
	"context"
	"fmt"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// GetCluster says who leads, in which term and at which level. It is the one call that any coordinator answers.
func (s *Server) GetCluster(ctx context.Context, _ *controlv1.GetClusterRequest) (*controlv1.GetClusterResponse, error) {
	self, standing := s.config.Self, s.config.Standing()
	resp := &controlv1.GetClusterResponse{
		Cluster: s.config.Cluster, Version: self.Version, Leader: s.config.Leader(), Trouble: s.config.Absent(), Term: standing.Term, Level: standing.Level, LevelMin: self.LevelMin, LevelMax: self.LevelMax,
	}
	if l := s.leading.Load(); l != nil {
		err := l.Core.View(ctx, func(st *state.State) {
			cluster := st.Cluster()
			resp.Term, resp.Level, resp.Runners = cluster.Term, cluster.Level, runnerLevelsOf(st.RunnerLevels())
		})
		if err != nil {
			return nil, s.fault(err)
		}
		resp.Leading, resp.Leader, standing.LeaderID = true, self.Address, self.ID
	}
	for _, c := range standing.Coordinators {
		resp.Coordinators = append(resp.Coordinators, &controlv1.Coordinator{
			Address: c.Address, Host: c.Host, Version: c.Version, LevelMin: c.LevelMin, LevelMax: c.LevelMax, Leading: c.ID != "" && c.ID == standing.LeaderID,
		})
	}
	for _, level := range state.Levels(max(resp.GetLevel(), 1), self.LevelMax) {
		resp.Levels = append(resp.Levels, &controlv1.Level{Level: level.Number, Brings: level.Brings})
	}
	return resp, nil
}

func runnerLevelsOf(all []state.RunnerLevels) []*controlv1.RunnerLevels {
	var levels []*controlv1.RunnerLevels
	for _, r := range all {
		levels = append(levels, &controlv1.RunnerLevels{Name: r.Name, Version: r.Version, LevelMin: r.LevelMin, LevelMax: r.LevelMax})
	}
	return levels
}

// SetClusterLevel raises the cluster's level. Kafka is asked who is there: a list from memory could lack the one coordinator that can't.
func (s *Server) SetClusterLevel(ctx context.Context, req *controlv1.SetClusterLevelRequest) (*controlv1.SetClusterLevelResponse, error) {
	l, err := s.leader()
	if err != nil {
		return nil, err
	}
	if req.GetLevel() == 0 {
		return nil, noLevel()
	}
	coordinators, err := l.Roster.Coordinators(ctx)
	if err != nil {
		return nil, rosterUnknown(fmt.Errorf("which coordinators there are isn't known: %w", err))
	}
	result, err := s.do(ctx, state.RaiseLevel{Level: req.GetLevel(), Coordinators: coordinators})
	if err != nil {
		return nil, err
	}
	return &controlv1.SetClusterLevelResponse{Level: req.GetLevel(), Changed: result.Change == state.Changed}, nil
}
