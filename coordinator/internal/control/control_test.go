package control_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/control"
	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/loop"
	"github.com/fencepost-io/fencepost/coordinator/internal/sessions"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// memory is a config log that keeps nothing, a fencer that is done at once, and runners that take everything.
type memory struct {
	submit func(context.Context, state.Event) error
}

func (memory) Write(context.Context, []state.Record) error { return nil }
func (m memory) StartRound(r state.StartRound) {
	done := state.RoundDone{Connector: r.Connector, Seq: r.Seq, Decisions: map[uint32]state.Decision{}}
	for _, task := range r.Tasks {
		done.Decisions[task] = state.Decision{Outcome: state.OutcomeNone}
	}
	go m.submit(context.Background(), done)
}
func (memory) CancelRound(state.CancelRound)   {}
func (memory) PrepareID(state.PrepareID)       {}
func (memory) Look(state.Look)                 {}
func (memory) Heal(state.Heal)                 {}
func (memory) HealOn(state.HealOn)             {}
func (memory) Send(state.Send)                 {}
func (memory) CloseSession(state.CloseSession) {}

// bed is a control server over a real loop, with runners that answer what the test says.
type bed struct {
	*control.Server
	core   *loop.Loop
	leader string
	absent string
	offer  *runnerv1.Offer

	mu      sync.Mutex
	answers func(*runnerv1.SessionResponse) (*runnerv1.SessionRequest, error)
	asked   []*runnerv1.SessionResponse
	askedOf []state.SessionID
	refused map[string]error // rights on ids

	// state is what the leader begins with, where it isn't empty.
	state        *state.State
	transactions brokers

	coordinators []state.Coordinator
	end          func() // of the loop
}

func (b *bed) Ask(_ context.Context, of state.SessionID, question func(uint64) *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := question(1)
	b.asked, b.askedOf = append(b.asked, q), append(b.askedOf, of)
	if b.answers == nil {
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{}}}, nil
	}
	return b.answers(q)
}

func (b *bed) Probe(_ context.Context, id string) error { return b.refused[id] }

func newBed(t *testing.T) *bed {
	t.Helper()
	b := &bed{leader: "other:1"}
	b.Server = control.New(control.Config{Cluster: "c", Self: state.Coordinator{Address: "me:1", ID: "me", Version: "test", LevelMin: 1, LevelMax: 1}, Leader: func() string { return b.leader }, Absent: func() string { return b.absent }})
	return b
}

// lead makes the bed's server lead; runners offer the types.
func (b *bed) lead(t *testing.T, types ...string) {
	t.Helper()
	if b.state == nil {
		b.state = state.New(state.Options{Cluster: "c"})
	}
	b.core = loop.New(loop.Config{State: b.state})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	m := memory{submit: b.core.Submit}
	go func() { ended <- b.core.Run(ctx, loop.Shell{Log: m, Fencer: m, Sender: m}) }()
	b.end = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(b.end)
	if len(types) > 0 {
		plugin := &runnerv1.PluginInfo{Path: "/plugins/p", Sha256: "abc", Description: &pluginv1.DescribeResponse{Name: "p", Version: "1.2.3"}}
		for _, name := range types {
			plugin.Description.Types = append(plugin.Description.Types, &pluginv1.ConnectorType{Name: name})
		}
		b.offer = &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{plugin}, Broken: []*runnerv1.BrokenPlugin{{Path: "/plugins/bad", Error: "no run bit"}}}
		b.join(t, "r", 1)
	}
	b.Lead(&control.Leader{Core: b.core, Runners: b, Rights: b, Roster: b, Transactions: b.transactions})
}

// join lets a runner come that offers the same as the first one.
func (b *bed) join(t *testing.T, name string, session state.SessionID) {
	t.Helper()
	hello := &runnerv1.Hello{Name: name, ProcessId: "x", LevelMin: 1, LevelMax: 1, Offer: b.offer, Host: "host", Version: "v"}
	if err := b.core.Submit(t.Context(), state.SessionOpened{Session: session, Hello: hello}); err != nil {
		t.Fatal(err)
	}
}

func detail(t *testing.T, err error, code codes.Code) *controlv1.ErrorDetail {
	t.Helper()
	if status.Code(err) != code {
		t.Fatalf("%v, want %v", err, code)
	}
	for _, d := range status.Convert(err).Details() {
		if found, ok := d.(*controlv1.ErrorDetail); ok {
			return found
		}
	}
	t.Fatalf("%v has no detail", err)
	return nil
}

