package task

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// TestExactlyOnceWhateverFails is what all of this is for. A source of numbered records in two partitions, in events of several records, some of which a rule drops or the connector aborts, is read in
// attempts that fail at a random call, lose the answer of a commit, crash in the plugin, or are abandoned at a random time. Then: a reader sees every record once and in order, never a part of an
// event, and the stored offset is the last that is readable; and the source was never told of a position that isn't stored.
func TestExactlyOnceWhateverFails(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := scenario{
			seed:    rapid.Uint64().Draw(rt, "seed"),
			rule:    rapid.SampledFrom([]source.BoundaryRule{source.Adaptive, source.PerPoll, source.Interval, source.PerSource, source.ByConnector}).Draw(rt, "rule"),
			length:  rapid.IntRange(1, 60).Draw(rt, "length"),
			records: rapid.IntRange(1, 10).Draw(rt, "max records"),
			commit:  time.Duration(rapid.IntRange(0, 20).Draw(rt, "commit ms")) * time.Millisecond,
		}
		for range rapid.IntRange(0, 6).Draw(rt, "failures") {
			r.faults = append(r.faults, drawFault(rt))
		}
		var wrong string
		synctest.Test(t, func(t *testing.T) { wrong = r.play(t) })
		if wrong != "" {
			rt.Fatal(wrong)
		}
	})
}

// scenario is one draw. All that is random in it comes from its fields.
type scenario struct {
	seed            uint64
	rule            source.BoundaryRule
	length, records int
	commit          time.Duration
	faults          []plannedTrouble

	b   *bench
	rng *rand.Rand
	// wrong is the first promise that was broken.
	wrong string
}

// plannedTrouble is how one attempt goes wrong.
type plannedTrouble struct {
	// call fails at its nth time; "plugin" is the plugin's nth message, "abandon" the end of the context after n milliseconds.
	call string
	nth  int
	lost bool // the answer of a commit
}

func drawFault(rt *rapid.T) plannedTrouble {
	return plannedTrouble{
		call: rapid.SampledFrom([]string{
			"prepare", "init", "confirm", "look", "load", "record", "topics", "begin", "produce", "offsets", "commit", "commit", "commit", "abort", "plugin", "plugin", "abandon", "abandon",
		}).Draw(rt, "call"),
		nth:  rapid.IntRange(1, 12).Draw(rt, "nth"),
		lost: rapid.Bool().Draw(rt, "lost"),
	}
}

// What becomes of record n of a partition is fixed by its number, so that every attempt does the same. Events are of three records: 0 to 2, 3 to 5…
const eventSize = 3

func eventOf(n int) int              { return n / eventSize }
func (s *scenario) lastOf(n int) int { return min((eventOf(n)+1)*eventSize, s.length) - 1 }
func isDropped(n int) bool           { return eventOf(n)%5 == 3 }
func (s *scenario) isAborted(n int) bool {
	return s.rule == source.ByConnector && eventOf(n)%4 == 1
}

func (s *scenario) play(t *testing.T) string {
	s.rng = rand.New(rand.NewPCG(s.seed, 1))
	s.b = newBench(nil)
	bound := &s.b.cfg.Settings.Boundary
	bound.Rule, bound.MaxRecords, bound.Interval = s.rule, s.records, 30*time.Millisecond
	s.b.k.slow["commit"] = s.commit
	for i := 0; s.wrong == ""; i++ {
		fault := plannedTrouble{}
		if i < len(s.faults) {
			fault = s.faults[i]
		}
		if done := s.attempt(t, fault); done {
			break
		}
		if i > len(s.faults) {
			return "an attempt without a fault did not end well"
		}
	}
	s.check()
	return s.wrong
}

