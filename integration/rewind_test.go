package integration

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/proxy"
)

// rewinds are ways in which a transaction is lost in the middle of a stream. Plugins and runners that are killed are in TestCrash.
var rewinds = []struct {
	name string
	// config is added to the connector's.
	config map[string]string
	// strike does it, to a task that delivers.
	strike func(r *rewound)
	// causes are the words of which one must be counted: else nothing was hit.
	causes []string
}{
	{"fenced by a mistake", nil, fencedByMistake, []string{"fenced"}},
	{"transaction expired", open, sleptTooLong, []string{"expired"}},
	{"link cut for longer than a transaction lives", short, cutOff(proxy.Swallow, 6*time.Second), noAnswer},
	{"connections refused for longer than a transaction lives", short, cutOff(proxy.Refuse, 6*time.Second), noAnswer},
	{"late batch", short, lateBatch, noAnswer},
	{"unknown outcome of a commit", short, unknownOutcome, []string{"unknown"}},
	{"broker restarted", short, brokerRestarted, noAnswer},
}

var (
	// short makes transactions live for shortTransaction, and messages for half of that.
	short = map[string]string{"producer.override.transaction.timeout.ms": "3000"}
	// open has a transaction open at nearly every moment, too.
	open = map[string]string{"producer.override.transaction.timeout.ms": "3000", "transaction.boundary": "interval", "transaction.boundary.interval.ms": "1500"}
	// noAnswer is what the end of a transaction is called when the broker says nothing: of records, or of the commit.
	noAnswer = []string{"broker", "unknown"}
)

const shortTransaction = 3 * time.Second

// TestRewindCostsAPauseAndNoOperator: whatever a transaction is lost by, the task goes on by itself from the stored offsets, and a reader sees every record once and in order.
func TestRewindCostsAPauseAndNoOperator(t *testing.T) {
	t.Parallel()
	broker := harness.LinkedKafkaWith(t, 1, kafka.Options{})
	bed := harness.New(t, "rewind", broker.Addr)
	bed.StartCoordinator()
	runner := bed.StartRunnerOn(broker.Links[0].Addr(), "runner", nil)
	for _, c := range rewinds {
		t.Run(c.name, func(t *testing.T) {
			name := strings.ReplaceAll(c.name, " ", "-")
			r := &rewound{T: t, bed: bed.For(t), broker: broker, link: broker.Links[0], runner: runner, name: name}
			r.load = numbers{topic: "rewind." + name, count: 2800, partitions: 2, tasks: 1, transaction: 100, rate: 400}
			harness.CreateTopic(t, bed.Bootstrap, r.load.topic, 2)
			config := r.load.config()
			for key, value := range c.config {
				config[key] = value
			}
			r.bed.Create(name, config)
			awaitRecords(r.bed, name, 400)
			began := time.Now()
			c.strike(r)
			r.awaitRewind(c.causes)
			r.load.arrived(t, bed.Bootstrap)
			t.Logf("all there %s after it began", time.Since(began).Round(time.Millisecond))
			r.load.exact(t, bed.Bootstrap, offsetsTopic(r.bed, name), name)
			r.bed.AwaitState(time.Minute, name, "RUNNING")
			r.bed.MustCLI("delete", name)
		})
	}
	t.Run("records time out before their commit", func(t *testing.T) {
		commitAfterTimeouts(&rewound{T: t, bed: bed.For(t), broker: broker, link: broker.Links[0], runner: runner, name: "timed-out"})
	})
	bed.StopAll()
}