// TestWhyNobodyLeadsIsSaid: "ask the leader" is no help where the brokers are away.
func TestWhyNobodyLeadsIsSaid(t *testing.T) {
	for _, c := range []struct{ leader, absent, says, not string }{
		{"", "", "no leader is known", "at "},
		{"other:1", "", "the coordinator at other:1 does", "Kafka"},
		{"", "this coordinator can't reach Kafka: no broker answers at k:9092", "can't reach Kafka: no broker answers at k:9092", "doesn't lead"},
		{"other:1", "this coordinator can't reach Kafka: no broker answers at k:9092", "no broker answers at k:9092; the coordinator at other:1 led", "does"},
	} {
		b := newBed(t)
		b.leader, b.absent = c.leader, c.absent
		_, err := b.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
		if d := detail(t, err, codes.Unavailable); d.GetLeader() != c.leader || d.GetHint() == "" || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), c.not) {
			t.Errorf("%q, %q: %v, %v", c.leader, c.absent, err, d)
		}
	}
}

func keys(problems []*pluginv1.Problem) []string {
	var all []string
	for _, p := range problems {
		all = append(all, p.GetKey())
	}
	slices.Sort(all)
	return all
}

func file(extra ...string) map[string]string {
	config := map[string]string{"connector.class": "file", "tasks.max": "2"}
	for i := 0; i < len(extra); i += 2 {
		config[extra[i]] = extra[i+1]
	}
	return config
}

func TestWhoeverDoesNotLeadNamesTheLeader(t *testing.T) {
	b := newBed(t)
	_, err := b.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != "other:1" || d.GetHint() == "" {
		t.Errorf("%v", d)
	}
	b.leader = ""
	_, err = b.DeleteConnector(t.Context(), &controlv1.DeleteConnectorRequest{Name: "a"})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != "" {
		t.Errorf("%v", d)
	}
	cluster, err := b.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
	if err != nil || cluster.GetLeader() != "" || cluster.GetLeading() {
		t.Errorf("%v, %v", cluster, err)
	}
}

// TestAnotherRunnerIsAskedWhereAHostIsAtFault: a host that can't start the plugin says nothing of the configuration, unless no other fits.
func TestAnotherRunnerIsAskedWhereAHostIsAtFault(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	b.join(t, "s", 2)
	well := 2
	b.answers = func(*runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
		answer := &runnerv1.ValidateAnswer{}
		if len(b.askedOf) < well {
			answer.Host, answer.Problems = true, []*pluginv1.Problem{{Key: "connector.class", Message: "no room for another process"}}
		}
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: answer}}, nil
	}
	ask := func() []string {
		t.Helper()
		b.askedOf = nil
		got, err := b.ValidateConnector(t.Context(), &controlv1.ValidateConnectorRequest{Name: "a", Config: file()})
		if err != nil {
			t.Fatal(err)
		}
		return keys(got.GetProblems())
	}
	if problems := ask(); len(problems) != 0 || !slices.Equal(b.askedOf, []state.SessionID{1, 2}) {
		t.Errorf("runners %v were asked: %v", b.askedOf, problems)
	}
	well = 100
	if problems := ask(); !slices.Equal(problems, []string{"connector.class"}) || !slices.Equal(b.askedOf, []state.SessionID{1, 2}) {
		t.Errorf("runners %v were asked: %v", b.askedOf, problems)
	}
	for session := range state.SessionID(20) {
		b.join(t, fmt.Sprintf("t%d", session), 3+session)
	}
	if ask(); len(b.askedOf) != 5 {
		t.Errorf("runners %v were asked", b.askedOf)
	}
}

func TestAllProblemsComeAtOnce(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	b.refused = map[string]error{"fencepost.c.other-name.0": &fence.Refused{ID: "fencepost.c.other-name.0", Reason: "no Write"}}
	b.answers = func(q *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
		if v := q.GetValidate(); v.GetConnector() != "other-name" || v.GetConfig()["tasks.max"] != "many" {
			return nil, fmt.Errorf("asked %v", v)
		}
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{Problems: []*pluginv1.Problem{
			{Key: "tasks.max", Message: "the same again"}, {Key: "paths", Message: "is missing"}, {Key: "pahts", Message: "unknown", Warning: true},
		}}}}, nil
	}
	config := file("tasks.max", "many", "name", "a", "pahts", "x")
	_, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "other-name", Config: config})
	d := detail(t, err, codes.InvalidArgument)
	if diff := cmp.Diff([]string{"exactly.once.support", "name", "pahts", "paths", "tasks.max"}, keys(d.GetProblems())); diff != "" {
		t.Error(diff)
	}
	validated, err := b.ValidateConnector(t.Context(), &controlv1.ValidateConnectorRequest{Name: "other-name", Config: config})
	if err != nil || len(validated.GetProblems()) != 5 {
		t.Errorf("%v, %v", validated, err)
	}
	if list, err := b.ListConnectors(t.Context(), &controlv1.ListConnectorsRequest{}); err != nil || len(list.GetConnectors()) != 0 {
		t.Errorf("stored all the same: %v, %v", list, err)
	}
}

