package state

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

func (m *sim) greet(name string, low, high uint32) []Effect {
	m.sessions++
	return m.step(SessionOpened{Session: m.sessions, Hello: &runnerv1.Hello{Name: name, ProcessId: "p", Version: "v", LevelMin: low, LevelMax: high}})
}

func (m *sim) raise(level uint32, coordinators ...Coordinator) (Reply, []Effect) {
	m.t.Helper()
	effects := m.step(Asked{ID: 1, Op: RaiseLevel{Level: level, Coordinators: coordinators}})
	reply, ok := effects[len(effects)-1].(Reply)
	if !ok {
		m.t.Fatalf("no answer: %v", effects)
	}
	return reply, effects
}

var (
	oldOne = Coordinator{Address: "old:1", ID: "o", Version: "1", LevelMin: 1, LevelMax: 1}
	newOne = Coordinator{Address: "new:1", ID: "n", Version: "2", LevelMin: 1, LevelMax: 2}
)

func TestANewClusterBeginsAtTheHighestLevelOfItsLeader(t *testing.T) {
	m := newSim(t, Options{LevelMin: 1, LevelMax: 3})
	m.step(TookOver{})
	if level := m.state.Cluster().Level; level != 3 {
		t.Errorf("level %d", level)
	}
}

func TestALevelIsRaisedOnlyWhereAllCan(t *testing.T) {
	m := newSim(t, Options{LevelMin: 1, LevelMax: 2, Version: "2"})
	m.load(Record{keyCluster, []byte(`{"v":1,"b":{"cluster":"t","term":7,"level":1}}`)})
	m.step(TookOver{})
	m.greet("able", 1, 2)
	m.greet("older", 1, 1)
	reply, _ := m.raise(2, newOne, oldOne, Coordinator{Host: "h"})
	if reply.Err == nil || reply.Err.Code != CodeRefused {
		t.Fatalf("%+v", reply)
	}
	for _, want := range []string{"stays at level 1", `the coordinator at old:1 (version 1, levels 1 to 1)`, "the coordinator on host h (of a version that doesn't say", `runner "older" (version v, levels 1 to 1)`} {
		if !strings.Contains(reply.Err.Text, want) {
			t.Errorf("%q isn't in %q", want, reply.Err.Text)
		}
	}
	if strings.Contains(reply.Err.Text, "new:1") || strings.Contains(reply.Err.Text, `"able"`) {
		t.Errorf("who can is named: %q", reply.Err.Text)
	}
	m.step(SessionClosed{Session: 2, Reason: "upgraded"})
	reply, effects := m.raise(2, newOne)
	if reply.Err != nil || reply.Result.Change != Changed || m.state.Cluster().Level != 2 {
		t.Fatalf("%+v", reply)
	}
	persist, isFirst := effects[0].(Persist)
	if !isFirst || len(persist.Records) != 1 || !strings.Contains(string(persist.Records[0].Value), `"level":2`) {
		t.Errorf("it isn't persisted first: %v", effects)
	}
	told := effects[1].(Send).Message.GetClusterChanged() //nolint:forcetypeassert // a panic is a failure
	if told.GetLevel() != 2 {
		t.Errorf("runners hear %v", told)
	}
	if reply, effects = m.raise(2, newOne); reply.Err != nil || reply.Result.Change != Unchanged || len(effects) != 1 {
		t.Errorf("again: %v", effects)
	}
	if effects := m.greet("older", 1, 1); effects[0].(CloseSession).Why != CloseInvalid { //nolint:forcetypeassert // a panic is a failure
		t.Errorf("a runner that can't work at the level: %v", effects)
	}
}

func TestALevelIsNeverLowered(t *testing.T) {
	m := newSim(t, Options{LevelMin: 1, LevelMax: 2})
	m.step(TookOver{})
	reply, _ := m.raise(1, newOne)
	if reply.Err == nil || reply.Err.Code != CodeRefused || !strings.Contains(reply.Err.Text, "works at level 2 and can't go back to 1") {
		t.Errorf("%+v", reply)
	}
	if reply, _ = m.raise(3, newOne); reply.Err == nil || !strings.Contains(reply.Err.Text, "can lead at levels 1 to 2, not at 3") {
		t.Errorf("%+v", reply)
	}
}

func TestARunnerThatIsAwayStandsInTheWayWhileItHoldsTasks(t *testing.T) {
	m := newSim(t, Options{LevelMin: 1, LevelMax: 2})
	m.load(Record{keyCluster, []byte(`{"v":1,"b":{"cluster":"t","term":7,"level":1}}`)})
	r := m.running(t, 1)
	m.step(SessionClosed{Session: r.session, Reason: "cut"})
	reply, _ := m.raise(2, newOne)
	if reply.Err == nil || !strings.Contains(reply.Err.Text, "which isn't connected and still holds tasks") {
		t.Errorf("%+v", reply)
	}
}

