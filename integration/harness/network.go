package harness

import (
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
)

// Proxy starts a network in front of an address, which the test may cut. It ends with the test.
func Proxy(t T, target string) *proxy.Proxy {
	t.Helper()
	p, err := proxy.Start(target)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	return p
}

// Cut changes what a network does.
func Cut(t T, p *proxy.Proxy, mode proxy.Mode) {
	t.Helper()
	if err := p.Set(mode); err != nil {
		t.Fatal(err)
	}
}

// StartCoordinatorBehind starts a coordinator that knows a proxy's address as its own: runners learn it, and would go past the proxy otherwise.
func (b *Bed) StartCoordinatorBehind(args ...string) *proxy.Proxy {
	b.T.Helper()
	p := Proxy(b.T, "")
	b.StartCoordinator(append(args, "--advertise", p.Addr())...)
	p.SetTarget(b.Coordinator)
	return p
}

// StartRunnerOn starts a runner that reaches Kafka by another address than the bed's, and waits until the leader knows it.
func (b *Bed) StartRunnerOn(bootstrap, name string, env []string, args ...string) *process.Process {
	b.T.Helper()
	direct := b.Bootstrap
	defer func() { b.Bootstrap = direct }()
	b.Bootstrap = bootstrap
	return b.StartRunner(name, env, args...)
}

// StartRunnerThrough starts a runner that knows the coordinator by a proxy's address only, and waits until the leader knows it.
func (b *Bed) StartRunnerThrough(p *proxy.Proxy, name string, env []string, args ...string) *process.Process {
	b.T.Helper()
	direct := b.Coordinator
	defer func() { b.Coordinator = direct }()
	b.Coordinator = p.Addr()
	return b.StartRunner(name, env, args...)
}