func TestBadNamesAreProblems(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	for _, name := range []string{"", "a\nb", strings.Repeat("x", 201), "\xff"} {
		_, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: name, Config: file()})
		if d := detail(t, err, codes.InvalidArgument); !slices.Contains(keys(d.GetProblems()), "name") {
			t.Errorf("%q: %v", name, d)
		}
	}
}

func TestAPluginThatNobodyOffersIsAProblemOfItsKey(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file", "generator")
	for _, c := range []struct {
		config     map[string]string
		key, words string
	}{
		{file("connector.class", "flie"), "connector.class", `did you mean "file"?`},
		{file("connector.class", "com.example.Unheard"), "connector.class", "runners offer file, generator"},
		{map[string]string{}, "connector.class", "missing"},
		{file("plugin.version", "9.9.9"), "plugin.version", "9.9.9"},
		{file("plugin.sha256", "ffff"), "plugin.sha256", "ffff"},
		{file("placement.labels", "zone=z"), "placement.labels", "zone"},
	} {
		got, err := b.ValidateConnector(t.Context(), &controlv1.ValidateConnectorRequest{Name: "a", Config: c.config})
		if err != nil || len(got.GetProblems()) != 1 || got.GetProblems()[0].GetKey() != c.key || !strings.Contains(got.GetProblems()[0].GetMessage()+got.GetProblems()[0].GetHint(), c.words) {
			t.Errorf("%v: %v, %v", c.config, got, err)
		}
	}
	if len(b.asked) != 0 {
		t.Errorf("asked %v", b.asked)
	}
}

func TestWithoutRunnersNothingCanBeChecked(t *testing.T) {
	b := newBed(t)
	b.lead(t)
	_, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "a", Config: file()})
	if d := detail(t, err, codes.Unavailable); !strings.Contains(err.Error(), "no runner is connected") || d.GetHint() == "" {
		t.Errorf("%v", err)
	}
}

func TestALifeOfAConnector(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	ctx := t.Context()
	created, err := b.CreateConnector(ctx, &controlv1.CreateConnectorRequest{Name: "a", Config: file()})
	if err != nil || created.GetConnector().GetGeneration() != 1 || created.GetConnector().GetIncarnation() == "" || created.GetConnector().GetPlugin() != "p@1.2.3" || created.GetConnector().GetCreated() == nil {
		t.Fatalf("%v, %v", created, err)
	}
	_, err = b.CreateConnector(ctx, &controlv1.CreateConnectorRequest{Name: "a", Config: file()})
	detail(t, err, codes.AlreadyExists)

	asked := len(b.asked)
	same, err := b.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: "a", Config: file()})
	if err != nil || same.GetOutcome() != controlv1.ApplyConnectorResponse_OUTCOME_UNCHANGED || same.GetConnector().GetGeneration() != 1 || len(b.asked) != asked {
		t.Fatalf("equal apply: %v, %v, asked %d times", same, err, len(b.asked)-asked)
	}
	changed, err := b.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: "a", Config: file("topic", "t")})
	if err != nil || changed.GetOutcome() != controlv1.ApplyConnectorResponse_OUTCOME_CHANGED || changed.GetConnector().GetGeneration() != 2 {
		t.Fatalf("apply: %v, %v", changed, err)
	}
	fresh, err := b.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: "b", Config: file()})
	if err != nil || fresh.GetOutcome() != controlv1.ApplyConnectorResponse_OUTCOME_CREATED {
		t.Fatalf("apply of a new one: %v, %v", fresh, err)
	}
	if paused, err := b.PauseConnector(ctx, &controlv1.PauseConnectorRequest{Name: "a"}); err != nil || paused.GetConnector().GetTarget() != controlv1.TargetState_TARGET_STATE_PAUSED {
		t.Fatalf("%v, %v", paused, err)
	}
	_, err = b.RestartConnector(ctx, &controlv1.RestartConnectorRequest{Name: "a"})
	detail(t, err, codes.FailedPrecondition)
	if resumed, err := b.ResumeConnector(ctx, &controlv1.ResumeConnectorRequest{Name: "a"}); err != nil || resumed.GetConnector().GetTarget() != controlv1.TargetState_TARGET_STATE_RUNNING {
		t.Fatalf("%v, %v", resumed, err)
	}
	if restarted, err := b.RestartConnector(ctx, &controlv1.RestartConnectorRequest{Name: "a"}); err != nil || restarted.GetConnector() == nil {
		t.Fatalf("%v, %v", restarted, err)
	}
	_, err = b.RestartConnector(ctx, &controlv1.RestartConnectorRequest{Name: "a", Task: proto.Uint32(7)})
	detail(t, err, codes.NotFound)
	if stopped, err := b.StopConnector(ctx, &controlv1.StopConnectorRequest{Name: "a"}); err != nil || stopped.GetConnector().GetState() != "STOPPED" {
		t.Fatalf("%v, %v", stopped, err)
	}
	if got, err := b.GetConnector(ctx, &controlv1.GetConnectorRequest{Name: "a"}); err != nil || len(got.GetConnector().GetEvents()) == 0 {
		t.Fatalf("%v, %v", got, err)
	}
	if _, err := b.DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	for _, call := range []func() error{
		func() error { _, err := b.GetConnector(ctx, &controlv1.GetConnectorRequest{Name: "a"}); return err },
		func() error {
			_, err := b.DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: "a"})
			return err
		},
		func() error { _, err := b.StopConnector(ctx, &controlv1.StopConnectorRequest{Name: "a"}); return err },
		func() error { _, err := b.GetOffsets(ctx, &controlv1.GetOffsetsRequest{Name: "a"}); return err },
	} {
		detail(t, call(), codes.NotFound)
	}
	list, err := b.ListConnectors(ctx, &controlv1.ListConnectorsRequest{})
	if err != nil || len(list.GetConnectors()) != 1 || list.GetConnectors()[0].GetName() != "b" {
		t.Errorf("%v, %v", list, err)
	}
}

