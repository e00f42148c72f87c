package app

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/coordinator"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	"github.com/fencepost-io/fencepost/runner"
)

const (
	// devStartTimeout bounds everything between the start of dev and its first connector.
	devStartTimeout = 30 * time.Second
	// devLeaseTTL is short: coordinator and runner are one process, so that a lease that isn't renewed is that of a dev that was killed, and the next one need not wait for long.
	devLeaseTTL = 2 * time.Second
	// devSessionTimeout is as short for the same reason, where the embedded broker allows it.
	devSessionTimeout = 2 * time.Second
)

// dev is coordinator, runner and broker in one process, with a reader that shows what arrives.
type dev struct {
	files       []string
	once        bool
	kafkaListen string
	listen      string
	dataDir     string
	bootstrap   []string
	cluster     string
	flags       runnerFlags
	metrics     metricsFlag
	file        daemonFile
	logs        logFlags

	connectors []*connectorFile
	broker     *embedded // nil with a real one
	kafka      string    // bootstrap address
	control    *client
	view       *viewer
	logger     hclog.Logger
}

func newDev() *cobra.Command {
	d := &dev{}
	cmd := &cobra.Command{
		Use: "dev", Short: "Run everything in one process, on an embedded broker, and show the records that arrive", Args: exactArgs(),
		Long: `Run coordinator, runner and an embedded Kafka broker in one process (plugins are processes of their own), create the connectors of the files,
and show each record as a read_committed reader sees it.

With --data-dir the embedded broker keeps its data in a folder and survives a kill. With --bootstrap-servers a real Kafka cluster takes its place.`,
		Example: `  fencepost dev -f docs/examples/quickstart.yaml --plugin-path bin/plugins
  fencepost dev -f connectors/ --plugin-path bin/plugins --kafka-listen 127.0.0.1:9092
  fencepost dev -f orders.yaml --plugin-path bin/plugins --bootstrap-servers kafka:9092`,
		RunE: func(cmd *cobra.Command, _ []string) error { return d.run(cmd) },
	}
	cmd.Flags().StringArrayVarP(&d.files, "file", "f", nil, "connectors to run: YAML or JSON file, or folder of them; may repeat")
	cmd.Flags().BoolVar(&d.once, "once", false, "end as soon as everything there is has been delivered and its offsets are stored")
	cmd.Flags().StringVar(&d.kafkaListen, "kafka-listen", "", "address of the embedded broker, for any Kafka client (default: a free port of this host)")
	cmd.Flags().StringVar(&d.listen, "listen", "", "address for tools and further runners (default: "+defaultCoordinator+", or a free port where that is taken)")
	cmd.Flags().StringVar(&d.dataDir, "data-dir", "", "keep the embedded broker's data in this folder, safe against a kill (default: in memory)")
	cmd.Flags().StringSliceVar(&d.bootstrap, "bootstrap-servers", nil, "use these Kafka brokers instead of the embedded one")
	cmd.Flags().StringVar(&d.cluster, "cluster", "fencepost", "cluster name: 1 to 40 of [a-z0-9-]")
	d.flags.register(cmd)
	d.metrics.register(cmd)
	d.file.register(cmd)
	d.logs.register(cmd)
	_ = cmd.Flags().Set("log-level", "warn")
	cmd.Flags().Lookup("log-level").DefValue = "warn"
	cmd.Flags().Lookup("log-level").Changed = false
	return cmd
}

func (d *dev) run(cmd *cobra.Command) error {
	if err := d.check(cmd); err != nil {
		return err
	}
	endpoint, err := d.metrics.open()
	if err != nil {
		return err
	}
	defer endpoint.close()
	if len(d.bootstrap) > 0 {
		d.kafka = strings.Join(d.bootstrap, ",")
	} else {
		broker, err := startEmbedded(d.kafkaListen, d.dataDir, d.logger.Named("kafka"))
		if err != nil {
			return err
		}
		defer broker.close()
		d.broker, d.kafka = broker, broker.address()
	}
	listener, err := d.listenControl()
	if err != nil {
		return err
	}
	settings := coordinator.Config{
		Cluster: d.cluster, Bootstrap: d.kafka, Kafka: securityKeys(d.file.kafka), Listener: listener, LeaseTTL: devLeaseTTL,
		Metrics: endpoint.registerer(), Logger: d.logger.Named("coordinator"), Version: Version,
	}
	if d.broker != nil {
		settings.SessionTimeout = devSessionTimeout
	}
	c, err := coordinator.New(settings)
	if err != nil {
		_ = listener.Close()
		return fail(exitUsage, "%w", err)
	}
	config := runner.Config{
		Name: d.runnerName(listener.Addr()), Coordinators: []string{listener.Addr().String()}, Bootstrap: d.kafka, Kafka: d.file.kafka, CommitsPerSecond: 200,
		Metrics: endpoint.registerer(), Logger: d.logger.Named("runner"), Version: Version,
	}
	if err := d.flags.fill(&config); err != nil {
		return err
	}
	r, err := runner.New(config)
	if err != nil {
		_ = listener.Close()
		return fail(exitUsage, "%w", err)
	}
	d.control = &client{addresses: []string{listener.Addr().String()}, timeout: devStartTimeout}
	return endpoint.beside(cmd.Context(), d.logger, func(ctx context.Context) error {
		cmd.SetContext(ctx)
		return d.runParts(cmd, c, r)
	})
}

