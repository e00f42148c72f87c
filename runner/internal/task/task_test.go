package task

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// quietPlugin opens and gives nothing.
func quietPlugin(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
	if err := opened(ctx, host); err != nil {
		return err
	}
	return untilStopped(ctx, host, nil)
}

// sends opens, sends the messages, and then waits for the end.
func sends(messages ...source.Message) pluginFunc {
	return func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
		if err := opened(ctx, host); err != nil {
			return err
		}
		for _, m := range messages {
			if err := host.Send(ctx, m); err != nil {
				return err
			}
		}
		return untilStopped(ctx, host, nil)
	}
}

// calls are the events without their times and details.
func calls(k *kafkaModel) []string {
	var out []string
	for _, e := range k.log() {
		out = append(out, strings.Fields(e)[1])
	}
	return out
}

func TestOrderOfAStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.k.stored[`{"p":"a"}`] = source.PartitionOffset{Partition: source.JSON(`{"p":"a"}`), Offset: source.JSON(`{"n":4}`)}
		b.k.stored[`{"q":"other"}`] = source.PartitionOffset{Partition: source.JSON(`{"q":"other"}`), Offset: source.JSON(`{"n":9}`)}
		b.cfg.Open.Claim = source.Claim{Prefix: []byte(`{"p"`)}
		var got *source.RunOpen
		b.cfg.Plugin = pluginFunc(func(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
			got = open
			b.k.note(ctx, "plugin", "")
			return quietPlugin(ctx, open, host)
		})
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		want := []string{"prepare", "init", "confirm", "look", "load", "record", "plugin", "close"}
		if d := cmp.Diff(want, calls(b.k)); d != "" {
			t.Error(d)
		}
		if len(got.Stored) != 1 || string(got.Stored[0].Offset) != `{"n":4}` {
			t.Errorf("the plugin was opened with %s, want what is stored inside its claim", got.Stored)
		}
	})
}

// TestAFailureBetweenTwoStepsLeavesNothingBehind: no transaction, no plugin, and a closed producer.
func TestAFailureBetweenTwoStepsLeavesNothingBehind(t *testing.T) {
	permanent := &lease.PermanentError{Text: "no right to do that"}
	for _, c := range []struct {
		call  string
		err   error
		class Class
		cause string
	}{
		{"prepare", fmt.Errorf("asked: %w", lease.ErrRefused), Stop, CauseCoordinator},
		{"prepare", permanent, Fail, CauseCoordinator},
		{"prepare", errors.New("no answer"), Again, CauseCoordinator},
		{"init", refused(publish.Again, "broker"), Again, "broker"},
		{"init", refused(publish.Fail, "rights"), Fail, "rights"},
		{"confirm", lease.ErrRefused, Stop, CauseCoordinator},
		{"look", permanent, Fail, CauseCoordinator},
		{"load", refused(publish.Fail, "offsets"), Fail, "offsets"},
		{"record", permanent, Fail, CauseCoordinator},
	} {
		t.Run(c.call+" "+c.class.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(func(context.Context, *source.RunOpen, source.RunHost) error {
					t.Error("the plugin was opened")
					return nil
				})
				b.k.trouble = func(call string) error {
					if call == c.call {
						return c.err
					}
					return nil
				}
				fails(t, Run(t.Context(), b.cfg), c.class, c.cause)
				got := calls(b.k)
				if got[len(got)-1] != "close" || slices.Contains(got, "abort") {
					t.Errorf("the end was %v", got)
				}
			})
		})
	}
}

func TestAnExpiredLeaseIsNotInitialised(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.coord.invalid = true
		b.cfg.Plugin = pluginFunc(quietPlugin)
		fails(t, Run(t.Context(), b.cfg), Again, CauseCoordinator)
		if slices.Contains(calls(b.k), "init") {
			t.Error("the id was initialised without a lease")
		}
	})
}

