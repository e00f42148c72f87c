package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

func codeOf(err error) int {
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.code
	}
	return -1
}

// run runs the command line as main does.
func run(args ...string) (code int, stdout, stderr string) {
	var out, errOut bytes.Buffer
	code = Main(args, strings.NewReader(""), &out, &errOut)
	return code, out.String(), errOut.String()
}

// fakeControl answers every question with one error, or with one connector.
type fakeControl struct {
	controlv1.UnimplementedControlServer
	err       error
	connector *controlv1.Connector
}

func (f *fakeControl) GetCluster(context.Context, *controlv1.GetClusterRequest) (*controlv1.GetClusterResponse, error) {
	leader := detailOf(f.err).GetLeader()
	return &controlv1.GetClusterResponse{Leading: leader == "", Leader: leader, Term: 1}, nil
}

func (f *fakeControl) ListTransactions(context.Context, *controlv1.ListTransactionsRequest) (*controlv1.ListTransactionsResponse, error) {
	return &controlv1.ListTransactionsResponse{Transactions: []*controlv1.Transaction{
		{TransactionalId: "fencepost.c.orders.0", Connector: "orders", ConnectorExists: true, State: "Ongoing", AgeMs: 1500, OpenRecords: 7, Runner: "r1", ProducerId: 5, ProducerEpoch: 2, Partitions: []*controlv1.TransactionPartition{{Topic: "out", Partition: 1, FirstOffset: -1, EndOffset: -1}}},
		{TransactionalId: "fencepost.c.gone.1", Connector: "gone", Task: 1, State: "Hanging", Proof: "nobody knows", Partitions: []*controlv1.TransactionPartition{{Topic: "out", Partition: 3, FirstOffset: 41, EndOffset: 99}}},
	}}, f.err
}

func (f *fakeControl) EndTransaction(_ context.Context, req *controlv1.EndTransactionRequest) (*controlv1.EndTransactionResponse, error) {
	return &controlv1.EndTransactionResponse{Ended: []*controlv1.EndedPartition{{Topic: req.GetTopic(), Partition: req.GetPartition(), FirstOffset: 41, Direction: req.GetForce(), Proof: "a user's word", Way: "a marker"}}}, f.err
}

func (f *fakeControl) GetConnector(context.Context, *controlv1.GetConnectorRequest) (*controlv1.GetConnectorResponse, error) {
	return &controlv1.GetConnectorResponse{Connector: f.connector}, f.err
}

func (f *fakeControl) ListConnectors(context.Context, *controlv1.ListConnectorsRequest) (*controlv1.ListConnectorsResponse, error) {
	return &controlv1.ListConnectorsResponse{Connectors: []*controlv1.Connector{f.connector}}, f.err
}

func (f *fakeControl) CreateConnector(context.Context, *controlv1.CreateConnectorRequest) (*controlv1.CreateConnectorResponse, error) {
	return &controlv1.CreateConnectorResponse{Connector: f.connector}, f.err
}

// serve runs a fake coordinator and returns its address.
func serve(t *testing.T, f controlv1.ControlServer) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	controlv1.RegisterControlServer(server, f)
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(listener) }()
	t.Cleanup(func() { server.Stop(); <-done })
	return listener.Addr().String()
}

func withDetail(code codes.Code, message string, detail *controlv1.ErrorDetail) error {
	s, err := status.New(code, message).WithDetails(detail)
	if err != nil {
		panic(err)
	}
	return s.Err()
}

