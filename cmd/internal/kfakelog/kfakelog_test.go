package kfakelog

import (
	"context"
	"encoding/binary"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

var topics = []string{"data", "offsets"}

// start starts a broker on a folder, as `dev --data-dir` does.
func start(t *testing.T, dir string) *kfake.Cluster {
	t.Helper()
	journal, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, topics...), kfake.DataDir(dir), kfake.SyncWrites())
	if err != nil {
		t.Fatal(err)
	}
	journal.Watch(cluster)
	t.Cleanup(func() {
		cluster.Close()
		if err := journal.Close(); err != nil {
			t.Error(err)
		}
	})
	return cluster
}

// transaction begins one with a record on each topic; the caller ends it, or not.
func transaction(t *testing.T, cluster *kfake.Cluster, value string) *kgo.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.TransactionalID("id"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	write(t, client, value)
	return client
}

func write(t *testing.T, client *kgo.Client, value string) {
	t.Helper()
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte(value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func end(t *testing.T, client *kgo.Client, how kgo.TransactionEndTry) {
	t.Helper()
	if err := client.EndTransaction(t.Context(), how); err != nil {
		t.Fatal(err)
	}
}

// readable is what a read_committed reader sees of each topic.
func readable(t *testing.T, cluster *kfake.Cluster) map[string]string {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.ConsumeTopics(topics...), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(t.Context(), topics...)
	if err != nil {
		t.Fatal(err)
	}
	left := map[string]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Topic] = o.Offset
		}
	})
	seen := map[string][]string{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for len(left) > 0 {
		fetches := client.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("no marker ends the transactions: %v, and not read to %v", seen, left)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if !r.Attrs.IsControl() {
				seen[r.Topic] = append(seen[r.Topic], string(r.Value))
			}
			if r.Offset+1 >= left[r.Topic] {
				delete(left, r.Topic)
			}
		})
	}
	out := map[string]string{}
	for _, topic := range topics {
		out[topic] = strings.Join(seen[topic], " ")
	}
	return out
}

func expect(t *testing.T, dir, want string) *kfake.Cluster {
	t.Helper()
	cluster := start(t, dir)
	for topic, got := range readable(t, cluster) {
		if got != want {
			t.Errorf("topic %s: %q is readable, want %q", topic, got, want)
		}
	}
	return cluster
}

// copied is the folder as a kill would leave it now.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	if err := os.CopyFS(to, os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	return to
}

// atCommit copies the folder in the moment in which a commit reaches the broker, once.
func atCommit(t *testing.T, cluster *kfake.Cluster, dir string) *string {
	t.Helper()
	var at string
	cluster.ControlKey(kmsg.EndTxn.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.DropControl()
		at = copied(t, dir)
		return nil, nil, false
	})
	return &at
}

func TestCommitThatBeganIsFinished(t *testing.T) {
	dir := t.TempDir()
	cluster := start(t, dir)
	client := transaction(t, cluster, "a")
	before := atCommit(t, cluster, dir)
	end(t, client, kgo.TryCommit)
	after := copied(t, dir)

	expect(t, *before, "a")
	expect(t, after, "a")
	for _, topic := range topics {
		// Killed between the two markers: the journal is the one of the commit, and one partition is still without its marker.
		half := copied(t, *before)
		part := filepath.Join("partitions", topic+"-0")
		if err := os.RemoveAll(filepath.Join(half, part)); err != nil {
			t.Fatal(err)
		}
		if err := os.CopyFS(filepath.Join(half, part), os.DirFS(filepath.Join(after, part))); err != nil {
			t.Fatal(err)
		}
		expect(t, half, "a")
	}
}

func TestOpenTransactionIsAbortedForGood(t *testing.T) {
	dir := t.TempDir()
	cluster := start(t, dir)
	client := transaction(t, cluster, "a")
	end(t, client, kgo.TryCommit)
	write(t, client, "b") // the journal still has the commit before it
	killed := copied(t, dir)

	again := expect(t, killed, "a")
	client = transaction(t, again, "c")
	killed = copied(t, killed)
	end(t, client, kgo.TryCommit)
	expect(t, copied(t, killed), "a") // killed once more

	again = expect(t, killed, "a")
	end(t, transaction(t, again, "d"), kgo.TryCommit)
	expect(t, copied(t, killed), "a d") // what was aborted stays so
}

func TestAbortThatBeganIsFinished(t *testing.T) {
	dir := t.TempDir()
	cluster := start(t, dir)
	client := transaction(t, cluster, "a")
	before := atCommit(t, cluster, dir)
	end(t, client, kgo.TryAbort)
	expect(t, *before, "")
}

func TestTornWritesAreNoRecords(t *testing.T) {
	dir := t.TempDir()
	cluster := start(t, dir)
	client := transaction(t, cluster, "a")
	end(t, client, kgo.TryCommit)
	write(t, client, "b")
	killed := copied(t, dir)
	segment := filepath.Join(killed, "partitions", "data-0", "0.dat")
	raw, err := os.ReadFile(segment)
	if err != nil {
		t.Fatal(err)
	}
	t.Run("batch", func(t *testing.T) {
		torn := copied(t, killed)
		if err := os.WriteFile(filepath.Join(torn, "partitions", "data-0", "0.dat"), raw[:len(raw)-3], 0o600); err != nil {
			t.Fatal(err)
		}
		expect(t, torn, "a")
	})
	t.Run("index", func(t *testing.T) {
		// The batch is there and its entry in the index isn't: kfake would take it for a record outside of any transaction.
		torn := copied(t, killed)
		if err := os.Truncate(filepath.Join(torn, "partitions", "data-0", "0.idx"), 2*indexBytes); err != nil {
			t.Fatal(err)
		}
		expect(t, torn, "a")
	})
	t.Run("journal", func(t *testing.T) {
		torn := copied(t, killed)
		f, err := os.OpenFile(filepath.Join(torn, journalName), os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(`{"producer":12`); err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		expect(t, torn, "a")
	})
}

func TestJournalIsBounded(t *testing.T) {
	dir := t.TempDir()
	j, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	j.size = maxJournal // as if it had been written to for hours
	for _, e := range []entry{{Producer: 1, Epoch: 2}, {Producer: 3, Epoch: 4}, {Producer: 1, Begun: true}} {
		if err := j.note(e); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, journalName))
	if err != nil || len(text) > 200 {
		t.Fatalf("the journal has %d bytes (%v)", len(text), err)
	}
	read := &Journal{path: j.path, committing: map[int64]int16{}}
	if err := read.read(); err != nil || len(read.committing) != 1 || read.committing[3] != 4 {
		t.Errorf("the journal says %v (%v)", read.committing, err)
	}
}

func TestMarkerIsABatch(t *testing.T) {
	raw := marker(7, 1, 2, 3, true)
	if b := wholeBatch(append(slices.Clone(raw), 1, 2, 3)); len(b) != len(raw) || binary.BigEndian.Uint64(b) != 7 {
		t.Errorf("%d bytes of %d are a batch", len(b), len(raw))
	}
	raw[len(raw)-1]++
	if wholeBatch(raw) != nil {
		t.Error("a batch with a wrong checksum is one")
	}
}