func TestInitIsRepeatedThroughTheCoordinatorUntilTheBrokerIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(quietPlugin)
		b.k.trouble = func(call string) error {
			if call == "init" && time.Since(b.k.start) < 20*time.Second {
				return refused(publish.RetryCall, "broker")
			}
			return nil
		}
		end := b.start(t.Context())
		passes(10 * time.Second)
		if s := b.status(); s.Phase != PhaseInitialising && s.Phase != PhaseFencing || !strings.Contains(s.Waiting, "broker") {
			t.Errorf("the status is %+v, want the phase and what it waits for", s)
		}
		passes(12 * time.Second)
		if s := b.status(); s.Phase != PhaseRunning || s.Waiting != "" {
			t.Errorf("the status is %+v, want running", s)
		}
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		got := calls(b.k)
		for i, call := range got {
			if call == "init" && got[i-1] != "prepare" {
				t.Fatal("an initialisation was repeated without asking the coordinator to note the last decision")
			}
		}
		if slices.Contains(got, "abort") {
			t.Error("a failed initialisation was aborted")
		}
	})
}

func TestDrainDuringTheStartEndsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(quietPlugin)
		b.k.slow["init"] = time.Minute
		end := b.start(t.Context())
		passes(time.Second)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]string{"prepare", "init", "close"}, calls(b.k)); d != "" {
			t.Error(d)
		}
	})
}

func TestDrainCommitsWhatWasReceived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []source.Signal
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			for s := range host.Signals() {
				seen = append(seen, s)
				switch s.Kind {
				case source.SignalDrain:
					// What was read already is still sent.
					for i := range 3 {
						if err := host.Send(ctx, numbered(uint64(i+1), 1, i, i)); err != nil {
							return err
						}
					}
					if err := host.Send(ctx, source.Drained{}); err != nil {
						return err
					}
				case source.SignalStop:
					return nil
				}
			}
			return nil
		})
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if n := len(b.k.reader()); n != 3 || b.k.offset(`{"p":"a"}`) != `{"n":2}` {
			t.Errorf("%d records are readable, and the offset is %s", n, b.k.offset(`{"p":"a"}`))
		}
		last := seen[len(seen)-2:]
		if last[0].Kind != source.SignalCommitted || last[0].Seq != 3 || last[1].Kind != source.SignalStop {
			t.Errorf("the last signals are %+v, want the last position and then a stop", last)
		}
		if s := b.status(); s.Records != 3 || s.Phase != PhaseDraining {
			t.Errorf("the last status is %+v", s)
		}
	})
}

func TestADrainThatIsNotAnsweredEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			if err := host.Send(ctx, numbered(1, 1, 0, 5)); err != nil {
				return err
			}
			<-ctx.Done() // deaf
			return nil
		})
		b.cfg.DrainTimeout = 5 * time.Second
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		begin := time.Now()
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < 5*time.Second || d > 20*time.Second {
			t.Errorf("it took %s", d)
		}
		if len(b.k.reader()) != 6 {
			t.Error("what was received was not committed")
		}
	})
}

func TestAPluginThatNeverEndsIsLeftBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			<-release
			return nil
		})
		b.cfg.DrainTimeout = time.Second
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		f := fails(t, <-end, Again, CausePlugin)
		if !strings.Contains(f.Error(), "did not end its stream") {
			t.Error(f)
		}
		if got := calls(b.k); got[len(got)-1] != "close" {
			t.Error("the producer was not closed")
		}
		close(release)
	})
}

func TestAbandonDropsTheOpenTransaction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := numbered(1, 1, 0, 5)
		open.Continues = true
		b := newBench(sends(open))
		ctx, cancel := context.WithCancelCause(t.Context())
		end := b.start(ctx)
		synctest.Wait()
		cancel(errors.New("the lease was revoked"))
		f := fails(t, <-end, Stop, CauseAbandoned)
		if !strings.Contains(f.Error(), "revoked") {
			t.Errorf("got %v, want the cause of the context", f)
		}
		got := calls(b.k)
		if d := cmp.Diff([]string{"produce", "abort", "close"}, got[len(got)-3:]); d != "" {
			t.Error(d)
		}
		if len(b.k.reader()) != 0 {
			t.Error("a half source event is readable")
		}
	})
}

