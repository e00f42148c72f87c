package task

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// changed is a good batch with something wrong about it.
func changed(seq uint64, change func(*source.Batch)) *source.Batch {
	b := numbered(seq, 1, int(seq)-1, int(seq)-1)
	change(b)
	return b
}

// TestABrokenRuleFailsTheTaskAndKeepsWhatCameBefore: a plugin is hostile; batch 1 is good, whatever follows.
func TestABrokenRuleFailsTheTaskAndKeepsWhatCameBefore(t *testing.T) {
	declare := func(number uint32, partition string) *source.Declare {
		return &source.Declare{Partitions: []source.DeclaredPartition{{Number: number, Partition: source.JSON(partition)}}}
	}
	for name, c := range map[string]struct {
		message source.Message
		text    string
	}{
		"a number left out":         {numbered(3, 1, 1, 1), "a batch has number 3 where 2 comes next"},
		"a number twice":            {numbered(1, 1, 1, 1), "a batch has number 1 where 2 comes next"},
		"idle out of order":         {&source.Idle{Seq: 1}, "Idle has number 1"},
		"dropped out of order":      {&source.Dropped{Seq: 7, Count: 1}, "Dropped has number 7"},
		"no offset":                 {changed(2, func(b *source.Batch) { b.Offsets = nil }), `source partition {"p":"a"} and no offset`},
		"an empty offset":           {changed(2, func(b *source.Batch) { b.Offsets[0].Offset = source.JSON(`{}`) }), `{} of source partition {"p":"a"}: is an empty object`},
		"an offset that is null":    {changed(2, func(b *source.Batch) { b.Offsets[0].Offset = source.JSON(`null`) }), "null of source partition"},
		"an offset that is no JSON": {changed(2, func(b *source.Batch) { b.Offsets[0].Offset = source.JSON(`{"n":`) }), "batch 2: the offset"},
		"an offset of nobody": {changed(2, func(b *source.Batch) {
			b.Offsets = append(b.Offsets, source.Reached{Partition: 9, Offset: source.JSON(`{"n":1}`)})
		}), "number 9, which wasn't declared"},
		"a record of nobody":                   {changed(2, func(b *source.Batch) { b.DefaultPartition = 9 }), "source partition number 9, which wasn't declared"},
		"a topic of nobody":                    {changed(2, func(b *source.Batch) { b.DefaultTopic = 9 }), "topic number 9, which wasn't declared"},
		"a column too short":                   {changed(2, func(b *source.Batch) { b.KeyLen = b.KeyLen[:3] }), "column key_len"},
		"an arena too long":                    {changed(2, func(b *source.Batch) { b.Arena = append(b.Arena, 0) }), "arena"},
		"a mark that isn't allowed":            {changed(2, func(b *source.Batch) { b.Boundary = source.MarkCommit }), "transaction.boundary isn't connector"},
		"a mark inside an event":               {changed(2, func(b *source.Batch) { b.Boundary, b.Continues = source.MarkSource, true }), "goes on"},
		"a schema of nobody":                   {changed(2, func(b *source.Batch) { b.DefaultValueSchema = 77 }), "schema 77 was not declared"},
		"opened twice":                         {source.Opened{}, "Opened came twice"},
		"drained without drain":                {source.Drained{}, "Drained came without Drain"},
		"a partition outside the claim":        {declare(3, `{"q":"x"}`), `{"q":"x"} isn't in the task's claim`},
		"a partition twice":                    {declare(3, ` {"p" : "a"} `), "has two numbers, 1 and 3"},
		"a partition's number twice":           {declare(2, `{"p":"c"}`), "number 2 is declared twice"},
		"a partition's number 0":               {declare(0, `{"p":"c"}`), "declared with number 0"},
		"a partition's number over the limit":  {declare(2_000_000, `{"p":"c"}`), "allowed is 1 to 1000000"},
		"a partition that is no object":        {declare(3, `[1]`), "[1], declared as 3"},
		"a topic's number twice":               {&source.Declare{Topics: []source.DeclaredTopic{{Number: 1, Name: "x"}}}, "topic number 1 is declared twice"},
		"a topic without a name":               {&source.Declare{Topics: []source.DeclaredTopic{{Number: 7}}}, "without a name"},
		"a schema's number that is taken":      {&source.Declare{Schemas: []source.DeclaredSchema{{Number: 3, Schema: &source.Schema{}}}}, "declared with number 3, allowed is 16"},
		"a notice that nobody wants to read":   {&source.Notice{Texts: []string{strings.Repeat("x", 501)}}, "501 bytes"},
		"dropped with an offset that is empty": {&source.Dropped{Seq: 2, Count: 1, Offsets: []source.Reached{{Partition: 1, Offset: source.JSON(`{}`)}}}, "is an empty object"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(sends(numbered(1, 1, 0, 0), c.message))
				b.cfg.Open.Claim = source.Claim{Prefix: []byte(`{"p"`)}
				cause := CausePlugin
				if strings.HasPrefix(name, "a schema of nobody") {
					cause = CauseRecord
				}
				f := fails(t, Run(t.Context(), b.cfg), Fail, cause)
				if !strings.Contains(f.Error(), c.text) {
					t.Errorf("got %q, want %q", f, c.text)
				}
				if len(b.k.reader()) != 1 || b.k.offset(`{"p":"a"}`) != `{"n":0}` {
					t.Errorf("%d records are readable and the offset is %q, want those of batch 1", len(b.k.reader()), b.k.offset(`{"p":"a"}`))
				}
			})
		})
	}
}

