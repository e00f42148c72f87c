package soak

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

// flow is what a link does with bytes in one direction.
type flow uint8

const (
	// The zero flow passes bytes on.
	_ flow = iota
	// hold takes no more bytes until it passes again, and then hands on what was sent meanwhile: what TCP does when a network comes back in time.
	hold
	// swallow takes bytes and throws them away. A connection that lost some is cut when it is to pass again.
	swallow
)

// weather is what a link does. The zero weather passes everything at once.
type weather struct {
	// up is from the runner, down towards it.
	up, down flow
	// refuse cuts the connections that there are and lets no new one in.
	refuse bool
	// delay is added to each piece of at most pieceBytes, one after the other: it makes a link slow and narrow at once.
	delay time.Duration
}

const (
	pieceBytes  = 32 << 10
	dialTimeout = 10 * time.Second
)

// link is one address as a runner sees it: a listener in the runner's own network that leads to the real one.
type link struct {
	listener net.Listener
	to       string

	mu      sync.Mutex
	now     weather
	changed chan struct{} // closed when now changes
	conns   map[*pipe]struct{}
	pipes   sync.WaitGroup
}

// pipe is one connection through a link.
type pipe struct {
	near, far net.Conn
	// lost says that bytes were swallowed.
	lost bool
}

func newLink(listener net.Listener, to string) *link {
	l := &link{listener: listener, to: to, changed: make(chan struct{}), conns: map[*pipe]struct{}{}}
	l.pipes.Go(l.accept)
	return l
}

// close ends the listener and every connection, and waits for them.
func (l *link) close() {
	_ = l.listener.Close()
	l.set(weather{refuse: true})
	l.pipes.Wait()
}

// set changes the weather.
func (l *link) set(w weather) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = w
	close(l.changed)
	l.changed = make(chan struct{})
	for p := range l.conns {
		if w.refuse || p.lost && w.up != swallow && w.down != swallow {
			p.cut()
		}
	}
}

// cut resets a connection at both ends.
func (p *pipe) cut() {
	for _, c := range []net.Conn{p.near, p.far} {
		if tcp, ok := c.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0)
		}
		_ = c.Close()
	}
}

func (l *link) accept() {
	for {
		near, err := l.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue // a connection that was gone before it was taken
		}
		l.pipes.Go(func() { l.serve(near) })
	}
}

// serve carries one connection.
func (l *link) serve(near net.Conn) {
	far, err := net.DialTimeout("tcp", l.to, dialTimeout)
	p := &pipe{near: near, far: far}
	if err != nil || !l.add(p) {
		if far != nil {
			_ = far.Close()
		}
		(&pipe{near: near, far: near}).cut()
		return
	}
	defer l.remove(p)
	var up sync.WaitGroup
	up.Go(func() { l.carry(p, p.far, p.near, func(w weather) flow { return w.up }) })
	l.carry(p, p.near, p.far, func(w weather) flow { return w.down })
	up.Wait()
}

func (l *link) add(p *pipe) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.now.refuse {
		return false
	}
	l.conns[p] = struct{}{}
	return true
}

func (l *link) remove(p *pipe) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, p)
	p.cut()
}

// carry copies one direction until either end is gone; both are closed then.
func (l *link) carry(p *pipe, to, from net.Conn, of func(weather) flow) {
	buf := make([]byte, pieceBytes)
	for {
		n, err := from.Read(buf)
		if n > 0 && !l.forward(p, to, buf[:n], of) {
			err = net.ErrClosed
		}
		if err != nil {
			_ = to.Close()
			_ = from.Close()
			return
		}
	}
}

// forward hands one piece on, as the weather has it.
func (l *link) forward(p *pipe, to net.Conn, piece []byte, of func(weather) flow) bool {
	for {
		l.mu.Lock()
		w, changed := l.now, l.changed
		if of(w) == swallow {
			p.lost = true
		}
		l.mu.Unlock()
		switch {
		case w.refuse:
			return false
		case of(w) == swallow:
			return true
		case of(w) == hold:
			<-changed
			continue
		case w.delay > 0:
			wait, cancel := context.WithTimeout(context.Background(), w.delay)
			<-wait.Done()
			cancel()
		}
		_, err := to.Write(piece)
		return err == nil
	}
}
