package configlog_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/go-hclog"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/goleak"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	logTopic = "c.config"
	logID    = "fencepost.c"
)

// bed is a fake cluster.
type bed struct {
	cluster   *kfake.Cluster
	bootstrap string
}

func newBed(t *testing.T, brokers int, opts ...kfake.Opt) *bed {
	t.Helper()
	cluster, err := kfake.NewCluster(append(opts, kfake.NumBrokers(brokers), kfake.GroupMinSessionTimeout(time.Millisecond))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return &bed{cluster: cluster, bootstrap: strings.Join(cluster.ListenAddrs(), ",")}
}

// candidate is one coordinator's view of the log.
type candidate struct {
	*configlog.Log
	fencer *fence.Fencer
	client *kgo.Client
}

func (b *bed) candidate(t *testing.T, address string, change func(*configlog.Config)) *candidate {
	t.Helper()
	return newCandidate(t, b.bootstrap, address, change)
}

func newCandidate(t *testing.T, bootstrap, address string, change func(*configlog.Config)) *candidate {
	t.Helper()
	settings, err := kafkaclient.Parse(bootstrap, nil)
	if err != nil {
		t.Fatal(err)
	}
	client, err := settings.NewClient()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	direct := kafkaclient.NewDirect(client)
	fencer := fence.New(fence.Config{Direct: direct})
	config := configlog.Config{Cluster: "c", Address: address, Settings: settings, Direct: direct, Fencer: fencer, SessionTimeout: time.Second}
	if change != nil {
		change(&config)
	}
	return &candidate{Log: configlog.New(config), fencer: fencer, client: client}
}

// led is a leadership and whose it is.
type led struct {
	*configlog.Leadership
	of *candidate
}

func (l *led) Resign() { l.of.Resign() }

func (c *candidate) lead(t *testing.T) *led {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	leadership, err := c.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Resign)
	return &led{leadership, c}
}

func record(key, value string) state.Record {
	return state.Record{Key: key, Value: []byte(value)}
}

