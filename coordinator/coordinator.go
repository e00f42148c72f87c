// Package coordinator is the program that owns connectors: their configurations, generations and leases, and the fencing of their transactional ids.
//
// Any number of coordinators may run for one cluster. Each serves gRPC at once; one leads, and the others name it. This package is wiring only: what a leader decides is in internal/state, which internal/loop carries out;
// who leads is internal/configlog's; internal/fence takes ids, internal/sessions speaks to runners and internal/control to users.
//
// A coordinator that leads and loses the log throws away all that it knew, and stands for election again (I7). It never sees a record.
package coordinator

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/health"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/control"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/history"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/metrics"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	"github.com/fencepost-io/fencepost/coordinator/internal/sessions"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Config of a Coordinator.
type Config struct {
	// Cluster is the name of the cluster of coordinators and runners: 1 to 40 of [a-z0-9-]. Default "fencepost".
	Cluster string
	// Bootstrap is the Kafka brokers: HOST:PORT, several separated by commas.
	Bootstrap string
	// Kafka has librdkafka's keys for security.protocol, sasl.* and ssl.*; other keys are refused. A map[string]string may be assigned.
	Kafka kafkaclient.Map
	// Listener is where gRPC is served. Run closes it.
	Listener net.Listener
	// Advertise is the address that clients, runners and other coordinators are told. Default: the listener's, with this host's name where it listens on every address.
	Advertise string
	// LeaseTTL is how long a runner's lease lasts without a renewal, 1 s to 5 min. Default 10 s.
	LeaseTTL time.Duration
	// AtLeastOnceLeaseTTL is the same for tasks under at-least-once, which stop when their lease runs out: at least three times SessionTimeout, so that a take-over disturbs none. Default 30 s, or that where it is longer.
	AtLeastOnceLeaseTTL time.Duration
	// SessionTimeout is how long the election waits for a coordinator that is silent; 1 s to 5 min, and not below the broker's group.min.session.timeout.ms. Default 6 s.
	SessionTimeout time.Duration
	// NoBalance leaves tasks where they run when a runner joins. Otherwise tasks move to it, one at a time, until all have as many.
	NoBalance bool
	// AcceptLostRecords lets this coordinator lead with a log that has lost records, as an operator has decided; the log remembers it.
	AcceptLostRecords bool
	// TLS, where set, is what gRPC is served with.
	TLS *tls.Config
	// Metrics, where set, has the coordinator's metrics registered by New. Nil is none, at no cost.
	Metrics prometheus.Registerer
	// Logger. Default: none.
	Logger hclog.Logger
	// Version is this program's, for people.
	Version string
}

// Coordinator is one coordinator of a cluster.
type Coordinator struct {
	config   Config
	log      hclog.Logger
	settings *kafkaclient.Settings
	leading  chan struct{}
	led      sync.Once                 // closes leading
	silent   silence                   // of stand
	failed   atomic.Pointer[error]     // why the last candidacy failed; nil while one lasts
	core     atomic.Pointer[loop.Loop] // nil while this coordinator doesn't lead

	health   *health.Server
	control  *control.Server
	sessions *sessions.Server
	metrics  *metrics.Metrics // nil where none are wanted

	// Closed by Run.
	client *kgo.Client
	fencer *fence.Fencer
	store  *configlog.Log

	history *history.History
}

