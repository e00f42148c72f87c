package soak

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
)

// The world's own times are shorter than Fencepost's and Kafka's defaults, so that a fault and the recovery from it fit into seconds.
const (
	leaseTTL       = 5 * time.Second
	sessionTimeout = 4 * time.Second
	// startTimeout bounds the start of everything, stopTimeout the end of one process.
	startTimeout = 4 * time.Minute
	stopTimeout  = 45 * time.Second
	// diskSize is that of the file system that a runner has its temporary files on.
	diskSize = "8m"
)

// world is everything that runs: brokers, coordinators, runners, each a real process.
type world struct {
	cfg     *Config
	dir     string
	plugins string
	forget  string

	kafka        *kafka.Cluster
	coordinators []*member
	runners      []*member
	// networks are the runners' own, by the runner's number; empty where this user may not make any.
	networks  []*network
	addresses []string // of the coordinators
	control   *control

	mu sync.Mutex
	// shapes are how the connectors are configured now.
	shapes map[string]shape
	// deaths are processes that ended although nobody had asked them to.
	deaths []string
}

// brokerProperties make Kafka notice the death of a broker soon, and keep what one broker alone would lose.
var brokerProperties = map[string]string{
	"group.min.session.timeout.ms": "1000",
	"broker.session.timeout.ms":    "4000",
	"broker.heartbeat.interval.ms": "500",
	"min.insync.replicas":          "2",
}

// newWorld starts everything and creates the connectors. Whatever it returns has to be closed.
func newWorld(ctx context.Context, cfg *Config) (*world, error) {
	w := &world{cfg: cfg, shapes: map[string]shape{}}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := w.folders()
	if err == nil {
		err = w.startKafka(ctx)
	}
	if err == nil {
		err = w.startMembers()
	}
	if err == nil {
		err = w.create(ctx)
	}
	return w, err
}

// folders makes the world's folders: short ones, since sockets are made below them.
func (w *world) folders() error {
	var err error
	if w.dir, err = os.MkdirTemp(w.cfg.Dir, "soak"); err != nil {
		return err
	}
	w.plugins, w.forget = filepath.Join(w.dir, "plugins"), filepath.Join(w.dir, "forgotten")
	for _, dir := range []string{w.plugins, w.forget} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
	}
	// A copy of its own, so that this world's plugin processes can be told from others.
	binary, err := os.ReadFile(filepath.Join(w.cfg.Plugins, "generator"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(w.plugins, "generator"), binary, 0o755) //nolint:gosec // it has to be run
}

func (w *world) startKafka(ctx context.Context) error {
	properties := brokerProperties
	if w.cfg.Brokers == 1 {
		properties = map[string]string{"group.min.session.timeout.ms": "1000"}
	}
	var err error
	w.kafka, err = kafka.StartCluster(ctx, kafka.Options{Dir: filepath.Join(w.dir, "kafka"), Fast: true, Heap: "400m", Brokers: w.cfg.Brokers, Properties: properties})
	return err
}

// startMembers starts coordinators and runners.
func (w *world) startMembers() error {
	for range w.cfg.Coordinators {
		address, err := freeAddress()
		if err != nil {
			return err
		}
		w.addresses = append(w.addresses, address)
	}
	var err error
	if w.control, err = newControl(w.addresses); err != nil {
		return err
	}
	for i, address := range w.addresses {
		w.coordinators = append(w.coordinators, w.member("c"+strconv.Itoa(i+1), w.coordinator(address)))
	}
	for i := range w.cfg.Runners {
		n, err := newNetwork(w.addresses, w.brokerAddresses())
		switch {
		case errors.Is(err, errNoNetwork):
			w.cfg.say("cuts, slow links and the full disk are left out: %v", err)
		case err != nil:
			return err
		default:
			w.networks = append(w.networks, n)
		}
		name := "r" + strconv.Itoa(i+1)
		if err := os.MkdirAll(w.temp(name), 0o700); err != nil {
			return err
		}
		w.runners = append(w.runners, w.member(name, w.runner(name, n)))
	}
	for _, m := range append(append([]*member{}, w.coordinators...), w.runners...) {
		if err := m.start(); err != nil {
			return err
		}
	}
	return nil
}

func (w *world) member(name string, spec func() process.Spec) *member {
	m := &member{name: name, log: filepath.Join(w.dir, name+".log"), died: w.died}
	m.spec = func() process.Spec {
		s := spec()
		s.Name, s.Log, s.Dir = name, m.log, w.dir
		return s
	}
	return m
}