// runnerName is another one for each dev that runs on this host, and the same for each life of a data folder or, in memory, of a port: a runner's name is unique, and clears away what an earlier life of it left behind.
func (d *dev) runnerName(control net.Addr) string {
	dir, err := filepath.Abs(d.dataDir)
	if d.dataDir == "" || err != nil {
		_, port, _ := net.SplitHostPort(control.String()) // Always HOST:PORT.
		return "dev-" + port
	}
	sum := sha256.Sum256([]byte(dir))
	return fmt.Sprintf("dev-%x", sum[:4])
}

// securityKeys are those that every client of the cluster needs; the others are the runner's alone.
func securityKeys(kafka map[string]string) map[string]string {
	out := map[string]string{}
	for key, value := range kafka {
		if strings.HasPrefix(key, "security.") || strings.HasPrefix(key, "sasl.") || strings.HasPrefix(key, "ssl.") || strings.HasPrefix(key, "enable.ssl.") {
			out[key] = value
		}
	}
	return out
}

func (d *dev) check(cmd *cobra.Command) (err error) {
	if err := d.file.load(cmd); err != nil {
		return err
	}
	if d.logger, err = d.logs.logger(cmd, "dev"); err != nil {
		return err
	}
	switch {
	case len(d.bootstrap) > 0 && (d.dataDir != "" || d.kafkaListen != ""):
		return fail(exitUsage, "--bootstrap-servers names a broker of its own: leave --data-dir and --kafka-listen out")
	case d.once && len(d.files) == 0:
		return fail(exitUsage, "--once needs a connector: name its file with -f")
	}
	if len(d.files) > 0 {
		if d.connectors, err = readConnectorFiles(d.files, cmd.InOrStdin()); err != nil {
			return err
		}
	}
	for _, file := range d.connectors {
		if len(file.Problems) > 0 {
			return fail(exitFailed, "%s", describeProblems(file.Where, file.Problems))
		}
	}
	return nil
}

func (d *dev) listenControl() (net.Listener, error) {
	if d.listen != "" {
		listener, err := net.Listen("tcp", d.listen)
		if err != nil {
			return nil, fail(exitUsage, "--listen: %w", err)
		}
		return listener, nil
	}
	listener, err := net.Listen("tcp", defaultCoordinator)
	if err != nil { // taken, most likely by another dev
		listener, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, fail(exitFailed, "listen: %w", err)
	}
	return listener, nil
}

var errDevDone = errors.New("everything is delivered")

// runParts runs until the user stops it, a part fails, or, with --once, all is delivered. The runner is stopped first, so that its tasks can hand their leases back.
func (d *dev) runParts(cmd *cobra.Command, c *coordinator.Coordinator, r *runner.Runner) error {
	view, err := newViewer(cmd.OutOrStdout(), d.kafka, securityKeys(d.file.kafka))
	if err != nil {
		return err
	}
	defer view.close()
	d.view = view
	coordinatorCtx, stopCoordinator := context.WithCancel(context.WithoutCancel(cmd.Context()))
	defer stopCoordinator()
	coordinatorDone := make(chan error, 1)
	go func() { coordinatorDone <- c.Run(coordinatorCtx) }()

	group, ctx := errgroup.WithContext(cmd.Context())
	group.Go(func() error { return r.Run(ctx) })
	group.Go(func() error { return view.run(ctx) })
	group.Go(func() error { return d.script(ctx, cmd, c) })
	group.Go(func() error {
		select {
		case err := <-coordinatorDone:
			coordinatorDone <- err
			return fmt.Errorf("the coordinator ended: %w", err)
		case <-ctx.Done():
			return nil
		}
	})
	err = group.Wait()
	stopCoordinator()
	if stopErr := <-coordinatorDone; err == nil && stopErr != nil && !errors.Is(stopErr, context.Canceled) {
		err = stopErr
	}
	if errors.Is(err, errDevDone) {
		writeLine(cmd.OutOrStdout(), fmt.Sprintf("\nEverything is delivered and its offsets are stored: %s.", count(view.total(), "record", "records")))
		return nil
	}
	if cmd.Context().Err() != nil {
		return nil
	}
	return daemonResult(err)
}

// script is what happens once the parts run: wait for them, create topics and connectors, and watch.
func (d *dev) script(ctx context.Context, cmd *cobra.Command, c *coordinator.Coordinator) error {
	if err := d.waitReady(ctx, c); err != nil {
		return err
	}
	d.banner(cmd)
	for _, file := range d.connectors {
		if err := d.start(ctx, cmd, file); err != nil {
			return err
		}
	}
	if !d.once {
		return d.watchFailures(ctx, cmd)
	}
	return d.waitDelivered(ctx)
}

