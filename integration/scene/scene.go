// Package scene is a cluster that something happens to: several coordinators and runners, connectors of the generator whose records are watched, and what is asked of them when something failed.
//
// Tests of failures and the benchmarks that time them share it. How long something was away is seen from outside alone: by when records became readable. It decides nothing about what is right; reader.Exact does.
//
// Where to read next: this file, then watched.go.
package scene

import (
	"context"
	"errors"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// Patience is how long something that failed may be away before it counts as gone for ever.
const Patience = 2 * time.Minute

// Scene is a bed with several coordinators and runners.
type Scene struct {
	*harness.Bed
	// Coordinators by address, Runners by name: the newest process of each.
	Coordinators, Runners map[string]*process.Process
	// Ways lead to the coordinators, by the coordinators' own addresses: who knows a coordinator by its way only can be cut off from it. There are some only where NewWithWays made them.
	Ways map[string]*proxy.Proxy

	starts map[string]start // of each coordinator
}

// start is how a coordinator was started.
type start struct {
	bootstrap string
	args      []string
}

// New starts coordinators on a bed without any process yet. The first leads.
func New(bed *harness.Bed, coordinators int, args ...string) *Scene {
	bed.T.Helper()
	s := newScene(bed)
	for range coordinators {
		s.Coordinate(args...)
	}
	return s
}

// NewWithWays is New with coordinators that tell everybody to come by their Ways. The addresses of the scene lead past those, for the test itself.
func NewWithWays(bed *harness.Bed, coordinators int, args ...string) *Scene {
	bed.T.Helper()
	s := newScene(bed)
	for range coordinators {
		s.CoordinateByWay(args...)
	}
	return s
}

func newScene(bed *harness.Bed) *Scene {
	return &Scene{
		Bed: bed, Coordinators: map[string]*process.Process{}, Runners: map[string]*process.Process{}, Ways: map[string]*proxy.Proxy{}, starts: map[string]start{},
	}
}

// Coordinate starts one more coordinator; the first of all leads when it returns.
func (s *Scene) Coordinate(args ...string) (address string) {
	s.T.Helper()
	var p *process.Process
	if len(s.Coordinators) == 0 {
		p = s.StartCoordinator(args...)
		address = s.Coordinator
	} else {
		p, address = s.AddCoordinator(args...)
	}
	s.Coordinators[address], s.starts[address] = p, start{bootstrap: s.Bootstrap, args: args}
	return address
}

// CoordinateByWay is Coordinate for one that tells everybody to come by a way that can be cut.
func (s *Scene) CoordinateByWay(args ...string) (address string) {
	s.T.Helper()
	way := harness.Proxy(s.T, "")
	address = s.Coordinate(append([]string{"--advertise", way.Addr()}, args...)...)
	way.SetTarget(address)
	s.Ways[address] = way
	return address
}

// Way is the way to a coordinator.
func (s *Scene) Way(address string) string { return s.Ways[address].Addr() }

// SetWays sets the mode of all ways.
func (s *Scene) SetWays(mode proxy.Mode) {
	s.T.Helper()
	for _, way := range s.Ways {
		harness.Cut(s.T, way, mode)
	}
}

// Runner starts a runner, in place of the one that had its name before.
func (s *Scene) Runner(name string, env []string, args ...string) *process.Process {
	s.T.Helper()
	s.Runners[name] = s.StartRunner(name, env, args...)
	return s.Runners[name]
}

// RunnerAt starts a runner that knows one coordinator and one broker only, by these addresses.
func (s *Scene) RunnerAt(coordinator, bootstrap, name string, env []string, args ...string) *process.Process {
	s.T.Helper()
	all, direct := s.Coordinator, s.Bootstrap
	s.Coordinator, s.Bootstrap = coordinator, bootstrap
	p := s.LaunchRunner(name, env, args...)
	s.Coordinator, s.Bootstrap = all, direct
	s.Runners[name] = p
	s.AwaitRunner(name, p)
	return p
}

// Leads is the address of the coordinator that leads, and its process. Where none does just now, it waits for one.
func (s *Scene) Leads() (string, *process.Process) {
	s.T.Helper()
	var leader string
	harness.Wait(s.T, Patience, "a coordinator leads", func(ctx context.Context) error {
		if leader = s.Leader(ctx); leader == "" {
			return errors.New("none does")
		}
		return nil
	})
	return leader, s.Coordinators[leader]
}

// AwaitOther waits until another coordinator leads than this one.
func (s *Scene) AwaitOther(timeout time.Duration, than string) {
	s.T.Helper()
	harness.Wait(s.T, timeout, "another coordinator leads", func(ctx context.Context) error {
		if now := s.Leader(ctx); now == "" || now == than {
			return errors.New("none does")
		}
		return nil
	})
}

// Revive starts a coordinator again at its address and waits until it serves.
func (s *Scene) Revive(address string) {
	s.T.Helper()
	s.Coordinators[address].Kill()
	now := s.Bootstrap
	s.Bootstrap = s.starts[address].bootstrap
	s.Coordinators[address] = s.RestartCoordinator(address, s.starts[address].args...)
	s.Bootstrap = now
	harness.Wait(s.T, Patience, "the coordinator serves", func(ctx context.Context) error {
		_, err := s.At(address).GetCluster(ctx, &controlv1.GetClusterRequest{})
		return err
	})
}

// Depose makes the leader fail, says how long nobody led, and starts it anew.
func (s *Scene) Depose(how func(*process.Process)) time.Duration {
	s.T.Helper()
	leader, p := s.Leads()
	since := time.Now()
	how(p)
	s.AwaitOther(Patience, leader)
	took := time.Since(since)
	s.Revive(leader)
	return took
}