func TestAConnectorMayBeginStopped(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	created, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "a", Config: file(), Target: controlv1.TargetState_TARGET_STATE_STOPPED})
	if err != nil || created.GetConnector().GetTarget() != controlv1.TargetState_TARGET_STATE_STOPPED {
		t.Errorf("%v, %v", created, err)
	}
	_, err = b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "b", Config: file(), Target: 99})
	detail(t, err, codes.InvalidArgument)
}

func TestARunnerReadsTheOffsets(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	if _, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "a", Config: file()}); err != nil {
		t.Fatal(err)
	}
	var answer runnerv1.ReadOffsetsAnswer
	b.answers = func(q *runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) {
		if r := q.GetReadOffsets(); r.GetConnector() != "a" || r.GetOffsetsTopic() != "c.offsets.a" || r.GetConfig()["connector.class"] != "file" {
			return nil, fmt.Errorf("asked %v", r)
		}
		return &runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ReadOffsetsAnswer{ReadOffsetsAnswer: &answer}}, nil
	}
	answer.Offsets = []*pluginv1.PartitionOffset{{Partition: []byte(`{"f":1}`), Offset: []byte(`{"o":2}`)}}
	got, err := b.GetOffsets(t.Context(), &controlv1.GetOffsetsRequest{Name: "a"})
	if err != nil || len(got.GetOffsets()) != 1 || string(got.GetOffsets()[0].GetOffset()) != `{"o":2}` {
		t.Fatalf("%v, %v", got, err)
	}
	answer = runnerv1.ReadOffsetsAnswer{Error: "no right to read"}
	_, err = b.GetOffsets(t.Context(), &controlv1.GetOffsetsRequest{Name: "a"})
	if detail(t, err, codes.Unavailable); !strings.Contains(err.Error(), "no right to read") {
		t.Error(err)
	}
}

func TestARunnerThatFailsIsSaid(t *testing.T) {
	for _, c := range []struct {
		message *runnerv1.SessionRequest
		err     error
		code    codes.Code
	}{
		{nil, sessions.ErrGone, codes.Unavailable},
		{nil, context.DeadlineExceeded, codes.DeadlineExceeded},
		{nil, context.Canceled, codes.Canceled},
		{nil, loop.ErrEnded, codes.Unavailable},
		{nil, errors.New("anything"), codes.Internal},
		{&runnerv1.SessionRequest{}, nil, codes.Internal},
		{&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: &runnerv1.ValidateAnswer{Error: "the plugin hangs"}}}, nil, codes.Unavailable},
	} {
		b := newBed(t)
		b.lead(t, "file")
		b.answers = func(*runnerv1.SessionResponse) (*runnerv1.SessionRequest, error) { return c.message, c.err }
		_, err := b.CreateConnector(t.Context(), &controlv1.CreateConnectorRequest{Name: "a", Config: file()})
		detail(t, err, c.code)
	}
}

