package fence_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const topic = "out"

// bed is a fake cluster and a Fencer on it.
type bed struct {
	*fence.Fencer
	cluster *kfake.Cluster
}

func newBed(t *testing.T, brokers int) *bed {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(brokers), kfake.SeedTopics(3, topic))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return &bed{Fencer: newFencer(t, strings.Join(cluster.ListenAddrs(), ",")), cluster: cluster}
}

func newFencer(t *testing.T, bootstrap string) *fence.Fencer {
	t.Helper()
	settings, err := kafkaclient.Parse(bootstrap, nil)
	if err != nil {
		t.Fatal(err)
	}
	cl, err := settings.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return fence.New(fence.Config{Direct: kafkaclient.NewDirect(cl)})
}

// answer makes the next n requests of a kind get an answer of the test's; n < 0 is all.
func (b *bed) answer(n int, kind kmsg.Request, change func(req kmsg.Request, resp kmsg.Response)) {
	left := n
	b.cluster.ControlKey(kind.Key(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		if left == 0 {
			return nil, nil, false
		}
		left--
		b.cluster.KeepControl()
		resp := req.ResponseKind()
		change(req, resp)
		return resp, nil, true
	})
}

func initCode(code int16) func(kmsg.Request, kmsg.Response) {
	return func(_ kmsg.Request, resp kmsg.Response) {
		if r, ok := resp.(*kmsg.InitProducerIDResponse); ok {
			r.ErrorCode = code
		}
	}
}

func described(state func(id string) (string, int64)) func(kmsg.Request, kmsg.Response) {
	return func(req kmsg.Request, resp kmsg.Response) {
		q, isQ := req.(*kmsg.DescribeTransactionsRequest)
		r, isR := resp.(*kmsg.DescribeTransactionsResponse)
		if !isQ || !isR {
			return
		}
		for _, id := range q.TransactionalIDs {
			s := kmsg.NewDescribeTransactionsResponseTransactionState()
			s.TransactionalID = id
			s.State, s.ProducerID = state(id)
			r.TransactionStates = append(r.TransactionStates, s)
		}
	}
}

// producer is a live transactional producer with one record in an open transaction.
func (b *bed) producer(t *testing.T, id string, partition int32) *kgo.Client {
	t.Helper()
	return openTransaction(t, strings.Join(b.cluster.ListenAddrs(), ","), id, partition)
}

func openTransaction(t *testing.T, bootstrap, id string, partition int32) *kgo.Client {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.TransactionalID(id), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Partition: partition, Value: []byte("v")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return cl
}

// TestANotePrecedesEachAttempt is I3: only the decision seen before the attempt that was answered `ok` counts, and nothing is attempted while a decision is being carried out.
func TestANotePrecedesEachAttempt(t *testing.T) {
	b := newBed(t, 1)
	states := []string{"CompleteCommit", "CompleteCommit", "Ongoing", "Ongoing", "Ongoing", "PrepareAbort", "PrepareEpochFence", "PrepareCommit", "CompleteAbort"}
	var order strings.Builder
	b.answer(-1, kmsg.NewPtrDescribeTransactionsRequest(), described(func(string) (string, int64) {
		order.WriteByte('D')
		return states[strings.Count(order.String(), "D")-1], 7
	}))
	inits := 0
	b.cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		order.WriteByte('I')
		if q, ok := req.(*kmsg.InitProducerIDRequest); !ok || q.ProducerID != -1 || q.ProducerEpoch != -1 || q.TransactionTimeoutMillis != 60_000 {
			t.Errorf("request %+v", req)
		}
		if inits++; inits > 5 {
			return nil, nil, false
		}
		resp := req.ResponseKind()
		initCode(kerr.ConcurrentTransactions.Code)(req, resp)
		return resp, nil, true
	})
	taken, err := b.Take(t.Context(), "fencepost.c.a.0")
	if err != nil {
		t.Fatal(err)
	}
	if order.String() != "DIDIDIDIDIDDDDI" {
		t.Errorf("order %s", order.String())
	}
	if diff := cmp.Diff(state.Decision{Outcome: state.OutcomeAborted, ProducerID: 7}, taken.Last); diff != "" {
		t.Error(diff)
	}
}

func TestOnlyFinishedStatesAreDecisions(t *testing.T) {
	b := newBed(t, 1)
	current := ""
	b.answer(-1, kmsg.NewPtrDescribeTransactionsRequest(), described(func(string) (string, int64) { return current, 1 }))
	for described, want := range map[string]state.Outcome{
		"Empty": state.OutcomeNone, "CompleteCommit": state.OutcomeCommitted, "CompleteAbort": state.OutcomeAborted, "Ongoing": state.OutcomeUnknown,
		"Dead": state.OutcomeUnknown, "Later": state.OutcomeUnknown,
	} {
		current = described
		taken, err := b.Take(t.Context(), "id")
		if err != nil || taken.Last.Outcome != want {
			t.Errorf("%s: %v, %v", described, taken.Last.Outcome, err)
		}
	}
}

func TestAFencedProducerNeverCommits(t *testing.T) {
	b := newBed(t, 1)
	zombie := b.producer(t, "fencepost.c.a.0", 0)
	if _, err := b.Take(t.Context(), "fencepost.c.a.0"); err != nil {
		t.Fatal(err)
	}
	if err := zombie.EndTransaction(t.Context(), kgo.TryCommit); err == nil {
		t.Fatal("the zombie committed")
	}
}

