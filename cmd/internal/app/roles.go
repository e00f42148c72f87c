package app

import (
	"context"
	"net"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/fencepost-io/fencepost/coordinator"
	"github.com/fencepost-io/fencepost/runner"
)

// logFlags choose what a long-lived command logs.
type logFlags struct{ level, format string }

func (l *logFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&l.level, "log-level", "info", "trace, debug, info, warn or error")
	cmd.Flags().StringVar(&l.format, "log-format", "text", "text or json")
}

func (l *logFlags) logger(cmd *cobra.Command, name string) (hclog.Logger, error) {
	level := hclog.LevelFromString(l.level)
	if level == hclog.NoLevel {
		return nil, fail(exitUsage, "--log-level: %q is not a level; use trace, debug, info, warn or error", l.level)
	}
	if l.format != "text" && l.format != "json" {
		return nil, fail(exitUsage, "--log-format: %q is not a format; use text or json", l.format)
	}
	return hclog.New(&hclog.LoggerOptions{Name: name, Level: level, Output: cmd.ErrOrStderr(), JSONFormat: l.format == "json"}), nil
}

func newCoordinator() *cobra.Command {
	var (
		config    coordinator.Config
		file      daemonFile
		logs      logFlags
		tls       tlsFiles
		listen    string
		metrics   metricsFlag
		bootstrap []string
		balance   bool
	)
	cmd := &cobra.Command{
		Use: "coordinator", Short: "Run a coordinator: it owns connectors, leases and fencing; one of any number leads", Args: exactArgs(),
		Example: "  fencepost coordinator --bootstrap-servers kafka:9092\n  fencepost coordinator --config coordinator.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := file.load(cmd); err != nil {
				return err
			}
			if len(bootstrap) == 0 {
				return fail(exitUsage, "--bootstrap-servers: missing; name the Kafka cluster as HOST:PORT")
			}
			logger, err := logs.logger(cmd, "coordinator")
			if err != nil {
				return err
			}
			if config.TLS, err = tls.config(); err != nil {
				return err
			}
			endpoint, err := metrics.open()
			if err != nil {
				return err
			}
			defer endpoint.close()
			listener, err := net.Listen("tcp", listen)
			if err != nil {
				return fail(exitUsage, "--listen: %w", err)
			}
			config.Listener, config.Logger, config.Version, config.Metrics = listener, logger, Version, endpoint.registerer()
			config.Bootstrap, config.Kafka, config.NoBalance = strings.Join(bootstrap, ","), file.kafka, !balance
			c, err := coordinator.New(config)
			if err != nil {
				_ = listener.Close()
				return fail(exitUsage, "%w", err)
			}
			return daemonResult(endpoint.beside(cmd.Context(), logger, c.Run))
		},
	}
	cmd.Flags().StringVar(&config.Cluster, "cluster", "fencepost", "cluster name: 1 to 40 of [a-z0-9-]")
	cmd.Flags().StringSliceVar(&bootstrap, "bootstrap-servers", nil, "Kafka brokers HOST:PORT, separated by commas")
	cmd.Flags().StringVar(&listen, "listen", defaultCoordinator, "address for runners and tools")
	cmd.Flags().BoolVar(&balance, "balance", true, "move tasks, one at a time, to runners that join, until all have as many")
	cmd.Flags().StringVar(&config.Advertise, "advertise", "", "address under which others reach this coordinator (default: the one it listens on)")
	config.LeaseTTL, config.SessionTimeout = 10*time.Second, 6*time.Second
	cmd.Flags().Var((*positive)(&config.LeaseTTL), "lease-ttl", "how long a runner may be silent before its tasks move, 1s to 5m")
	cmd.Flags().DurationVar(&config.AtLeastOnceLeaseTTL, "at-least-once-lease-ttl", 0, "the same for tasks under delivery.guarantee=at-least-once, three times session-timeout at least (default 30s, or that)")
	cmd.Flags().Var((*positive)(&config.SessionTimeout), "session-timeout", "how long the leader may be silent before another takes over, 1s to 5m (Kafka's group session timeout)")
	metrics.register(cmd)
	cmd.Flags().BoolVar(&config.AcceptLostRecords, "accept-lost-records", false, "lead even though records of the config log were lost; once, after what is lost has been looked at")
	file.register(cmd)
	logs.register(cmd)
	tls.register(cmd)
	return cmd
}