// commitAfterTimeouts: after a commit the broker is cut off, and the client gives up on the next three records after five seconds. Their commit is an error and no empty success, and they are sent again from the stored offset when the
// broker is back.
func commitAfterTimeouts(r *rewound) {
	dir, topic := r.TempDir(), "rewind."+r.name
	harness.CreateTopic(r, r.bed.Bootstrap, topic, 1)
	path := filepath.Join(dir, "a.log")
	writeFile(r.T, path, "one\n")
	r.bed.Create(r.name, map[string]string{
		"connector.class": "file", "paths": filepath.Join(dir, "*.log"), "topic": topic, "scan.interval": "50ms", "producer.override.transaction.timeout.ms": "10000",
	})
	awaitRecords(r.bed, r.name, 1)
	if before, err := r.counted(r.Context()); err != nil || len(before) > 0 {
		r.Fatalf("rewinds before: %v, %v", before, err)
	}
	harness.Cut(r, r.link, proxy.Swallow)
	appendFile(r.T, path, "two\nthree\nfour\n")
	r.awaitRewind([]string{"broker"})
	said := describe(r.bed, r.name)
	if !strings.Contains(said, "commit (transactional id") {
		r.Errorf("describe names no commit that was refused:\n%s", said)
	}
	harness.Cut(r, r.link, proxy.Pass)
	awaitRecords(r.bed, r.name, 4)
	r.bed.MustCLI("stop", r.name)
	checkFiles(r.T, r.bed, dir, topic, r.name)
	r.bed.MustCLI("delete", r.name)
}

// rewound is a connector that something happens to.
type rewound struct {
	*testing.T
	bed    *harness.Bed
	broker *harness.Links
	link   *proxy.Proxy
	runner *process.Process
	load   numbers
	name   string
}

// id is its task's transactional id.
func (r *rewound) id() string {
	return "fencepost." + r.bed.Cluster + "." + r.name + ".0"
}

// counted is how often the task was rewound, by cause.
func (r *rewound) counted(ctx context.Context) (map[string]uint64, error) {
	c, err := r.bed.Connector(ctx, r.name)
	if err != nil {
		return nil, err
	}
	if c.GetState() == "FAILED" {
		return nil, harness.Final(fmt.Errorf("it failed: %v", c.GetTasks()))
	}
	counted := map[string]uint64{}
	for _, task := range c.GetTasks() {
		for cause, n := range task.GetRewinds() {
			counted[cause] += n
		}
	}
	return counted, nil
}

// awaitRewind waits until the task was rewound by one of the causes.
func (r *rewound) awaitRewind(causes []string) {
	r.Helper()
	harness.Wait(r, time.Minute, "a rewind is counted", func(ctx context.Context) error {
		counted, err := r.counted(ctx)
		if err != nil {
			return err
		}
		for _, cause := range causes {
			if counted[cause] > 0 {
				r.Logf("rewinds: %v", counted)
				return nil
			}
		}
		return fmt.Errorf("rewinds: %v", counted)
	})
}

// fencedByMistake initialises the task's id twice, as another program with the same id would.
func fencedByMistake(r *rewound) {
	client, err := kgo.NewClient(kgo.SeedBrokers(r.broker.Addr))
	if err != nil {
		r.Fatal(err)
	}
	defer client.Close()
	for want := uint64(1); want <= 2; want++ {
		harness.Wait(r, time.Minute, "the id is initialised", func(ctx context.Context) error {
			req := kmsg.NewPtrInitProducerIDRequest()
			id := r.id()
			req.TransactionalID, req.TransactionTimeoutMillis, req.ProducerID, req.ProducerEpoch = &id, 60_000, -1, -1
			resp, err := req.RequestWith(ctx, client)
			return errors.Join(err, kerr.ErrorForCode(resp.ErrorCode))
		})
		harness.Wait(r, time.Minute, "the task notices", func(ctx context.Context) error {
			counted, err := r.counted(ctx)
			if err != nil {
				return err
			}
			// In the middle of a commit the broker's word is another one, "unknown server error" for example.
			if n := counted["fenced"] + counted["broker"] + counted["client"] + counted["unknown"]; n < want {
				return fmt.Errorf("%v", counted)
			}
			return nil
		})
		// Its own initialisation has to come in between, else there is nobody to fence.
		c, err := r.bed.Connector(r.Context(), r.name)
		if err != nil {
			r.Fatal(err)
		}
		awaitMore(r.bed, r.name, recordsOf(c))
	}
}

