package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// to is a batch whose records go to these topics, one each.
func to(seq uint64, topics ...uint32) *source.Batch {
	b := numbered(seq, 1, int(seq)*10, int(seq)*10+len(topics)-1)
	for _, n := range topics {
		b.Topic = b.Topic.Append(n)
	}
	return b
}

func TestATopicIsLookedUpAndNotedBeforeItsFirstRecordOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(to(1, 1, 2, 1), to(2, 2, 1), numbered(3, 1, 0, 0)))
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range b.k.log() {
			if f := strings.Fields(e); f[1] == "topics" || f[1] == "record" || f[1] == "begin" {
				got = append(got, strings.Join(f[1:], " "))
			}
		}
		want := []string{"record " + offsetsTopic + " id1", "topics [t u]", "record [t u]", "begin"}
		if d := cmp.Diff(want, got[:4]); d != "" || slices.ContainsFunc(got[4:], func(s string) bool { return s != "begin" }) {
			t.Errorf("%v %s", got, d)
		}
	})
}

func TestTopicsThatCanNotBeWritten(t *testing.T) {
	for name, c := range map[string]struct {
		topic string
		info  *publish.TopicInfo
		class Class
		cause string
		text  string
	}{
		"missing":             {"nope", nil, Fail, CauseTopic, `topic "nope" does not exist: create it`},
		"without a right":     {"locked", &publish.TopicInfo{Exists: true, Partitions: 1, Err: refused(publish.Fail, "rights")}, Fail, "rights", "rights"},
		"the offsets topic":   {offsetsTopic, nil, Fail, CauseTopic, "Fencepost's own"},
		"another's offsets":   {"fencepost.offsets.other", nil, Fail, CauseTopic, "Fencepost's own"},
		"the config log":      {"fencepost.config", nil, Fail, CauseTopic, "Fencepost's own"},
		"the statuses":        {"fencepost.status", nil, Fail, CauseTopic, "Fencepost's own"},
		"one of another tool": {"fencepost.orders", &publish.TopicInfo{Exists: true, Partitions: 1}, 0, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(sends(
					&source.Declare{Topics: []source.DeclaredTopic{{Number: 9, Name: c.topic}}}, numbered(1, 1, 0, 0), to(2, 9)))
				if c.info != nil {
					b.k.topics[c.topic] = *c.info
				}
				end := b.start(t.Context())
				if c.class == 0 {
					synctest.Wait()
					close(b.drain)
					if err := <-end; err != nil {
						t.Fatal(err)
					}
					return
				}
				f := fails(t, <-end, c.class, c.cause)
				if !strings.Contains(f.Error(), c.text) {
					t.Errorf("got %q, want %q", f, c.text)
				}
				if time.Since(b.k.start) > time.Minute {
					t.Errorf("it took %s", time.Since(b.k.start))
				}
				if len(b.k.reader()) != 1 {
					t.Errorf("%d records are readable, want the one before", len(b.k.reader()))
				}
			})
		})
	}
}

func TestATopicThatWasMadeJustNowIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(&source.Declare{Topics: []source.DeclaredTopic{{Number: 9, Name: "late"}}}, to(1, 9)))
		end := b.start(t.Context())
		passes(4 * time.Second) // A broker that is behind isn't believed before 5 s.
		b.k.mu.Lock()
		b.k.topics["late"] = publish.TopicInfo{Exists: true, Partitions: 1}
		b.k.mu.Unlock()
		passes(time.Second)
		close(b.drain)
		if err := <-end; err != nil || len(b.k.reader()) != 1 {
			t.Errorf("%v, %d records", err, len(b.k.reader()))
		}
	})
}

