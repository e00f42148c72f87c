package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/reader"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// TestBrokenConfigurationNamesEachKey: every problem of a configuration at once, each with its key and what would be right; with and without a coordinator.
func TestBrokenConfigurationNamesEachKey(t *testing.T) {
	bed := harness.New(t, "broken", harness.Kfake(t))
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	examples := filepath.Join(root, "docs/examples/broken")
	want := map[string][]string{
		"misspelt-keys": {"task.max", "tasks.max", "paht", "paths"},
		"wrong-types":   {"tasks.max", "rate", "size", "transaction.boundary", "transaction.boundary.max.records"},
		"unknown-class": {"connector.class", "fiel", "file"},
		"missing-keys":  {"topic", "paths"},
		"not-yours":     {"producer.override.transactional.id", "producer.override.acks", "producer.override.bootstrap.servers", "producer.override.message.timeout.ms"},
		"two-of-a-key":  {"topic", "owner"},
	}
	check := func(t *testing.T, r harness.Result) {
		t.Helper()
		if r.Code != 1 {
			t.Errorf("exit code %d, want 1", r.Code)
		}
		for name, keys := range want {
			for _, key := range keys {
				if !strings.Contains(r.Stdout+r.Stderr, key) {
					t.Errorf("%s: nothing about %s", name, key)
				}
			}
		}
		if t.Failed() {
			t.Logf("it said:\n%s%s", r.Stdout, r.Stderr)
		}
	}
	t.Run("without a coordinator", func(t *testing.T) {
		check(t, bed.CLI("validate", "--plugin-path", bed.Plugins, "-f", examples))
	})
	t.Run("with one", func(t *testing.T) {
		bed.StartCoordinator()
		bed.StartRunner("runner", nil)
		check(t, bed.CLI("validate", "-f", examples))
		if r := bed.CLI("create", "-f", examples); r.Code == 0 {
			t.Errorf("create took them:\n%s", r.Stdout)
		}
		if all, err := bed.Control().ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{}); err != nil || len(all.GetConnectors()) != 0 {
			t.Errorf("something was stored: %v, %v", all, err)
		}
	})
	bed.StopAll()
}

// TestNameThatIsTaken: a second create is refused with the exit code for it, and changes nothing.
func TestNameThatIsTaken(t *testing.T) {
	bed := harness.New(t, "taken", harness.Kfake(t))
	neighbour := startNeighbour(bed)
	r := bed.CLI("create", "-f", bed.ConnectorFile("neighbour", endless("other")))
	if r.Code != 4 || !strings.Contains(r.Stderr, "neighbour") {
		t.Errorf("exit code %d, want 4: %s", r.Code, r.Stderr)
	}
	neighbour.undisturbed(t)
	bed.StopAll()
}

// TestTopicThatIsNotThere: the task says which topic, and nothing hangs; when the topic has been made it goes on.
func TestTopicThatIsNotThere(t *testing.T) {
	bed := harness.New(t, "no-topic", harness.Kafka(t))
	load := numbers{topic: "no-topic-numbers", count: 100, partitions: 1, tasks: 1, transaction: 10}
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	harness.Wait(t, time.Minute, "it says which topic", func(context.Context) error {
		if said := describe(bed, "numbers"); !strings.Contains(said, fmt.Sprintf("topic %q does not exist", load.topic)) {
			return fmt.Errorf("it says %s", said)
		}
		return nil
	})
	began := time.Now()
	bed.MustCLI("stop", "numbers")
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("to stop it took %s", took)
	}
	bed.MustCLI("resume", "numbers")
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 1)
	bed.CLI("restart", "numbers")
	bed.AwaitCaughtUp(time.Minute, "numbers")
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// TestRecordTooLargeForTheTopic: the task fails and names the topic and the sizes; nothing of its transaction is readable, and a larger limit lets it go on.
func TestRecordTooLargeForTheTopic(t *testing.T) {
	bed := harness.New(t, "too-large", harness.Kafka(t))
	dir, topic := t.TempDir(), "too-large-lines"
	small := "10000"
	if _, err := harness.Admin(t, bed.Bootstrap).CreateTopic(t.Context(), 1, 1, map[string]*string{"max.message.bytes": &small}, topic); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "a.log"), "first\n"+strings.Repeat("x", 50_000)+"\nlast\n")
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("lines", map[string]string{"connector.class": "file", "paths": filepath.Join(dir, "*.log"), "topic": topic})
	bed.AwaitState(2*time.Minute, "lines", "FAILED")
	if said := describe(bed, "lines"); !strings.Contains(said, topic) || !strings.Contains(said, "max.message.bytes") {
		t.Errorf("describe names no topic or limit:\n%s", said)
	}
	large := "1000000"
	if _, err := harness.Admin(t, bed.Bootstrap).AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "max.message.bytes", Value: &large}}, topic); err != nil {
		t.Fatal(err)
	}
	bed.MustCLI("restart", "lines", "--only-failed")
	bed.AwaitCaughtUp(time.Minute, "lines")
	checkFiles(t, bed, dir, topic, "lines")
	bed.StopAll()
}

