package source

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDrainStopsReadingAndWaitsForTheStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		closed := false
		var committed []string
		c := &scripted{
			read: func(ctx context.Context, task *Task, out *Records) error {
				<-ctx.Done()
				// What was read before is sent, and the error of an interrupted read is none.
				if err := add(t, task, out, "a", "last@9"); err != nil {
					return err
				}
				if !out.Full() {
					t.Error("Full doesn't end the loop of a Read that drains")
				}
				return errors.New("connection closed")
			},
			committed: func(_ context.Context, p []Position) error {
				committed = append(committed, p[0].Partition.Canonical()+string(p[0].Offset))
				return nil
			},
			closed: func() error { closed = true; return errors.New("ignored") },
		}
		r := startRun(t, c, RunOpen{})
		r.credit(1<<20, 0)
		r.expect("opened")
		r.signals <- Signal{Kind: SignalDrain}
		r.expect(`declare p1={"f":"a"} t1=t`, `batch 1 last 1@{"n":"9"}`, "drained")
		if closed {
			t.Fatal("closed before the stop")
		}
		// I5: the last position still reaches the source, also right before the stop.
		r.signals <- Signal{Kind: SignalCommitted, Seq: 1}
		if err := r.stop(); err != nil || !closed {
			t.Fatalf("got %v, closed %v", err, closed)
		}
		if len(committed) != 1 || committed[0] != `{"f":"a"}{"n":"9"}` {
			t.Fatalf("committed %v", committed)
		}
	})
}

func TestDrainWhileOpening(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{open: func(ctx context.Context, _ *Task) error { <-ctx.Done(); return ctx.Err() }}, RunOpen{})
		r.expect()
		r.signals <- Signal{Kind: SignalDrain}
		r.expect("drained")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestContextOfOpenOutlivesADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var opening context.Context
		r := startRun(t, &scripted{open: func(ctx context.Context, _ *Task) error { opening = ctx; return nil }, read: once()}, RunOpen{})
		r.expect("opened")
		r.signals <- Signal{Kind: SignalDrain}
		r.expect("drained")
		if opening.Err() != nil {
			t.Fatal("the drain ended the context of Open")
		}
		if err := r.stop(); err != nil || opening.Err() == nil {
			t.Fatalf("got %v, the context is %v", err, opening.Err())
		}
	})
}

func TestRunEndsWhenTheRunnerIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error { return add(t, task, out, "a", "1@1") })}, RunOpen{})
		r.expect("opened", `declare p1={"f":"a"} t1=t`) // waits for credit
		close(r.signals)
		if err := <-r.done; err != nil {
			t.Fatal(err)
		}
	})
}

