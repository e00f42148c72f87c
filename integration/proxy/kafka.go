package proxy

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
)

// Numbers of requests of Kafka's protocol, for Hold.
const (
	Produce int16 = 0
	Fetch   int16 = 1
	EndTxn  int16 = 26
)

// maxFrame bounds a request; Kafka's brokers take no more than 100 MiB.
const maxFrame = 100 << 20

// Held is a request that the proxy holds back. What its connection sends after it waits behind it; its answer can't come. Whatever the client does meanwhile, also where it gives the connection up,
// the request arrives when it is released: it was on its way.
type Held struct {
	key      int16
	caught   chan struct{}
	released chan struct{}
	release  sync.Once
}

// Hold makes the proxy hold back the next request with this number. The proxy has to lead to a Kafka broker. One is held at a time.
func (p *Proxy) Hold(key int16) *Held {
	h := &Held{key: key, caught: make(chan struct{}), released: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hold = h
	return h
}

// Caught is closed when a request is held.
func (h *Held) Caught() <-chan struct{} { return h.caught }

// Release lets the request go on. Where none was caught yet, none will be.
func (h *Held) Release() { h.release.Do(func() { close(h.released) }) }

// take says whether a request is the one to hold, once.
func (p *Proxy) take(key int16) *Held {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.hold
	if h == nil || h.key != key {
		return nil
	}
	p.hold = nil
	select {
	case <-h.released:
		return nil
	default:
		close(h.caught)
		return h
	}
}

// requests reads what the client sends: to a broker request by request, so that one can be held.
func (l *link) requests() func() ([]byte, error) {
	if !l.proxy.frames {
		return bytesOf(l.client)
	}
	return func() ([]byte, error) {
		frame, err := readFrame(l.client)
		if err != nil {
			return nil, err
		}
		if h := l.proxy.take(int16(binary.BigEndian.Uint16(frame[4:]))); h != nil {
			select {
			case <-h.released:
			case <-l.over:
			}
		}
		return frame, nil
	}
}

// readFrame reads one request with its length before it.
func readFrame(conn net.Conn) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(head[:])
	if n < 4 || n > maxFrame {
		return nil, fmt.Errorf("a request of %d bytes is none of Kafka's", n)
	}
	frame := make([]byte, 4+int(n))
	copy(frame, head[:])
	_, err := io.ReadFull(conn, frame[4:])
	return frame, err
}
