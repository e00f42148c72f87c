package state

import "time"

// Under at-least-once a task's records go through a plain producer. Its transactional id fences its offsets, so no position ever moves back; its records can't be fenced. So such a lease isn't taken away before it has run
// out, and where the task didn't end cleanly, the answer of stop and delete, and the start of a task under exactly-once, wait until its producer must have given up: the lease, the message time-out, and a little.

// plainMargin is that little.
const plainMargin = 5 * time.Second

// ttlOf is how long a renewal of a lease lasts.
func (s *State) ttlOf(l *lease) time.Duration {
	if l.PlainMs > 0 {
		return s.options.PlainLeaseTTL
	}
	return s.options.LeaseTTL
}

// noise notes that a lease's task may have left a plain producer behind.
func (s *State) noise(c *connector, l *lease) {
	if l.PlainMs == 0 {
		return
	}
	from := l.expires // the runner stops by itself then
	if from.Before(s.now) {
		from = s.now
	}
	until := from.Add(time.Duration(l.PlainMs)*time.Millisecond + plainMargin)
	if until.After(c.quiet) {
		c.quiet = until
	}
	s.wakeAt(c.quiet)
	if l.PlainMs > c.PlainMs {
		c.PlainMs = l.PlainMs
		s.putName(c)
	}
}

// noiseAgain is a new leader's: it doesn't know since when, and waits for all of it.
func (s *State) noiseAgain(c *connector) {
	if c.PlainMs > 0 {
		c.quiet = s.now.Add(s.options.PlainLeaseTTL + time.Duration(c.PlainMs)*time.Millisecond + plainMargin)
		s.wakeAt(c.quiet)
	}
}

// quietNow notes that every plain producer has given up.
func (s *State) quietNow(c *connector) {
	c.PlainMs, c.quiet = 0, time.Time{}
	s.putName(c)
	s.happen(c, "no plain producer can write any more")
	s.touch(c)
}