// TestBrokerThatComesLate: coordinator and runner are started before their broker, say which address they wait for, and work when it is there. Then it is lost for a while, and nothing of
// what was sent is.
func TestBrokerThatComesLate(t *testing.T) {
	broker := harness.OwnKafka(t, kafka.Options{})
	broker.Kill()
	bed := harness.New(t, "late", broker.Addr)
	coordinator := bed.LaunchCoordinator()
	runner := bed.LaunchRunner("runner", nil)
	harness.Wait(t, 30*time.Second, "the log names the broker", func(context.Context) error {
		if log := coordinator.Tail(100); !strings.Contains(log, broker.Addr) {
			return fmt.Errorf("it says %s", log)
		}
		return nil
	})
	if !coordinator.Running() || !runner.Running() {
		t.Fatalf("they ended without a broker: %v, %v", coordinator.State(), runner.State())
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	load := numbers{topic: "late-numbers", count: 20_000, partitions: 2, tasks: 2, transaction: 500, rate: 2000}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 2)
	file := bed.ConnectorFile("numbers", load.config())
	bed.Explain("numbers")
	harness.Wait(t, time.Minute, "a connector can be created", func(context.Context) error {
		if r := bed.CLI("apply", "-f", file); r.Code != 0 {
			return fmt.Errorf("exit code %d: %s", r.Code, r.Stderr)
		}
		return nil
	})
	harness.Wait(t, time.Minute, "some records", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, "numbers")
		if err == nil && recordsOf(c) < uint64(load.count/10) {
			err = fmt.Errorf("%s: %s", c.GetState(), c.GetMessage())
		}
		return err
	})
	// An orderly stop: a single broker that is killed may lose what it had promised, which no client can mend.
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := broker.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
}

// TestSecondCoordinatorWaits: it names the leader, and doesn't touch the log's transactional id before it is elected; when the leader is gone it leads.
func TestSecondCoordinatorWaits(t *testing.T) {
	bed := harness.New(t, "second", harness.Kafka(t))
	first := bed.StartCoordinator()
	leader := bed.Coordinator
	admin := harness.Admin(t, bed.Bootstrap)
	epoch := func() (int64, int16) {
		described, err := admin.DescribeTransactions(t.Context(), "fencepost."+bed.Cluster)
		if err != nil {
			t.Fatal(err)
		}
		d := described["fencepost."+bed.Cluster]
		return d.ProducerID, d.ProducerEpoch
	}
	id, before := epoch()
	second := bed.LaunchCoordinator()
	harness.Wait(t, harness.StartTimeout, "the second one names the leader", func(ctx context.Context) error {
		cluster, err := bed.Control().GetCluster(ctx, &controlv1.GetClusterRequest{})
		if err == nil && (cluster.GetLeader() != leader || cluster.GetLeading()) {
			err = fmt.Errorf("it says %v", cluster)
		}
		return err
	})
	if r := bed.CLI("get", "--coordinator", bed.Coordinator); r.Code != 0 && !strings.Contains(r.Stderr, leader) {
		t.Errorf("get from the second one: exit code %d, and it doesn't name the leader: %s", r.Code, r.Stderr)
	}
	if nowID, now := epoch(); nowID != id || now != before {
		t.Errorf("the log's id was at %d/%d and is at %d/%d: the second coordinator initialised it", id, before, nowID, now)
	}
	first.Kill()
	harness.Wait(t, time.Minute, "the second one leads", func(ctx context.Context) error {
		cluster, err := bed.Control().GetCluster(ctx, &controlv1.GetClusterRequest{})
		if err == nil && !cluster.GetLeading() {
			err = fmt.Errorf("it says %v", cluster)
		}
		return err
	})
	if !second.Running() {
		t.Error("it ended")
	}
	bed.StopAll()
}

