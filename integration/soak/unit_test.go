package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func drawn(t *testing.T, seed uint64, length time.Duration) *Schedule {
	t.Helper()
	return newSchedule(&Config{Seed: seed, Length: length, Brokers: 3, Coordinators: 3, Runners: 3, canCut: true})
}

func TestAScheduleFollowsFromItsSeed(t *testing.T) {
	a, b, c := drawn(t, 7, time.Hour), drawn(t, 7, time.Hour), drawn(t, 8, time.Hour)
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed gave two schedules")
	}
	if reflect.DeepEqual(a.Steps, c.Steps) {
		t.Error("two seeds gave one schedule")
	}
	path := filepath.Join(t.TempDir(), "s.json")
	if err := a.Save(path); err != nil {
		t.Fatal(err)
	}
	if read, err := LoadSchedule(path); err != nil || !reflect.DeepEqual(read, a) {
		t.Errorf("what was read isn't what was written: %v", err)
	}
}

func TestAScheduleHasEveryKindAndNoTargetTwiceAtOnce(t *testing.T) {
	for seed := range uint64(20) {
		s := drawn(t, seed, 30*time.Minute)
		count := map[string]int{}
		until := map[string]time.Duration{}
		for _, step := range s.Steps {
			count[step.Kind]++
			if step.At < until[step.Target] || step.At < until[everything] {
				t.Errorf("seed %d: %v at %s, while its target is in another fault", seed, step, step.At)
			}
			until[step.Target] = step.At + step.For
		}
		if len(count) != len(kinds) || len(s.Steps) < 200 {
			t.Errorf("seed %d: %d faults of %d kinds of %d in half an hour", seed, len(s.Steps), len(count), len(kinds))
		}
		if short := drawn(t, seed, 3*time.Minute); len(short.Steps) < 15 {
			t.Errorf("seed %d: %d faults in three minutes", seed, len(short.Steps))
		}
	}
}

func TestShrinkFindsTheStepsThatMatter(t *testing.T) {
	s := drawn(t, 3, 10*time.Minute)
	x, y := s.Steps[5], s.Steps[31]
	runs := 0
	fails := func(c *Schedule) (bool, error) {
		runs++
		has := func(want Step) bool {
			return slices.ContainsFunc(c.Steps, func(s Step) bool { return s.Kind == want.Kind && s.Target == want.Target && s.For == want.For })
		}
		return has(x) && has(y), nil
	}
	short, err := Shrink(s, 100, fails)
	if err != nil || len(short.Steps) != 2 || short.Steps[0].Kind != x.Kind || short.Steps[1].Kind != y.Kind {
		t.Errorf("after %d tries, of %d steps: %v, %v", runs, len(s.Steps), short.Steps, err)
	}
	if gap := short.Steps[1].At - short.Steps[0].At; gap != y.At-x.At {
		t.Errorf("the steps are %s apart, they were %s", gap, y.At-x.At)
	}
	runs = 0
	if _, err := Shrink(s, 5, fails); err != nil || runs != 5 {
		t.Errorf("%d tries of at most 5, %v", runs, err)
	}
}

