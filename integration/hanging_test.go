package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
)

// Kafka 4.4 can call a transaction complete and leave out the marker of a partition that has no leader just then. These tests provoke it, with real runners and plugins, and judge by what a read_committed reader sees.

// hangTasks is how many transactions hang each time: one of each task.
const hangTasks = 5

// hangs is a cluster of two brokers, of which the second alone has the output topic and can be killed, and a connector on it whose tasks can be held right before they commit.
type hangs struct {
	*harness.Bed
	t           *testing.T
	cluster     *kafka.Cluster
	load        numbers
	coordinator *process.Process
	runner      *process.Process
	// gate lets tasks commit while it is there; mark has a line for each that waits.
	gate, mark string
	runners    int
}

func newHangs(t *testing.T, name string, rounds int, coordinator ...string) *hangs {
	t.Helper()
	cluster := harness.OwnCluster(t, kafka.Options{Brokers: 2, Properties: map[string]string{
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500",
		// Whoever coordinates the transactions must outlive the broker that is killed.
		"offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2",
	}})
	h := &hangs{
		Bed: harness.New(t, name, cluster.Brokers[0].Addr), t: t, cluster: cluster, gate: filepath.Join(t.TempDir(), "gate"), mark: filepath.Join(t.TempDir(), "mark"),
		load: numbers{topic: name + "-numbers", count: hangTasks * 80 * (rounds + 1), partitions: hangTasks, tasks: hangTasks, transaction: 20, rate: 10},
	}
	h.open()
	harness.CreateTopicOn(h.t, h.cluster.Brokers[0].Addr, 2, h.load.topic, 3, nil)
	h.Coordinator = harness.FreeAddress(t)
	h.coordinator = h.Start("coordinator", coordinator, "coordinator", "--cluster", h.Cluster, "--bootstrap-servers", h.Bootstrap, "--listen", h.Coordinator)
	h.startRunner()
	config := h.load.config()
	config["producer.override.transaction.timeout.ms"] = "300000"
	config["key.space"] = "1" // a transaction's records of a task go to one partition, in one request
	harness.Wait(t, time.Minute, "the connector is there", func(context.Context) error {
		if r := h.CLI("apply", "-f", h.ConnectorFile("numbers", config)); r.Code != 0 {
			return fmt.Errorf("%s", r.Stderr)
		}
		return nil
	})
	h.Explain("numbers")
	awaitRecords(h.Bed, "numbers", 10*hangTasks)
	return h
}

// startRunner starts the next runner, whose tasks wait at X4 while the gate is shut.
func (h *hangs) startRunner() {
	h.t.Helper()
	h.runners++
	h.runner = h.LaunchRunner("runner-"+strconv.Itoa(h.runners), []string{"FENCEPOST_FAULT=X4:wait:1", "FENCEPOST_FAULT_GATE=" + h.gate, "FENCEPOST_FAULT_MARK=" + h.mark})
}

func (h *hangs) open() {
	h.t.Helper()
	if err := os.WriteFile(h.gate, nil, 0o600); err != nil {
		h.t.Fatal(err)
	}
}

// hold shuts the gate and waits until every task has produced a transaction and is about to commit it, and the brokers have it.
func (h *hangs) hold() {
	h.t.Helper()
	h.AwaitState(time.Minute, "numbers", "RUNNING") // a task that starts would wait for those that are held, to read its offsets
	_ = os.Remove(h.mark)                           // it may not be there
	if err := os.Remove(h.gate); err != nil {
		h.t.Fatal(err)
	}
	awaitLines(h.t, h.mark, hangTasks)
	h.arrivedThere()
}

// arrivedThere waits until the broker has something of every task's open transaction, and gets no more: what hasn't arrived when it dies is no part of a transaction that can be committed.
func (h *hangs) arrivedThere() {
	h.t.Helper()
	admin := harness.Admin(h.t, h.cluster.Brokers[1].Addr)
	const still = 20 // answers in a row
	last, same := int64(0), 0
	harness.Wait(h.t, time.Minute, "what was produced has arrived", func(ctx context.Context) error {
		ends, err := admin.ListEndOffsets(ctx, h.load.topic)
		if err != nil {
			return err
		}
		var now int64
		ends.Each(func(o kadm.ListedOffset) { now += o.Offset })
		if same++; now != last {
			last, same = now, 0
		}
		producers, err := admin.DescribeProducers(ctx, kadm.TopicsSet{h.load.topic: {0: {}, 1: {}, 2: {}}})
		if err != nil {
			return err
		}
		open := map[int64]bool{}
		producers.EachProducer(func(p kadm.DescribedProducer) {
			if p.CurrentTxnStartOffset >= 0 {
				open[p.ProducerID] = true
			}
		})
		if len(open) < hangTasks || same < still {
			return fmt.Errorf("%d transactions are open there, the end was %d for %d answers", len(open), now, same)
		}
		return nil
	})
}

// kill kills the second broker and waits until the cluster knows.
func (h *hangs) kill() {
	h.t.Helper()
	h.cluster.Brokers[1].Kill()
	admin := harness.Admin(h.t, h.cluster.Brokers[0].Addr)
	harness.Wait(h.t, time.Minute, "the topic has no leader", func(ctx context.Context) error {
		topics, err := admin.ListTopics(ctx, h.load.topic)
		if err != nil {
			return err
		}
		for _, p := range topics[h.load.topic].Partitions {
			if p.Leader >= 0 {
				return fmt.Errorf("partition %d is led by %d", p.Partition, p.Leader)
			}
		}
		return nil
	})
}

