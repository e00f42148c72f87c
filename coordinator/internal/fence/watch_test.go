package fence_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// watch runs a Watcher until the test ends.
func watch(t *testing.T, b *bed, targets ...state.Watch) <-chan state.Event {
	t.Helper()
	events := make(chan state.Event, 100)
	w := fence.NewWatcher(fence.WatchConfig{
		Fencer: b.Fencer, Every: 40 * time.Millisecond, Targets: func(context.Context) ([]state.Watch, error) { return targets, nil },
		Submit: func(_ context.Context, e state.Event) error { events <- e; return nil },
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return events
}

func TestTheOwnLookFindsHangsOfEveryName(t *testing.T) {
	h := newHung(t, 2)
	events := watch(t, h.bed, state.Watch{Connector: "quiet", Topics: []string{"elsewhere"}, IDs: idsOf("x")}, state.Watch{Connector: "a", Topics: []string{"gone", topic}, IDs: idsOf(h.id)})
	select {
	case e := <-events:
		if found, ok := e.(state.Found); !ok || found.Connector != "a" || len(found.Hanging) != 1 || found.Hanging[0].ID != h.id {
			t.Fatalf("event %+v", e)
		}
	case <-time.After(time.Minute):
		t.Fatal("nothing was found")
	}
}

// TestTheOwnLookIsCheap: where nothing lags, nobody is asked about producers and transactions.
func TestTheOwnLookIsCheap(t *testing.T) {
	b := newBed(t, 1)
	looked := make(chan struct{}, 100)
	b.cluster.ControlKey(int16(kmsg.ListOffsets), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		looked <- struct{}{}
		return nil, nil, false
	})
	for _, kind := range []kmsg.Request{kmsg.NewPtrDescribeProducersRequest(), kmsg.NewPtrDescribeTransactionsRequest()} {
		b.answer(-1, kind, func(req kmsg.Request, _ kmsg.Response) { t.Errorf("asked for %T", req) })
	}
	events := watch(t, b, state.Watch{Connector: "a", Topics: []string{topic}, IDs: idsOf("own")})
	for range 6 {
		<-looked
	}
	if len(events) != 0 {
		t.Errorf("event %+v", <-events)
	}
}
