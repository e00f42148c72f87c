package coordinator_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

// hung is a transaction that Kafka left hanging on partition task of out.
type hung struct {
	task     uint32
	id       string
	commit   bool
	producer int64
	epoch    int16
}

// hangAll opens a transaction for each direction that is asked for, each on a partition of its own that only the second broker has, and ends them while that broker is dead.
func hangAll(t *testing.T, cluster *kafka.Cluster, commits ...bool) []hung {
	t.Helper()
	settings, err := kafkaclient.Parse(cluster.AdminAddr(), nil)
	if err != nil {
		t.Fatal(err)
	}
	admin := harness.Admin(t, cluster.Brokers[0].AdminAddr)
	harness.CreateTopicOn(t, cluster.Brokers[0].AdminAddr, 2, out, int32(len(commits)), nil)
	all, clients := make([]hung, len(commits)), make([]*kgo.Client, len(commits))
	for i, commit := range commits {
		all[i] = hung{task: uint32(i), id: fmt.Sprintf("fencepost.c.hung.%d", i), commit: commit}
		cl, err := settings.NewClient(kgo.TransactionalID(all[i].id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionTimeout(5*time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		clients[i] = cl
		if err := cl.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: out, Partition: int32(i), Value: []byte("v")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if all[i].producer, all[i].epoch, err = cl.ProducerID(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	cluster.Brokers[1].Kill()
	harness.Wait(t, 2*time.Minute, "the topic has no leader", func(ctx context.Context) error {
		topics, err := admin.ListTopics(ctx, out)
		for _, p := range topics[out].Partitions {
			if p.Leader >= 0 && err == nil {
				err = fmt.Errorf("partition %d is led by %d", p.Partition, p.Leader)
			}
		}
		return err
	})
	var wait sync.WaitGroup
	for i, cl := range clients {
		wait.Go(func() {
			if err := cl.EndTransaction(t.Context(), kgo.TransactionEndTry(commits[i])); err != nil {
				t.Logf("end %s, the first time: %v", all[i].id, err) // It may go on believing in the dead broker, on a busy machine.
				endAgain(t, cl, all[i])
			}
		})
	}
	wait.Wait()
	if err := cluster.Brokers[1].Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return all
}

// endAgain ends a transaction whose first end didn't get to a broker.
func endAgain(t *testing.T, cl *kgo.Client, h hung) {
	t.Helper()
	err := harness.Poll(t.Context(), time.Minute, func(ctx context.Context) error {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = h.id, h.producer, h.epoch, h.commit
		resp, err := req.RequestWith(ctx, cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
	if err != nil {
		t.Errorf("end %s: %v", h.id, err)
	}
}

// healer runs a Desk that stands for a leader; stop is its end. Notes are let go on unless hold.
func healer(t *testing.T, p *part, hold bool) (desk *fence.Desk, events <-chan state.Event, stop func()) {
	t.Helper()
	seen := make(chan state.Event, 10)
	desk = fence.NewDesk(p.Fencer, func(_ context.Context, e state.Event) error {
		if note, ok := e.(state.HealPrepared); ok && !hold {
			go desk.HealOn(state.HealOn{Connector: note.Connector, Task: note.Task, Seq: note.Seq})
		}
		seen <- e
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- desk.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return desk, seen, stop
}

// next is the next event of a kind.
func next[E state.Event](t *testing.T, events <-chan state.Event) E {
	t.Helper()
	for {
		select {
		case e := <-events:
			if found, ok := e.(E); ok {
				return found
			}
		case <-time.After(3 * time.Minute):
			t.Fatal("no event")
		}
	}
}

// found waits until the look sees the hang: the broker that came back needs a moment.
func (h hung) found(t *testing.T, p *part) []state.Hang {
	t.Helper()
	var hanging []state.Hang
	harness.Wait(t, 2*time.Minute, h.id+" hangs", func(ctx context.Context) (err error) {
		hanging, err = p.Look(ctx, []string{out}, map[uint32]string{h.task: h.id}, nil)
		if err == nil && len(hanging) != 1 {
			err = fmt.Errorf("hanging %v", hanging)
		}
		return err
	})
	return hanging
}

func (h hung) heal(hanging []state.Hang, noted bool) state.Heal {
	heal := state.Heal{Connector: "hung", Task: h.task, Seq: 1, ID: h.id, Hanging: hanging, Noted: state.Decision{Outcome: state.OutcomeUnknown, ProducerID: -1, ProducerEpoch: -1}}
	if noted {
		heal.Noted = state.Decision{Outcome: state.OutcomeCommitted, ProducerID: h.producer, ProducerEpoch: h.epoch}
	}
	return heal
}

// ended checks that the partition is free, that its record is readable exactly where it was committed, and that the id goes on.
func (h hung) ended(t *testing.T, p *part, cluster *kafka.Cluster) {
	t.Helper()
	admin := harness.Admin(t, cluster.Brokers[0].AdminAddr)
	ends, err := admin.ListEndOffsets(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	stable, err := admin.ListCommittedOffsets(t.Context(), out)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(out, int32(h.task))
	free, _ := stable.Lookup(out, int32(h.task))
	if end.Offset != free.Offset || end.Offset < 2 {
		t.Errorf("%s: the partition ends at %d, and is stable up to %d", h.id, end.Offset, free.Offset)
	}
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.Brokers[1].AdminAddr), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{out: {int32(h.task): kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	records := 0
	for at := int64(0); at < free.Offset; {
		cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) {
			if at = r.Offset + 1; !r.Attrs.IsControl() {
				records++
			}
		})
	}
	want := 0
	if h.commit {
		want = 1
	}
	if records != want {
		t.Errorf("%s: %d records are readable, want %d", h.id, records, want)
	}
	if _, err := p.Take(t.Context(), h.id); err != nil {
		t.Errorf("%s: %v", h.id, err)
	}
}

// TestHangingTransactionsAreEndedEachWay provokes real hangs, and ends them by markers and by empty transactions, also by those that a leader left in the middle. The user has the rights that the documentation lists.
func TestHangingTransactionsAreEndedEachWay(t *testing.T) {
	kafka.Need(t)
	cluster := harness.OwnCluster(t, kafka.Options{Brokers: 2, Users: []kafka.User{{Name: "alice", Password: "right"}}, Properties: map[string]string{
		"broker.session.timeout.ms": "3000", "broker.heartbeat.interval.ms": "500", "offsets.topic.num.partitions": "1", "transaction.state.log.num.partitions": "2",
	}})
	hungs := hangAll(t, cluster, true, false, true, false, true, true, true, true, true, false, true)
	all := newPart(t, cluster.AdminAddr(), nil)
	keys := kafkaclient.Map{"security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "right"}
	grant := func(topic string, ops ...kadm.ACLOperation) {
		acl := kadm.NewACLs().Allow("User:alice").AllowHosts("*").ResourcePatternType(kadm.ACLPatternPrefixed).Topics(topic).Operations(ops...)
		if topic == out {
			acl = acl.TransactionalIDs("fencepost.c")
		}
		if _, err := harness.Admin(t, cluster.Brokers[0].AdminAddr).CreateACLs(t.Context(), acl); err != nil {
			t.Fatal(err)
		}
	}
	grant(out, kadm.OpRead, kadm.OpWrite, kadm.OpDescribe)
	few := newPart(t, cluster.Addr(), keys)

	t.Run("markers", func(t *testing.T) {
		for _, h := range hungs[:2] {
			desk, events, _ := healer(t, all, false)
			desk.Heal(h.heal(h.found(t, all), false))
			if done := next[state.Healed](t, events); len(done.Mended) != 1 || done.Fenced || done.Mended[0].Outcome == state.OutcomeCommitted != h.commit {
				t.Fatalf("%+v", done)
			}
			h.ended(t, all, cluster)
		}
	})
	t.Run("not proven", func(t *testing.T) {
		h := hungs[3]
		desk, events, _ := healer(t, few, false)
		desk.Heal(h.heal(h.found(t, few), false))
		if done := next[state.Healed](t, events); len(done.Left) != 1 || len(done.Mended) != 0 {
			t.Fatalf("%+v", done)
		}
		h.found(t, few)
	})
	t.Run("empty transaction, noted", func(t *testing.T) {
		h := hungs[2]
		desk, events, _ := healer(t, few, false)
		desk.Heal(h.heal(h.found(t, few), true))
		if done := next[state.Healed](t, events); len(done.Mended) != 1 || !done.Fenced {
			t.Fatalf("%+v", done)
		}
		h.ended(t, all, cluster)
	})
	t.Run("empty transaction, by Kafka's own record", func(t *testing.T) {
		grant("__transaction_state", kadm.OpRead, kadm.OpDescribe)
		h := hungs[3]
		harness.Wait(t, time.Minute, "the right is known", func(ctx context.Context) error {
			proven, err := few.Prove(ctx, h.id, h.found(t, few), state.Decision{Outcome: state.OutcomeUnknown})
			if err == nil && proven[0].Outcome != state.OutcomeAborted {
				err = fmt.Errorf("%+v", proven)
			}
			return err
		})
		desk, events, _ := healer(t, few, false)
		desk.Heal(h.heal(h.found(t, few), false))
		if done := next[state.Healed](t, events); len(done.Mended) != 1 || !done.Fenced || done.Mended[0].Outcome != state.OutcomeAborted {
			t.Fatalf("%+v", done)
		}
		h.ended(t, all, cluster)
	})
	// A leader dies with the note in the log: before anything was added, between adding and ending, and after that. The next one ends it by the note.
	for i, crash := range []string{"noted", "added", "ended"} {
		t.Run("a leader dies when it was "+crash, func(t *testing.T) {
			h := hungs[4+i]
			desk, events, stop := healer(t, few, true)
			desk.Heal(h.heal(h.found(t, few), true))
			note := next[state.HealPrepared](t, events).Note
			stop()
			if crash != "noted" {
				raw(t, few, h, note, crash == "ended")
			}
			heal := h.heal(nil, false)
			heal.Note = &note
			desk, events, _ = healer(t, few, false)
			desk.Heal(heal)
			// A start of the id waits for it, or it would abort what is committed.
			desk.PrepareID(state.PrepareID{ID: h.id, Lease: state.Lease{Connector: "hung", Task: h.task}})
			if done := next[state.Healed](t, events); len(done.Mended) != 1 || done.Failed != "" {
				t.Fatalf("%+v", done)
			}
			next[state.IDPrepared](t, events)
			h.ended(t, all, cluster)
		})
	}
	// The config log's way: whoever has taken the id frees the one partition, and keeps the epoch.
	for i, user := range []*part{few, few, all} {
		h := hungs[8+i]
		t.Run(fmt.Sprintf("a single partition, committed %v, the right to write markers %v", h.commit, user == all), func(t *testing.T) {
			h.found(t, user)
			taken, err := user.Take(t.Context(), h.id)
			if err != nil {
				t.Fatal(err)
			}
			if err := user.Release(t.Context(), fence.Single{ID: h.id, Topic: out, Partition: int32(h.task), Taken: taken}); err != nil {
				t.Fatal(err)
			}
			h.ended(t, all, cluster)
		})
	}
}

// raw does what a leader did before it died.
func raw(t *testing.T, p *part, h hung, note state.HealNote, end bool) {
	t.Helper()
	add := kmsg.NewPtrAddPartitionsToTxnRequest()
	add.TransactionalID, add.ProducerID, add.ProducerEpoch = h.id, note.ProducerID, note.ProducerEpoch
	topic := kmsg.NewAddPartitionsToTxnRequestTopic()
	topic.Topic, topic.Partitions = out, []int32{int32(h.task)}
	add.Topics = append(add.Topics, topic)
	finish := kmsg.NewPtrEndTxnRequest()
	finish.TransactionalID, finish.ProducerID, finish.ProducerEpoch, finish.Commit = h.id, note.ProducerID, note.ProducerEpoch, true
	harness.Wait(t, time.Minute, "the dead leader's requests", func(ctx context.Context) error {
		resp, err := p.direct.ToCoordinator(ctx, h.id, add)
		if err == nil {
			added, ok := resp.(*kmsg.AddPartitionsToTxnResponse)
			if !ok {
				return fmt.Errorf("%T", resp)
			}
			err = kerr.ErrorForCode(added.Topics[0].Partitions[0].ErrorCode)
		}
		return err
	})
	if !end {
		return
	}
	resp, err := p.direct.ToCoordinator(t.Context(), h.id, finish)
	if ended, ok := resp.(*kmsg.EndTxnResponse); err != nil || !ok || ended.ErrorCode != 0 {
		t.Fatalf("%+v, %v", resp, err)
	}
}