// TestSourceHearsOfCommittedPositionsOnly proves I5 for the SDK, and that a lost acknowledgement is repeated at the start.
func TestSourceHearsOfCommittedPositionsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		heard := make(chan string, 10)
		hold := make(chan struct{}, 10)
		c := &scripted{
			read: once(
				func(task *Task, out *Records) error { return add(t, task, out, "a", "1@1", "2@2") },
				func(task *Task, out *Records) error { return add(t, task, out, "b", "3@3") },
				func(task *Task, out *Records) error { return add(t, task, out, "a", "4@4") },
				func(task *Task, out *Records) error {
					return out.Drop(part1(t, task, "a"), Fields{"n": "5"}, 1, "rule")
				},
			),
			committed: func(_ context.Context, positions []Position) error {
				s := ""
				for _, p := range positions {
					s += p.Partition.Canonical() + string(p.Offset)
				}
				heard <- s
				<-hold
				return nil
			},
		}
		r := startRun(t, c, RunOpen{Stored: []PartitionOffset{{JSON(`{"f":"old"}`), JSON(`{"n":7}`)}}})
		r.credit(1<<20, 0)
		r.quiet()
		expect := func(want string) {
			t.Helper()
			synctest.Wait()
			got := ""
			if len(heard) > 0 {
				got = <-heard
			}
			if got != want {
				t.Fatalf("the source heard %q, want %q", got, want)
			}
		}
		expect(`{"f":"old"}{"n":7}`)
		hold <- struct{}{}
		expect("")
		r.signals <- Signal{Kind: SignalCommitted, Seq: 1}
		expect(`{"f":"a"}{"n":"2"}`)
		// While the source is busy only the newest is kept.
		r.signals <- Signal{Kind: SignalCommitted, Seq: 2}
		r.signals <- Signal{Kind: SignalCommitted, Seq: 3}
		r.signals <- Signal{Kind: SignalCommitted, Seq: 4}
		expect("")
		hold <- struct{}{}
		expect(`{"f":"b"}{"n":"3"}{"f":"a"}{"n":"5"}`)
		hold <- struct{}{}
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestFailedAcknowledgementEndsTheTask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		gone := errors.New("slot is gone")
		r := startRun(t, &scripted{read: once(), committed: func(context.Context, []Position) error { return gone }},
			RunOpen{Stored: []PartitionOffset{{JSON(`{"f":"old"}`), JSON(`{"n":7}`)}}})
		if err := <-r.done; !errors.Is(err, gone) {
			t.Fatalf("got %v", err)
		}
	})
}

func TestPanicBecomesAnErrorThatNamesTheMethod(t *testing.T) {
	for method, c := range map[string]*scripted{
		"Open":      {open: func(context.Context, *Task) error { panic("boom") }},
		"Read":      {read: func(context.Context, *Task, *Records) error { panic("boom") }},
		"Committed": {read: once(), committed: func(context.Context, []Position) error { panic("boom") }},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := startRun(t, c, RunOpen{Stored: []PartitionOffset{{JSON(`{"f":"old"}`), JSON(`{"n":7}`)}}})
			var e *Error
			err := <-r.done
			if !errors.As(err, &e) || e.Kind != Fatal || !strings.Contains(err.Error(), method) || strings.Contains(err.Error(), ".go:") {
				t.Fatalf("%s: got %v", method, err)
			}
		})
	}
}

func TestPartitionOutsideTheClaimIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(), open: func(_ context.Context, task *Task) error {
			_, err := task.Partition(Fields{"f": "b"})
			return err
		}}, RunOpen{Task: 3, Claim: Claim{Set: []JSON{JSON(`{ "f":"a" }`)}}})
		var e *Error
		if err := <-r.done; !errors.As(err, &e) || string(e.Partition) != `{"f":"b"}` || !strings.Contains(err.Error(), "task 3 may not read") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestStoredOffsetsAreGivenInAnySpelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(), open: func(_ context.Context, task *Task) error {
			p, err := task.Partition(Fields{"a": 1, "b": "x"})
			if err != nil {
				return err
			}
			offset, ok := p.Stored()
			if n, is := offset.Int("pos"); !ok || !is || n != 42 {
				t.Errorf("stored %v, %v", offset, ok)
			}
			if p.Canonical() != `{"a":1,"b":"x"}` || len(task.Stored()) != 1 || task.Stored()[0] != p || p.Fields()["b"] != "x" {
				t.Errorf("partition %v of %v", p, task.Stored())
			}
			return nil
		}}, RunOpen{Stored: []PartitionOffset{{JSON(`{"b":"\u0078", "a":1.0}`), JSON(` {"pos": 42}`)}, {JSON(`{"f":"none"}`), nil}}})
		r.expect("opened")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestReadThatGivesNothingIsSlowedDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		r := startRun(t, &scripted{read: func(context.Context, *Task, *Records) error { calls++; return nil }}, RunOpen{})
		<-time.After(10 * time.Second)
		if err := r.stop(); err != nil || calls < 100 || calls > 120 {
			t.Fatalf("%d calls in 10 s, %v", calls, err)
		}
	})
}
