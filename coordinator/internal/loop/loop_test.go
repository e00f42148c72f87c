package loop

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// shell notes, in order, what the loop does through it. A write waits for gate, where one is set, and fails with failure.
type shell struct {
	mu      sync.Mutex
	did     []string
	gate    chan struct{}
	failure error
}

func (s *shell) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.did = append(s.did, fmt.Sprintf(format, args...))
}

// taken gives what was noted since it was last asked.
func (s *shell) taken() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	did := s.did
	s.did = nil
	return did
}

func (s *shell) set(gate chan struct{}, failure error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gate, s.failure = gate, failure
}

func (s *shell) Write(ctx context.Context, records []state.Record) error {
	s.mu.Lock()
	gate, failure := s.gate, s.failure
	s.mu.Unlock()
	keys := map[string]bool{}
	var kinds []string
	for _, r := range records {
		if keys[r.Key] {
			return fmt.Errorf("key %s twice", r.Key)
		}
		keys[r.Key] = true
		kinds = append(kinds, r.Key)
	}
	s.note("begin %s", strings.Join(kinds, " "))
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if failure == nil {
		s.note("commit")
	}
	return failure
}

func (s *shell) StartRound(e state.StartRound)   { s.note("round %s", e.Connector) }
func (s *shell) CancelRound(e state.CancelRound) { s.note("cancel %s", e.Connector) }
func (s *shell) PrepareID(e state.PrepareID)     { s.note("prepare %s", e.ID) }
func (s *shell) Look(e state.Look)               { s.note("look %s", e.Lease) }
func (s *shell) Heal(e state.Heal)               { s.note("heal %s", e.ID) }
func (s *shell) HealOn(e state.HealOn)           { s.note("heal on %s", e.Connector) }
func (s *shell) CloseSession(e state.CloseSession) {
	s.note("close %d", e.Session)
}

func (s *shell) Send(e state.Send) {
	name := strings.TrimPrefix(fmt.Sprintf("%T", e.Message.GetMessage()), "*runnerv1.SessionResponse_")
	s.note("send %s", name)
}

// started runs a loop in a bubble until the test ends it.
func started(t *testing.T, config Config, test func(t *testing.T, l *Loop, s *shell, end func() error)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		if config.State == nil {
			config.State = state.New(state.Options{Cluster: "t"})
		}
		l, s := New(config), &shell{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx, Shell{Log: s, Fencer: s, Sender: s}) }()
		synctest.Wait()
		end := sync.OnceValue(func() error {
			cancel()
			return <-done
		})
		test(t, l, s, end)
		_ = end()
	})
}

func after(d time.Duration) { <-time.After(d) }

func hello() state.SessionOpened {
	return state.SessionOpened{Session: 1, Hello: &runnerv1.Hello{Name: "r1", ProcessId: "p1", LevelMin: 1, LevelMax: 1, Offer: &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{
		{Description: &pluginv1.DescribeResponse{Name: "file", Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: "file"}}}},
	}}}}
}

func say(m *runnerv1.SessionRequest) state.FromRunner {
	m.Term = 1
	return state.FromRunner{Session: 1, Message: m}
}

func plan() state.FromRunner {
	return say(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: &runnerv1.PlanResult{
		Plan: &runnerv1.PlanRef{Connector: "c", Incarnation: "life", PlanEpoch: 1}, TaskSet: &pluginv1.TaskSet{Tasks: []*pluginv1.Task{{}}},
	}}})
}

func confirm() state.FromRunner {
	return say(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Confirm{Confirm: &runnerv1.Confirm{
		Lease: &runnerv1.Lease{Connector: "c", Incarnation: "life", Generation: 1, Task: 0, Epoch: 1},
	}}})
}

func create() state.Create {
	return state.Create{Name: "c", Incarnation: "life", Config: map[string]string{"connector.class": "file"}}
}

func submit(t *testing.T, l *Loop, events ...state.Event) {
	t.Helper()
	for _, e := range events {
		if err := l.Submit(t.Context(), e); err != nil {
			t.Fatal(err)
		}
	}
	synctest.Wait()
}

