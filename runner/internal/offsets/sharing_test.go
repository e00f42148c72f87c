package offsets

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// sharing is a Sharing whose readings a test sees begin, and ends. In a bubble of synctest everything waits until it does.
type sharing struct {
	Sharing
	begun []chan error // one for each reading; nil is a good end
}

func newSharing() *sharing {
	s := &sharing{}
	s.open = func(ctx context.Context, cfg Config) (*Store, string, error) {
		end := make(chan error)
		s.mu.Lock()
		s.begun = append(s.begun, end)
		n := strconv.Itoa(len(s.begun))
		s.mu.Unlock()
		select {
		case err := <-end:
			if err != nil {
				return nil, "", err
			}
		case <-ctx.Done():
			return nil, "", context.Cause(ctx)
		}
		store := newStore(&cfg, 1)
		store.committed[`{"p":1}`] = &entry{spelling: spelling{key: []byte(`["orders",{"p":1}]`), source: source.JSON(`{"p":1}`), offset: source.JSON(n)}}
		return store, "id", nil
	}
	return s
}

// answer is what one who asked got.
type answer struct {
	store *Store
	err   error
}

// ask asks, and returns when nothing moves any more.
func (s *sharing) ask(ctx context.Context, cfg Config) <-chan answer {
	got := make(chan answer, 1)
	go func() {
		store, _, err := s.Open(ctx, cfg)
		got <- answer{store, err}
	}()
	synctest.Wait()
	return got
}

// end ends reading n of so many that have begun.
func (s *sharing) end(t *testing.T, n, of int, err error) {
	t.Helper()
	if len(s.begun) != of {
		t.Fatalf("%d readings have begun, want %d", len(s.begun), of)
	}
	s.begun[n-1] <- err
	synctest.Wait()
}

var orders = Config{Topic: "t", Connector: "orders"}

// TestAReadingAnswersOnlyWhoAskedBeforeItBegan is I3: an offset that was committed after a reading began may be missing from it.
func TestAReadingAnswersOnlyWhoAskedBeforeItBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing()
		first := s.ask(t.Context(), orders)
		var later []<-chan answer
		for range 3 {
			later = append(later, s.ask(t.Context(), orders))
		}
		other := s.ask(t.Context(), Config{Topic: "t", Connector: "bills"})
		s.end(t, 1, 2, nil)
		wantShown(t, (<-first).store, `{"p":1} → 1`)
		s.end(t, 3, 3, nil)
		for _, l := range later {
			wantShown(t, (<-l).store, `{"p":1} → 3`)
		}
		s.end(t, 2, 3, nil)
		wantShown(t, (<-other).store, `{"p":1} → 2`)
		next := s.ask(t.Context(), orders)
		s.end(t, 4, 4, nil)
		wantShown(t, (<-next).store, `{"p":1} → 4`)
	})
}

// TestEachHasItsOwnStore: what one task stages and commits is none of another's.
func TestEachHasItsOwnStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing()
		first := s.ask(t.Context(), orders)
		second, third := s.ask(t.Context(), orders), s.ask(t.Context(), orders)
		s.end(t, 1, 1, nil)
		s.end(t, 2, 2, nil)
		<-first
		one, two := (<-second).store, (<-third).store
		if _, _, err := one.Stage([]source.PartitionOffset{position(`{"p":1}`, `{"n":9}`), position(`{"new":1}`, `{"n":1}`)}); err != nil {
			t.Fatal(err)
		}
		one.Applied()
		wantShown(t, one, `{"new":1} → {"n":1}`, `{"p":1} → {"n":9}`)
		wantShown(t, two, `{"p":1} → 2`)
	})
}

// TestWhoJoinedAsksAgainWhereTheReaderIsTold: the end of the task that reads is no answer to the others. An error is one to all.
func TestWhoJoinedAsksAgainWhereTheReaderIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing()
		before := s.ask(t.Context(), orders)
		ctx, cancel := context.WithCancel(t.Context())
		reader, joined := s.ask(ctx, orders), s.ask(t.Context(), orders)
		alone, leave := context.WithCancel(t.Context())
		left := s.ask(alone, orders)
		leave()
		if a := <-left; !errors.Is(a.err, context.Canceled) {
			t.Errorf("who left got %v", a.err)
		}
		s.end(t, 1, 1, nil)
		<-before
		cancel()
		if a := <-reader; !errors.Is(a.err, context.Canceled) {
			t.Errorf("the reader got %v", a.err)
		}
		synctest.Wait()
		more := []<-chan answer{s.ask(t.Context(), orders), s.ask(t.Context(), orders)}
		s.end(t, 3, 3, nil)
		wantShown(t, (<-joined).store, `{"p":1} → 3`)
		lost := &LostError{Topic: "t"}
		s.end(t, 4, 4, lost)
		for _, m := range more {
			if a := <-m; !errors.Is(a.err, lost) || a.store != nil {
				t.Errorf("got %v", a.err)
			}
		}
	})
}

// TestAReadingThatHangsHoldsNobodyUpForLong: its client may be what hangs.
func TestAReadingThatHangsHoldsNobodyUpForLong(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSharing()
		hangs := s.ask(t.Context(), orders)
		later := []<-chan answer{s.ask(t.Context(), orders), s.ask(t.Context(), orders)}
		<-time.After(gatherFor)
		synctest.Wait()
		s.end(t, 2, 2, nil)
		for _, l := range later {
			wantShown(t, (<-l).store, `{"p":1} → 2`)
		}
		s.end(t, 1, 2, nil)
		wantShown(t, (<-hangs).store, `{"p":1} → 1`)
	})
}