// ended waits until no transaction of the tasks is open or being ended.
func (h *hangs) ended() {
	h.t.Helper()
	admin := harness.Admin(h.t, h.cluster.Brokers[0].Addr)
	harness.Wait(h.t, time.Minute, "every transaction has ended", func(ctx context.Context) error {
		open, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort"})
		if err != nil {
			return err
		}
		for _, txn := range open.Sorted() {
			if strings.HasPrefix(txn.TxnID, "fencepost."+h.Cluster+".numbers.") {
				return fmt.Errorf("%s is %s", txn.TxnID, txn.State)
			}
		}
		return nil
	})
}

// back starts the second broker again.
func (h *hangs) back() {
	h.t.Helper()
	if err := h.cluster.Brokers[1].Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// healed counts the hangs that the coordinator said it ended, by direction.
func (h *hangs) healed() (committed, aborted int) {
	h.t.Helper()
	text, err := os.ReadFile(h.coordinator.Log)
	if err != nil {
		h.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "is free again") {
			committed += strings.Count(line, "is ended as committed")
			aborted += strings.Count(line, "is ended as aborted")
		}
	}
	return committed, aborted
}

// awaitHealed waits until as many hangs were ended as there have to be by now. How they were decided is Kafka's affair: a commit whose last records had not arrived when the broker died fails, and its transaction is aborted.
func (h *hangs) awaitHealed(all int) {
	h.t.Helper()
	harness.Wait(h.t, 2*time.Minute, "what hangs is ended", func(context.Context) error {
		if c, a := h.healed(); c+a < all {
			return fmt.Errorf("%d of %d: %d as committed, %d as aborted", c+a, all, c, a)
		}
		return nil
	})
}

// commits lets every task commit while the broker of its partition is dead: the commit is answered, and hangs.
func (h *hangs) commits() {
	h.t.Helper()
	h.hold()
	h.kill()
	h.open()
	h.ended()
	h.back()
}

// aborts kills the runner while every task has an open transaction on the dead broker: fencing aborts them, and they hang.
func (h *hangs) aborts() {
	h.t.Helper()
	h.hold()
	h.kill()
	h.runner.Kill()
	h.open()
	h.startRunner()
	h.ended()
	h.back()
}

// TestHanging provokes hangs in a partition of replication factor 1 without its broker, half of them commits and half aborts: each is found before its task writes there again, and ended as it was decided.
func TestHanging(t *testing.T) {
	t.Parallel()
	rounds := tenth(100 / hangTasks)
	h := newHangs(t, "hang", rounds)
	for round := range rounds {
		if round%2 == 0 {
			h.commits()
		} else {
			h.aborts()
		}
		h.awaitHealed((round + 1) * hangTasks)
	}
	h.load.arrived(t, h.Bootstrap)
	h.load.exact(t, h.Bootstrap, offsetsTopic(h.Bed, "numbers"), "numbers")
	c, a := h.healed()
	t.Logf("%d hangs ended as committed, %d as aborted", c, a)
	if c == 0 || a == 0 {
		t.Error("not both directions were there")
	}
	h.NoTransactionOpen() // killed runners whose names don't come back leave socket folders, so this isn't StopAll
}

// TestHangingEndedTheWrongWayIsSeen plants the mistake that matters: every hang is ended in the other direction. The verdict must see it, or TestHanging proves nothing.
func TestHangingEndedTheWrongWayIsSeen(t *testing.T) {
	t.Parallel()
	for name, provoke := range map[string]func(*hangs){"commits": (*hangs).commits, "aborts": (*hangs).aborts} {
		t.Run(name, func(t *testing.T) {
			h := newHangs(t, "wrong-"+name, 1, "FENCEPOST_FAULT=heal:wrong-way")
			provoke(h)
			h.awaitHealed(hangTasks)
			h.MustCLI("stop", "numbers")
			var seen error
			harness.Wait(t, time.Minute, "the verdict", func(ctx context.Context) error {
				seen = h.load.soFar(ctx, h.Bootstrap, offsetsTopic(h.Bed, "numbers"), "numbers")
				if seen == nil {
					return harness.Final(fmt.Errorf("not one committed record is gone, and not one aborted is there"))
				}
				return nil
			})
			t.Logf("the verdict: %v", seen)
		})
	}
}

// TestHangingAfterASingleBrokerWasKilled kills the only broker again and again while many tasks commit: some commits hang, most don't, and it makes no difference to a reader.
func TestHangingAfterASingleBrokerWasKilled(t *testing.T) {
	t.Parallel()
	kills := tenth(30)
	const tasks = 10
	broker := harness.OwnKafka(t, kafka.Options{})
	bed := harness.New(t, "single", broker.Addr)
	load := numbers{topic: "single-numbers", count: tasks * 300 * (kills + 1), partitions: tasks, tasks: tasks, transaction: 5, rate: 100}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 6)
	coordinator := bed.StartCoordinator()
	bed.StartRunner("runner", nil)
	bed.Create("numbers", load.config())
	admin := harness.Admin(t, bed.Bootstrap)
	arrived := func(ctx context.Context) (sum int64, err error) {
		ends, err := admin.ListEndOffsets(ctx, load.topic)
		ends.Each(func(o kadm.ListedOffset) { sum += o.Offset })
		return sum, err
	}
	for range kills {
		var before int64
		harness.Wait(t, 2*time.Minute, "records flow", func(ctx context.Context) error {
			now, err := arrived(ctx)
			if err == nil && before == 0 {
				before = now
			}
			if err == nil && now < before+100*tasks {
				err = fmt.Errorf("%d of %d", now-before, 100*tasks)
			}
			return err
		})
		broker.Kill()
		if err := broker.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	h := &hangs{Bed: bed, t: t, coordinator: coordinator}
	c, a := h.healed()
	t.Logf("%d kills: %d hangs ended as committed, %d as aborted", kills, c, a)
	bed.StopAll()
}