func (d *dev) waitReady(ctx context.Context, c *coordinator.Coordinator) error {
	ctx, cancel := context.WithTimeout(ctx, devStartTimeout)
	defer cancel()
	select {
	case <-c.Leading():
	case <-ctx.Done():
		return fail(exitUnreachable, "the coordinator does not lead after %s: is Kafka reachable at %s? More with --log-level info", devStartTimeout, d.kafka)
	}
	return poll(ctx, func() (bool, error) {
		var resp *controlv1.ListRunnersResponse
		err := d.control.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
			resp, err = control.ListRunners(ctx, &controlv1.ListRunnersRequest{})
			return err
		})
		return len(resp.GetRunners()) > 0, err
	})
}

// poll asks until the answer is yes. The parts are in this process: asking is cheap.
func poll(ctx context.Context, ask func() (bool, error)) error {
	for {
		yes, err := ask()
		if err != nil || yes {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func (d *dev) banner(cmd *cobra.Command) {
	t := newTable(cmd.OutOrStdout())
	kind := "a real cluster"
	if d.broker != nil {
		kind = "embedded, in memory; any Kafka client can attach"
		if d.dataDir != "" {
			kind = "embedded, data in " + d.dataDir + "; any Kafka client can attach"
		}
	}
	t.row("kafka", d.kafka, kind)
	t.row("coordinator", d.control.addresses[0], "fencepost get --coordinator "+d.control.addresses[0])
	_ = t.flush()
}

// start creates or changes one connector. On the embedded broker its topic is made too.
func (d *dev) start(ctx context.Context, cmd *cobra.Command, file *connectorFile) error {
	topic := file.Config["topic"]
	if d.broker != nil && topic != "" {
		if err := createTopics(ctx, d.view.client, []string{topic}); err != nil {
			return fail(exitFailed, "%s: %w", file.Where, err)
		}
	}
	err := d.control.call(ctx, func(ctx context.Context, control controlv1.ControlClient) error {
		_, err := control.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: file.Name, Config: file.Config})
		return err
	})
	if err != nil {
		return fmt.Errorf("%s: %w", file.Where, err)
	}
	writeLine(cmd.OutOrStdout(), fmt.Sprintf("connector    %s  %s", file.Name, file.Config["connector.class"]))
	if hint := addLineHint(file.Config); hint != "" && !d.once {
		writeLine(cmd.OutOrStdout(), "             "+hint)
	}
	if topic != "" {
		d.view.show(topic)
	}
	return nil
}

// addLineHint says how to see a new line arrive, for connectors that read files.
func addLineHint(config map[string]string) string {
	if config["connector.class"] != "file" {
		return ""
	}
	first, _, _ := strings.Cut(config["paths"], ",")
	dir, pattern := splitGlob(strings.TrimSpace(first))
	if dir == "" {
		return ""
	}
	name := strings.ReplaceAll(pattern, "*", "hello")
	return fmt.Sprintf("add a line and see it arrive: echo hello >> %s/%s", strings.TrimSuffix(dir, "/"), name)
}

// splitGlob cuts a glob before its last element.
func splitGlob(glob string) (dir, pattern string) {
	i := strings.LastIndexByte(glob, '/')
	if i < 0 || strings.ContainsAny(glob[:i], "*?[{") {
		return "", ""
	}
	return glob[:i], glob[i+1:]
}

// watchFailures says once for each connector that failed why it did; the others go on.
func (d *dev) watchFailures(ctx context.Context, cmd *cobra.Command) error {
	said := map[string]string{}
	for {
		connectors, err := listConnectors(ctx, d.control)
		if err == nil {
			for _, c := range connectors {
				d.view.showAll(c.GetTopics())
				if why := reasonOf(c); c.GetState() == "FAILED" && said[c.GetName()] != why {
					said[c.GetName()] = why
					fmt.Fprintf(cmd.ErrOrStderr(), "Error: %s failed: %s\n", c.GetName(), why)
				}
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// waitDelivered is --once: every task has caught up, with all that it read committed, and the reader has shown everything.
func (d *dev) waitDelivered(ctx context.Context) error {
	err := poll(ctx, func() (bool, error) {
		connectors, err := listConnectors(ctx, d.control)
		if err != nil {
			return false, err
		}
		done := len(connectors) > 0
		for _, c := range connectors {
			if !slices.ContainsFunc(d.connectors, func(f *connectorFile) bool { return f.Name == c.GetName() }) {
				continue // left over in the data folder
			}
			d.view.showAll(c.GetTopics())
			if c.GetState() == "FAILED" {
				return false, fail(exitFailed, "%s failed: %s", c.GetName(), reasonOf(c))
			}
			done = done && caughtUp(c)
		}
		return done, nil
	})
	if err != nil {
		return err
	}
	if err := d.view.waitEnd(ctx); err != nil {
		return err
	}
	return errDevDone
}

func caughtUp(c *controlv1.Connector) bool {
	for _, task := range c.GetTasks() {
		if task.GetState() != "RUNNING" || !task.GetCaughtUp() {
			return false
		}
	}
	return c.GetState() == "RUNNING" && len(c.GetTasks()) > 0
}