// attempt is one attempt, and says whether everything was delivered.
func (s *scenario) attempt(t *testing.T, fault plannedTrouble) bool {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if fault.call == "abandon" {
		defer time.AfterFunc(time.Duration(fault.nth)*7*time.Millisecond, cancel).Stop()
	}
	passed := 0
	s.b.k.trouble = func(call string) error {
		if call == "commit" {
			s.checkWhole()
		}
		if call != fault.call {
			return nil
		}
		if passed++; passed != fault.nth {
			return nil
		}
		if call == "commit" && fault.lost {
			return errAnswerLost
		}
		return refused(publish.Again, "broker")
	}
	delivered := make(chan struct{})
	drain := make(chan struct{})
	s.b.cfg.Drain = drain
	crashAt := 0
	if fault.call == "plugin" {
		crashAt = fault.nth
	}
	s.b.cfg.Plugin = pluginFunc(func(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
		p := numberedSource{scenario: s, host: host, crashAt: crashAt, delivered: delivered}
		return p.run(ctx, open)
	})
	go func() {
		select {
		case <-delivered:
			close(drain)
		case <-ctx.Done():
		}
	}()
	err := Run(ctx, s.b.cfg)
	var f *Failure
	if err != nil && (!errors.As(err, &f) || f.Class == Fail) {
		s.fail("an attempt ended with %v", err)
	}
	if last := s.b.k.log(); !strings.HasSuffix(strings.TrimSpace(last[len(last)-1]), "close") {
		s.fail("an attempt ended with %q and not with a close", last[len(last)-1])
	}
	return err == nil
}

func (s *scenario) fail(format string, args ...any) {
	if s.wrong == "" {
		s.wrong = fmt.Sprintf(format, args...)
	}
}

// visible gives the numbers of a partition's readable records.
func (s *scenario) visible(partition int) []int {
	var out []int
	for _, r := range s.b.k.reader() {
		p, n, _ := strings.Cut(r.key, "/")
		if p == strconv.Itoa(partition) {
			number, _ := strconv.Atoi(n)
			out = append(out, number)
		}
	}
	return out
}

// checkWhole: a reader never sees a part of an event.
func (s *scenario) checkWhole() {
	for p := 1; p <= 2; p++ {
		if v := s.visible(p); len(v) > 0 && v[len(v)-1] != s.lastOf(v[len(v)-1]) {
			s.fail("partition %d is readable up to %d, inside of an event", p, v[len(v)-1])
		}
	}
}

// stored is the number of the last stored offset, −1 for none.
func (s *scenario) stored(partition int) int {
	text := s.b.k.offset(fmt.Sprintf(`{"p":%q}`, string(rune('a'+partition-1))))
	if text == "" {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(text, `{"n":`), "}"))
	if err != nil {
		s.fail("the stored offset is %s", text)
	}
	return n
}

func (s *scenario) check() {
	s.checkWhole()
	for p := 1; p <= 2; p++ {
		var want []int
		for n := range s.length {
			if !isDropped(n) && !s.isAborted(n) {
				want = append(want, n)
			}
		}
		if got := s.visible(p); fmt.Sprint(got) != fmt.Sprint(want) {
			s.fail("partition %d: readable are %v, want %v", p, got, want)
		}
		if got := s.stored(p); got != s.length-1 {
			s.fail("partition %d: the stored offset is %d, want %d", p, got, s.length-1)
		}
	}
}

// numberedSource is the plugin: it reads both partitions event by event, in random order and in random batches, from what is stored.
type numberedSource struct {
	*scenario
	host      source.RunHost
	crashAt   int
	delivered chan struct{}
	once      sync.Once

	seq  uint64
	next [3]int
	// reached is the position after each number, to be compared with what is stored when it is acknowledged.
	reached map[uint64][3]int
}

var errCrash = errors.New("crash")

func (p *numberedSource) run(ctx context.Context, open *source.RunOpen) error {
	p.reached = map[uint64][3]int{0: {}}
	for _, o := range open.Stored {
		part := int(o.Partition[len(o.Partition)-3]-'a') + 1
		n, _ := strconv.Atoi(strings.TrimSuffix(strings.TrimPrefix(string(o.Offset), `{"n":`), "}"))
		p.next[part] = n + 1
	}
	if err := opened(ctx, p.host); err != nil {
		return err
	}
	sent := make(chan error, 1)
	sending, stop := context.WithCancel(ctx)
	defer stop()
	go func() { sent <- p.sendAll(sending) }()
	stopped := make(chan error, 1)
	go func() { stopped <- untilStopped(sending, p.host, p.acknowledged) }()
	var err error
	select {
	case err = <-sent:
		if err == nil {
			err = <-stopped
		} else {
			stop()
			<-stopped
		}
	case err = <-stopped:
		stop()
		<-sent
	}
	return err
}