// TestOffsetsTopicIsGone: a connector whose offsets topic was deleted, or replaced, doesn't start again from the beginning by itself.
func TestOffsetsTopicIsGone(t *testing.T) {
	for _, replaced := range []bool{false, true} {
		t.Run(map[bool]string{false: "deleted", true: "replaced"}[replaced], func(t *testing.T) {
			bed := harness.New(t, "offsets-gone-"+fmt.Sprint(replaced), harness.Kafka(t))
			load := numbers{topic: bed.Cluster + "-numbers", count: 100, partitions: 1, tasks: 1, transaction: 10}
			harness.CreateTopic(t, bed.Bootstrap, load.topic, 1)
			bed.StartCoordinator()
			bed.StartRunner("runner", nil)
			bed.Create("numbers", load.config())
			bed.AwaitCaughtUp(time.Minute, "numbers")
			bed.MustCLI("stop", "numbers")
			topic := offsetsTopic(bed, "numbers")
			if _, err := harness.Admin(t, bed.Bootstrap).DeleteTopics(t.Context(), topic); err != nil {
				t.Fatal(err)
			}
			if replaced {
				harness.Wait(t, time.Minute, "the topic is made again", func(ctx context.Context) error {
					_, err := harness.Admin(t, bed.Bootstrap).CreateTopic(ctx, 1, 1, nil, topic)
					return err
				})
			}
			bed.MustCLI("resume", "numbers")
			harness.Wait(t, time.Minute, "it says which topic", func(context.Context) error {
				if said := describe(bed, "numbers"); !strings.Contains(said, "FAILED") || !strings.Contains(said, topic) {
					return fmt.Errorf("it says %s", said)
				}
				return nil
			})
			n := 0
			if err := reader.Topic(t.Context(), bed.Bootstrap, load.topic, func(*kgo.Record) error { n++; return nil }); err != nil || n != load.count {
				t.Errorf("%d records are readable, want %d: %v", n, load.count, err)
			}
			bed.StopAll()
		})
	}
}