func TestEvidenceIsOfTheTargetAndCountsOnce(t *testing.T) {
	e := newEvidence()
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	line := func(seconds int, text string) []byte {
		return fmt.Appendf(nil, `{"@level":"info","@timestamp":%q,%s}`+"\n", at.Add(time.Duration(seconds)*time.Second).Format("2006-01-02T15:04:05.000000Z07:00"), text)
	}
	granted := `"@message":"task granted","connector":"fast","task":0,"generation":1,"epoch":1`
	if rest := e.take("r1", append(line(0, granted), "half a li"...)); string(rest) != "half a li" {
		t.Errorf("the rest is %q", rest)
	}
	e.take("r2", line(12, granted))                                                                           // moved from r1 to r2
	e.take("r3", line(12, `"@message":"attempt failed","connector":"slow","task":0,"cause":"broker"`))        // aborted at r3
	e.take("c1", line(13, `"@message":"connector event","text":"runner r3 disconnected: end of the stream"`)) // dropped
	e.take("c1", line(13, `"@message":"connector event","text":"runner r3 is fine"`))                         // nothing
	fault := func(kind, target string, struck int) *outcome {
		when := at.Add(time.Duration(struck) * time.Second)
		return &outcome{Step: Step{Kind: kind, Target: target}, kind: kindOf(kind), struck: when, healed: when.Add(time.Second)}
	}
	all := []*outcome{
		fault("kill-runner", "r1", 10), fault("freeze-runner", "r1", 10), fault("kill-plugin", "r3", 10), fault("restart", "slow", 10), fault("restart", "fast", 10),
		fault("kill-leader", leader, 10), fault("kill-leader", leader, 10), fault("kill-runner", "r1", 30),
	}
	e.judge(all)
	var got []string
	for _, o := range all {
		what := "nothing"
		if o.counts() {
			what = string(o.evidence.what)
		}
		got = append(got, what)
	}
	want := []string{string(moved), "nothing", string(aborted), "nothing", "nothing", string(dropped), "nothing", "nothing"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if e.rewinds["broker"] != 1 {
		t.Errorf("rewinds %v", e.rewinds)
	}
}

func TestTheWatchSeesWhatIsTwiceAndWhatIsOutOfOrder(t *testing.T) {
	for name, tc := range map[string]struct {
		values []string
		want   string
	}{
		"exact":          {[]string{"0:1", "1:1", "0:2...", "1:2"}, ""},
		"twice":          {[]string{"0:1", "0:2", "0:2"}, "record 2 of source partition 0 is there twice"},
		"out of order":   {[]string{"0:2", "0:1"}, "record 1 of source partition 0 comes after 2"},
		"something else": {[]string{"hello"}, "is no numbered record"},
	} {
		w := newWatch()
		for i, v := range tc.values {
			w.take(&kgo.Record{Topic: "fast", Offset: int64(i), Value: []byte(v)})
		}
		got := strings.Join(w.said(), "; ")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestWhatKafkasConsumerFoundIsJudged(t *testing.T) {
	exact := "source fast 0 count=5 last=5 missing=0 doubled=0 disordered=0 stored=5\n"
	for name, tc := range map[string]struct{ out, want string }{
		"exact":         {exact, ""},
		"missing":       {strings.Replace(exact, "missing=0", "missing=2", 1), "fast/0: 2 of 5 records missing"},
		"doubled":       {strings.Replace(exact, "doubled=0", "doubled=1", 1), "1 of 5 records doubled"},
		"out of order":  {strings.Replace(exact, "disordered=0", "disordered=1", 1), "1 of 5 records out of order"},
		"offset behind": {strings.Replace(exact, "stored=5", "stored=4", 1), "the stored offset is that of 4, the last record's is that of 5"},
		"offset ahead":  {strings.Replace(exact, "stored=5", "stored=6", 1), "the stored offset is that of 6"},
		"hanging":       {exact + "unreachable fast 0 position=3 end=9\n", "a transaction hangs"},
		"disagreement":  {strings.Replace(exact, "count=5", "count=6", 1), "the readers disagree"},
		"nothing":       {"", "only one of the readers has it"},
	} {
		f, err := parseFindings(tc.out + "read to the end\n")
		if err != nil {
			t.Fatal(err)
		}
		got := strings.Join(f.violations(map[string]tally{"fast/0": {5, 5}}), "; ")
		if (tc.want == "") != (got == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
	if _, err := parseFindings(exact); err == nil {
		t.Error("a program that stopped in the middle was believed")
	}
}

func TestTimeInWhichKafkaIsAwayIsNotStuck(t *testing.T) {
	ask := func(c *canary) (asked int, err error) {
		err = c.patience(t.Context(), 2*pollEvery, func(context.Context) error {
			if asked++; asked > 6 {
				return nil
			}
			return errors.New("nothing came")
		})
		return asked, err
	}
	var away, here canary
	here.sang.Store(time.Now().Add(time.Hour).UnixMilli())
	if n, err := ask(&away); n != 7 || err != nil {
		t.Errorf("Kafka was away, and it was stuck when asked %d times: %v", n, err)
	}
	if n, err := ask(&here); n != 3 || err == nil {
		t.Errorf("Kafka was there, and it was not stuck when asked %d times: %v", n, err)
	}
}

func TestGrossGrowthIsToldFromNoise(t *testing.T) {
	grown := func(each func(i int) (mib int64, threads int)) *growth {
		l := &life{name: "r1"}
		for i := range 300 {
			mib, threads := each(i)
			l.samples = append(l.samples, sample{time.Unix(int64(2*i), 0), mib << 20, threads})
		}
		return l.growth()
	}
	flat := grown(func(i int) (int64, int) { return 100 + int64(i%7)*10, 20 + i%5 })
	leak := grown(func(i int) (int64, int) { return 50 + 2*int64(i), 20 })
	herd := grown(func(i int) (int64, int) { return 50, 20 + 3*i })
	if flat.gross() || !leak.gross() || !herd.gross() {
		t.Errorf("flat %v, leak %v, herd %v:\n%s\n%s\n%s", flat.gross(), leak.gross(), herd.gross(), flat, leak, herd)
	}
	if g := (&life{name: "r1"}).growth(); g != nil {
		t.Errorf("a process without a life grew: %v", g)
	}
}

// through is a link to an echo, and a connection through it.
func through(t *testing.T) (*link, net.Conn) {
	t.Helper()
	listen := func() net.Listener {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	far, near := listen(), listen()
	go func() {
		for {
			c, err := far.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	l := newLink(near, far.Addr().String())
	conn, err := net.Dial("tcp", near.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		conn.Close()
		l.close()
		far.Close()
	})
	return l, conn
}

// hears says what comes back within a time; "gone" is that the connection broke.
func hears(t *testing.T, c net.Conn, n int, within time.Duration) string {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(within))
	buf := make([]byte, n)
	got, err := io.ReadFull(c, buf)
	if timeout, ok := err.(net.Error); err != nil && (!ok || !timeout.Timeout()) { //nolint:errorlint // the bare error
		return "gone"
	}
	return string(buf[:got])
}

func TestALinkHoldsSwallowsAndRefuses(t *testing.T) {
	const soon, late = 50 * time.Millisecond, 10 * time.Second
	for name, tc := range map[string]struct {
		bad   weather
		after string // what is heard of "b", sent meanwhile, and "c", sent afterwards
	}{
		"hold both ways":    {weather{up: hold, down: hold}, "bc"},
		"hold to the far":   {weather{up: hold}, "bc"},
		"hold to the near":  {weather{down: hold}, "bc"},
		"swallow, and lose": {weather{down: swallow}, "gone"},
		"refuse":            {weather{refuse: true}, "gone"},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := through(t)
			_, _ = c.Write([]byte("a"))
			if got := hears(t, c, 1, late); got != "a" {
				t.Fatalf("heard %q, want a", got)
			}
			l.set(tc.bad)
			_, _ = c.Write([]byte("b"))
			if got := hears(t, c, 1, soon); got != "" && got != "gone" {
				t.Errorf("heard %q meanwhile", got)
			}
			l.set(weather{})
			_, _ = c.Write([]byte("c"))
			if got := hears(t, c, 2, late); got != tc.after {
				t.Errorf("heard %q afterwards, want %q", got, tc.after)
			}
		})
	}
}

func TestANetworkLeadsToTheRealAddressesOnly(t *testing.T) {
	there, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer there.Close()
	// What it tests is the kernel's, and a user can't be given it. CI runs as root, so it is never left out there.
	if os.Geteuid() != 0 {
		t.Skip("only root may make a network namespace; .ci/run is root")
	}
	n, err := newNetwork([]string{there.Addr().String()}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer n.close()
	dial := func() (conn net.Conn, err error) {
		done := make(chan struct{})
		n.work <- func() {
			defer close(done)
			conn, err = net.DialTimeout("tcp", there.Addr().String(), 5*time.Second)
		}
		<-done
		return conn, err
	}
	conn, err := dial()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := there.Accept(); err != nil {
		t.Fatal(err)
	}
	if inside, err := n.listen("127.0.0.1:0"); err != nil {
		t.Error(err)
	} else {
		if out, err := net.DialTimeout("tcp", inside.Addr().String(), time.Second); err == nil {
			out.Close()
			t.Error("what listens in the network can be reached from outside")
		}
		inside.Close()
	}
}
