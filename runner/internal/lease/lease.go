// Package lease owns the words that the parts of a runner share about leases: what a lease is, and the two ways in which a coordinator says no.
//
// A lease is a value: it is compared with ==, used as a map key and never changed. It holds no clock: until when a lease may be trusted is known by the session alone.
// Read next: runner/internal/session, which keeps leases alive, and runner/internal/supervisor, which runs the tasks that they stand for.
package lease

import (
	"cmp"
	"errors"
	"fmt"
)

// Lease is the right of one runner to run one task.
type Lease struct {
	// Connector is the connector's name.
	Connector string
	// Incarnation is the identity of this life of the name.
	Incarnation string
	// Generation is the connector's generation; it only grows (I6).
	Generation uint64
	// Task is the task's number within the generation.
	Task uint32
	// Epoch grows with each grant of this connector's task, across generations and incarnations (I6).
	Epoch uint64
}

// String names the lease for logs and errors.
func (l Lease) String() string {
	return fmt.Sprintf("%s-%d (generation %d, epoch %d)", l.Connector, l.Task, l.Generation, l.Epoch)
}

// ID names what is leased, without the right: the same for every lease of one task of one connector name.
func (l Lease) ID() ID { return ID{Connector: l.Connector, Task: l.Task} }

// Newer compares two leases of one task: positive when l was granted after other, negative when before, 0 when they are as new.
// The epoch decides, since it grows across generations and incarnations; the generation is compared only between equal epochs, which a correct coordinator never sends.
func (l Lease) Newer(other Lease) int {
	return cmp.Or(cmp.Compare(l.Epoch, other.Epoch), cmp.Compare(l.Generation, other.Generation))
}

// ID is a task of a connector name. At most one producer handle exists per ID and runner.
type ID struct {
	// Connector is the connector's name.
	Connector string
	// Task is the task's number.
	Task uint32
}

// String names the task for logs and errors.
func (id ID) String() string { return fmt.Sprintf("%s-%d", id.Connector, id.Task) }

// ErrRefused says that a lease is not this runner's any more. The task stops at once and doesn't try again.
var ErrRefused = errors.New("the lease was refused")

// PermanentError is a refusal that trying again cannot change, such as a missing right. The task fails with its text, which is written for users and free of secrets.
type PermanentError struct {
	// Text is what is wrong and what to do about it.
	Text string
}

// Error returns the text for users.
func (e *PermanentError) Error() string { return e.Text }