func TestKafkaPartitionsAreCheckedAndMayGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		in := func(seq uint64, partition uint32) *source.Batch {
			b := numbered(seq, 1, int(seq), int(seq))
			b.KafkaPartition = source.U32(nil).Append(partition)
			return b
		}
		next := make(chan struct{})
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			for _, m := range []source.Message{in(1, 2), in(2, 3), in(3, 9)} {
				if err := host.Send(ctx, m); err != nil {
					return err
				}
				<-next
			}
			return untilStopped(ctx, host, nil)
		})
		end := b.start(t.Context())
		synctest.Wait()
		next <- struct{}{}
		passes(4 * time.Second) // The broker that is asked may not have heard of a topic's new partitions.
		b.k.mu.Lock()
		b.k.topics["t"] = publish.TopicInfo{Exists: true, Partitions: 4}
		b.k.mu.Unlock()
		passes(time.Second)
		next <- struct{}{}
		synctest.Wait()
		close(next)
		f := fails(t, <-end, Fail, CauseTopic)
		if !strings.Contains(f.Error(), `"t" has 4 partitions`) || !strings.Contains(f.Error(), "partition 9") || !strings.Contains(f.Error(), `{"p":"a"}`) {
			t.Error(f)
		}
		if len(b.k.reader()) != 2 {
			t.Errorf("%d records are readable", len(b.k.reader()))
		}
	})
}

func TestUnknownClaimsAreClaimedBeforeTheirFirstRecord(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 0), numbered(2, 1, 1, 1), &source.Dropped{Seq: 3, Count: 1, Offsets: []source.Reached{{Partition: 2, Offset: source.JSON(`{"n":1}`)}}}))
		b.cfg.Open.Claim = source.Claim{}
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		var claims []string
		begun := false
		for _, e := range b.k.log() {
			f := strings.Fields(e)
			begun = begun || f[1] == "begin"
			if f[1] == "claim" {
				claims = append(claims, strings.Join(f[2:], " "))
				if len(claims) == 1 && begun {
					t.Error("a transaction began before the claim was granted")
				}
			}
		}
		if d := cmp.Diff([]string{`[{"p":"a"}]`, `[{"p":"b"}]`}, claims); d != "" {
			t.Error(d)
		}
	})
}

// TestASecondClaimFailsBeforeItsCommit is I8.
func TestASecondClaimFailsBeforeItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 0)))
		b.cfg.Open.Claim = source.Claim{}
		b.k.trouble = func(call string) error {
			if call == "claim" {
				return &lease.PermanentError{Text: `source partition {"p":"a"} belongs to task 1`}
			}
			return nil
		}
		f := fails(t, Run(t.Context(), b.cfg), Fail, CauseCoordinator)
		if !strings.Contains(f.Error(), "belongs to task 1") || len(b.k.reader()) != 0 || slices.Contains(calls(b.k), "begin") {
			t.Error(f)
		}
	})
}

func TestAClaimThatIsASetIsLookedUpInCanonicalForm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 0)))
		b.cfg.Open.Claim = source.Claim{Set: []source.JSON{source.JSON(`{ "p" : "b" }`), source.JSON(`{ "p" : "a" }`)}}
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil || len(b.k.reader()) != 1 {
			t.Error(err)
		}
	})
}

func TestConvertersAreApplied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 0)))
		b.cfg.Settings.ValueConverter = settings.ConvertJSON
		end := b.start(t.Context())
		synctest.Wait()
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff([]record{{"t", "1/0", `"djA="`}}, b.k.reader(), cmp.AllowUnexported(record{})); d != "" {
			t.Error(d)
		}
	})
}

// TestAnUnconvertibleRecordIsNamedAndWhatCameBeforeItKept is what a person needs who has to remove it.
func TestAnUnconvertibleRecordIsNamedAndWhatCameBeforeItKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		bad := numbered(2, 2, 5, 6)
		bad.Arena[len(bad.Arena)-1] = 0xff
		b := newBench(sends(numbered(1, 1, 0, 0), bad))
		b.cfg.Settings.ValueConverter = settings.ConvertString
		f := fails(t, Run(t.Context(), b.cfg), Fail, CauseRecord)
		for _, part := range []string{"record 2 of 2", `{"n":6}`, `{"p":"b"}`, "isn't valid UTF-8"} {
			if !strings.Contains(f.Error(), part) {
				t.Errorf("%q lacks %q", f, part)
			}
		}
		if len(b.k.reader()) != 1 || b.k.offset(`{"p":"a"}`) != `{"n":0}` {
			t.Errorf("%d records are readable", len(b.k.reader()))
		}
	})
}

