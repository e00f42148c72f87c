package control

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"maps"
	"time"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// incarnation is random: it tells one life of a name from every other.
func incarnation() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // Never fails.
	return hex.EncodeToString(b[:])
}

// find shows one connector; NOT_FOUND where there is none.
func (s *Server) find(ctx context.Context, name string) (*state.ConnectorView, error) {
	view, err := s.lookUp(ctx, name)
	if err == nil && view == nil {
		return nil, noConnector(name)
	}
	return view, err
}

// lookUp shows one connector; nil where there is none.
func (s *Server) lookUp(ctx context.Context, name string) (*state.ConnectorView, error) {
	var found *state.ConnectorView
	err := s.view(ctx, func(st *state.State) {
		if view, ok := st.Connector(name); ok {
			found = &view
		}
	})
	return found, err
}

// GetConnector shows one connector with its tasks.
func (s *Server) GetConnector(ctx context.Context, req *controlv1.GetConnectorRequest) (*controlv1.GetConnectorResponse, error) {
	view, err := s.find(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	return &controlv1.GetConnectorResponse{Connector: connectorOf(view)}, nil
}

// CreateConnector stores a new connector.
func (s *Server) CreateConnector(ctx context.Context, req *controlv1.CreateConnectorRequest) (*controlv1.CreateConnectorResponse, error) {
	target, known := targetOf(req.GetTarget())
	if !known {
		return nil, unknownTarget(req.GetTarget())
	}
	existing, err := s.lookUp(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if existing != nil { // Said at once, before a plugin is asked; the core decides.
		return nil, nameTaken(req.GetName())
	}
	warnings, err := s.valid(ctx, req.GetName(), req.GetConfig())
	if err != nil {
		return nil, err
	}
	result, err := s.do(ctx, state.Create{Name: req.GetName(), Incarnation: incarnation(), Config: req.GetConfig(), Target: target})
	if err != nil {
		return nil, err
	}
	return &controlv1.CreateConnectorResponse{Connector: connectorOf(result.Connector), Warnings: warnings}, nil
}

// ApplyConnector creates a connector or changes its configuration.
func (s *Server) ApplyConnector(ctx context.Context, req *controlv1.ApplyConnectorRequest) (*controlv1.ApplyConnectorResponse, error) {
	existing, err := s.lookUp(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	resp := &controlv1.ApplyConnectorResponse{}
	if existing == nil || !maps.Equal(existing.Config, req.GetConfig()) {
		if resp.Warnings, err = s.valid(ctx, req.GetName(), req.GetConfig()); err != nil {
			return nil, err
		}
	}
	result, err := s.do(ctx, state.Apply{Name: req.GetName(), Incarnation: incarnation(), Config: req.GetConfig()})
	if err != nil {
		return nil, err
	}
	resp.Connector, resp.Outcome = connectorOf(result.Connector), outcomeOf(result.Change)
	return resp, nil
}

// DeleteConnector deletes a connector and answers when none of its tasks can write any more.
func (s *Server) DeleteConnector(ctx context.Context, req *controlv1.DeleteConnectorRequest) (*controlv1.DeleteConnectorResponse, error) {
	if _, err := s.do(ctx, state.Delete{Name: req.GetName()}); err != nil {
		return nil, err
	}
	return &controlv1.DeleteConnectorResponse{}, nil
}

// PauseConnector makes its tasks drain and wait.
func (s *Server) PauseConnector(ctx context.Context, req *controlv1.PauseConnectorRequest) (*controlv1.PauseConnectorResponse, error) {
	result, err := s.do(ctx, state.Pause{Name: req.GetName()})
	if err != nil {
		return nil, err
	}
	return &controlv1.PauseConnectorResponse{Connector: connectorOf(result.Connector)}, nil
}

// ResumeConnector lets a paused or stopped connector run again.
func (s *Server) ResumeConnector(ctx context.Context, req *controlv1.ResumeConnectorRequest) (*controlv1.ResumeConnectorResponse, error) {
	result, err := s.do(ctx, state.Resume{Name: req.GetName()})
	if err != nil {
		return nil, err
	}
	return &controlv1.ResumeConnectorResponse{Connector: connectorOf(result.Connector)}, nil
}

// StopConnector ends its tasks and answers when none can write any more.
func (s *Server) StopConnector(ctx context.Context, req *controlv1.StopConnectorRequest) (*controlv1.StopConnectorResponse, error) {
	result, err := s.do(ctx, state.Stop{Name: req.GetName()})
	if err != nil {
		return nil, err
	}
	return &controlv1.StopConnectorResponse{Connector: connectorOf(result.Connector)}, nil
}

// RestartConnector restarts tasks.
func (s *Server) RestartConnector(ctx context.Context, req *controlv1.RestartConnectorRequest) (*controlv1.RestartConnectorResponse, error) {
	result, err := s.do(ctx, state.Restart{Name: req.GetName(), Task: req.Task, OnlyFailed: req.GetOnlyFailed()})
	if err != nil {
		return nil, err
	}
	return &controlv1.RestartConnectorResponse{Restarted: uint32(result.Restarted), Connector: connectorOf(result.Connector)}, nil
}

// GetOffsets shows the stored offsets, which a runner reads: the coordinator never sees a record.
func (s *Server) GetOffsets(ctx context.Context, req *controlv1.GetOffsetsRequest) (*controlv1.GetOffsetsResponse, error) {
	view, err := s.find(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	session, err := s.runnerFor(ctx, view.Config)
	if err != nil {
		return nil, err
	}
	message, err := s.ask(ctx, session, func(id uint64) *runnerv1.SessionResponse {
		return &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ReadOffsets{ReadOffsets: &runnerv1.ReadOffsets{
			RequestId: id, Connector: view.Name, Config: view.Config, OffsetsTopic: view.OffsetsTopic,
		}}}
	})
	if err != nil {
		return nil, err
	}
	answer := message.GetReadOffsetsAnswer()
	if answer == nil {
		return nil, wrongAnswer(message)
	}
	if answer.GetError() != "" {
		return nil, notRead(view.Name, answer.GetError())
	}
	return &controlv1.GetOffsetsResponse{Offsets: answer.GetOffsets()}, nil
}

// runnerFor finds the session of a runner that has the plugin of a configuration.
func (s *Server) runnerFor(ctx context.Context, config map[string]string) (state.SessionID, error) {
	if err := s.awaitRunners(ctx); err != nil {
		return 0, err
	}
	var session state.SessionID
	var refused *state.Error
	err := s.view(ctx, func(st *state.State) { _, session, refused = st.Choose(config) })
	if err == nil && refused != nil {
		err = noRunner(refused.Text)
	}
	return session, err
}

// awaitRunners gives runners a moment to come to a leader that has just taken over: whoever followed it here as fast as they do isn't to hear that there is no runner.
func (s *Server) awaitRunners(ctx context.Context) error {
	for until := time.Now().Add(rejoinWait); ; {
		awaited := false
		if err := s.view(ctx, func(st *state.State) { awaited = st.Awaited() }); err != nil || !awaited || time.Now().After(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return s.fault(ctx.Err())
		case <-time.After(rejoinPoll):
		}
	}
}

// ask asks a runner, within its time.
func (s *Server) ask(ctx context.Context, session state.SessionID, question func(uint64) *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
	l, err := s.leader()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	message, err := l.Runners.Ask(ctx, session, question)
	return message, s.fault(err)
}