// TestFilesThatAreNoFiles: what can't be read is said where the user looks, and the rest is read.
func TestFilesThatAreNoFiles(t *testing.T) {
	bed := harness.New(t, "no-files", harness.Kfake(t))
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "good.log"), "one\ntwo\n")
	if err := os.Mkdir(filepath.Join(dir, "folder.log"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(filepath.Join(dir, "fifo.log"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling.log")); err != nil {
		t.Fatal(err)
	}
	harness.CreateTopic(t, bed.Bootstrap, "lines", 1)
	bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	for path, word := range map[string]string{"folder.log": "directory", "fifo.log": "FIFO"} {
		path = filepath.Join(dir, path)
		r := bed.CLI("validate", "-f", bed.ConnectorFile("x", map[string]string{"connector.class": "file", "paths": path, "topic": "lines"}))
		if r.Code != 1 || !strings.Contains(r.Stdout+r.Stderr, path) || !strings.Contains(r.Stdout+r.Stderr, word) {
			t.Errorf("validate of %s: exit code %d: %s%s", path, r.Code, r.Stdout, r.Stderr)
		}
	}
	bed.Create("lines", map[string]string{"connector.class": "file", "paths": filepath.Join(dir, "*.log"), "topic": "lines", "scan.interval": "50ms"})
	awaitLines := func(n uint64) {
		t.Helper()
		harness.Wait(t, time.Minute, fmt.Sprintf("%d lines", n), func(ctx context.Context) error {
			c, err := bed.Connector(ctx, "lines")
			if err == nil && recordsOf(c) != n {
				err = fmt.Errorf("%d: %s", recordsOf(c), c.GetMessage())
			}
			return err
		})
	}
	awaitLines(2)
	if said := describe(bed, "lines"); !strings.Contains(said, "fifo.log") {
		t.Errorf("describe doesn't say that the FIFO isn't read:\n%s", said)
	}
	writeFile(t, filepath.Join(dir, "good.log"), "") // truncated, and written anew
	writeFile(t, filepath.Join(dir, "good.log"), "three\n")
	awaitLines(3)
	writeFile(t, filepath.Join(dir, "fresh"), "four\nfive\n")
	if err := os.Rename(filepath.Join(dir, "fresh"), filepath.Join(dir, "good.log")); err != nil { // replaced
		t.Fatal(err)
	}
	awaitLines(5)
	if err := os.Remove(filepath.Join(dir, "good.log")); err != nil {
		t.Fatal(err)
	}
	writeFile(t, filepath.Join(dir, "nowhere"), "six\n") // the link's target
	awaitLines(6)
	bed.StopAll()
}

// TestDiskFull: `dev --data-dir`, and a runner, say that a disk is full, and nothing is lost or doubled.
func TestDiskFull(t *testing.T) {
	t.Run("data folder", func(t *testing.T) {
		bed := harness.New(t, "full-data", "")
		load := numbers{topic: "numbers", count: 1_000_000, partitions: 1, tasks: 1, transaction: 500}
		bed.Bootstrap, bed.Coordinator = harness.FreeAddress(t), harness.FreeAddress(t)
		mount := t.TempDir()
		p := bed.StartOnSmallDisk("dev", mount, "4m", "dev", "-f", bed.ConnectorFile("numbers", load.config()), "--plugin-path", bed.Plugins,
			"--data-dir", filepath.Join(mount, "data"), "--kafka-listen", bed.Bootstrap, "--listen", bed.Coordinator, "--cluster", bed.Cluster)
		harness.Wait(t, time.Minute, "it says that the disk is full", func(context.Context) error {
			if log := p.Tail(100); !strings.Contains(log, "no space left") {
				return fmt.Errorf("it says %s", log)
			}
			return nil
		})
		// Nothing that is readable lacks its offset, and the other way round.
		whole := load
		whole.count = readableOf(t, bed.Bootstrap, load.topic)
		if whole.count == 0 || whole.count == load.count {
			t.Fatalf("%d records are readable", whole.count)
		}
		whole.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	})
	t.Run("socket folder", func(t *testing.T) {
		bed := harness.New(t, "full-sockets", harness.Kfake(t))
		harness.CreateTopic(t, bed.Bootstrap, "numbers", 1)
		bed.StartCoordinator()
		mount := harness.ShortDir(t)
		p := bed.StartOnSmallDisk("runner", mount, "full", "runner", "--name", "runner", "--coordinator", bed.Coordinator, "--bootstrap-servers", bed.Bootstrap,
			"--plugin-path", bed.Plugins, "--socket-dir", mount)
		harness.Wait(t, time.Minute, "it says that the disk is full", func(context.Context) error {
			if said := p.Tail(100) + bed.CLI("plugins").Stdout; !strings.Contains(said, "no space left") {
				return fmt.Errorf("it says %s", said)
			}
			return nil
		})
		bed.NothingRuns()
	})
}

// appendFile is what a program does that writes a log.
func appendFile(t *testing.T, path, text string) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.WriteString(text)
	if err := errors.Join(err, f.Close()); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
