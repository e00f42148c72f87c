// Package runner runs connectors' tasks: it reads their records out of plugin processes and publishes them to Kafka exactly once.
//
// This file is wiring only. What a runner does is in the packages below internal: session speaks with the coordinator, supervisor decides what runs, pluginhost keeps processes, task moves records,
// publish and offsets speak with Kafka. Where to read next: internal/supervisor, then internal/task.
package runner

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	"github.com/fencepost-io/fencepost/runner/internal/metrics"
	"github.com/fencepost-io/fencepost/runner/internal/offsets"
	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Config of a runner. Zero fields have the defaults that are named; those without a default are required.
type Config struct {
	// Name of the runner, unique in the cluster: 1 to 100 bytes.
	Name string
	// Coordinators are addresses HOST:PORT, tried in turn.
	Coordinators []string
	// Cluster is the cluster that the runner is meant for; a coordinator of another one is refused. Default: that of the first coordinator that answers.
	Cluster string
	// Bootstrap has the addresses of Kafka brokers HOST:PORT, separated by commas.
	Bootstrap string
	// Kafka has more of librdkafka's keys.
	Kafka map[string]string
	// PluginPath names folders of plugins, and single plugins.
	PluginPath []string
	// PluginAddresses are plugins that somebody else has started: HOST:PORT by the plugin's name.
	PluginAddresses map[string]string
	// Labels are for placement.
	Labels map[string]string
	// SocketDir is where the plugins' private socket folder is made. Default: the system's folder for temporary files.
	SocketDir string
	// CommitsPerSecond is the budget of commits that quiet tasks share. Default 200.
	CommitsPerSecond int
	// TLS secures the connections to coordinators and to plugins at addresses; nil is in the clear.
	TLS *tls.Config
	// DialOptions are added to those of the connections to coordinators.
	DialOptions []grpc.DialOption
	// Metrics, where set, has the runner's metrics registered by Run, and taken out when it ends. Nil is none, at no cost.
	Metrics prometheus.Registerer
	// Logger gets the runner's log; nil discards it.
	Logger hclog.Logger
	// Version of Fencepost.
	Version string
}

// Plugin is a plugin that works: its description, where it is, and its SHA-256 (empty at an address).
type Plugin = pluginhost.Info

// Broken is what looks like a plugin and doesn't work, and why.
type Broken = pluginhost.Broken

// Runner is a runner that has not started, or runs.
type Runner struct {
	cfg     Config
	commits *rate.Limiter
}

// New checks a Config, and reports everything that is wrong with it at once, as a *ConfigError. It starts nothing.
func New(cfg Config) (*Runner, error) {
	if cfg.CommitsPerSecond == 0 {
		cfg.CommitsPerSecond = 200
	}
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if err := cfg.check(); err != nil {
		return nil, err
	}
	// A burst of a tenth of a second: tasks that have been quiet commit at once when they wake up together.
	return &Runner{cfg: cfg, commits: rate.NewLimiter(rate.Limit(cfg.CommitsPerSecond), max(1, cfg.CommitsPerSecond/10))}, nil
}

