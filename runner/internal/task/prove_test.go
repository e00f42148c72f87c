package task

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

func TestATrustIsJudgedByTheLeadersLastWordAndTheTasksOwnCommits(t *testing.T) {
	const ttl = 8 * time.Second
	at := func(s float64) time.Time { return time.Unix(1000, 0).Add(time.Duration(s * float64(time.Second))) }
	for _, c := range []struct {
		name                     string
		now                      float64
		proven, asked, wantAgain float64 // −1 is never
		want                     step
	}{
		{"renewed", 0, -1, -1, 4, goOn},
		{"renewed for a while", 3.9, -1, -1, 4, goOn},
		{"half a lease without a word", 4, -1, -1, 6, prove},
		{"just asked", 5, -1, 4, 6, goOn},
		{"asked, and no answer", 6, -1, 4, 8, prove},
		{"just proven", 7, 6, 6, 8, goOn},
		{"proven a quarter ago", 8, 6, 6, 10, prove},
		{"two leases without a leader", 16, 14, 14, 22, goOn},
		{"once a lease from there", 22, 14, 14, 30, prove},
		{"nothing for two leases", 16, -1, 14, -1, giveUp},
		{"proven once, and nothing for two leases since", 22, 6, 20, -1, giveUp},
		{"a commit counts", 21.9, 6, 20, 22, goOn},
	} {
		tr := trust{until: at(0).Add(ttl), ttl: ttl}
		if c.proven >= 0 {
			tr.proven = at(c.proven)
		}
		if c.asked >= 0 {
			tr.asked = at(c.asked)
		}
		got, again := tr.judge(at(c.now))
		if got != c.want || c.wantAgain >= 0 && !again.Equal(at(c.wantAgain)) {
			t.Errorf("%s: %v, again at %v, want %v at %v", c.name, got, again.Sub(at(0)), c.want, c.wantAgain)
		}
	}
}

// proofs counts the transactions that changed nothing.
func proofs(k *kafkaModel) int {
	n := 0
	for _, e := range k.log() {
		if strings.Contains(e, "offsets proof-") {
			n++
		}
	}
	return n
}

func TestAnIdleTaskWithoutALeaderProvesItsIDAndStopsToWhenOneIsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(sends(numbered(1, 1, 1, 1)))
		end := b.start(t.Context())
		passes(time.Minute)
		if n := proofs(b.k); n != 0 {
			t.Errorf("%d proofs under a leader", n)
		}
		b.coord.lose()
		passes(leaseTTL)
		if n := proofs(b.k); n < 2 || n > 3 {
			t.Errorf("%d proofs in the first lease time without a leader", n)
		}
		passes(10 * leaseTTL)
		if n := proofs(b.k); n < 12 || n > 18 {
			t.Errorf("%d proofs in eleven lease times", n)
		}
		b.coord.find()
		before := proofs(b.k)
		passes(5 * leaseTTL)
		if n := proofs(b.k) - before; n > 1 {
			t.Errorf("%d proofs after the leader was back", n)
		}
		close(b.drain)
		if err := <-end; err != nil {
			t.Error(err)
		}
		if s := b.status(); s.Commits != 1 || s.Records != 1 {
			t.Errorf("proofs are counted as commits: %+v", s)
		}
		if got := b.k.offset(`{"p":"a"}`); got != `{"n":1}` {
			t.Errorf("the stored offset is %s", got)
		}
	})
}

func TestARefusedProofStopsThePluginAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var let time.Duration
		b := newBench(nil)
		b.cfg.Plugin = pluginFunc(func(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
			err := opened(ctx, host)
			<-ctx.Done() // a plugin that doesn't listen to Stop
			let = time.Since(b.k.start)
			return errors.Join(err, ctx.Err())
		})
		end := b.start(t.Context())
		synctest.Wait()
		b.coord.lose()
		passes(leaseTTL)
		// The successor has initialised the id.
		b.k.mu.Lock()
		b.k.epoch++
		b.k.mu.Unlock()
		err := <-end
		f := fails(t, err, Stop, CauseFenced)
		if !strings.Contains(f.Error(), "no coordinator") {
			t.Errorf("it says %q", f)
		}
		if let > leaseTTL*3/2 {
			t.Errorf("the plugin let go after %s", let)
		}
	})
}

func TestAProofThatDoesNotReturnEndsTheTask(t *testing.T) {
	for name, plugin := range map[string]pluginFunc{"idle": quietPlugin, "busy": sends(numbered(1, 1, 1, 3))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(plugin)
				b.coord.lose()
				b.k.slow["commit"] = time.Hour
				end := b.start(t.Context())
				fails(t, <-end, Stop, CauseUnproven)
				if took := time.Since(b.k.start); took < 2*leaseTTL || took > 2*leaseTTL+2*time.Second {
					t.Errorf("it ended after %s", took)
				}
				if slices.Contains(calls(b.k), "abort") {
					t.Error("a commit without an answer was aborted")
				}
			})
		})
	}
}

func TestABusyTaskProvesByItsCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(nil)
		b.cfg.Plugin = pluginFunc(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			done := make(chan struct{})
			go func() {
				defer close(done)
				for n := 1; pause(ctx, 100*time.Millisecond) == nil; n++ {
					if host.Send(ctx, numbered(uint64(n), 1, n, n)) != nil {
						return
					}
				}
			}()
			err := untilStopped(ctx, host, nil)
			return err
		})
		b.coord.lose()
		end := b.start(t.Context())
		passes(10 * leaseTTL)
		if n := proofs(b.k); n != 0 {
			t.Errorf("%d proofs of a task that commits ten times a second", n)
		}
		b.k.mu.Lock()
		b.k.epoch++
		b.k.mu.Unlock()
		fails(t, <-end, Stop, CauseFenced)
	})
}

func TestAProofThatFailsOtherwiseEndsTheTaskToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(quietPlugin)
		b.coord.lose()
		b.k.trouble = func(call string) error {
			if call == "offsets" {
				return refused(publish.Fail, "rights")
			}
			return nil
		}
		fails(t, <-b.start(t.Context()), Stop, "rights")
	})
}

func TestASourcePartitionCanNotBeFencepostsOwnKey(t *testing.T) {
	c := newChecker(&source.RunOpen{})
	err := c.partition(source.DeclaredPartition{Number: 1, Partition: source.JSON(`{ "fencepost.task": 3 }`)})
	if err == nil || !strings.Contains(err.Error(), "Fencepost's own") {
		t.Errorf("got %v", err)
	}
}
