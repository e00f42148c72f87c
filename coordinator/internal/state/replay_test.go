package state

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// A log that this version can't understand whole must not be led: what is overlooked could be a lease or a count of ids.
func TestALogOfANewerVersionIsNotLed(t *testing.T) {
	for name, test := range map[string]struct {
		record Record
		want   string
	}{
		"form":        {Record{"name/a", []byte(`{"v":2,"b":{}}`)}, `record "name/a" has form 2, this version knows 1`},
		"key":         {Record{"secret/a", []byte(`{"v":1,"b":{}}`)}, `key "secret/a" of the config log isn't known here`},
		"key of task": {Record{"secret/a/0", []byte(`{"v":1,"b":{}}`)}, `key "secret/a/0" of the config log isn't known here`},
		"no task":     {Record{"lease/a/x", []byte(`{"v":1,"b":{}}`)}, `key "lease/a/x" of the config log ends in no task`},
		"no name":     {Record{"claim/a", []byte(`{"v":1,"b":{}}`)}, `key "claim/a" of the config log isn't known here`},
		"meta":        {Record{"meta/other", nil}, `key "meta/other" of the config log isn't known here`},
		"level":       {Record{"meta/cluster", []byte(`{"v":1,"b":{"cluster":"t","term":7,"level":2}}`)}, "the cluster works at level 2, this version knows 1"},
	} {
		t.Run(name, func(t *testing.T) {
			err := New(Options{Cluster: "t"}).Load(test.record)
			if !errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
		})
	}
}

func TestADamagedOrForeignLogIsNotLed(t *testing.T) {
	for name, test := range map[string]struct {
		record Record
		want   string
	}{
		"other cluster": {Record{"meta/cluster", []byte(`{"v":1,"b":{"cluster":"u","term":7,"level":1}}`)}, `the config log belongs to cluster "u", not to "t"`},
		"no JSON":       {Record{"connector/a", []byte(`x`)}, `read record "connector/a" of the config log`},
		"wrong JSON":    {Record{"task/a/0", []byte(`{"v":1,"b":[]}`)}, `read record "task/a/0" of the config log`},
		"wrong number":  {Record{"task/a/4000000000", []byte(`{"v":1,"b":{}}`)}, "task 4000000000 is more than there can be"},
		"wrong lease":   {Record{"lease/a/0", []byte(`{"v":1,"b":{"connector":"b","task":0}}`)}, `record "lease/a/0" of the config log is a lease of b/0`},
		"wrong id":      {Record{"id/a/0", []byte(`{"v":1,"b":7}`)}, `read record "id/a/0" of the config log`},
	} {
		t.Run(name, func(t *testing.T) {
			err := New(Options{Cluster: "t"}).Load(test.record)
			if err == nil || errors.Is(err, ErrNewer) || !strings.Contains(err.Error(), test.want) {
				t.Error(err)
			}
		})
	}
}

// Names may hold what separates the parts of a key.
func TestKeysOfNamesWithSlashesDontMix(t *testing.T) {
	m := newSim(t, Options{})
	m.step(TookOver{})
	r := &simRunner{name: "r", process: "p", plugins: []string{"file@1.0.0"}, held: map[string]Lease{}, plans: map[string]*runnerv1.PlanRef{}}
	m.runners["r"] = r
	m.connect(r)
	for _, name := range []string{"a", "a/0", "a/0/0", "/"} {
		m.ask(Create{Name: name, Incarnation: "life of " + name, Config: map[string]string{"connector.class": "file"}})
		m.planned(r, name, Claim{})
	}
	for _, name := range []string{"a", "a/0", "a/0/0", "/"} {
		if v, ok := m.state.Connector(name); !ok || len(v.Tasks) != 1 || v.Tasks[0].Runner != "r" {
			t.Errorf("%q: %+v", name, v)
		}
	}
	m.ask(Delete{Name: "a/0"})
	m.lead()
	m.step(TookOver{})
	if got := len(m.state.Connectors()); got != 4 {
		t.Errorf("%d connectors, one of them being deleted", got)
	}
}

// A tick that comes late means that this coordinator was held up. The heartbeats that came meanwhile may still wait to be taken.
func TestALeaderThatWasHeldUpHearsItsRunnersFirst(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 1)
	m.now = m.now.Add(time.Minute)
	m.step(Tick{})
	if l := m.state.connectors["c"].leases[0]; l.State != leaseHeld {
		t.Fatal("the lease was taken back at once")
	}
	m.say(r, beatOf(r))
	m.pass(5 * time.Second)
	if l := m.state.connectors["c"].leases[0]; l.State != leaseHeld {
		t.Fatal("the heartbeat didn't count")
	}
	m.pass(6 * time.Second)
	if l := m.state.connectors["c"].leases[0]; l.State != leaseLost {
		t.Fatal("silence was taken for a heartbeat")
	}
}

// Bytes that a runner or a plugin made up reach users and other runners as text.
func TestTextsThatHoldForeignBytesAreValidAndBounded(t *testing.T) {
	m := newSim(t, Options{})
	r := m.running(t, 2)
	partition := "\xff" + strings.Repeat("ä", 20_000)
	for _, task := range []string{"c/0", "c/1"} {
		effects := m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ClaimPartitions{ClaimPartitions: &runnerv1.ClaimPartitions{
			Lease: r.held[task].Wire(), Partitions: [][]byte{[]byte(partition)},
		}}})
		for _, e := range effects {
			if send, ok := e.(Send); ok {
				if _, err := proto.Marshal(send.Message); err != nil {
					t.Error(err)
				}
			}
		}
	}
	m.say(r, &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{
		Lease: r.held["c/0"].Wire(), Reason: strings.Repeat("ä", 1<<20),
	}}})
	for key, record := range m.log {
		if len(record.Value) > 100<<10 {
			t.Errorf("%s has %d bytes", key, len(record.Value))
		}
	}
	v, _ := m.state.Connector("c")
	for _, text := range []string{v.Message, v.Tasks[0].Error, v.Happenings[len(v.Happenings)-1].Text} {
		if !utf8.ValidString(text) || len(text) > mostErrorBytes+100 {
			t.Errorf("%d bytes, valid %v", len(text), utf8.ValidString(text))
		}
	}
}