func TestExitCodesSayWhatHappened(t *testing.T) {
	for _, tc := range []struct {
		err  error
		code int
		says string
	}{
		{status.Error(codes.NotFound, "there is no connector \"a\""), exitNotFound, "there is no connector"},
		{status.Error(codes.AlreadyExists, "exists"), exitConflict, "exists"},
		{status.Error(codes.FailedPrecondition, "refused"), exitConflict, "refused"},
		{status.Error(codes.Aborted, "superseded"), exitConflict, "superseded"},
		{status.Error(codes.Unavailable, "no runner has it"), exitUnreachable, "no runner has it"},
		{status.Error(codes.DeadlineExceeded, "slow"), exitUnreachable, "slow"},
		{status.Error(codes.Internal, "broken"), exitFailed, "broken"},
		{withDetail(codes.InvalidArgument, "invalid", &controlv1.ErrorDetail{Problems: []*pluginv1.Problem{{Key: "paht", Message: "unknown key", Hint: "did you mean paths?"}}}), exitFailed, "paht  unknown key; did you mean paths?"},
	} {
		address := serve(t, &fakeControl{err: tc.err})
		code, _, stderr := run("get", "a", "--coordinator", address)
		if code != tc.code || !strings.Contains(stderr, tc.says) {
			t.Errorf("%v: exit %d, %q; want %d and %q", tc.err, code, stderr, tc.code, tc.says)
		}
	}
}