func TestRunnersHearWhichCoordinatorsThereAre(t *testing.T) {
	m := newSim(t, Options{Coordinators: []Coordinator{newOne}})
	m.step(TookOver{})
	var got []string
	for _, e := range m.greet("r", 1, 1) {
		if send, ok := e.(Send); ok && send.Message.GetWelcome() != nil {
			got = send.Message.GetWelcome().GetCoordinators()
		}
	}
	if diff := cmp.Diff([]string{"new:1"}, got); diff != "" {
		t.Error(diff)
	}
	effects := m.step(CoordinatorsChanged{Coordinators: []Coordinator{oldOne, newOne, {Host: "of an older version"}}})
	if len(effects) != 1 {
		t.Fatalf("%v", effects)
	}
	told := effects[0].(Send).Message.GetClusterChanged() //nolint:forcetypeassert // a panic is a failure
	if diff := cmp.Diff([]string{"new:1", "old:1"}, told.GetCoordinators()); diff != "" {
		t.Error(diff)
	}
	if effects := m.step(CoordinatorsChanged{Coordinators: []Coordinator{newOne, oldOne}}); len(effects) != 0 {
		t.Errorf("the same ones again: %v", effects)
	}
}

// A version before this one wrote no coordinators and no beginning; one behind it may not lead what it can't understand.
func TestALogIsLedAtItsOwnLevelOnly(t *testing.T) {
	at := func(level uint32) Record {
		body, err := json.Marshal(map[string]any{"v": 1, "b": clusterRecord{Cluster: "t", Term: 7, Level: level}})
		if err != nil {
			t.Fatal(err)
		}
		return Record{keyCluster, body}
	}
	options := Options{Cluster: "t", LevelMin: 2, LevelMax: 3}
	for level, want := range map[uint32]string{1: "this version needs at least 2: raise the level with the version before this one", 2: "", 3: "", 4: "this version knows 2 to 3"} {
		err := New(options).Load(at(level))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) || errors.Is(err, ErrNewer) != (level == 4) {
			t.Errorf("level %d: %v", level, err)
		}
	}
}

// What was deleted from the log can't be read out of what is left; where it can be seen that something is missing, nobody leads until an operator says so.
func TestALogThatLostRecordsIsLedOnlyWhenAnOperatorSaysSo(t *testing.T) {
	cluster := Record{keyCluster, []byte(`{"v":1,"b":{"cluster":"t","term":7,"level":1}}`)}
	name := Record{"name/a", []byte(`{"v":1,"b":{"generation":3,"fenced":3,"epoch":9,"ids":2,"plan_epoch":1}}`)}
	connector := Record{"connector/a", []byte(`{"v":1,"b":{"incarnation":"i","config":{"connector.class":"file"},"target":"running","filled":true,"tasks":1}}`)}
	task := Record{"task/a/0", []byte(`{"v":1,"b":{"claim":{"kind":"unknown"}}}`)}
	lease := Record{"lease/a/0", []byte(`{"v":1,"b":{"connector":"a","incarnation":"i","generation":3,"task":0,"epoch":9,"runner":"r","process":"p","state":"held"}}`)}
	for what, test := range map[string]struct {
		records []Record
		begin   int64
		want    string
	}{
		"nothing":       {[]Record{cluster, name, connector, task, lease}, 0, ""},
		"nothing yet":   {nil, 0, ""},
		"the beginning": {[]Record{cluster, name, connector, task}, 40, "begins at offset 40"},
		"all":           {nil, 40, "begins at offset 40"},
		"the cluster":   {[]Record{name, connector, task}, 0, `no record "meta/cluster"`},
		"a name":        {[]Record{cluster, connector, task, lease}, 0, `no record "name/a" of connector "a"`},
		"a task":        {[]Record{cluster, name, connector}, 0, `no record "task/a/0" of connector "a"`},
	} {
		t.Run(what, func(t *testing.T) {
			load := func() *State {
				s := New(Options{Cluster: "t"})
				for _, r := range test.records {
					if err := s.Load(r); err != nil {
						t.Fatal(err)
					}
				}
				return s
			}
			if err := load().Check(test.begin, false); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v", err)
			}
			m := newSim(t, Options{})
			m.load(test.records...)
			if err := m.state.Check(test.begin, true); err != nil {
				t.Fatalf("accepted: %v", err)
			}
			before := uint64(3)
			m.step(TookOver{})
			if c := m.state.connectors["a"]; test.want != "" && c != nil && c.missing() == "" && test.begin == 0 && strings.Contains(test.want, `"a"`) && (c.Generation <= before || c.Epoch < 9 && len(c.leases) > 0) {
				t.Errorf("it goes on in generation %d, epoch %d", c.Generation, c.Epoch)
			}
			next := New(Options{Cluster: "t"})
			for _, key := range sorted(m.log) {
				if err := next.Load(m.log[key]); err != nil {
					t.Fatal(err)
				}
			}
			if err := next.Check(test.begin, false); err != nil {
				t.Errorf("the next leader: %v", err)
			}
		})
	}
}

// load puts records into the log, as an earlier leader wrote them.
func (m *sim) load(records ...Record) {
	for _, r := range records {
		m.log[r.Key] = r
	}
	m.lead()
}