// backWithin is how long after an outage a task may take to deliver again, beside the time that a transaction lives; mostProducers is how many producers it may have made by then.
const backWithin, mostProducers = 30 * time.Second, 3

// cutOff cuts the runner off from Kafka for a time.
func cutOff(mode proxy.Mode, forTime time.Duration) func(r *rewound) {
	return func(r *rewound) {
		harness.Cut(r, r.link, mode)
		<-time.After(forTime) // an outage has a length
		before, err := r.bed.Connector(r.Context(), r.name)
		if err != nil {
			r.Fatal(err)
		}
		harness.Cut(r, r.link, proxy.Pass)
		back := time.Now()
		awaitMore(r.bed, r.name, recordsOf(before))
		r.bed.AwaitState(time.Minute, r.name, "RUNNING")
		if took := time.Since(back); took > shortTransaction+backWithin {
			r.Errorf("it took %s to deliver again", took)
		}
		producers := uint64(1) // and one for each attempt after the first
		counted, err := r.counted(r.Context())
		for _, n := range counted {
			producers += n
		}
		if err != nil || producers > mostProducers {
			r.Errorf("%d producers were made; %v", producers, err)
		}
	}
}

// sleptTooLong stops the runner in the middle of a transaction for longer than that lives, and for less than its lease: the task is still its own, and its transaction isn't.
func sleptTooLong(r *rewound) {
	signalTo(r.T, r.runner, syscall.SIGSTOP)
	<-time.After(2 * shortTransaction) // an outage has a length
	signalTo(r.T, r.runner, syscall.SIGCONT)
}

// lateBatch holds a batch of records back for longer than the client waits for it. It arrives when the next transactions have been committed, and nothing of it may stay: neither its records nor a transaction that never ends.
func lateBatch(r *rewound) {
	held := r.link.Hold(proxy.Produce)
	defer held.Release()
	<-held.Caught()
	before, err := r.bed.Connector(r.Context(), r.name)
	if err != nil {
		r.Fatal(err)
	}
	r.awaitRewind(noAnswer)
	awaitRecords(r.bed, r.name, recordsOf(before)+200)
	held.Release()
	admin := harness.Admin(r, r.broker.Addr)
	harness.Wait(r, time.Minute, "the last stable offset is the end", func(ctx context.Context) error {
		stable, err := admin.ListCommittedOffsets(ctx, r.load.topic)
		if err != nil {
			return err
		}
		ends, err := admin.ListEndOffsets(ctx, r.load.topic)
		if err != nil {
			return err
		}
		var behind []error
		ends.Each(func(end kadm.ListedOffset) {
			// Transactions go on, so that the two may differ for a moment; where one is left open they do for ever.
			if at, ok := stable.Lookup(r.load.topic, end.Partition); !ok || at.Offset != end.Offset {
				behind = append(behind, fmt.Errorf("partition %d: %d of %d", end.Partition, at.Offset, end.Offset))
			}
		})
		return errors.Join(behind...)
	})
}

// unknownOutcome holds back the request that ends a transaction until the task has given up on it.
func unknownOutcome(r *rewound) {
	held := r.link.Hold(proxy.EndTxn)
	defer held.Release()
	<-held.Caught()
	r.awaitRewind([]string{"unknown"})
}

// brokerRestarted stops the broker in an orderly way, and starts it again.
func brokerRestarted(r *rewound) {
	if err := r.broker.Stop(r.Context()); err != nil {
		r.Fatal(err)
	}
	<-time.After(4 * time.Second) // an outage has a length
	if err := r.broker.Start(r.Context()); err != nil {
		r.Fatal(err)
	}
}

// awaitMore waits until a connector has committed more records than so many, whoever runs it now.
func awaitMore(bed *harness.Bed, connector string, than uint64) {
	bed.T.Helper()
	harness.Wait(bed.T, time.Minute, "records go on", func(ctx context.Context) error {
		c, err := bed.Connector(ctx, connector)
		if err == nil && recordsOf(c) <= than {
			err = fmt.Errorf("%d: %s", recordsOf(c), c.GetMessage())
		}
		return err
	})
}