func TestTheBudgetOfCommitsMakesQuietTasksWaitFiftyMillisecondsAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked, told []time.Duration
		var b *bench
		b = newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			send := func(seq uint64) {
				asked = append(asked, time.Since(b.k.start))
				_ = host.Send(ctx, numbered(seq, 1, int(seq), int(seq)))
			}
			send(1)
			return untilStopped(ctx, host, func(s source.Signal) {
				if s.Kind == source.SignalCommitted {
					told = append(told, time.Since(b.k.start))
					if s.Seq < 4 {
						send(s.Seq + 1)
					}
				}
			})
		})
		// Two at once, and then nearly none: the third would have to wait for a second.
		b.cfg.CommitBudget = rate.NewLimiter(1, 2)
		end := b.start(t.Context())
		passes(time.Second)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		var waits []time.Duration
		for i := range told {
			waits = append(waits, told[i]-asked[i])
		}
		if d := cmp.Diff([]time.Duration{0, 0, 50 * time.Millisecond, 50 * time.Millisecond}, waits); d != "" {
			t.Error(d)
		}
	})
}

func TestStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		steps := make(chan source.Message)
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			go func() {
				for m := range steps {
					_ = host.Send(ctx, m)
				}
			}()
			return untilStopped(ctx, host, nil)
		})
		b.k.slow["commit"] = 10 * time.Millisecond
		end := b.start(t.Context())
		passes(2 * time.Second)
		steps <- numbered(1, 1, 0, 9)
		steps <- &source.Idle{Seq: 2}
		passes(20 * time.Millisecond)
		if s := b.status(); !s.CaughtUp || s.Records != 10 || s.Commits != 1 || s.OpenRecords != 0 {
			t.Errorf("right after the commit the status is %+v, want caught up", s)
		}
		passes(2 * time.Second)
		continued := numbered(3, 1, 10, 14)
		continued.Continues = true
		steps <- continued
		steps <- &source.Notice{Texts: []string{"file x can't be read"}}
		passes(200 * time.Millisecond)
		if s := b.status(); s.CaughtUp || s.OpenRecords != 5 || s.OpenSince.IsZero() || len(s.Notices) != 1 {
			t.Errorf("with an open transaction the status is %+v", s)
		}
		n := len(b.statuses)
		for i := range 500 {
			c := numbered(uint64(4+i), 1, 15+i, 15+i)
			c.Continues = true
			steps <- c
			passes(10 * time.Millisecond)
		}
		if reports := len(b.statuses) - n; reports > 6 {
			t.Errorf("%d reports in 5 s of counting", reports)
		}
		close(steps)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	})
}

func TestAFailedStageIsABug(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 0, 0)))
		b.k.trouble = func(call string) error {
			if call == "begin" {
				panic("a broken invariant")
			}
			return nil
		}
		f := fails(t, Run(t.Context(), b.cfg), Fail, CauseBug)
		if !strings.Contains(f.Error(), "a broken invariant") {
			t.Error(f)
		}
	})
}

func TestAnIncompleteConfigIsABug(t *testing.T) {
	fails(t, Run(t.Context(), Config{}), Fail, CauseBug)
}

func TestErrorsKeepTheirCause(t *testing.T) {
	base := errors.New("base")
	for _, f := range []*Failure{fromCoordinator(base), fromPlugin(base), fromKafka(base)} {
		if !errors.Is(f, base) {
			t.Errorf("%v lost its cause", f)
		}
	}
}