func TestNothingButDeclarationsBeforeOpened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			return host.Send(ctx, &source.Idle{Seq: 1})
		})
		if f := fails(t, Run(t.Context(), b.cfg), Fail, CausePlugin); !strings.Contains(f.Error(), "before Opened") {
			t.Error(f)
		}
	})
}

func TestABatchWithoutCreditBreaksTheProtocol(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		big := func(seq uint64) *source.Batch {
			var b source.Builder
			b.Add(source.RecordView{Value: make([]byte, 6<<20), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: source.NoTimestamp})
			b.Reach(1, source.JSON(fmt.Sprintf(`{"n":%d}`, seq)))
			return b.Batch(seq)
		}
		b := newBench(sends(big(1), big(2), big(3), big(4)))
		b.k.slow["produce"] = 1e9
		f := fails(t, Run(t.Context(), b.cfg), Fail, CausePlugin)
		if !strings.Contains(f.Error(), "batch 4 came without credit") {
			t.Error(f)
		}
		// What came with credit is committed.
		if n := len(b.k.reader()); n != 3 {
			t.Errorf("%d records are readable, want 3", n)
		}
	})
}

// flowing is a plugin that keeps to its credit: it sends batches of so many records for as long as it may, up to most.
type flowing struct {
	credit          int64
	records, cap    uint64
	sent, committed uint64
	perBatch, most  int
	continues       bool
	maxCap          uint64
	bySeq           map[uint64]uint64
}

func (f *flowing) run(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
	if err := opened(ctx, host); err != nil {
		return err
	}
	f.bySeq = map[uint64]uint64{}
	// One batch of empty values, sent again and again under its next number.
	var all source.Builder
	for range f.perBatch {
		all.Add(source.RecordView{Value: []byte{}, Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: source.NoTimestamp})
	}
	template := all.Batch(0)
	return untilStopped(ctx, host, func(s source.Signal) {
		switch s.Kind {
		case source.SignalCredit:
			f.credit += int64(s.Bytes)
			if s.MaxUncommitted > 0 {
				f.cap = s.MaxUncommitted
				f.maxCap = max(f.maxCap, f.cap)
			}
		case source.SignalCommitted:
			for f.committed < s.Seq {
				f.committed++
				f.records -= f.bySeq[f.committed]
			}
		}
		for f.credit > 0 && f.records < f.cap && int(f.sent) < f.most {
			b := *template
			b.Seq, b.Continues = f.sent+1, f.continues
			b.Offsets = []source.Reached{{Partition: 1, Offset: source.JSON(fmt.Sprintf(`{"n":%d}`, b.Seq))}}
			if int(f.sent) == f.most-1 && f.continues {
				b.Continues = false
			}
			f.sent++
			f.credit -= int64(b.Size())
			f.records += uint64(b.Count)
			f.bySeq[f.sent] = uint64(b.Count)
			if host.Send(ctx, &b) != nil {
				return
			}
		}
	})
}

func TestCreditComesBackWhenABatchIsProduced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &flowing{perBatch: 20_000, most: 30}
		b := newBench(f.run)
		end := b.start(t.Context())
		synctest.Wait()
		passes(1e9)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if n := len(b.k.reader()); n != 30*20_000 {
			t.Errorf("%d records are readable", n)
		}
	})
}