// daemonResult keeps a clean stop clean.
func daemonResult(err error) error {
	if err == nil || err == context.Canceled { //nolint:errorlint // only the bare cancellation is a clean stop
		return nil
	}
	return fail(exitFailed, "%w", err)
}

// runnerFlags are those that runner, dev, validate and plugins share.
type runnerFlags struct {
	pluginPath []string
	addresses  []string
}

func (r *runnerFlags) register(cmd *cobra.Command) {
	cmd.Flags().StringSliceVar(&r.pluginPath, "plugin-path", nil, "folder of plugins, or one plugin; may repeat")
	cmd.Flags().StringSliceVar(&r.addresses, "plugin-address", nil, "plugin that runs already, as NAME=HOST:PORT; may repeat")
}

func (r *runnerFlags) fill(config *runner.Config) error {
	config.PluginPath = r.pluginPath
	var err error
	config.PluginAddresses, err = pairsOf("plugin-address", r.addresses)
	return err
}

func pairsOf(flag string, pairs []string) (map[string]string, error) {
	out := map[string]string{}
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" || value == "" {
			return nil, fail(exitUsage, "--%s: %q is not NAME=VALUE", flag, pair)
		}
		out[key] = value
	}
	return out, nil
}

func newRunner() *cobra.Command {
	var (
		config    runner.Config
		flags     runnerFlags
		file      daemonFile
		logs      logFlags
		tls       tlsFiles
		labels    []string
		metrics   metricsFlag
		bootstrap []string
	)
	cmd := &cobra.Command{
		Use: "runner", Short: "Run a runner: it runs connectors' tasks and publishes their records", Args: exactArgs(),
		Example: "  fencepost runner --coordinator host:8780 --bootstrap-servers kafka:9092 --plugin-path /opt/fencepost/plugins\n  fencepost runner --config runner.yaml",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := file.load(cmd); err != nil {
				return err
			}
			if len(bootstrap) == 0 {
				return fail(exitUsage, "--bootstrap-servers: missing; name the Kafka cluster as HOST:PORT")
			}
			var err error
			if config.Logger, err = logs.logger(cmd, "runner"); err != nil {
				return err
			}
			if config.TLS, err = tls.config(); err != nil {
				return err
			}
			if config.Labels, err = pairsOf("label", labels); err != nil {
				return err
			}
			if err := flags.fill(&config); err != nil {
				return err
			}
			config.Bootstrap, config.Kafka, config.Version = strings.Join(bootstrap, ","), file.kafka, Version
			endpoint, err := metrics.open()
			if err != nil {
				return err
			}
			defer endpoint.close()
			config.Metrics = endpoint.registerer()
			r, err := runner.New(config)
			if err != nil {
				return fail(exitUsage, "%w", err)
			}
			return daemonResult(endpoint.beside(cmd.Context(), config.Logger, r.Run))
		},
	}
	host, _ := os.Hostname()
	cmd.Flags().StringVar(&config.Name, "name", host, "this runner's name, unique in the cluster")
	cmd.Flags().StringSliceVar(&config.Coordinators, "coordinator", []string{defaultCoordinator}, "coordinator addresses HOST:PORT, separated by commas")
	cmd.Flags().StringVar(&config.Cluster, "cluster", "", "name of the cluster that this runner is meant for: coordinators of another one are refused (default: that of the first coordinator that answers)")
	cmd.Flags().StringSliceVar(&bootstrap, "bootstrap-servers", nil, "Kafka brokers HOST:PORT, separated by commas")
	cmd.Flags().StringSliceVar(&labels, "label", nil, "label for placement, as KEY=VALUE; may repeat")
	cmd.Flags().StringVar(&config.SocketDir, "socket-dir", "", "folder for the plugins' sockets (default: a new private one)")
	cmd.Flags().IntVar(&config.CommitsPerSecond, "commits-per-second", 200, "budget of commits of all adaptive tasks together")
	flags.register(cmd)
	metrics.register(cmd)
	file.register(cmd)
	logs.register(cmd)
	tls.register(cmd)
	return cmd
}