func write(t *testing.T, l *led, records ...state.Record) {
	t.Helper()
	if err := l.Write(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

// readable is what a read_committed reader sees, as key=value.
func readable(t *testing.T, bootstrap string) []string {
	t.Helper()
	cl, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{logTopic: {0: kgo.NewOffset().AtStart()}}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords(), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListCommittedOffsets(t.Context(), logTopic)
	if err != nil {
		t.Fatal(err)
	}
	end, _ := ends.Lookup(logTopic, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var all []string
	for next := int64(0); next < end.Offset; {
		fetches := cl.PollFetches(ctx)
		if ctx.Err() != nil {
			t.Fatalf("read up to %d of %d", next, end.Offset)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if !r.Attrs.IsControl() && string(r.Key) != "meta/leader" {
				all = append(all, fmt.Sprintf("%s=%s", r.Key, r.Value))
			}
		})
	}
	return all
}

func TestTheLogIsCreatedWithItsSettings(t *testing.T) {
	b := newBed(t, 1)
	c := b.candidate(t, "one:1", nil)
	l := c.lead(t)
	if len(l.Content().Records) != 0 {
		t.Errorf("records %v", l.Content().Records)
	}
	write(t, l, record("a", "1"), record("b", ""), state.Record{Key: "gone"})
	if diff := cmp.Diff([]string{"a=1", "b=", "gone="}, readable(t, b.bootstrap)); diff != "" {
		t.Error(diff)
	}
	configs, err := kadm.NewClient(c.client).DescribeTopicConfigs(t.Context(), logTopic)
	if err != nil || len(configs) != 1 {
		t.Fatal(configs, err)
	}
	got := map[string]string{}
	for _, e := range configs[0].Configs {
		got[e.Key] = e.MaybeValue()
	}
	for key, want := range map[string]string{
		"cleanup.policy": "compact", "segment.bytes": "16777216", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "600000", "delete.retention.ms": "600000",
	} {
		if got[key] != want {
			t.Errorf("%s=%s, want %s", key, got[key], want)
		}
	}
}

func TestANewLeaderReadsTheNewestOfEachKey(t *testing.T) {
	b := newBed(t, 1)
	first := b.candidate(t, "one:1", nil).lead(t)
	write(t, first, record("a", "1"), record("b", "1"))
	write(t, first, record("a", "2"), record("c", "1"))
	write(t, first, state.Record{Key: "b"}, record("d", ""))
	first.Resign()
	second := b.candidate(t, "two:2", nil).lead(t)
	want := []state.Record{record("a", "2"), record("c", "1"), record("d", "")}
	if diff := cmp.Diff(want, second.Content().Records); diff != "" {
		t.Error(diff)
	}
	if err := first.Write(t.Context(), []state.Record{record("a", "3")}); !errors.Is(err, configlog.ErrEnded) {
		t.Errorf("after resigning: %v", err)
	}
}

// TestWhoeverWaitsNeverTouchesTheLogsID is half of I7: a second candidate waits, names the leader, and the leader's writes go on.
func TestWhoeverWaitsNeverTouchesTheLogsID(t *testing.T) {
	b := newBed(t, 1)
	inits := 0
	b.cluster.ControlKey(int16(kmsg.InitProducerID), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		inits++
		return nil, nil, false
	})
	leader := b.candidate(t, "one:1", nil).lead(t)
	waiting := b.candidate(t, "two:2", nil)
	elected := make(chan *led, 1)
	go func() {
		l, err := waiting.Campaign(context.Background())
		if err != nil {
			t.Error(err)
		}
		elected <- &led{l, waiting}
	}()
	followed, stop := context.WithCancel(t.Context())
	named, over := make(chan string, 4), make(chan error, 1)
	go func() { over <- waiting.Follow(followed, func(address string) { named <- address }) }()
	write(t, leader, record("a", "1"))
	if address := <-named; address != "one:1" || waiting.Heard().Leader != "one:1" {
		t.Errorf("leader %q", address)
	}
	members := func() int {
		groups, err := kadm.NewClient(waiting.client).DescribeGroups(t.Context(), "c.coordinator")
		if err != nil {
			t.Fatal(err)
		}
		return len(groups["c.coordinator"].Members)
	}
	for members() < 2 {
		write(t, leader, record("a", "2"))
	}
	for range 20 {
		write(t, leader, record("a", "3"))
	}
	if inits != 1 {
		t.Errorf("%d initialisations while one leads", inits)
	}
	leader.Resign()
	second := <-elected
	defer second.Resign()
	write(t, second, record("a", "4"))
	if address := <-named; address != "two:2" || waiting.Heard().Leader != "two:2" {
		t.Errorf("leader %q", address)
	}
	stop()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

// TestAStaleLeadersWriteIsRefused is the other half of I7: it believes that it leads, and Kafka knows better.
func TestAStaleLeadersWriteIsRefused(t *testing.T) {
	b := newBed(t, 1)
	c := b.candidate(t, "one:1", nil)
	l := c.lead(t)
	write(t, l, record("a", "1"))
	if _, err := c.fencer.Take(t.Context(), logID); err != nil {
		t.Fatal(err)
	}
	if err := l.Err(); err != nil {
		t.Fatal(err)
	}
	err := l.Write(t.Context(), []state.Record{record("a", "stale")})
	if !errors.Is(err, kerr.InvalidProducerEpoch) && !errors.Is(err, kerr.ProducerFenced) {
		t.Fatalf("stale write: %v", err)
	}
	<-l.Done()
	if again := l.Write(t.Context(), []state.Record{record("a", "stale")}); !errors.Is(again, l.Err()) {
		t.Errorf("later write: %v", again)
	}
	if diff := cmp.Diff([]string{"a=1"}, readable(t, b.bootstrap)); diff != "" {
		t.Error(diff)
	}
}

// TestALeaderWhoseWriteFailedMayLeadAgain stays in the election: nobody else has to be waited for.
func TestALeaderWhoseWriteFailedMayLeadAgain(t *testing.T) {
	b := newBed(t, 1)
	c := b.candidate(t, "one:1", nil)
	first := c.lead(t)
	write(t, first, record("a", "1"))
	joins := 0
	b.cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		joins++
		return nil, nil, false
	})
	b.fail(1, kmsg.NewPtrProduceRequest(), kerr.InvalidTxnState)
	if err := first.Write(t.Context(), []state.Record{record("a", "2")}); err == nil {
		t.Fatal("written")
	}
	first.End()
	second := c.lead(t)
	if diff := cmp.Diff([]state.Record{record("a", "1")}, second.Content().Records); diff != "" || joins != 0 {
		t.Errorf("joined %d times, %s", joins, diff)
	}
	write(t, second, record("a", "3"))
	if err := first.Write(t.Context(), []state.Record{record("a", "4")}); err == nil {
		t.Error("an ended leadership wrote")
	}
}

