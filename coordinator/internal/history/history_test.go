package history

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bed is a broker, and a loop's State that a test changes.
type bed struct {
	t       *testing.T
	kafka   *kfake.Cluster
	history *History
	admin   *kgo.Client

	mu       sync.Mutex
	st       *state.State
	log      map[string]state.Record
	asked    uint64
	ended    bool
	recalled chan []state.LastKnown
}

func newBed(t *testing.T) *bed {
	t.Helper()
	kafka, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kafka.Close)
	b := &bed{t: t, kafka: kafka, log: map[string]state.Record{}, recalled: make(chan []state.LastKnown, 1)}
	settings, err := kafkaclient.Parse(strings.Join(kafka.ListenAddrs(), ","), nil)
	if err != nil {
		t.Fatal(err)
	}
	if b.admin, err = settings.NewClient(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.admin.Close)
	b.history = New(Config{Cluster: "c", Settings: settings})
	b.history.pause = 10 * time.Millisecond
	b.lead()
	return b
}

// lead makes a leader that knows nothing but the config log.
func (b *bed) lead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.st = state.New(state.Options{Cluster: "c"})
	for _, r := range b.log {
		if err := b.st.Load(r); err != nil {
			b.t.Fatal(err)
		}
	}
	b.step(state.TookOver{})
}

// step takes an event and names the connectors that something happened to.
func (b *bed) step(event state.Event) (happened []string) {
	for _, effect := range b.st.Step(time.Now(), event) {
		switch e := effect.(type) {
		case state.Persist:
			for _, r := range e.Records {
				if b.log[r.Key] = r; r.Value == nil {
					delete(b.log, r.Key)
				}
			}
		case state.Happening:
			happened = append(happened, e.Connector)
		}
	}
	return happened
}

func (b *bed) ask(k *Keeper, op state.Op) {
	b.mu.Lock()
	b.asked++
	happened := b.step(state.Asked{ID: b.asked, Op: op})
	b.mu.Unlock()
	for _, name := range happened {
		k.Note(name)
	}
}

func create(name string) state.Create {
	return state.Create{Name: name, Incarnation: "life", Config: map[string]string{"connector.class": "file"}}
}

func (b *bed) Submit(_ context.Context, event state.Event) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if r, ok := event.(state.Recalled); ok {
		b.recalled <- r.Connectors
	}
	b.step(event)
	return nil
}

func (b *bed) View(_ context.Context, look func(*state.State)) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return loop.ErrEnded
	}
	look(b.st)
	return nil
}

// run runs a Keeper until the test, or its caller, ends it; it gives what was recalled.
func (b *bed) run() (k *Keeper, recalled []state.LastKnown, stop func()) {
	b.t.Helper()
	k = b.history.Lead(b)
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan error, 1)
	go func() { done <- k.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.t.Error(err)
		}
	})
	b.t.Cleanup(stop)
	select {
	case recalled = <-b.recalled:
	case <-time.After(30 * time.Second):
		b.t.Fatal("nothing was recalled")
	}
	return k, recalled, stop
}

// kept waits until a reader of the topic sees what the test wants.
func (b *bed) kept(want func(values map[string]string) bool) {
	b.t.Helper()
	values := map[string]string{}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		entries, err := b.history.read(b.t.Context())
		if err != nil {
			b.t.Fatal(err)
		}
		clear(values)
		for _, e := range entries {
			values[e.key] = string(e.value)
		}
		if want(values) {
			return
		}
	}
	b.t.Fatalf("the topic has %v", values)
}

func has(key, text string) func(map[string]string) bool {
	return func(values map[string]string) bool { return strings.Contains(values[key], text) }
}

func (b *bed) happenings(name string) (texts []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	v, _ := b.st.Connector(name)
	for _, h := range v.Happenings {
		texts = append(texts, h.Text)
	}
	return texts
}

func TestANewLeaderFindsWhatHappenedBefore(t *testing.T) {
	b := newBed(t)
	k, recalled, stop := b.run()
	if len(recalled) > 0 {
		t.Error(recalled)
	}
	b.ask(k, create("a/b"))
	b.ask(k, state.Pause{Name: "a/b"})
	b.kept(has("connector/a/b", "target is paused"))
	before := b.happenings("a/b")
	stop()
	b.lead()
	if len(b.happenings("a/b")) > 0 {
		t.Fatal("the test forgets nothing")
	}
	_, recalled, _ = b.run()
	if len(recalled) != 1 || recalled[0].Name != "a/b" || recalled[0].Incarnation != "life" {
		t.Fatal(recalled)
	}
	if diff := cmp.Diff(before, b.happenings("a/b")); diff != "" {
		t.Error(diff)
	}
}

// contract.md: own topics are compacted soon.
func TestTheTopicHasTheSettingsOfOwnTopics(t *testing.T) {
	b := newBed(t)
	b.run()
	configs, err := kadm.NewClient(b.admin).DescribeTopicConfigs(t.Context(), "c.status")
	if err != nil || configs[0].Err != nil {
		t.Fatal(err, configs)
	}
	got := map[string]string{}
	for _, c := range configs[0].Configs {
		got[c.Key] = c.MaybeValue()
	}
	for key, value := range configlog.TopicSettings() {
		if got[key] != value {
			t.Errorf("%s is %q, want %q", key, got[key], value)
		}
	}
}

