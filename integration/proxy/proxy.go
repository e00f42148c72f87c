// Package proxy is a network between two parts of a test that can be cut: a TCP proxy that lets bytes pass, swallows them, refuses connections or delays them.
//
// It owns its listener, its connections and their goroutines; Close ends them all. It forges no byte and changes no order: what arrives is what was sent, as far as anything arrives.
// Where to read next: this file; kafka.go for holding back single requests of Kafka's protocol.
package proxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Mode is what the proxy does with bytes and connections.
type Mode int

// The modes. A change takes effect at once, for connections that exist as for new ones.
const (
	// Pass lets everything through.
	Pass Mode = iota
	// Swallow lets nothing through in either direction, not even the end of a connection: a half-open connection, as when a cable is pulled. New connections are accepted and hear nothing. When the mode
	// changes back, what was held arrives, as TCP would send it again; a connection that one side has given up meanwhile ends.
	Swallow
	// Refuse breaks every connection, and refuses new ones.
	Refuse
	// Delay lets everything through later: see SetDelay.
	Delay
)

// String names the mode.
func (m Mode) String() string { return [...]string{"pass", "swallow", "refuse", "delay"}[m] }

const (
	// chunkBytes is how much is read at once, and chunksAhead how many chunks may wait for their time: a megabyte a direction.
	chunkBytes  = 32 << 10
	chunksAhead = 32
	dialTimeout = 5 * time.Second
)

// Proxy is a running proxy. Its methods may be called from any goroutine.
type Proxy struct {
	address string
	// frames: what clients send is read as requests of Kafka's.
	frames  bool
	running sync.WaitGroup

	mu       sync.Mutex
	listener net.Listener // nil while it refuses
	target   string
	mode     Mode
	delay    time.Duration
	changed  chan struct{} // closed at each change
	closed   bool
	links    map[*link]struct{}
	hold     *Held
}

// Start starts a proxy to an address HOST:PORT on a free port of this host. Where the target isn't known yet, it may be empty and set later.
func Start(target string) (*Proxy, error) { return start(target, false) }

// StartKafka is Start for the address of a Kafka broker without TLS. The broker has to advertise the proxy's address (advertised.listeners), else clients go past it.
func StartKafka(target string) (*Proxy, error) { return start(target, true) }

func start(target string, frames bool) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("proxy: %w", err)
	}
	p := &Proxy{frames: frames, address: listener.Addr().String(), listener: listener, target: target, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.running.Go(func() { p.accept(listener) })
	return p, nil
}

// Addr is where the proxy listens.
func (p *Proxy) Addr() string { return p.address }

// SetTarget says where new connections lead.
func (p *Proxy) SetTarget(target string) { p.change(func() { p.target = target }) }

// SetDelay is how much later each byte arrives in the mode Delay.
func (p *Proxy) SetDelay(d time.Duration) { p.change(func() { p.delay = d }) }

// Set changes the mode. An error says that it can't listen again after having refused.
func (p *Proxy) Set(mode Mode) error {
	var err error
	p.change(func() {
		if p.closed {
			return
		}
		p.mode = mode
		switch {
		case mode == Refuse && p.listener != nil:
			_ = p.listener.Close()
			p.listener = nil
			p.breakLinks()
		case mode != Refuse && p.listener == nil:
			err = p.listenAgain()
		}
	})
	return err
}

// Close ends the proxy with all its connections.
func (p *Proxy) Close() {
	p.change(func() {
		p.closed = true
		if p.listener != nil {
			_ = p.listener.Close()
			p.listener = nil
		}
		p.breakLinks()
	})
	p.running.Wait()
}

// change changes something under the lock, and wakes whoever waits for a change.
func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	close(p.changed)
	p.changed = make(chan struct{})
}

// breakLinks needs the lock.
func (p *Proxy) breakLinks() {
	for l := range p.links {
		l.cut()
	}
}

// listenAgain needs the lock. Somebody else may have taken the port meanwhile, which is for the test to say.
func (p *Proxy) listenAgain() error {
	listener, err := net.Listen("tcp", p.address)
	if err != nil {
		return fmt.Errorf("proxy: listen again: %w", err)
	}
	p.listener = listener
	p.running.Go(func() { p.accept(listener) })
	return nil
}