func (p *numberedSource) sendAll(ctx context.Context) error {
	for p.next[1] < p.length || p.next[2] < p.length {
		part := 1 + p.rng.IntN(2)
		if p.next[part] >= p.length {
			part = 3 - part
		}
		if err := p.event(ctx, part); err != nil {
			return err
		}
		if p.rng.IntN(4) == 0 {
			if err := p.send(ctx, &source.Idle{Seq: p.number()}); err != nil {
				return err
			}
		}
		if p.rng.IntN(3) == 0 {
			if err := pause(ctx, time.Duration(p.rng.IntN(15))*time.Millisecond); err != nil {
				return err
			}
		}
	}
	return p.finish(ctx)
}

// finish sends a last number; when it is acknowledged, everything is.
func (p *numberedSource) finish(ctx context.Context) error {
	if p.rule == source.ByConnector && p.rng.IntN(2) == 0 {
		b := &source.Batch{Seq: p.number(), Boundary: source.MarkAbort} // of nothing
		if err := p.send(ctx, b); err != nil {
			return err
		}
	}
	// Under the rule source a drop after the last mark is whole as well, and so is all before it.
	return p.send(ctx, &source.Idle{Seq: p.number()})
}

// event sends the rest of an event: as one batch, or as several of which all but the last go on.
func (p *numberedSource) event(ctx context.Context, part int) error {
	first := p.next[part]
	last := p.lastOf(first)
	if isDropped(first) {
		p.next[part] = last + 1
		d := &source.Dropped{Seq: p.number(), Count: uint64(last - first + 1), Reason: "a rule", Offsets: []source.Reached{{Partition: uint32(part), Offset: position(last)}}}
		if err := p.send(ctx, d); err != nil {
			return err
		}
		if p.rule != source.ByConnector {
			return nil
		}
		return p.send(ctx, &source.Batch{Seq: p.number(), Boundary: source.MarkCommit})
	}
	for n := first; n <= last; {
		to := n + p.rng.IntN(last-n+1)
		p.next[part] = to + 1
		b := numbered(p.number(), uint32(part), n, to)
		b.Offsets[0].Offset = position(to)
		// Under the rules source and connector the marks alone say where an event ends.
		b.Continues = to < last && p.rule != source.PerSource && p.rule != source.ByConnector
		if to == last {
			b.Boundary = p.mark(first)
		}
		if err := p.send(ctx, b); err != nil {
			return err
		}
		n = to + 1
	}
	return nil
}

func position(n int) source.JSON { return source.JSON(fmt.Sprintf(`{"n":%d}`, n)) }

// mark is what follows an event.
func (p *numberedSource) mark(first int) source.Mark {
	switch {
	case p.isAborted(first):
		return source.MarkAbort
	case p.rule == source.ByConnector:
		return source.MarkCommit
	case p.rule == source.PerSource:
		return source.MarkSource
	}
	return source.NoMark
}

// number takes the next one, and notes what it reaches.
func (p *numberedSource) number() uint64 {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	p.seq++
	p.reached[p.seq] = p.next
	return p.seq
}

func (p *numberedSource) send(ctx context.Context, m source.Message) error {
	if p.crashAt > 0 && p.seq >= uint64(p.crashAt) {
		return errCrash
	}
	return p.host.Send(ctx, m)
}

// acknowledged is I5: what the source is told is stored.
func (p *numberedSource) acknowledged(s source.Signal) {
	if s.Kind != source.SignalCommitted {
		return
	}
	p.b.mu.Lock()
	reached := p.reached[s.Seq]
	p.b.mu.Unlock()
	for part := 1; part <= 2; part++ {
		if stored := p.stored(part); stored < reached[part]-1 {
			p.fail("the plugin was told that number %d is safe, up to %d of partition %d; stored is %d", s.Seq, reached[part]-1, part, stored)
		}
	}
	if reached[1] >= p.length && reached[2] >= p.length && s.Seq == p.last() {
		p.once.Do(func() { close(p.delivered) })
	}
}

// last is the number of the last message, where there will be no more.
func (p *numberedSource) last() uint64 {
	p.b.mu.Lock()
	defer p.b.mu.Unlock()
	return p.seq
}