// TestASourceEventLargerThanTheRecordsCapGoesOn: it can't be cut, so the cap gives way; otherwise plugin and runner would wait for each other.
func TestASourceEventLargerThanTheRecordsCapGoesOn(t *testing.T) {
	for name, rule := range map[string]func(*flowing, *settings.Boundary){
		"continues": func(f *flowing, _ *settings.Boundary) { f.continues = true },
		"connector": func(_ *flowing, b *settings.Boundary) { b.Rule = source.ByConnector },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &flowing{perBatch: 50_000, most: 10}
				b := newBench(f.run)
				rule(f, &b.cfg.Settings.Boundary)
				end := b.start(t.Context())
				passes(1e9)
				if f.sent != 10 || f.maxCap <= maxUncommittedRecords {
					t.Errorf("%d batches were sent under a cap of %d", f.sent, f.maxCap)
				}
				close(b.drain)
				if err := <-end; err != nil {
					t.Fatal(err)
				}
				if n := len(b.k.reader()); name == "continues" && n != 500_000 || name == "connector" && n != 0 {
					t.Errorf("%d records are readable", n)
				}
			})
		})
	}
}

func TestLookUpsAreAnsweredFromWhatIsCommitted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, other := source.JSON(`{"p":"a"}`), source.JSON(`{ "elsewhere" : 1 }`)
		b := newBench(nil)
		b.k.stored[`{"elsewhere":1}`] = source.PartitionOffset{Partition: source.JSON(`{"elsewhere":1}`), Offset: source.JSON(`{"n":8}`)}
		b.k.slow["commit"] = 1e9
		b.cfg.Plugin = pluginFunc(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			look := func() string {
				got, err := host.Lookup(ctx, []source.JSON{a, other})
				if err != nil || len(got) != 2 {
					t.Errorf("got %v, %v", got, err)
				}
				return string(got[0].Offset) + " " + string(got[1].Offset)
			}
			before := look()
			if err := opened(ctx, host); err != nil {
				return err
			}
			if err := host.Send(ctx, numbered(1, 1, 0, 3)); err != nil {
				return err
			}
			passes(5e8)
			during := look()
			return untilStopped(ctx, host, func(s source.Signal) {
				if s.Kind == source.SignalCommitted {
					if d := cmp.Diff([]string{` {"n":8}`, ` {"n":8}`, `{"n":3} {"n":8}`}, []string{before, during, look()}); d != "" {
						t.Error(d)
					}
				}
			})
		})
		end := b.start(t.Context())
		passes(3e9)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
	})
}

func TestLookUpLimits(t *testing.T) {
	in := &inlet{store: &store{offsets: &fakeOffsets{}}}
	if _, err := in.Lookup(t.Context(), make([]source.JSON, 10_001)); err == nil || !strings.Contains(err.Error(), "10001") {
		t.Errorf("got %v", err)
	}
	if _, err := in.Lookup(t.Context(), []source.JSON{source.JSON(`{}`)}); err == nil {
		t.Error("an empty partition was looked up")
	}
}

// TestWhatCostsNoCreditTakesNoRoom: a source that filters everything while Kafka is away doesn't fill the queue.
func TestWhatCostsNoCreditTakesNoRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(func(ctx context.Context, _ *source.RunOpen, host source.RunHost) error {
			if err := opened(ctx, host); err != nil {
				return err
			}
			if err := host.Send(ctx, numbered(1, 1, 0, 0)); err != nil {
				return err
			}
			passes(1e8) // the commit is on its way
			seq := uint64(1)
			for i := range 30_000 {
				seq++
				if err := host.Send(ctx, &source.Dropped{Seq: seq, Count: 2, Reason: "filter", Offsets: []source.Reached{{Partition: 1 + uint32(i%2), Offset: source.JSON(fmt.Sprintf(`{"n":%d}`, i))}}}); err != nil {
					return err
				}
				if i%7 == 0 {
					seq++
					if err := host.Send(ctx, &source.Idle{Seq: seq}); err != nil {
						return err
					}
				}
			}
			return untilStopped(ctx, host, nil)
		})
		b.k.slow["commit"] = 1e9
		end := b.start(t.Context())
		passes(1e10)
		close(b.drain)
		if err := <-end; err != nil {
			t.Fatal(err)
		}
		if a, o := b.k.offset(`{"p":"a"}`), b.k.offset(`{"p":"b"}`); a != `{"n":29998}` || o != `{"n":29999}` {
			t.Errorf("the offsets are %s and %s", a, o)
		}
		if s := b.status(); s.Dropped != 60_000 || s.DroppedReason != "filter" {
			t.Errorf("the status is %+v", s)
		}
	})
}
