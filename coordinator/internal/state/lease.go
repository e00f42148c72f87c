package state

import (
	"fmt"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Lease is the right of one runner to run one task. It is comparable: two leases are the same right exactly when they are equal.
type Lease struct {
	Connector   string `json:"connector"`
	Incarnation string `json:"incarnation"`
	Generation  uint64 `json:"generation"`
	Task        uint32 `json:"task"`
	Epoch       uint64 `json:"epoch"`
}

// String is for logs and errors.
func (l Lease) String() string {
	return fmt.Sprintf("%s/%d g%d e%d", l.Connector, l.Task, l.Generation, l.Epoch)
}

// Wire is the lease as runners see it.
func (l Lease) Wire() *runnerv1.Lease {
	return &runnerv1.Lease{Connector: l.Connector, Incarnation: l.Incarnation, Generation: l.Generation, Task: l.Task, Epoch: l.Epoch}
}

// LeaseOf reads a lease from the wire; a missing one is the zero Lease, which nobody ever holds.
func LeaseOf(m *runnerv1.Lease) Lease {
	return Lease{
		Connector: m.GetConnector(), Incarnation: m.GetIncarnation(), Generation: m.GetGeneration(),
		Task: m.GetTask(), Epoch: m.GetEpoch(),
	}
}