// What is gone takes no room, also where another leader wrote it.
func TestAConnectorThatIsGoneIsDeleted(t *testing.T) {
	b := newBed(t)
	k, _, stop := b.run()
	b.ask(k, create("a"))
	b.ask(k, create("b"))
	b.kept(has("connector/b", "created"))
	b.ask(k, state.Delete{Name: "a"})
	b.kept(func(values map[string]string) bool { return values["connector/a"] == "" && values["connector/b"] != "" })
	stop()
	b.mu.Lock()
	b.log = map[string]state.Record{}
	b.mu.Unlock()
	b.lead()
	b.run()
	b.kept(func(values map[string]string) bool { return len(values) == 0 })
}

// Connectors that change all the time are written once in a while.
func TestManyChangesAreOneRecord(t *testing.T) {
	b := newBed(t)
	b.history.pause = 50 * time.Millisecond
	k, _, _ := b.run()
	b.ask(k, create("a"))
	began := time.Now()
	for range 2000 {
		b.ask(k, state.Pause{Name: "a"})
		b.ask(k, state.Resume{Name: "a"})
	}
	b.kept(has("connector/a", `"count":2000,"text":"target is running"`))
	most := uint64(time.Since(began)/b.history.pause) + 2
	if written, dropped := b.history.Counts(); written > most || dropped > 0 {
		t.Errorf("%d records written and %d dropped, the pause allows %d", written, dropped, most)
	}
}

func TestAnythingMayBeInTheTopic(t *testing.T) {
	b := newBed(t)
	k, _, stop := b.run()
	b.ask(k, create("a"))
	b.kept(has("connector/a", "created"))
	stop()
	client, err := kgo.NewClient(kgo.SeedBrokers(b.kafka.ListenAddrs()...), kgo.DefaultProduceTopic("c.status"), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var garbage []*kgo.Record
	for key, value := range map[string]string{
		"": "{}", "connector/a": "{", "connector/b": `{"v":7,"b":{}}`, "connector/c": `{"v":1,"b":[1,2]}`, "task/a/x": `{"v":1}`, "task/": "1", "task/c/1": `{"v":1,"b":"x"}`, "other": "",
	} {
		garbage = append(garbage, &kgo.Record{Key: []byte(key), Value: []byte(value)})
	}
	// A leader that was replaced is late.
	garbage = append(garbage, &kgo.Record{Key: []byte("connector/a"), Value: []byte(`{"v":1,"term":0,"b":{"incarnation":"life","happened":[{"text":"old"}]}}`)})
	if err := client.ProduceSync(t.Context(), garbage...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	b.lead()
	if _, recalled, _ := b.run(); len(recalled) != 1 || recalled[0].Name != "a" || recalled[0].Happenings[0].Text != "created, generation 1" {
		t.Error(recalled)
	}
}

// I10: whoever notes never waits, and what the broker doesn't take is dropped, counted, and told again when it is back.
func TestASlowBrokerHoldsNobodyUp(t *testing.T) {
	b := newBed(t)
	b.history.deliver = time.Second // the least that the client takes
	k, _, _ := b.run()
	var mu sync.Mutex
	away := true
	b.kafka.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.kafka.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if away {
			return nil, fmt.Errorf("away"), true
		}
		return nil, nil, false
	})
	b.ask(k, create("a"))
	for deadline := time.Now().Add(30 * time.Second); ; {
		if _, dropped := b.history.Counts(); dropped > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was dropped")
		}
		<-time.After(10 * time.Millisecond)
	}
	mu.Lock()
	away = false
	mu.Unlock()
	b.kept(has("connector/a", "created"))
}

func TestTheEndOfTheLoopIsTheEnd(t *testing.T) {
	b := newBed(t)
	k, _, stop := b.run()
	b.mu.Lock()
	b.ended = true
	b.mu.Unlock()
	k.Note("a")
	stop()
}

func TestARecordIsReadAsItWasWritten(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	want := state.LastKnown{
		Name: "a/1", Incarnation: "life",
		Happenings: []state.Happening{{Connector: "a/1", At: at, First: at, Count: 1, Text: "x"}, {Connector: "a/1", At: at, First: at.Add(-time.Hour), Count: 7, Text: "y"}},
		Tasks: map[uint32]state.LastStatus{3: {
			Lease: state.Lease{Connector: "a/1", Incarnation: "life", Generation: 4, Task: 3, Epoch: 9}, State: "FAILED",
			Status: state.TaskStatus{
				Error: "e", Cause: "plugin", Attempt: 1, BudgetLeft: 2, Endless: true, Records: 3, Bytes: 4, Commits: 5, Aborts: 6, Dropped: 7, DroppedReason: "r", PluginVersion: "v", PluginSHA256: "s",
				Rewinds: map[string]uint64{"fenced": 1}, Notices: []string{"n"},
			},
			Error: state.LastError{At: at, Cause: "plugin", Text: "e"},
		}},
	}
	var kept []entry
	for key, value := range records(&want, 12) {
		e, ours := parse(key, value)
		if !ours || e.term != 12 || e.connector != "a/1" {
			t.Errorf("%q: %+v", key, e)
		}
		kept = append(kept, e)
	}
	got := lastKnown(kept)
	if diff := cmp.Diff([]state.LastKnown{want}, got); diff != "" {
		t.Error(diff)
	}
	if !slices.ContainsFunc(kept, func(e entry) bool { return e.key == "task/a/1/3" }) {
		t.Error(kept)
	}
}