func TestClientFollowsTheLeader(t *testing.T) {
	leader := serve(t, &fakeControl{connector: &controlv1.Connector{Name: "a", State: "RUNNING"}})
	standby := serve(t, &fakeControl{err: withDetail(codes.Unavailable, "another leads", &controlv1.ErrorDetail{Leader: leader})})
	code, stdout, stderr := run("get", "a", "--coordinator", standby)
	if code != exitDone || !strings.Contains(stdout, "RUNNING") {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}

func TestUnreachableCoordinatorIsNamed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	_ = listener.Close()
	code, _, stderr := run("get", "--coordinator", address)
	if code != exitUnreachable || !strings.Contains(stderr, address) || !strings.Contains(stderr, "FENCEPOST_COORDINATOR") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestOutputFormats(t *testing.T) {
	connector := &controlv1.Connector{
		Name: "a", State: "DEGRADED", Config: map[string]string{"connector.class": "file"}, Created: timestamppb.Now(),
		Tasks: []*controlv1.TaskInfo{{State: "RETRYING", Error: "the broker is away", Attempt: 3, RetryAt: timestamppb.Now(), Notices: []string{"x: permission denied"}}},
	}
	address := serve(t, &fakeControl{connector: connector})
	_, table, _ := run("get", "a", "--coordinator", address)
	if !strings.Contains(table, "the broker is away (try 3, next in") {
		t.Errorf("table:\n%s", table)
	}
	_, text, _ := run("get", "a", "--coordinator", address, "-o", "json")
	var parsed struct {
		Name  string
		Tasks []struct{ State string }
	}
	if err := json.Unmarshal([]byte(text), &parsed); err != nil || parsed.Name != "a" || parsed.Tasks[0].State != "RETRYING" {
		t.Errorf("%v in\n%s", err, text)
	}
	_, text, _ = run("describe", "a", "--coordinator", address)
	for _, want := range []string{"Last error:", "Next try:", "x: permission denied"} {
		if !strings.Contains(text, want) {
			t.Errorf("describe lacks %q:\n%s", want, text)
		}
	}
	if code, _, stderr := run("get", "a", "--coordinator", address, "-o", "xml"); code != exitUsage || !strings.Contains(stderr, "xml") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

func TestWrongUsage(t *testing.T) {
	for _, args := range [][]string{
		{"nonsense"}, {"get", "--nonsense"}, {"get", "a", "b"}, {"describe"}, {"create"}, {"dev", "--once"}, {"runner"}, {"coordinator"},
		{"dev", "--bootstrap-servers", "x:1", "--data-dir", "y"}, {"runner", "--bootstrap-servers", "x:1", "--label", "novalue"},
		{"dev", "--kafka-listen", "nonsense"}, {"dev", "--log-level", "loud"},
		{"coordinator", "--bootstrap-servers", "x:1", "--listen", "127.0.0.1:0", "--lease-ttl", "1ms"},
		{"coordinator", "--bootstrap-servers", "x:1", "--listen", "127.0.0.1:0", "--session-timeout", "0"},
	} {
		code, _, stderr := run(args...)
		if code != exitUsage || !strings.HasPrefix(stderr, "Error: ") || strings.Contains(stderr, "goroutine") {
			t.Errorf("%v: exit %d, %q", args, code, stderr)
		}
	}
}

// TestAnUnknownSubcommandIsWrongUsage of every command that has some.
func TestAnUnknownSubcommandIsWrongUsage(t *testing.T) {
	groups := 0
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if !c.HasSubCommands() {
			return
		}
		groups++
		words := append(strings.Fields(c.CommandPath())[1:], "nonsense")
		if code, stdout, stderr := run(words...); code != exitUsage || stdout != "" || !strings.Contains(stderr, `"nonsense"`) {
			t.Errorf("%v: exit %d, %q, %q", words, code, stdout, stderr)
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(newRoot())
	if groups < 3 { // fencepost, offsets, completion
		t.Errorf("%d groups", groups)
	}
	if _, _, stderr := run("offsets", "set", "x"); !strings.Contains(stderr, "it has: get") {
		t.Errorf("the known ones are not named: %q", stderr)
	}
	if code, stdout, _ := run("offsets"); code != exitDone || !strings.Contains(stdout, "get") {
		t.Errorf("a group alone: exit %d, %q", code, stdout)
	}
}

func TestATaskThatRunsHasNoError(t *testing.T) {
	connector := &controlv1.Connector{Name: "a", State: "RUNNING", Created: timestamppb.Now(), Tasks: []*controlv1.TaskInfo{{State: "RUNNING", Error: "the broker was away", CaughtUp: true}}}
	address := serve(t, &fakeControl{connector: connector})
	if _, table, _ := run("get", "a", "--coordinator", address); strings.Contains(table, "was away") || !strings.Contains(table, "caught up") {
		t.Errorf("get:\n%s", table)
	}
	if _, text, _ := run("describe", "a", "--coordinator", address); !strings.Contains(text, "the broker was away") {
		t.Errorf("describe:\n%s", text)
	}
}

func TestNoTextActsOnTheTerminal(t *testing.T) {
	address := serve(t, &fakeControl{connector: &controlv1.Connector{Name: "a\x1b[2J\u202eb\u2066c\u009bd\té", Created: timestamppb.Now()}})
	for _, command := range []string{"get", "describe"} {
		_, table, _ := run(command, "a", "--coordinator", address)
		if want := `a\x1b[2J\u202eb\u2066c\u009bd\té`; !strings.Contains(table, want) {
			t.Errorf("%s lacks %s:\n%q", command, want, table)
		}
	}
	if _, _, said := run("validate", "-f", "no\x1b[2Jfile", "--coordinator", address); !strings.Contains(said, `no\x1b[2Jfile`) || strings.Contains(said, "\x1b") {
		t.Errorf("an error says %q", said)
	}
}

// TestADevInMemoryHasTheNameOfItsPort: the next dev there clears away what a killed one left.
func TestADevInMemoryHasTheNameOfItsPort(t *testing.T) {
	address := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8780}
	if got := (&dev{}).runnerName(address); got != "dev-8780" {
		t.Error(got)
	}
	if a, b := (&dev{dataDir: "x"}).runnerName(address), (&dev{dataDir: "y"}).runnerName(address); a == b || a == "dev-8780" {
		t.Errorf("names of two folders: %s, %s", a, b)
	}
}

func TestEveryCommandHasAnExample(t *testing.T) {
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() && c.Name() != "help" && c.Name() != "completion" && c.Parent().Name() != "completion" && c.Example == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	for _, c := range newRoot().Commands() {
		walk(c)
	}
}

func TestOneBadFileDoesNotKeepTheOthersBack(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	if err := errors.Join(os.WriteFile(good, []byte("name: a\nconfig: {}"), 0o600), os.WriteFile(bad, []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	address := serve(t, &fakeControl{connector: &controlv1.Connector{Name: "a", Generation: 1}})
	code, stdout, stderr := run("create", "-f", bad, "-f", good, "--coordinator", address)
	if code != exitFailed || !strings.Contains(stdout, "a  created  generation 1") || !strings.Contains(stderr, bad) {
		t.Errorf("exit %d\n%s%s", code, stdout, stderr)
	}
}
