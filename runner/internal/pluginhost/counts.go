package pluginhost

import "maps"

// Counts says what became of a Host's processes since it was made. Plugins that were dialled aren't among them.
type Counts struct {
	// Running is how many processes there are now.
	Running int
	// Started have answered, Failed have not, or were not to be run at all.
	Started, Failed uint64
	// Exits are the processes that have ended.
	Exits map[ExitClass]uint64
}

// ExitClasses are all that there are.
var ExitClasses = []ExitClass{ExitAsked, ExitCode, ExitSignal, ExitMemory, ExitUnknown}

// Counts counts.
func (h *Host) Counts() Counts {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := h.counts
	c.Running, c.Exits = len(h.children), maps.Clone(h.counts.Exits)
	return c
}

// buried forgets a child that has ended.
func (h *Host) buried(c *child) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.children, c)
	h.counts.Exits[c.exit.Class]++
}

// count notes how a start went.
func (h *Host) count(err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err != nil {
		h.counts.Failed++
	} else {
		h.counts.Started++
	}
}
