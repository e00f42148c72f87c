package kafka

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
)

// Cluster is several brokers of one cluster: topics have as many replicas as there are brokers, at most three, unless a topic is made with fewer.
type Cluster struct {
	// Brokers have the node ids 1 to n, in order. Each can be killed, and started again with its data at its address.
	Brokers []*Broker
}

// StartCluster starts Options.Brokers brokers and waits until each knows all. With three and more of them every broker is a controller too, and any one may be away; with two only the first is, and it must stay.
func StartCluster(ctx context.Context, opts Options) (*Cluster, error) {
	libs, err := Libs(ctx)
	if err != nil {
		return nil, err
	}
	if opts.Brokers == 0 {
		opts.Brokers = 3
	}
	ports, err := freePorts(portsOfOne * opts.Brokers)
	if err != nil {
		return nil, err
	}
	c := &Cluster{}
	var voters []string
	for i := range opts.Brokers {
		own := opts
		own.Dir = filepath.Join(opts.Dir, fmt.Sprintf("broker-%d", i+1))
		b := newBroker(own, libs, i+1, ports[portsOfOne*i:portsOfOne*(i+1)])
		c.Brokers = append(c.Brokers, b)
		if i == 0 || opts.Brokers > 2 {
			voters = append(voters, b.vote())
		}
	}
	group, configuring := errgroup.WithContext(ctx)
	for _, b := range c.Brokers {
		b.voters = voters
		group.Go(func() error { return b.configure(configuring) })
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	if err := c.Start(ctx); err != nil {
		c.Kill()
		return nil, err
	}
	return c, nil
}

// Start starts every broker that doesn't run, together: one alone may have no majority of controllers. It returns when each broker knows all.
func (c *Cluster) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for _, b := range c.Brokers {
		if b.process != nil && b.process.Running() {
			continue
		}
		if err := b.launch(); err != nil {
			return err
		}
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, b := range c.Brokers {
		group.Go(func() error {
			if err := b.knows(ctx, c.nodes()); err != nil {
				return fmt.Errorf("start broker %d of %d: %w; its log ends with:\n%s", b.node, len(c.Brokers), err, b.process.Tail(20))
			}
			return nil
		})
	}
	return group.Wait()
}

func (c *Cluster) nodes() []int32 {
	nodes := make([]int32, len(c.Brokers))
	for i, b := range c.Brokers {
		nodes[i] = int32(b.node) //nolint:gosec // a handful
	}
	return nodes
}

// Kill is kill -9 of every broker that runs.
func (c *Cluster) Kill() {
	for _, b := range c.Brokers {
		if b.process != nil {
			b.process.Kill()
		}
	}
}

// Addr is the brokers' addresses, separated by commas.
func (c *Cluster) Addr() string { return c.addresses(func(b *Broker) string { return b.Addr }) }

// AdminAddr is those where nobody is asked who one is.
func (c *Cluster) AdminAddr() string {
	return c.addresses(func(b *Broker) string { return b.AdminAddr })
}

func (c *Cluster) addresses(of func(*Broker) string) string {
	all := make([]string, len(c.Brokers))
	for i, b := range c.Brokers {
		all[i] = of(b)
	}
	return strings.Join(all, ",")
}