// accept takes connections until the listener is closed.
func (p *Proxy) accept(listener net.Listener) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		l := &link{proxy: p, client: conn, over: make(chan struct{})}
		p.mu.Lock()
		if p.closed || p.mode == Refuse {
			p.mu.Unlock()
			reset(conn)
			continue
		}
		p.links[l] = struct{}{}
		p.running.Go(l.run)
		p.mu.Unlock()
	}
}

// now is what the proxy does at the moment, and a channel that is closed when that changes.
func (p *Proxy) now() (mode Mode, delay time.Duration, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.mode, p.delay, p.changed
}

// link is one connection through the proxy.
type link struct {
	proxy  *Proxy
	client net.Conn
	// over is closed when the link is cut.
	over chan struct{}

	mu     sync.Mutex
	server net.Conn
	isCut  bool
}

// run connects and carries bytes until both directions have ended.
func (l *link) run() {
	defer func() {
		l.cut()
		l.proxy.mu.Lock()
		delete(l.proxy.links, l)
		l.proxy.mu.Unlock()
	}()
	if !l.open() {
		return
	}
	server, err := net.DialTimeout("tcp", l.target(), dialTimeout)
	if err != nil {
		return // the client's connection breaks, as one to a server that isn't there
	}
	l.mu.Lock()
	l.server = server
	isCut := l.isCut
	l.mu.Unlock()
	if isCut {
		reset(server)
		return
	}
	var directions sync.WaitGroup
	directions.Go(func() { l.carry(server, l.requests()) })
	directions.Go(func() { l.carry(l.client, bytesOf(server)) })
	directions.Wait()
}

func (l *link) target() string {
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	return l.proxy.target
}

// open waits until bytes may pass; false is that the link is cut.
func (l *link) open() bool {
	for {
		mode, _, changed := l.proxy.now()
		if mode != Swallow {
			return !l.gone()
		}
		select {
		case <-changed:
		case <-l.over:
			return false
		}
	}
}

func (l *link) gone() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}

// chunk is some bytes, and when they may arrive.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry takes pieces of one direction, in order and each in its time, until there are no more; then the other end is told that no more comes. Where that end is gone already, the rest is thrown away: what
// it had sent before may still be on its way, and the other direction carries it.
func (l *link) carry(to net.Conn, next func() ([]byte, error)) {
	ahead := make(chan chunk, chunksAhead)
	var reading sync.WaitGroup
	defer reading.Wait()
	reading.Go(func() {
		defer close(ahead)
		for {
			b, err := next()
			if err != nil {
				return
			}
			_, delay, _ := l.proxy.now()
			select {
			case ahead <- chunk{b, time.Now().Add(delay)}:
			case <-l.over:
				return
			}
		}
	})
	taken := true
	for c := range ahead {
		if !l.await(c.due) || !l.open() {
			return
		}
		if taken {
			_, err := to.Write(c.bytes)
			taken = err == nil
		}
	}
	// The end of a connection is swallowed like its bytes.
	if tcp, ok := to.(*net.TCPConn); ok && l.open() {
		_ = tcp.CloseWrite()
	}
}

// await waits until a moment, in the mode Delay; false is that the link was cut.
func (l *link) await(due time.Time) bool {
	for {
		mode, _, changed := l.proxy.now()
		left := time.Until(due)
		if mode != Delay || left <= 0 {
			return !l.gone()
		}
		timer := time.NewTimer(left)
		select {
		case <-timer.C:
		case <-changed:
		case <-l.over:
		}
		timer.Stop()
		if l.gone() {
			return false
		}
	}
}

// cut breaks both connections.
func (l *link) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut {
		return
	}
	l.isCut = true
	close(l.over)
	reset(l.client)
	if l.server != nil {
		reset(l.server)
	}
}

// reset breaks a connection at once: its other end is told that it broke.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// bytesOf reads a connection piece by piece.
func bytesOf(conn net.Conn) func() ([]byte, error) {
	return func() ([]byte, error) {
		b := make([]byte, chunkBytes)
		n, err := conn.Read(b)
		if n > 0 {
			return b[:n], nil // an error comes again
		}
		return nil, err
	}
}
