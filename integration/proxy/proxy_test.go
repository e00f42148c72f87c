package proxy

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// echo is a server that sends back what it gets.
func echo(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener.Addr().String()
}

func started(t *testing.T, start func(string) (*Proxy, error)) *Proxy {
	t.Helper()
	p, err := start(echo(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

func dial(t *testing.T, p *Proxy) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", p.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func set(t *testing.T, p *Proxy, mode Mode) {
	t.Helper()
	if err := p.Set(mode); err != nil {
		t.Fatal(err)
	}
}

func say(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := conn.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
}

// hears reads exactly what is expected.
func hears(t *testing.T, conn net.Conn, want string) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	got := make([]byte, len(want))
	if _, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Fatalf("heard %q, want %q: %v", got, want, err)
	}
}

// hearsNothing waits for a moment: that nothing comes can't be waited for in another way.
func hearsNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	_ = conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("heard %d bytes: %v", n, err)
	}
}

func TestPassCarriesBytesAndTheEnd(t *testing.T) {
	p := started(t, Start)
	conn := dial(t, p)
	say(t, conn, "hello")
	hears(t, conn, "hello")
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		t.Fatalf("the connection is a %T", conn)
	}
	if err := tcp.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

func TestSwallowHoldsConnectionsOpenAndNothingIsLost(t *testing.T) {
	p := started(t, Start)
	before := dial(t, p)
	say(t, before, "a")
	hears(t, before, "a")
	set(t, p, Swallow)
	say(t, before, "b")
	during := dial(t, p)
	say(t, during, "c")
	hearsNothing(t, before)
	hearsNothing(t, during)
	set(t, p, Pass)
	hears(t, before, "b")
	hears(t, during, "c")
}

func TestRefuseBreaksConnectionsAndTakesNone(t *testing.T) {
	p := started(t, Start)
	conn := dial(t, p)
	say(t, conn, "a")
	hears(t, conn, "a")
	set(t, p, Refuse)
	_ = conn.SetReadDeadline(time.Now().Add(10 * time.Second))
	if _, err := conn.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the connection is still there: %v", err)
	}
	if other, err := net.Dial("tcp", p.Addr()); err == nil {
		other.Close()
		t.Error("a new connection was taken")
	}
	set(t, p, Pass)
	again := dial(t, p)
	say(t, again, "b")
	hears(t, again, "b")
}

func TestDelayKeepsTheOrder(t *testing.T) {
	p := started(t, Start)
	p.SetDelay(20 * time.Millisecond)
	set(t, p, Delay)
	conn := dial(t, p)
	began := time.Now()
	say(t, conn, "a")
	say(t, conn, "b")
	hears(t, conn, "ab")
	if took := time.Since(began); took < 40*time.Millisecond {
		t.Errorf("there and back in %s", took)
	}
}

// request is a frame as Kafka's clients send it.
func request(key int16, text string) string {
	b := binary.BigEndian.AppendUint32(nil, uint32(4+len(text)))
	b = binary.BigEndian.AppendUint16(b, uint16(key))
	return string(append(append(b, 0, 0), text...))
}

func TestHeldRequestArrivesAlsoWhenItsClientHasGone(t *testing.T) {
	got := make(chan string, 1)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		all, _ := io.ReadAll(conn)
		got <- string(all)
	}()
	p, err := StartKafka(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	held := p.Hold(Produce)
	conn := dial(t, p)
	say(t, conn, request(Fetch, "first"))
	say(t, conn, request(Produce, "records"))
	<-held.Caught()
	conn.Close()
	select {
	case all := <-got:
		t.Fatalf("the server got %q and the end", all)
	case <-time.After(50 * time.Millisecond):
	}
	held.Release()
	if all, want := <-got, request(Fetch, "first")+request(Produce, "records"); all != want {
		t.Errorf("the server got %q, want %q", all, want)
	}
}
