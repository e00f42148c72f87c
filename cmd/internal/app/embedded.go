package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/hashicorp/go-hclog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"github.com/fencepost-io/fencepost/cmd/internal/kfakelog"
)

// embedded is the broker of the quick start: franz-go's kfake, in memory, or in a folder that survives a kill.
type embedded struct {
	cluster *kfake.Cluster
	lock    *os.File
	journal *kfakelog.Journal // nil in memory
}

// neverCompact is a pause of ten years: kfake's compaction takes records of open transactions for good, and would drop what they are to replace before they are committed.
const neverCompact = "315360000000"

// kfakeLogger makes log lines of what the broker has to complain about, a full disk above all.
type kfakeLogger struct{ hclog.Logger }

// Logf implements kfake.Logger.
func (l kfakeLogger) Logf(level kfake.LogLevel, format string, args ...any) {
	if level == kfake.LogLevelError || level == kfake.LogLevelWarn {
		l.Warn("embedded broker", "text", fmt.Sprintf(format, args...))
	}
}

// startEmbedded listens at address (empty is a free port of this host) and keeps its data in dir (empty is memory).
func startEmbedded(address, dir string, logger hclog.Logger) (*embedded, error) {
	opts := []kfake.Opt{
		kfake.NumBrokers(1), kfake.ClusterID("fencepost-dev"), kfake.DefaultNumPartitions(1), kfake.GroupMinSessionTimeout(devSessionTimeout),
		kfake.WithLogger(kfakeLogger{logger}), kfake.BrokerConfigs(map[string]string{"log.cleaner.backoff.ms": neverCompact}),
	}
	if address != "" {
		host, port, err := splitListen(address)
		if err != nil {
			return nil, err
		}
		opts = append(opts, kfake.Ports(port), kfake.ListenFn(func(network, _ string) (net.Listener, error) {
			return net.Listen(network, net.JoinHostPort(host, strconv.Itoa(port)))
		}))
	}
	e := &embedded{}
	if dir != "" {
		if err := e.claim(dir); err != nil {
			return nil, err
		}
		// What was acknowledged must be there after a kill, and a transaction whole or not at all, or the promise of exactly once would end at the broker.
		data := filepath.Join(dir, "kafka")
		journal, err := kfakelog.Open(data)
		if err != nil {
			e.release()
			return nil, fail(exitFailed, "--data-dir: %w", err)
		}
		e.journal = journal
		opts = append(opts, kfake.DataDir(data), kfake.SyncWrites())
	}
	cluster, err := kfake.NewCluster(opts...)
	if err != nil {
		e.release()
		return nil, fail(exitFailed, "start the embedded broker: %w", err)
	}
	e.cluster = cluster
	if e.journal != nil {
		e.journal.Watch(cluster)
	}
	return e, nil
}

func splitListen(address string) (string, int, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, fail(exitUsage, "--kafka-listen: %q is not HOST:PORT", address)
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fail(exitUsage, "--kafka-listen: %q is not a port", text)
	}
	if host == "" {
		host = "127.0.0.1"
	}
	return host, int(port), nil
}

// claim locks the folder: two brokers on one folder would destroy it. The kernel lets go of the lock when the process ends, however it ends.
func (e *embedded) claim(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fail(exitFailed, "--data-dir: %w", err)
	}
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fail(exitFailed, "--data-dir: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fail(exitConflict, "--data-dir: another fencepost uses %s; stop it, or name another folder", dir)
		}
		return fail(exitFailed, "--data-dir: lock %s: %w", dir, err)
	}
	e.lock = f
	return nil
}

func (e *embedded) release() {
	if e.journal != nil {
		_ = e.journal.Close() // everything in it is on disk
	}
	if e.lock != nil {
		_ = e.lock.Close()
	}
}

func (e *embedded) address() string { return e.cluster.ListenAddrs()[0] }

func (e *embedded) close() {
	e.cluster.Close()
	e.release()
}

// createTopics makes the topics that are missing: on the embedded broker there is nobody else to do it.
func createTopics(ctx context.Context, client *kgo.Client, topics []string) error {
	if len(topics) == 0 {
		return nil
	}
	results, err := kadm.NewClient(client).CreateTopics(ctx, 1, 1, nil, topics...)
	if err != nil {
		return fmt.Errorf("create topics: %w", err)
	}
	for _, r := range results {
		if r.Err != nil && !errors.Is(r.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", r.Topic, r.Err)
		}
	}
	return nil
}