// Run runs the runner until ctx is done: it then has its tasks moved, drains what it has within 20 s, ends its plugins and returns nil. An error says that it can't work, or can't go on; the process
// should end then.
func (r *Runner) Run(ctx context.Context) error {
	host, err := pluginhost.New(pluginhost.Config{Name: r.cfg.Name, SocketDir: r.cfg.SocketDir, Logger: r.cfg.Logger.Named("plugin")})
	if err != nil {
		return fmt.Errorf("runner %q: %w", r.cfg.Name, err)
	}
	defer host.Close()
	w := &wiring{Runner: r, plugins: newPlugins(host, &r.cfg)}
	w.plugins.discover(ctx)
	if err := w.connect(); err != nil {
		return fmt.Errorf("runner %q: %w", r.cfg.Name, err)
	}
	if r.cfg.Metrics != nil {
		w.metrics = metrics.New(metrics.Config{Runner: r.cfg.Name, Version: r.cfg.Version, Session: w.session.Standing, Plugins: host.Counts, LeftBehind: publish.Leaked})
		if err := r.cfg.Metrics.Register(w.metrics); err != nil {
			return fmt.Errorf("runner %q: metrics: %w", r.cfg.Name, err)
		}
		defer r.cfg.Metrics.Unregister(w.metrics)
	}
	w.offer()

	// The session is closed last: what the tasks say at their end still has to leave.
	speaking, hush := context.WithCancel(context.WithoutCancel(ctx))
	defer hush()
	var group errgroup.Group
	group.Go(func() error { return w.session.Run(speaking) })
	group.Go(func() error {
		defer hush()
		return w.supervisor.Run(ctx, w.metrics.Watch(w.session))
	})
	group.Go(func() error {
		w.plugins.watch(ctx, w.offer)
		return nil
	})
	return group.Wait()
}

// wiring is a running runner's parts.
type wiring struct {
	*Runner
	plugins    *plugins
	validator  *supervisor.Validator
	supervisor *supervisor.Supervisor
	session    *session.Session
	offsets    offsets.Sharing
	metrics    *metrics.Metrics // nil where none are wanted
}

// connect makes the parts and ties them together.
func (w *wiring) connect() error {
	var err error
	w.validator = supervisor.NewValidator(w.plugins.start, w.cfg.checkOverrides, w.cfg.Logger)
	w.supervisor, err = supervisor.New(supervisor.Config{Validator: w.validator, RunTask: w.runTask, LoadOffsets: w.loadOffsets, Logger: w.cfg.Logger.Named("supervisor")})
	if err != nil {
		return err
	}
	hostName, err := os.Hostname()
	if err != nil {
		hostName = "unknown" // Only people read it.
	}
	w.session, err = session.New(session.Config{
		Name: w.cfg.Name, ProcessID: processID(), Version: w.cfg.Version, Host: hostName, Labels: w.cfg.Labels, Coordinators: w.cfg.Coordinators, Cluster: w.cfg.Cluster,
		TLS: w.cfg.TLS, DialOptions: w.cfg.DialOptions, Deliver: w.supervisor.Deliver, Logger: w.cfg.Logger.Named("session"),
	})
	return err
}

// offer tells the parts which plugins there are.
func (w *wiring) offer() {
	found, broken := w.plugins.all()
	w.validator.SetPlugins(toSupervisor(found))
	o := session.Offer{}
	for _, p := range found {
		o.Plugins = append(o.Plugins, session.Plugin{Description: p.Description, Path: p.Path, SHA256: p.SHA256})
	}
	for _, b := range broken {
		o.Broken = append(o.Broken, session.Broken{Path: b.Path, Error: b.Reason})
	}
	w.session.Offer(o)
}

// runTask is one attempt of a task.
func (w *wiring) runTask(ctx context.Context, a supervisor.Attempt) error {
	g := a.Grant
	watch := w.metrics.Attempt(g)
	defer watch.End()
	return task.Run(ctx, task.Config{
		Lease: g.Lease, Cluster: a.Cluster, Settings: a.Settings, Plugin: a.Plugin, Coordinator: w.session, OffsetsTopic: g.OffsetsTopic,
		Open: source.RunOpen{
			Connector: g.Lease.Connector, Type: g.Plugin.Type, Task: int(g.Lease.Task), Config: a.Own, TaskConfig: g.TaskConfig, Claim: g.Claim,
			Generation: g.Lease.Generation, Epoch: g.Lease.Epoch, Incarnation: g.Lease.Incarnation,
		},
		NewPublisher: func() (task.Publisher, error) {
			p, err := publish.New(publish.Config{
				TransactionalID: g.TransactionalID, Client: w.cfg.client(), Overrides: a.Settings.ProducerOverrides, TransactionTimeout: a.Settings.TransactionTimeout,
				DeliveryReports: a.NameRecords, Logger: a.Logger,
			})
			if err != nil {
				return nil, err // A nil *Producer would be a Publisher that isn't nil.
			}
			watch.Queue(p.Queued)
			return p, nil
		},
		OpenOffsets: func(ctx context.Context) (task.Offsets, string, error) {
			store, id, err := w.offsets.Open(ctx, offsets.Config{Topic: g.OffsetsTopic, Connector: g.Lease.Connector, KnownID: g.OffsetsTopicID, Client: w.cfg.client(), Logger: a.Logger})
			if err != nil {
				return nil, "", err
			}
			// The next attempt must find the same topic, also before a new grant says so.
			g.OffsetsTopicID = id
			return store, id, nil
		},
		Status: func(s task.Status) {
			watch.Report(s)
			a.Status(s)
		},
		Drain: a.Drain, Shrink: a.Shrink, CommitBudget: w.commits, Logger: a.Logger,
	})
}

