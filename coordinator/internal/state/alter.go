package state

import (
	"fmt"
	"maps"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
)

// alterTime is how long a change of offsets may take from its lease on.
const alterTime = 2 * time.Minute

// alter begins a change of offsets. The connector is stopped, so nobody reads them; the new generation's round fences whoever could still write one.
func (s *State) alter(id uint64, c *connector) {
	switch {
	case c.Deleting:
		s.refuse(id, deleting(c))
		return
	case c.Target != TargetStopped:
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("connector %q is %s; its offsets can be changed only while it is stopped", c.name, c.Target), Hint: "stop it"})
		return
	case c.wantsAlter() || c.altering() != nil:
		s.refuse(id, &Error{Code: CodeRefused, Text: fmt.Sprintf("the offsets of connector %q are being changed already", c.name), Hint: "ask again when that is done"})
		return
	}
	c.waits = append(c.waits, wait{id: id, alter: true})
	s.raise(c)
	if c.IDs == 0 { // I2: counted before it can exist
		c.IDs = 1
		s.putName(c)
	}
	s.happen(c, "offsets are to be changed, generation %d", c.Generation)
}

// wantsAlter says that somebody waits for a lease to change offsets under.
func (c *connector) wantsAlter() bool {
	for _, w := range c.waits {
		if w.alter {
			return true
		}
	}
	return false
}

// altering is the lease under which offsets are changed; nil where none is.
func (c *connector) altering() *lease {
	if l := c.leases[0]; l != nil && l.Alter && l.State != leaseLost {
		return l
	}
	return nil
}

// lend gives the lease of task 0 to whoever waits for it, once no old task can write (I2). While it is out no task is granted: each reads its offsets after the change, or before it was begun.
func (s *State) lend(c *connector) {
	if !c.wantsAlter() || c.Target != TargetStopped || !c.idle() || !c.fenced() || c.PlainMs > 0 {
		return
	}
	var left []wait
	for _, w := range c.waits {
		if w.alter {
			s.lendTo(c, w.id)
		} else {
			left = append(left, w)
		}
	}
	c.waits = left
}

func (s *State) lendTo(c *connector, id uint64) {
	takers := s.takersFor(c)
	placed := assign.Place(c.need(), make([]assign.Task, 1), takers)
	if placed == nil {
		s.refuse(id, &Error{Code: CodeRefused, Text: "nobody can change the offsets: " + assign.Why(c.need(), takers), Hint: "start a runner that has the plugin"})
		return
	}
	l := s.lease(c, 0, s.runners[placed[0]])
	l.Alter, l.PlainMs = true, 0 // it writes in a transaction
	l.expires, l.deadline = s.now.Add(s.ttlOf(l)), s.now.Add(alterTime)
	s.wakeAt(l.deadline)
	s.happen(c, "offsets are being changed by %s, epoch %d", l.Runner, l.Epoch)
	s.answers = append(s.answers, answer{reply: Reply{ID: id, Result: Result{Change: Changed, Lease: l.Lease, Session: s.sessionOf(l)}}, connector: c})
}

// changeDelivery changes the guarantee as a change of the configuration does.
func (s *State) changeDelivery(id uint64, c *connector, guarantee string) {
	config := maps.Clone(c.Config)
	config[keyGuarantee] = guarantee
	of, problems := parse(config)
	switch {
	case c.Deleting:
		s.refuse(id, deleting(c))
	case len(problems) > 0:
		s.refuse(id, invalid(problems))
	case (of.plain > 0) == (c.settings.plain > 0):
		s.reply(id, c, Result{Change: Unchanged})
	default:
		s.configure(c, config, of)
		s.happen(c, "delivery is %s, generation %d", guarantee, c.Generation)
		s.reply(id, c, Result{Change: Changed})
	}
}
