package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"

	"golang.org/x/sys/unix"
)

// network is a runner's own network: a Linux network namespace with nothing in it but a loopback, on which the addresses of coordinators and brokers are links to the real ones. So everything that
// the runner says goes through a link, whatever address it is told, and nobody else's does. It lives until close, also while its runner is dead.
type network struct {
	// coordinators and brokers are the links to each, in their order.
	coordinators, brokers []*link

	space *os.File
	work  chan func()
}

// errNoNetwork says that this user may not make networks.
var errNoNetwork = errors.New("no right to make a network namespace")

// newNetwork makes a network with links to the addresses.
func newNetwork(coordinators, brokers []string) (*network, error) {
	n := &network{work: make(chan func())}
	made := make(chan error)
	// A network belongs to a thread. This one is never unlocked, so that it ends with its goroutine.
	go func() {
		runtime.LockOSThread()
		err := n.enter()
		made <- err
		if err != nil {
			return
		}
		for f := range n.work {
			f()
		}
	}()
	if err := <-made; err != nil {
		return nil, err
	}
	var err error
	if n.coordinators, err = n.open(coordinators); err == nil {
		n.brokers, err = n.open(brokers)
	}
	if err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// enter moves this thread into a new network and brings its loopback up.
func (n *network) enter() error {
	err := unix.Unshare(unix.CLONE_NEWNET)
	if errors.Is(err, unix.EPERM) {
		return errNoNetwork
	}
	if err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	if n.space, err = os.Open("/proc/thread-self/ns/net"); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	defer func() { _ = unix.Close(socket) }() // nothing was written to it
	request, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	request.SetUint16(unix.IFF_UP | unix.IFF_RUNNING)
	if err := unix.IoctlIfreq(socket, unix.SIOCSIFFLAGS, request); err != nil {
		return fmt.Errorf("loopback: %w", err)
	}
	return nil
}

func (n *network) open(addresses []string) ([]*link, error) {
	var links []*link
	for _, address := range addresses {
		listener, err := n.listen(address)
		if err != nil {
			return links, fmt.Errorf("link to %s: %w", address, err)
		}
		links = append(links, newLink(listener, address))
	}
	return links, nil
}

// listen listens inside the network.
func (n *network) listen(address string) (net.Listener, error) {
	var listener net.Listener
	var err error
	var done sync.WaitGroup
	done.Add(1)
	n.work <- func() {
		defer done.Done()
		listener, err = (&net.ListenConfig{}).Listen(context.Background(), "tcp", address)
	}
	done.Wait()
	return listener, err
}

// within is the beginning of a command that runs in the network.
func (n *network) within() []string {
	return []string{"nsenter", fmt.Sprintf("--net=/proc/%d/fd/%d", os.Getpid(), n.space.Fd())}
}

// links are those to coordinators and brokers together.
func (n *network) links() []*link { return append(append([]*link{}, n.coordinators...), n.brokers...) }

// clear lets everything pass.
func (n *network) clear() {
	for _, l := range n.links() {
		l.set(weather{})
	}
}

func (n *network) close() {
	for _, l := range n.links() {
		l.close()
	}
	close(n.work)
	_ = n.space.Close()
}