// loadOffsets reads stored offsets for a look-up of a plan, or for a person. It never creates their topic.
func (w *wiring) loadOffsets(ctx context.Context, connector, topic string) (supervisor.Offsets, error) {
	store, err := offsets.Peek(ctx, offsets.Config{Topic: topic, Connector: connector, Client: w.cfg.client(), Logger: w.cfg.Logger.Named("offsets")})
	if err != nil {
		return nil, err
	}
	return store, nil
}

// Validate finds every problem of a connector's configuration with the plugins of cfg. It needs no coordinator and no broker; of cfg only PluginPath, PluginAddresses, Kafka, SocketDir, TLS, Logger and
// Version count. An error says that there is no answer.
func Validate(ctx context.Context, cfg Config, name string, config map[string]string) ([]source.Problem, error) {
	host, p, err := alone(&cfg)
	if err != nil {
		return nil, err
	}
	defer host.Close()
	p.discover(ctx)
	v := supervisor.NewValidator(p.start, cfg.checkOverrides, cfg.Logger)
	defer v.Close()
	found, broken := p.all()
	v.SetPlugins(toSupervisor(found))
	problems, _, err := v.Validate(ctx, name, config)
	return append(problems, brokenProblems(config, problems, broken)...), err
}

// Plugins tells which plugins cfg has, and which don't work. It needs no coordinator and no broker.
func Plugins(ctx context.Context, cfg Config) (found []Plugin, broken []Broken, err error) {
	host, p, err := alone(&cfg)
	if err != nil {
		return nil, nil, err
	}
	defer host.Close()
	p.discover(ctx)
	found, broken = p.all()
	return found, broken, ctx.Err()
}

// alone makes a plugin host for a runner that joins no cluster. It has no name, so that it disturbs no runner beside it.
func alone(cfg *Config) (*pluginhost.Host, *plugins, error) {
	if cfg.Logger == nil {
		cfg.Logger = hclog.NewNullLogger()
	}
	if len(cfg.PluginPath)+len(cfg.PluginAddresses) == 0 {
		return nil, nil, errors.New("no plugins: name a plugin-path or a plugin-address")
	}
	host, err := pluginhost.New(pluginhost.Config{SocketDir: cfg.SocketDir, Logger: cfg.Logger.Named("plugin")})
	if err != nil {
		return nil, nil, fmt.Errorf("start plugins: %w", err)
	}
	return host, newPlugins(host, cfg), nil
}

// client has librdkafka's keys for this runner's cluster.
func (c *Config) client() map[string]string {
	keys := maps.Clone(c.Kafka)
	if keys == nil {
		keys = map[string]string{}
	}
	keys["bootstrap.servers"] = c.Bootstrap
	return keys
}

func (c *Config) checkOverrides(overrides map[string]string) []source.Problem {
	return publish.CheckOverrides(c.Kafka, overrides)
}

// processID tells this process from every other of the same name.
func processID() string {
	var id [16]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return hex.EncodeToString(id[:])
}