func TestACoordinatorThatMovedIsFound(t *testing.T) {
	b := newBed(t, 3)
	ids := make([]string, 20)
	for i := range ids {
		ids[i] = fmt.Sprintf("fencepost.c.a.%d", i)
		if _, err := b.Take(t.Context(), ids[i]); err != nil {
			t.Fatal(err)
		}
	}
	b.cluster.RehashCoordinators()
	b.answer(2, kmsg.NewPtrInitProducerIDRequest(), initCode(kerr.CoordinatorLoadInProgress.Code))
	for _, id := range ids {
		if taken, err := b.Take(t.Context(), id); err != nil || taken.Epoch != 1 {
			t.Fatalf("%s after its coordinator moved: %+v, %v", id, taken, err)
		}
	}
}

func TestADeadConnectionIsTriedAgainWithANewNote(t *testing.T) {
	b := newBed(t, 1)
	failed := false
	b.cluster.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		if failed {
			return nil, nil, false
		}
		failed = true
		return nil, errors.New("the broker closes the connection"), true
	})
	if _, err := b.Take(t.Context(), "id"); err != nil || !failed {
		t.Fatalf("failed once: %v, error %v", failed, err)
	}
}

func TestPermanentRefusalsNameTheIDAndWhatIsMissing(t *testing.T) {
	for code, words := range map[*kerr.Error][]string{
		kerr.TransactionalIDAuthorizationFailed: {`"fencepost.c.a.0"`, "Write on TransactionalId", `"fencepost.c."`},
		kerr.InvalidTransactionTimeout:          {`"fencepost.c.a.0"`, "1m0s", "transaction.max.timeout.ms", "60000"},
	} {
		b := newBed(t, 1)
		b.answer(1, kmsg.NewPtrInitProducerIDRequest(), initCode(code.Code))
		_, err := b.Take(t.Context(), "fencepost.c.a.0")
		var refused *fence.Refused
		if !errors.As(err, &refused) || refused.ID != "fencepost.c.a.0" || !errors.Is(err, code) {
			t.Fatalf("%v: %v", code, err)
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q is missing in %q", word, err)
			}
		}
	}
}

func TestAnEndedContextEndsTheTrying(t *testing.T) {
	b := newBed(t, 1)
	ctx, cancel := context.WithCancelCause(t.Context())
	enough := errors.New("enough")
	tries := 0
	b.answer(-1, kmsg.NewPtrInitProducerIDRequest(), func(req kmsg.Request, resp kmsg.Response) {
		initCode(kerr.ConcurrentTransactions.Code)(req, resp)
		if tries++; tries == 3 {
			cancel(enough)
		}
	})
	if _, err := b.Take(ctx, "id"); !errors.Is(err, context.Canceled) || !errors.Is(err, enough) {
		t.Fatal(err)
	}
}

func TestIDsThatAreTriedForLongHoldNobodyUp(t *testing.T) {
	b := newBed(t, 1)
	b.answer(-1, kmsg.NewPtrInitProducerIDRequest(), func(req kmsg.Request, resp kmsg.Response) {
		if q, ok := req.(*kmsg.InitProducerIDRequest); ok && strings.HasPrefix(*q.TransactionalID, "stuck") {
			initCode(kerr.ConcurrentTransactions.Code)(req, resp)
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	var stuck sync.WaitGroup
	for i := range 100 { // More than there are slots.
		stuck.Go(func() {
			if _, err := b.Take(ctx, fmt.Sprint("stuck", i)); !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		})
	}
	if _, err := b.Take(t.Context(), "free"); err != nil {
		t.Error(err)
	}
	cancel()
	stuck.Wait()
}

func TestAProbeChangesNothing(t *testing.T) {
	b := newBed(t, 1)
	live := b.producer(t, "fencepost.c.a.0", 0)
	for _, id := range []string{"fencepost.c.a.0", "fencepost.c.never.0"} {
		if err := b.Probe(t.Context(), id); err != nil {
			t.Fatalf("%s: %v", id, err)
		}
	}
	if err := live.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatalf("the live transaction was hurt: %v", err)
	}
	b.answer(1, kmsg.NewPtrInitProducerIDRequest(), initCode(kerr.NotCoordinator.Code))
	if err := b.Probe(t.Context(), "fencepost.c.a.0"); err != nil {
		t.Fatalf("after the coordinator moved: %v", err)
	}
	b.answer(1, kmsg.NewPtrInitProducerIDRequest(), initCode(kerr.TransactionalIDAuthorizationFailed.Code))
	var refused *fence.Refused
	if err := b.Probe(t.Context(), "fencepost.c.a.0"); !errors.As(err, &refused) {
		t.Fatalf("without the right: %v", err)
	}
}

func TestManyIDsAreFencedInParallel(t *testing.T) {
	b := newBed(t, 1)
	var events atomic.Int64
	done := make(chan state.Event, 1)
	run, stop := startDesk(t, b.Fencer, func(_ context.Context, e state.Event) error {
		events.Add(1)
		done <- e
		return nil
	})
	r := state.StartRound{Connector: "a", Seq: 1}
	for i := range uint32(1000) {
		r.Tasks, r.IDs = append(r.Tasks, i), append(r.IDs, fmt.Sprintf("fencepost.c.a.%d", i))
	}
	began := time.Now()
	run.StartRound(r)
	got, ok := (<-done).(state.RoundDone)
	if !ok || len(got.Decisions) != 1000 || got.Seq != 1 || got.Connector != "a" {
		t.Fatalf("%d decisions, seq %d", len(got.Decisions), got.Seq)
	}
	t.Logf("1,000 ids in %v", time.Since(began))
	stop()
	if events.Load() != 1 {
		t.Errorf("%d events", events.Load())
	}
}

// startDesk runs a Desk until stop.
func startDesk(t *testing.T, f *fence.Fencer, submit func(context.Context, state.Event) error) (desk *fence.Desk, stop func()) {
	t.Helper()
	desk = fence.NewDesk(f, submit)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := desk.Run(ctx); err != nil {
			t.Error(err)
		}
	}()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return desk, stop
}
