package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// logHang is a cluster of two brokers, of which the second alone has the config log and can be killed, with two coordinators, each of which can be held right before it commits a change of the connector.
type logHang struct {
	*harness.Bed
	t            *testing.T
	cluster      *kafka.Cluster
	coordinators map[string]*process.Process // by address
	all          []*process.Process
	env          []string
	gate, mark   string
}

func newLogHang(t *testing.T, name string) *logHang {
	t.Helper()
	cluster := harness.OwnCluster(t, kafka.Options{Brokers: 2, Properties: map[string]string{
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500", "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2",
	}})
	h := &logHang{Bed: harness.New(t, name, cluster.Brokers[0].Addr), t: t, cluster: cluster, coordinators: map[string]*process.Process{}, gate: filepath.Join(t.TempDir(), "gate"), mark: filepath.Join(t.TempDir(), "mark")}
	h.env = []string{"FENCEPOST_FAULT=log:connector/", "FENCEPOST_FAULT_GATE=" + h.gate, "FENCEPOST_FAULT_MARK=" + h.mark}
	h.shut(false)
	harness.CreateTopicOn(h.t, h.cluster.Brokers[0].Addr, 2, name+".config", 1, map[string]string{"cleanup.policy": "compact"})
	h.Coordinator = ""
	h.coordinate()
	h.coordinate()
	return h
}

// coordinate starts one more coordinator.
func (h *logHang) coordinate() {
	h.t.Helper()
	address := harness.FreeAddress(h.t)
	p := h.Start("coordinator", h.env, "coordinator", "--cluster", h.Cluster, "--bootstrap-servers", h.Bootstrap, "--listen", address)
	h.coordinators[address] = p
	h.all = append(h.all, p)
	h.Coordinator = strings.TrimPrefix(h.Coordinator+","+address, ",")
}

func (h *logHang) shut(shut bool) {
	h.t.Helper()
	var err error
	if shut {
		_ = os.Remove(h.mark) // it may not be there
		err = os.Remove(h.gate)
	} else {
		err = os.WriteFile(h.gate, nil, 0o600)
	}
	if err != nil {
		h.t.Fatal(err)
	}
}

// hold has the leader write that the connector is paused, up to its commit, and kills the log's broker then. It returns the leader's address.
func (h *logHang) hold() string {
	h.t.Helper()
	leader := ""
	harness.Wait(h.t, time.Minute, "somebody leads", func(ctx context.Context) error {
		if leader = h.Leader(ctx); leader == "" {
			return fmt.Errorf("nobody of %s", h.Coordinator)
		}
		return nil
	})
	h.shut(true)
	ctx, cancel := context.WithCancel(h.t.Context())
	asked := make(chan error, 1)
	go func() {
		_, err := h.At(leader).PauseConnector(ctx, &controlv1.PauseConnectorRequest{Name: "numbers"})
		asked <- err
	}()
	awaitLines(h.t, h.mark, 1)
	cancel() // Whoever asked hears nothing.
	if err := <-asked; err == nil {
		h.t.Error("the pause was answered before it was committed")
	}
	h.cluster.Brokers[1].Kill()
	admin := harness.Admin(h.t, h.cluster.Brokers[0].Addr)
	harness.Wait(h.t, time.Minute, "the log has no leader", func(ctx context.Context) error {
		topics, err := admin.ListTopics(ctx, h.Cluster+".config")
		if err != nil {
			return err
		}
		if p := topics[h.Cluster+".config"].Partitions[0]; p.Leader >= 0 {
			return fmt.Errorf("it is led by %d", p.Leader)
		}
		return nil
	})
	return leader
}

// hangs waits until Kafka calls the log's transaction complete, without its broker, and brings that back.
func (h *logHang) hangs() {
	h.t.Helper()
	admin := harness.Admin(h.t, h.cluster.Brokers[0].Addr)
	harness.Wait(h.t, time.Minute, "the log's transaction has ended", func(ctx context.Context) error {
		open, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence"})
		if err != nil {
			return err
		}
		if txn, is := open["fencepost."+h.Cluster]; is {
			return fmt.Errorf("%s is %s", txn.TxnID, txn.State)
		}
		return nil
	})
	if err := h.cluster.Brokers[1].Start(h.t.Context()); err != nil {
		h.t.Fatal(err)
	}
}

// freed waits until a leader has said that it ended what hung, in a direction.
func (h *logHang) freed(decided string) {
	h.t.Helper()
	harness.Wait(h.t, 2*time.Minute, "what hangs is ended as "+decided, func(context.Context) error {
		for _, p := range h.all {
			text, err := os.ReadFile(p.Log)
			if err != nil {
				return err
			}
			for line := range strings.Lines(string(text)) {
				if strings.Contains(line, "ended as it was decided") && strings.Contains(line, "decided="+decided) {
					return nil
				}
			}
		}
		return fmt.Errorf("no coordinator says so")
	})
	admin := harness.Admin(h.t, h.cluster.Brokers[0].Addr)
	harness.Wait(h.t, time.Minute, "the log can be read to its end", func(ctx context.Context) error {
		ends, err := admin.ListEndOffsets(ctx, h.Cluster+".config")
		if err != nil {
			return err
		}
		stable, err := admin.ListCommittedOffsets(ctx, h.Cluster+".config")
		if err != nil {
			return err
		}
		end, _ := ends.Lookup(h.Cluster+".config", 0)
		if free, _ := stable.Lookup(h.Cluster+".config", 0); free.Err != nil || end.Err != nil || free.Offset < end.Offset {
			return fmt.Errorf("it ends at %+v, and is stable up to %+v", end, free)
		}
		return nil
	})
}

// TestHangingConfigLogIsEndedAsItWasDecided leaves a commit of the config log hanging, and then an abort: the next leader, who can't read the log before, ends each as it was decided, and everything goes on.
func TestHangingConfigLogIsEndedAsItWasDecided(t *testing.T) {
	t.Parallel()
	h := newLogHang(t, "hanglog")
	load := numbers{topic: "hanglog-numbers", count: 6000, partitions: 2, tasks: 2, transaction: 20, rate: 50}
	harness.CreateTopicOn(h.t, h.cluster.Brokers[0].Addr, 1, load.topic, 2, nil)
	harness.Wait(t, time.Minute, "somebody leads", func(ctx context.Context) error {
		if h.Leader(ctx) == "" {
			return fmt.Errorf("nobody of %s", h.Coordinator)
		}
		return nil
	})
	h.StartRunner("runner", nil)
	h.Create("numbers", load.config())
	awaitRecords(h.Bed, "numbers", 100)

	h.hold()
	h.shut(false)
	h.hangs()
	h.freed("committed")
	h.AwaitState(time.Minute, "numbers", "PAUSED") // Nobody asked for it a second time.
	h.MustCLI("resume", "numbers")
	h.AwaitState(time.Minute, "numbers", "RUNNING")

	h.coordinators[h.hold()].Kill()
	h.shut(false)
	h.hangs()
	h.freed("aborted")
	h.coordinate()
	h.AwaitState(time.Minute, "numbers", "RUNNING")
	h.MustCLI("pause", "numbers")
	h.AwaitState(time.Minute, "numbers", "PAUSED")
	h.MustCLI("resume", "numbers")

	load.arrived(t, h.Bootstrap)
	load.exact(t, h.Bootstrap, offsetsTopic(h.Bed, "numbers"), "numbers")
}