func (w *world) coordinator(address string) func() process.Spec {
	args := []string{
		"coordinator", "--cluster", "soak", "--bootstrap-servers", w.kafka.Addr(), "--listen", address, "--log-format", "json",
		"--lease-ttl", leaseTTL.String(), "--session-timeout", sessionTimeout.String(),
	}
	return func() process.Spec { return process.Spec{Path: w.cfg.Fencepost, Args: args} }
}

// runner is a runner in a network of its own, with a small disk of its own for its temporary files. Each program before it becomes the next one, so that the process is the runner.
func (w *world) runner(name string, n *network) func() process.Spec {
	command := []string{
		w.cfg.Fencepost, "runner", "--name", name, "--coordinator", strings.Join(w.addresses, ","), "--bootstrap-servers", w.kafka.Addr(), "--plugin-path", w.plugins, "--log-format", "json",
	}
	if n != nil {
		script := `mount -t tmpfs -o "size=$1,nr_inodes=400" tmpfs "$2" || exit 99; shift 2; exec "$@"`
		command = append(append(n.within(), "unshare", "-m", "sh", "-c", script, "sh", diskSize, w.temp(name)), command...)
	}
	env := append([]string{"TMPDIR=" + w.temp(name)}, w.cfg.Env...)
	return func() process.Spec { return process.Spec{Path: command[0], Args: command[1:], Env: env} }
}

func (w *world) temp(runner string) string { return filepath.Join(w.dir, "t"+runner) }

func (w *world) brokerAddresses() []string {
	var all []string
	for _, b := range w.kafka.Brokers {
		all = append(all, b.Addr)
	}
	return all
}

// died takes note of a process that ended although nobody had asked it to, and starts another one in its place.
func (w *world) died(m *member, p *process.Process) {
	text := fmt.Sprintf("%s ended by itself with %v; its log ends with:\n%s", m.name, p.State(), p.Tail(5))
	w.mu.Lock()
	w.deaths = append(w.deaths, text)
	w.mu.Unlock()
	w.cfg.say("%s", text)
	if err := m.start(); err != nil {
		w.cfg.say("%v", err)
	}
}

func (w *world) unasked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string{}, w.deaths...)
}

// create makes the topics and the connectors, and waits until all run.
func (w *world) create(ctx context.Context) error {
	if err := harness.Poll(ctx, startTimeout, func(ctx context.Context) error {
		_, err := w.control.leader(ctx)
		return err
	}); err != nil {
		return err
	}
	if err := w.createTopics(ctx); err != nil {
		return err
	}
	var group errgroup.Group
	for i := range loads {
		group.Go(func() error { return w.reshape(ctx, loads[i].name, shape{}) })
	}
	return group.Wait()
}

// shape is which of its configurations a connector has.
type shape struct{ tasks, variant int }

func (w *world) shapeOf(connector string) shape {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shapes[connector]
}

// reshape gives a connector another configuration.
func (w *world) reshape(ctx context.Context, connector string, to shape) error {
	l := loadOf(connector)
	if err := w.control.apply(ctx, connector, l.settings(w.forget, l.tasks[to.tasks%len(l.tasks)], to.variant)); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.shapes[connector] = to
	return nil
}

func (w *world) createTopics(ctx context.Context) error {
	return w.admin(func(admin *kadm.Client) error {
		made, err := admin.CreateTopic(ctx, canaryPartitions, int16(w.cfg.Brokers), nil, canaryTopic) //nolint:gosec // a handful
		if err = errors.Join(err, made.Err); err != nil {
			return fmt.Errorf("create topic %s: %w", canaryTopic, err)
		}
		for i := range loads {
			created, err := admin.CreateTopic(ctx, loads[i].partitions, int16(w.cfg.Brokers), topicSettings, loads[i].name) //nolint:gosec // a handful
			if err = errors.Join(err, created.Err); err != nil {
				return fmt.Errorf("create topic %s: %w", loads[i].name, err)
			}
		}
		return nil
	})
}

// admin lends a client that goes past the runners' networks.
func (w *world) admin(use func(*kadm.Client) error) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(w.brokerAddresses()...))
	if err != nil {
		return err
	}
	defer client.Close()
	return use(kadm.NewClient(client))
}

// close ends everything that still runs, and removes the folders.
func (w *world) close() {
	for _, m := range append(append([]*member{}, w.runners...), w.coordinators...) {
		m.end()
	}
	for _, n := range w.networks {
		n.close()
	}
	if w.control != nil {
		w.control.close()
	}
	if w.kafka != nil {
		w.kafka.Kill()
	}
	if w.cfg.Keep {
		w.cfg.say("what the processes wrote is kept in %s", w.dir)
		return
	}
	_ = os.RemoveAll(w.dir)
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}