func want(t *testing.T, s *shell, want ...string) {
	t.Helper()
	synctest.Wait()
	if got := s.taken(); !slices.Equal(got, want) {
		t.Fatalf("the shell did\n  %s\nnot\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestNothingIsSentBeforeItIsCommitted(t *testing.T) {
	started(t, Config{}, func(t *testing.T, l *Loop, s *shell, _ func() error) {
		want(t, s, "begin meta/cluster", "commit")
		submit(t, l, hello())
		want(t, s, "send Welcome")
		if _, err := l.Do(t.Context(), create()); err != nil {
			t.Fatal(err)
		}
		want(t, s, "begin name/c connector/c", "commit", "send StartPlan")
		gate := make(chan struct{})
		s.set(gate, nil)
		submit(t, l, plan())
		want(t, s, "begin task/c/0 connector/c name/c lease/c/0")
		close(gate)
		want(t, s, "commit", "send Grant")
	})
}

// A confirmation waits for a transaction that began after the question had arrived: the one that is being written then doesn't count, and one later transaction answers all that came meanwhile (I3).
func TestConfirmationsWaitForATransactionOfTheirOwn(t *testing.T) {
	started(t, Config{}, func(t *testing.T, l *Loop, s *shell, _ func() error) {
		submit(t, l, hello(), state.Asked{ID: 100, Op: create()}, plan())
		s.taken()
		gate := make(chan struct{})
		s.set(gate, nil)
		submit(t, l, confirm())
		want(t, s, "begin meta/beacon")
		submit(t, l, confirm(), confirm())
		gate <- struct{}{}
		want(t, s, "commit", "send ConfirmAnswer", "begin meta/beacon")
		gate <- struct{}{}
		want(t, s, "commit", "send ConfirmAnswer", "send ConfirmAnswer")
	})
}

// noted has the connectors that history was told of.
type noted struct{ names []string }

func (n *noted) Note(connector string) { n.names = append(n.names, connector) }

// What happened is told once it is true for whoever reads the log.
func TestHistoryIsToldAfterTheCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s, n := New(Config{State: state.New(state.Options{Cluster: "t"})}), &shell{}, &noted{}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- l.Run(ctx, Shell{Log: s, Fencer: s, Sender: s, History: n}) }()
		synctest.Wait()
		gate := make(chan struct{})
		s.set(gate, nil)
		submit(t, l, state.Asked{ID: 100, Op: create()})
		if len(n.names) > 0 {
			t.Error(n.names)
		}
		close(gate)
		synctest.Wait()
		if !slices.Contains(n.names, "c") {
			t.Error(n.names)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// A leader that lost the log says nothing of what it decided since, and ends (I7).
func TestAFailedWriteEndsTheLeaderWithoutAWord(t *testing.T) {
	started(t, Config{}, func(t *testing.T, l *Loop, s *shell, end func() error) {
		submit(t, l, hello(), state.Asked{ID: 100, Op: create()})
		s.taken()
		fenced := errors.New("fenced")
		s.set(nil, fenced)
		submit(t, l, plan())
		want(t, s, "begin task/c/0 connector/c name/c lease/c/0")
		if err := l.Submit(t.Context(), confirm()); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
		if _, err := l.Do(t.Context(), state.Pause{Name: "c"}); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
		if err := l.View(t.Context(), func(*state.State) {}); !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
		if err := end(); !errors.Is(err, fenced) {
			t.Error(err)
		}
	})
}

func TestAnOperationIsAnsweredOrGivenUp(t *testing.T) {
	started(t, Config{}, func(t *testing.T, l *Loop, s *shell, end func() error) {
		submit(t, l, hello())
		result, err := l.Do(t.Context(), create())
		if err != nil || result.Connector.Name != "c" || result.Change != state.Created {
			t.Error(result, err)
		}
		_, err = l.Do(t.Context(), create())
		var refused *state.Error
		if !errors.As(err, &refused) || refused.Code != state.CodeExists {
			t.Error(err)
		}
		submit(t, l, plan())
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := l.Do(soon, state.Stop{Name: "c"}); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		synctest.Wait()
		if len(l.asked) != 0 {
			t.Error("the loop still waits to answer")
		}
		if err := l.View(t.Context(), func(st *state.State) {
			if v, ok := st.Connector("c"); !ok || v.Target != state.TargetStopped {
				t.Error(v, ok)
			}
		}); err != nil {
			t.Error(err)
		}
		waiting := make(chan error, 1)
		go func() {
			_, err := l.Do(context.WithoutCancel(t.Context()), state.Stop{Name: "c"})
			waiting <- err
		}()
		synctest.Wait()
		if err := end(); err != nil {
			t.Error(err)
		}
		if err := <-waiting; !errors.Is(err, ErrEnded) {
			t.Error(err)
		}
	})
}

// Deadlines pass by themselves, also while events come without end.
func TestDeadlinesPass(t *testing.T) {
	for name, busy := range map[string]bool{"idle": false, "busy": true} {
		t.Run(name, func(t *testing.T) {
			started(t, Config{}, func(t *testing.T, l *Loop, s *shell, _ func() error) {
				submit(t, l, hello(), state.Asked{ID: 100, Op: create()}, plan())
				s.taken()
				for range 200 {
					if busy {
						submit(t, l, state.GaveUp{ID: 7})
					}
					after(49 * time.Millisecond)
				}
				want(t, s)
				for range 10 {
					if busy {
						submit(t, l, state.GaveUp{ID: 7})
					}
					after(49 * time.Millisecond)
				}
				want(t, s, "begin lease/c/0", "commit", "send Revoke", "round c")
			})
		})
	}
}

// An idle coordinator writes nothing and doesn't wake.
func TestAnIdleLeaderRests(t *testing.T) {
	started(t, Config{}, func(t *testing.T, l *Loop, s *shell, _ func() error) {
		s.taken()
		after(24 * time.Hour)
		want(t, s)
		if at, waits := l.state.Wake(); waits {
			t.Error("a tick is due at", at)
		}
	})
}

// When events come faster than transactions are written, whoever submits them waits.
func TestAFullQueueHoldsSubmittersBack(t *testing.T) {
	started(t, Config{Queue: 2}, func(t *testing.T, l *Loop, s *shell, _ func() error) {
		submit(t, l, hello(), state.Asked{ID: 100, Op: create()}, plan())
		gate := make(chan struct{})
		s.set(gate, nil)
		submit(t, l, confirm())            // its transaction is being written
		submit(t, l, confirm(), confirm()) // these wait
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := l.Submit(soon, confirm()); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		close(gate)
		submit(t, l, confirm())
	})
}
