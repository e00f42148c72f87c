// Package control serves users: the Control service of control/v1.
//
// It checks what is asked, lets a runner that has the plugin check what only the plugin can know, hands operations to the loop that leads and shows what the loop's State has. All mistakes of a request come back at once, each with its
// key. Where this coordinator doesn't lead, every call but GetCluster is answered by UNAVAILABLE and the leader's address.
//
// It decides nothing, stores nothing and never loads a plugin. Secrets stay references: it resolves none (I9). gRPC codes are set in codes.go and nowhere else.
//
// Read next: connectors.go, then validate.go.
package control

import (
	"context"
	"sync/atomic"
	"time"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// askTimeout is how long a runner may take to answer: it starts a plugin, which may have 30 s for its own answer.
	askTimeout = 35 * time.Second
	// rejoinWait is how long runners that are about to come to a new leader are waited for.
	rejoinWait, rejoinPoll = 3 * time.Second, 50 * time.Millisecond
	// probeTimeout is how long rights are asked for. Where that isn't enough, fencing will tell.
	probeTimeout = 3 * time.Second
	// maxWait is how long an operation is waited for where the caller sets no deadline.
	maxWait = 2 * time.Minute
)

// Core is the loop that leads.
type Core interface {
	Do(ctx context.Context, op state.Op) (state.Result, error)
	View(ctx context.Context, look func(*state.State)) error
}

// Runners asks connected runners.
type Runners interface {
	Ask(ctx context.Context, id state.SessionID, question func(requestID uint64) *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error)
}

// Rights asks the broker whether a transactional id may be used, without side effects. The error is a *fence.Refused where it may not.
type Rights interface {
	Probe(ctx context.Context, id string) error
}

// Leader is what a leading coordinator answers from.
type Leader struct {
	Core    Core
	Runners Runners
	Rights  Rights
	Roster  Roster
	// Transactions asks the brokers about transactions.
	Transactions Transactions
}

// Roster asks which coordinators take part in the election now.
type Roster interface {
	Coordinators(ctx context.Context) ([]state.Coordinator, error)
}

// Standing is what a coordinator knows of the cluster whether it leads or not.
type Standing struct {
	// Coordinators take part in the election, and LeaderID is the process of them that leads.
	Coordinators []state.Coordinator
	LeaderID     string
	// Term and Level are what the log says.
	Term  uint64
	Level uint32
}

// Config of a Server.
type Config struct {
	// Cluster and Self are shown by GetCluster.
	Cluster string
	Self    state.Coordinator
	// Standing is what there is to show where this coordinator doesn't lead. Default: nothing.
	Standing func() Standing
	// Leader is the address of another coordinator that leads; empty where none is known.
	Leader func() string
	// Absent is why this coordinator neither leads nor knows for sure who does: Kafka can't be reached, for example. Empty where nothing is wrong.
	Absent func() string
}

// Server is the Control service. It outlives leaderships.
type Server struct {
	controlv1.UnimplementedControlServer
	config  Config
	leading atomic.Pointer[Leader]
}

// New makes a Server that doesn't lead.
func New(config Config) *Server {
	if config.Standing == nil {
		config.Standing = func() Standing { return Standing{} }
	}
	return &Server{config: config}
}

// Lead lets calls be answered; nil ends that.
func (s *Server) Lead(leader *Leader) { s.leading.Store(leader) }

// leader is what to answer from, or the error that names who can.
func (s *Server) leader() (*Leader, error) {
	if l := s.leading.Load(); l != nil {
		return l, nil
	}
	return nil, s.notLeading()
}

// view reads the State.
func (s *Server) view(ctx context.Context, look func(*state.State)) error {
	l, err := s.leader()
	if err != nil {
		return err
	}
	return s.fault(l.Core.View(ctx, look))
}

// do carries out an operation.
func (s *Server) do(ctx context.Context, op state.Op) (state.Result, error) {
	l, err := s.leader()
	if err != nil {
		return state.Result{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, maxWait)
	defer cancel()
	result, err := l.Core.Do(ctx, op)
	return result, s.fault(err)
}

// ListPlugins lists what runners offer.
func (s *Server) ListPlugins(ctx context.Context, _ *controlv1.ListPluginsRequest) (*controlv1.ListPluginsResponse, error) {
	var views []state.PluginView
	if err := s.view(ctx, func(st *state.State) { views = st.Plugins() }); err != nil {
		return nil, err
	}
	return &controlv1.ListPluginsResponse{Plugins: pluginsOf(views)}, nil
}

// ListRunners lists runners with their leases.
func (s *Server) ListRunners(ctx context.Context, _ *controlv1.ListRunnersRequest) (*controlv1.ListRunnersResponse, error) {
	var views []state.RunnerView
	if err := s.view(ctx, func(st *state.State) { views = st.Runners(time.Now()) }); err != nil {
		return nil, err
	}
	return &controlv1.ListRunnersResponse{Runners: runnersOf(views)}, nil
}

// DrainRunner has a runner's tasks moved, or ends that.
func (s *Server) DrainRunner(ctx context.Context, req *controlv1.DrainRunnerRequest) (*controlv1.DrainRunnerResponse, error) {
	if _, err := s.do(ctx, state.DrainRunner{Name: req.GetName(), Undo: req.GetUndo()}); err != nil {
		return nil, err
	}
	resp := &controlv1.DrainRunnerResponse{}
	err := s.view(ctx, func(st *state.State) {
		for _, r := range runnersOf(st.Runners(time.Now())) {
			if r.GetName() == req.GetName() {
				resp.Runner = r
			}
		}
	})
	return resp, err
}

// ListConnectors lists all connectors by name. The loop only makes the copies; what is made of them costs it nothing.
func (s *Server) ListConnectors(ctx context.Context, _ *controlv1.ListConnectorsRequest) (*controlv1.ListConnectorsResponse, error) {
	var views []state.ConnectorView
	if err := s.view(ctx, func(st *state.State) { views = st.Connectors() }); err != nil {
		return nil, err
	}
	resp := &controlv1.ListConnectorsResponse{}
	for i := range views {
		resp.Connectors = append(resp.Connectors, connectorOf(&views[i]))
	}
	return resp, nil
}