func TestALostElectionEndsTheLeadershipAtOnce(t *testing.T) {
	b := newBed(t, 1)
	l := b.candidate(t, "one:1", nil).lead(t)
	b.cluster.ControlKey(int16(kmsg.Heartbeat), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp, ok := req.ResponseKind().(*kmsg.HeartbeatResponse)
		if ok {
			resp.ErrorCode = kerr.UnknownMemberID.Code
		}
		return resp, nil, ok
	})
	<-l.Done()
	if err := l.Write(t.Context(), []state.Record{record("a", "1")}); err == nil || !errors.Is(err, kerr.UnknownMemberID) {
		t.Errorf("write without an election: %v", err)
	}
	if got := readable(t, b.bootstrap); len(got) != 0 {
		t.Errorf("readable %v", got)
	}
}

func TestAnUnfitTopicIsRefused(t *testing.T) {
	for name, c := range map[string]struct {
		partitions int32
		config     map[string]*string
		says       []string
	}{
		"two partitions": {2, nil, []string{`"c.config"`, "2 partitions", "exactly one"}},
		"not compacted":  {1, map[string]*string{"cleanup.policy": kadm.StringPtr("delete")}, []string{`"c.config"`, "cleanup.policy=delete", "kafka-configs.sh"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBed(t, 1)
			cand := b.candidate(t, "one:1", nil)
			if _, err := kadm.NewClient(cand.client).CreateTopic(t.Context(), c.partitions, 1, c.config, logTopic); err != nil {
				t.Fatal(err)
			}
			_, err := cand.Campaign(t.Context())
			for _, word := range c.says {
				if err == nil || !strings.Contains(err.Error(), word) {
					t.Errorf("%q is missing in %v", word, err)
				}
			}
		})
	}
}

// TestATopicThatTheBrokerDoesntKnowYetIsCheckedToo: it is there as soon as somebody wants to create it.
func TestATopicThatTheBrokerDoesntKnowYetIsCheckedToo(t *testing.T) {
	b := newBed(t, 1)
	cand := b.candidate(t, "one:1", nil)
	if _, err := kadm.NewClient(cand.client).CreateTopic(t.Context(), 2, 1, nil, logTopic); err != nil {
		t.Fatal(err)
	}
	host, port, err := net.SplitHostPort(b.bootstrap)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(port, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	left := 1
	b.cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
		b.cluster.KeepControl()
		m, _ := req.(*kmsg.MetadataRequest)
		resp, is := req.ResponseKind().(*kmsg.MetadataResponse)
		if !is || len(m.Topics) != 1 || left == 0 {
			return nil, nil, false
		}
		left--
		resp.Brokers = []kmsg.MetadataResponseBroker{{Host: host, Port: int32(number)}}
		one := kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = m.Topics[0].Topic, kerr.UnknownTopicOrPartition.Code
		resp.Topics = append(resp.Topics, one)
		return resp, nil, true
	})
	if _, err := cand.Campaign(t.Context()); err == nil || !strings.Contains(err.Error(), "2 partitions") || left != 0 {
		t.Errorf("%v, %d answers left", err, left)
	}
}

func TestOtherSettingsAreReported(t *testing.T) {
	b := newBed(t, 1)
	var out strings.Builder
	cand := b.candidate(t, "one:1", func(c *configlog.Config) { c.Logger = hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Warn}) })
	config := map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "segment.ms": kadm.StringPtr("1234567")}
	if _, err := kadm.NewClient(cand.client).CreateTopic(t.Context(), 1, 1, config, logTopic); err != nil {
		t.Fatal(err)
	}
	cand.lead(t).Resign()
	if !strings.Contains(out.String(), "setting=segment.ms is=1234567 should_be=600000") {
		t.Errorf("log: %s", out.String())
	}
}

func TestARecordThatIsTooLargeChangesNothing(t *testing.T) {
	b := newBed(t, 1)
	cand := b.candidate(t, "one:1", nil)
	config := map[string]*string{"cleanup.policy": kadm.StringPtr("compact"), "max.message.bytes": kadm.StringPtr("10000")}
	if _, err := kadm.NewClient(cand.client).CreateTopic(t.Context(), 1, 1, config, logTopic); err != nil {
		t.Fatal(err)
	}
	l := cand.lead(t)
	err := l.Write(t.Context(), []state.Record{record("small", "1"), record("large", strings.Repeat("x", 10_000))})
	if !errors.Is(err, configlog.ErrTooLarge) || !strings.Contains(err.Error(), `"large"`) {
		t.Fatal(err)
	}
	// Many that fit go out in several batches of one transaction.
	var many []state.Record
	for i := range 50 {
		many = append(many, record(fmt.Sprint(i), strings.Repeat("y", 900)))
	}
	write(t, l, many...)
	if got := readable(t, b.bootstrap); len(got) != 50 {
		t.Errorf("%d records", len(got))
	}
}