// TestNoAbortAfterACommitWithoutAnswer: the commit may have been one, and the abort could delete it. (The fake panics at such an abort as well.)
func TestNoAbortAfterACommitWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var acks []source.Signal
		b := newBench(func(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			if err := host.Send(ctx, numbered(1, 1, 0, 0)); err != nil {
				return err
			}
			return untilStopped(ctx, host, func(s source.Signal) {
				if s.Kind == source.SignalCommitted {
					acks = append(acks, s)
				}
			})
		})
		b.k.trouble = func(call string) error {
			if call == "commit" {
				return errAnswerLost
			}
			return nil
		}
		f := fails(t, Run(t.Context(), b.cfg), Again, "unknown")
		if f.Progress {
			t.Error("an unknown outcome is no progress")
		}
		if slices.Contains(calls(b.k), "abort") {
			t.Error("aborted")
		}
		// I5: nobody knows, so the source is told nothing.
		if len(acks) > 0 {
			t.Errorf("the plugin was told of %+v", acks)
		}
	})
}

func TestARefusedRecordNamesWhereItComesFrom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		large := numbered(2, 2, 7, 7)
		large.Arena = append(large.Arena, make([]byte, 100)...)
		large.ValueLen = source.U32(nil).Append(large.ValueLen.At(0) + 100)
		b := newBench(sends(numbered(1, 1, 0, 3), large))
		b.k.maxValue = 50
		f := fails(t, Run(t.Context(), b.cfg), Fail, CauseRecord)
		for _, part := range []string{"kafka says record", "102 bytes", `"t"`, `{"p":"b"}`, `{"n":7}`} {
			if !strings.Contains(f.Error(), part) {
				t.Errorf("%q lacks %q", f.Error(), part)
			}
		}
		// Kafka refused for good, so the abort is safe, and readers don't wait for the time-out.
		if !slices.Contains(calls(b.k), "abort") {
			t.Error("the refused transaction was left open")
		}
	})
}

func TestPluginErrors(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		class Class
		cause string
		text  string
	}{
		"retriable":     {source.Retryf("the server went away"), Again, CauseSource, "server went away"},
		"configuration": {source.Configf("path", "doesn't exist"), Fail, CauseConfig, "path: doesn't exist"},
		"fatal":         {source.Fatalf("the log is gone"), Fail, CauseSource, "log is gone"},
		"partition":     {&source.Error{Kind: source.Fatal, Message: "is gone", Partition: source.JSON(`{"f":1}`)}, Fail, CauseSource, `source partition {"f":1}: is gone`},
		"crash":         {errors.New("connection reset"), Again, CausePlugin, "connection reset"},
		"silent end":    {nil, Again, CausePlugin, "without being asked"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
					if err := opened(ctx, host); err != nil {
						return err
					}
					if err := host.Send(ctx, numbered(1, 1, 0, 4)); err != nil {
						return err
					}
					return c.err
				})
				f := fails(t, Run(t.Context(), b.cfg), c.class, c.cause)
				if !strings.Contains(f.Error(), c.text) || !f.Progress {
					t.Errorf("got %q (progress %v), want %q", f, f.Progress, c.text)
				}
				// What came before the error is whole, and is committed.
				if len(b.k.reader()) != 5 || b.k.offset(`{"p":"a"}`) != `{"n":4}` {
					t.Errorf("%d records are readable", len(b.k.reader()))
				}
			})
		})
	}
}

func TestAPanicOfThePluginIsItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(func(context.Context, *source.RunOpen, source.RunHost) error { panic("oh") })
		fails(t, Run(t.Context(), b.cfg), Again, CausePlugin)
	})
}

func TestAFenceInsideATransactionIsAnExpiryWhereTheClockSaysSo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 4)))
		b.cfg.Settings.TransactionTimeout = 10 * time.Second
		b.k.slow["commit"] = 9500 * time.Millisecond
		b.k.trouble = func(call string) error {
			if call == "commit" {
				return refused(publish.Ask, CauseFenced)
			}
			return nil
		}
		f := fails(t, Run(t.Context(), b.cfg), Again, CauseExpired)
		for _, part := range []string{"5 records", "9.5s", "10s"} {
			if !strings.Contains(f.Error(), part) {
				t.Errorf("%q lacks %q", f, part)
			}
		}
		b = newBench(sends(numbered(1, 1, 0, 4)))
		b.k.trouble = func(call string) error {
			if call == "commit" {
				return refused(publish.Ask, CauseFenced)
			}
			return nil
		}
		fails(t, Run(t.Context(), b.cfg), Again, CauseFenced)
	})
}

func TestASourceEventWithoutAnEndExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := numbered(1, 1, 0, 5)
		open.Continues = true
		b := newBench(sends(open))
		b.cfg.Settings.TransactionTimeout = 20 * time.Second
		f := fails(t, Run(t.Context(), b.cfg), Again, CauseExpired)
		if !strings.Contains(f.Error(), "last source event goes on") || time.Since(b.k.start) > 19*time.Second {
			t.Errorf("after %s: %v", time.Since(b.k.start), f)
		}
		if !slices.Contains(calls(b.k), "abort") {
			t.Error("the transaction was left open")
		}
	})
}

// TestALostBrokerIsLookedAfterBeforeTheSourceHears: also where the loss is noticed only after the commit returned; then before anything else is begun or aborted.
func TestALostBrokerIsLookedAfterBeforeTheSourceHears(t *testing.T) {
	for lostAt, want := range map[string]string{
		"commit":  "produce offsets commit look ack begin produce abort begin",
		"ack":     "produce offsets commit ack look begin produce abort begin",
		"produce": "produce offsets commit ack begin produce look abort begin",
	} {
		t.Run(lostAt, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				first := numbered(1, 1, 0, 0)
				first.Boundary = source.MarkCommit
				b := newBench(nil)
				b.cfg.Settings.Boundary.Rule = source.ByConnector
				b.cfg.Plugin = pluginFunc(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
					if err := opened(ctx, host); err != nil {
						return err
					}
					if err := host.Send(ctx, first); err != nil {
						return err
					}
					return untilStopped(ctx, host, func(s source.Signal) {
						if s.Kind == source.SignalCommitted && s.Seq == 1 {
							_ = b.k.note(ctx, "ack", "")
							second := numbered(2, 1, 1, 1)
							second.Boundary = source.MarkAbort
							_ = host.Send(ctx, second)
						}
					})
				})
				passed := 0
				b.k.trouble = func(call string) error {
					if call == "produce" {
						passed++
					}
					if call == lostAt && (call != "produce" || passed == 2) {
						b.k.mu.Lock()
						b.k.lost = lostAt != "commit" || passed == 1
						b.k.mu.Unlock()
					}
					return nil
				}
				end := b.start(t.Context())
				synctest.Wait()
				close(b.drain)
				if err := <-end; err != nil {
					t.Fatal(err)
				}
				if got := strings.Join(calls(b.k), " "); !strings.Contains(got, want) {
					t.Errorf("got %s, want %s", got, want)
				}
			})
		})
	}
}

// TestNoAbortWhileALostBrokerIsNotLookedAfter: the commit before may hang there, and an abort would delete it.
func TestNoAbortWhileALostBrokerIsNotLookedAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		open := numbered(1, 1, 0, 0)
		open.Continues = true
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			if err := host.Send(ctx, open); err != nil {
				return err
			}
			return errors.New("crash")
		})
		b.k.trouble = func(call string) error {
			if call == "produce" {
				b.k.mu.Lock()
				b.k.lost = true
				b.k.mu.Unlock()
			}
			return nil
		}
		fails(t, Run(t.Context(), b.cfg), Again, CausePlugin)
		if slices.Contains(calls(b.k), "abort") {
			t.Error("aborted")
		}
	})
}

// TestARefusedClockIsWaitedFor: where Kafka refuses a time that this host gave, clocks differ, and the task goes on when they don't. A time of the source's own is the record's fault, which stays.
func TestARefusedClockIsWaitedFor(t *testing.T) {
	dated := numbered(1, 1, 0, 3)
	dated.TimestampMS = source.I64(nil).Append(1).Append(1).Append(1).Append(1)
	for _, c := range []struct {
		batch *source.Batch
		class Class
		cause string
	}{{numbered(1, 1, 0, 3), Again, CauseClock}, {dated, Fail, CauseTimestamp}} {
		t.Run(c.cause, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(sends(c.batch))
				b.k.trouble = func(call string) error {
					if call == "commit" {
						return refused(publish.Fail, CauseTimestamp)
					}
					return nil
				}
				fails(t, Run(t.Context(), b.cfg), c.class, c.cause)
			})
		})
	}
}