func TestPluginsAndRunnersAreListed(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	plugins, err := b.ListPlugins(t.Context(), &controlv1.ListPluginsRequest{})
	if err != nil || len(plugins.GetPlugins()) != 2 || plugins.GetPlugins()[0].GetPath() != "/plugins/p" || plugins.GetPlugins()[0].GetRunners()[0] != "r" || plugins.GetPlugins()[1].GetError() != "no run bit" {
		t.Errorf("%v, %v", plugins, err)
	}
	runners, err := b.ListRunners(t.Context(), &controlv1.ListRunnersRequest{})
	if err != nil || len(runners.GetRunners()) != 1 || runners.GetRunners()[0].GetState() != "CONNECTED" || runners.GetRunners()[0].GetHost() != "host" || runners.GetRunners()[0].GetSince() == nil {
		t.Errorf("%v, %v", runners, err)
	}
	cluster, err := b.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
	if err != nil || !cluster.GetLeading() || cluster.GetLeader() != "me:1" || cluster.GetTerm() != 1 {
		t.Errorf("%v, %v", cluster, err)
	}
}

func (b *bed) Coordinators(context.Context) ([]state.Coordinator, error) { return b.coordinators, nil }

func TestADrainIsAnsweredAtOnceAndShown(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	resp, err := b.DrainRunner(t.Context(), &controlv1.DrainRunnerRequest{Name: "r"})
	if err != nil || resp.GetRunner().GetState() != "DRAINED" || resp.GetRunner().GetStopping() {
		t.Errorf("%v, %v", resp, err)
	}
	resp, err = b.DrainRunner(t.Context(), &controlv1.DrainRunnerRequest{Name: "r", Undo: true})
	if err != nil || resp.GetRunner().GetState() != "CONNECTED" {
		t.Errorf("%v, %v", resp, err)
	}
	if _, err = b.DrainRunner(t.Context(), &controlv1.DrainRunnerRequest{Name: "s"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
}

func TestTheLevelIsRaisedWhereKafkaKnowsNobodyWhoCannot(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	b.coordinators = []state.Coordinator{{Address: "me:1", LevelMin: 1, LevelMax: 1}, {Address: "old:1", Version: "0", LevelMin: 1, LevelMax: 1}}
	if resp, err := b.SetClusterLevel(t.Context(), &controlv1.SetClusterLevelRequest{Level: 1}); err != nil || resp.GetChanged() || resp.GetLevel() != 1 {
		t.Errorf("%v, %v", resp, err)
	}
	for level, want := range map[uint32]struct {
		code codes.Code
		text string
	}{0: {codes.InvalidArgument, "no level is given"}, 2: {codes.FailedPrecondition, "can lead at levels 1 to 1, not at 2"}} {
		if _, err := b.SetClusterLevel(t.Context(), &controlv1.SetClusterLevelRequest{Level: level}); !strings.Contains(err.Error(), want.text) || detail(t, err, want.code).GetHint() == "" {
			t.Errorf("level %d: %v", level, err)
		}
	}
	b.Lead(nil)
	if _, err := b.SetClusterLevel(t.Context(), &controlv1.SetClusterLevelRequest{Level: 1}); detail(t, err, codes.Unavailable).GetLeader() != "other:1" {
		t.Error(err)
	}
}

func TestTheClusterIsShownWithAllThatBelongToIt(t *testing.T) {
	b := newBed(t)
	b.lead(t, "file")
	cluster, err := b.GetCluster(t.Context(), &controlv1.GetClusterRequest{})
	if err != nil || !cluster.GetLeading() || cluster.GetTerm() != 1 || cluster.GetLevel() != 1 || len(cluster.GetRunners()) != 1 || cluster.GetRunners()[0].GetLevelMax() != 1 || len(cluster.GetLevels()) != 1 {
		t.Errorf("%v, %v", cluster, err)
	}
}

// TestWhatALostLeaderWasAskedIsSafeToAskAgain, and it doesn't claim to know what became of it.
func TestWhatALostLeaderWasAskedIsSafeToAskAgain(t *testing.T) {
	b := newBed(t)
	b.lead(t)
	b.end()
	_, err := b.DeleteConnector(t.Context(), &controlv1.DeleteConnectorRequest{Name: "a"})
	if d := detail(t, err, codes.Unavailable); d.GetLeader() != "other:1" || !strings.Contains(err.Error(), "may be stored already, or not") || !strings.Contains(d.GetHint(), "safe to repeat") {
		t.Errorf("%v, %v", err, d)
	}
}