// New makes a Coordinator and asks nobody for anything. The error has every mistake of the configuration, a line each, with its key.
func New(config Config) (*Coordinator, error) {
	config.Cluster = cmp.Or(config.Cluster, "fencepost")
	config.LeaseTTL = cmp.Or(config.LeaseTTL, 10*time.Second)
	config.SessionTimeout = cmp.Or(config.SessionTimeout, 6*time.Second)
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	var problems []error
	if wrong := names.CheckCluster(config.Cluster); wrong != "" {
		problems = append(problems, fmt.Errorf("cluster: %s", wrong))
	}
	if config.Listener == nil {
		problems = append(problems, errors.New("listen: no address is given"))
	} else {
		config.Advertise = cmp.Or(config.Advertise, reachable(config.Listener.Addr().String()))
	}
	problems = append(problems, within("lease-ttl", config.LeaseTTL), within("session-timeout", config.SessionTimeout), fits(config.AtLeastOnceLeaseTTL, config.SessionTimeout))
	config.AtLeastOnceLeaseTTL = cmp.Or(config.AtLeastOnceLeaseTTL, max(30*time.Second, takeOvers*config.SessionTimeout))
	settings, err := kafkaclient.Parse(config.Bootstrap, config.Kafka)
	if err := errors.Join(append(problems, err)...); err != nil {
		return nil, err
	}
	c := &Coordinator{config: config, log: config.Logger, settings: settings, leading: make(chan struct{}), silent: silence{}, health: health.NewServer()}
	c.history = history.New(history.Config{Cluster: config.Cluster, Settings: settings, Logger: c.log.Named("history")})
	if config.Metrics != nil {
		c.metrics = metrics.New(metrics.Config{Cluster: config.Cluster, Version: config.Version, History: c.history.Counts})
		if err := config.Metrics.Register(c.metrics); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	if c.client, err = settings.NewClient(); err != nil {
		return nil, err
	}
	direct := kafkaclient.NewDirect(c.client)
	c.fencer = fence.New(fence.Config{Direct: direct, Logger: c.log.Named("fence")})
	low, high := levels()
	c.store = configlog.New(configlog.Config{
		Cluster: config.Cluster, Address: config.Advertise, Version: config.Version, LevelMin: low, LevelMax: high, Settings: settings, Direct: direct, Fencer: c.fencer,
		SessionTimeout: config.SessionTimeout, Logger: c.log.Named("configlog"),
	})
	c.control = control.New(control.Config{Cluster: config.Cluster, Self: c.store.Self(), Leader: c.leader, Absent: c.absent, Standing: c.standing})
	c.sessions = sessions.New(sessions.Config{Leader: c.leader, Coordinators: c.addresses, Logger: config.Logger.Named("sessions")})
	return c, nil
}

// takeOvers is how many hard take-overs must fit into a lease under at-least-once.
const takeOvers = 3

// fits says what is wrong with the lease time of at-least-once tasks; nil is nothing.
func fits(ttl, session time.Duration) error {
	if ttl != 0 && ttl < takeOvers*session || ttl > takeOvers*maxSilence {
		return fmt.Errorf("at-least-once-lease-ttl: %v is out of range: %v (three times session-timeout, so that tasks outlive a change of the leader) to %v", ttl, takeOvers*session, takeOvers*maxSilence)
	}
	return nil
}

// The range of LeaseTTL and SessionTimeout: below it a pause of the garbage collector costs a lease or the lead, above it nobody takes over within a time that people wait for.
const minSilence, maxSilence = time.Second, 5 * time.Minute

// within says what is wrong with a time that somebody may be silent; nil is nothing.
func within(key string, d time.Duration) error {
	if d < minSilence || d > maxSilence {
		return fmt.Errorf("%s: %v is out of range: 1s to 5m", key, d)
	}
	return nil
}

// reachable is an address that others can dial.
func reachable(address string) string {
	host, port, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsUnspecified() {
		return address
	}
	name, err := os.Hostname()
	if err != nil {
		return address
	}
	return net.JoinHostPort(name, port)
}

// Leading is closed when this coordinator leads for the first time.
func (c *Coordinator) Leading() <-chan struct{} { return c.leading }

// Run serves, stands for election and leads, until ctx ends; then it leaves the election at once, tells its runners who leads next, and returns nil. It is called once. A broker that isn't there is waited for.
func (c *Coordinator) Run(ctx context.Context) error {
	defer c.client.Close()
	defer c.sessions.Close()
	// What tells runners and clients where to go ends last.
	serving, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	group, serving := errgroup.WithContext(serving)
	standing, leave := context.WithCancel(ctx)
	defer leave()
	context.AfterFunc(serving, leave) // One that can't serve must not lead.
	group.Go(func() error { return c.serve(serving) })
	group.Go(func() error { return c.store.Follow(serving, c.heardOfLeader) })
	group.Go(func() error { return c.store.Watch(serving, c.rosterChanged) })
	group.Go(func() error {
		defer hush()
		return c.stand(standing)
	})
	return group.Wait()
}

// leader is the address of another coordinator that leads; empty where none is known. The log may still name this one, from when it led.
func (c *Coordinator) leader() string {
	if leader := c.store.Heard().Leader; leader != c.config.Advertise {
		return leader
	}
	return ""
}

// addresses are those of all coordinators that are alive, as far as is known.
func (c *Coordinator) addresses() []string {
	var all []string
	for _, other := range c.store.Roster() {
		if other.Address != "" {
			all = append(all, other.Address)
		}
	}
	return all
}

// standing is what this coordinator knows of the cluster without leading it.
func (c *Coordinator) standing() control.Standing {
	heard := c.store.Heard()
	return control.Standing{Coordinators: c.store.Roster(), LeaderID: heard.LeaderID, Term: heard.Term, Level: heard.Level}
}

// rosterChanged tells the loop, where this coordinator leads, which coordinators there are.
func (c *Coordinator) rosterChanged(all []state.Coordinator) {
	if core := c.core.Load(); core != nil {
		_ = core.Submit(context.Background(), state.CoordinatorsChanged{Coordinators: all}) // An error says that the loop has ended.
	}
}

func (c *Coordinator) heardOfLeader(address string) {
	if address != c.config.Advertise && c.core.Load() == nil { // A leader may still be reading of those before it.
		c.log.Info("waiting, another coordinator leads", "leader", address)
	}
}
