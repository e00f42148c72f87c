package harness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/fencepost-io/fencepost/integration/process"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// StartTimeout is how long a process may take until it does its work, on a machine that compiles besides.
const StartTimeout = 30 * time.Second

// Bed is one cluster of Fencepost processes on one broker.
type Bed struct {
	T T
	// Cluster is the cluster's name.
	Cluster string
	// Bootstrap are the brokers' addresses, separated by commas.
	Bootstrap string
	// Admin are those that the test itself and its checks ask: nobody is asked for a password there, and nothing is cut. The same at first.
	Admin string
	// Plugins is the folder of the cluster's plugins. They are its own copies, so that its processes can be told from those of other beds.
	Plugins string
	// Fencepost is the binary.
	Fencepost string
	// Coordinator is the address of the last coordinator that was started, or those of several, separated by commas: runners and commands are told all of them, and Control asks the one that leads.
	Coordinator string

	dir, tmp  string
	processes []*process.Process
	conns     map[string]*grpc.ClientConn
}

// New makes a bed without any process yet. At the end of the test its processes are ended, and where the test failed their logs are shown.
func New(t T, cluster, bootstrap string) *Bed {
	t.Helper()
	return NewWith(t, cluster, bootstrap, Build(t))
}

// NewWith is New with other binaries.
func NewWith(t T, cluster, bootstrap string, binaries *Binaries) *Bed {
	t.Helper()
	b := &Bed{T: t, Cluster: cluster, Bootstrap: bootstrap, Admin: bootstrap, Fencepost: binaries.Fencepost, dir: t.TempDir(), tmp: ShortDir(t), conns: map[string]*grpc.ClientConn{}}
	b.Plugins = filepath.Join(b.dir, "plugins")
	if err := linkAll(binaries.Plugins, b.Plugins); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.end)
	return b
}

// For is the bed for a subtest, which fails by itself. Processes are started by the bed that it was made of.
func (b *Bed) For(t T) *Bed {
	other := *b
	other.T = t
	return &other
}

// linkAll makes a folder with hard links to another one's files: what runs from it can be told apart by its path.
func linkAll(from, to string) error {
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.Link(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())); err != nil {
			return err
		}
	}
	return nil
}

// end kills everything that still runs; what a test says about a stop it says itself.
func (b *Bed) end() {
	for _, p := range b.processes {
		p.Kill()
	}
	if !b.T.Failed() {
		return
	}
	for _, p := range b.processes {
		b.T.Logf("%s (pid %d) ended with %v; its log ends with:\n%s", p.Name, p.PID(), p.State(), p.Tail(40))
	}
}

// StartCoordinator starts a coordinator and waits until it leads.
func (b *Bed) StartCoordinator(args ...string) *process.Process {
	b.T.Helper()
	p := b.LaunchCoordinator(args...)
	Wait(b.T, StartTimeout, "the coordinator leads", func(ctx context.Context) error {
		if !p.Running() {
			return Final(fmt.Errorf("the coordinator ended: %v", p.State()))
		}
		cluster, err := b.Control().GetCluster(ctx, &controlv1.GetClusterRequest{})
		if err == nil && !cluster.GetLeading() {
			err = fmt.Errorf("%q leads", cluster.GetLeader())
		}
		return err
	})
	return p
}

// LaunchCoordinator starts a coordinator and doesn't wait.
func (b *Bed) LaunchCoordinator(args ...string) *process.Process {
	b.T.Helper()
	b.Coordinator = FreeAddress(b.T)
	return b.Start("coordinator", nil, append([]string{"coordinator", "--cluster", b.Cluster, "--bootstrap-servers", b.Bootstrap, "--listen", b.Coordinator}, args...)...)
}

// AddCoordinator starts one more coordinator, which waits until it is elected, and returns its address. From now on all are told of both; runners that were started before know only what the leader told them.
func (b *Bed) AddCoordinator(args ...string) (*process.Process, string) {
	b.T.Helper()
	before := b.Coordinator
	p := b.LaunchCoordinator(args...)
	added := b.Coordinator
	b.Coordinator = before + "," + added
	Wait(b.T, StartTimeout, "the coordinator serves", func(ctx context.Context) error {
		_, err := b.At(added).GetCluster(ctx, &controlv1.GetClusterRequest{})
		return err
	})
	return p, added
}

// RestartCoordinator starts a coordinator again at an address, and doesn't wait.
func (b *Bed) RestartCoordinator(address string, args ...string) *process.Process {
	b.T.Helper()
	return b.Start("coordinator", nil, append([]string{"coordinator", "--cluster", b.Cluster, "--bootstrap-servers", b.Bootstrap, "--listen", address}, args...)...)
}

// StartRunner starts a runner and waits until the leader knows it.
func (b *Bed) StartRunner(name string, env []string, args ...string) *process.Process {
	b.T.Helper()
	p := b.LaunchRunner(name, env, args...)
	b.AwaitRunner(name, p)
	return p
}

// AwaitRunner waits until the leader knows a runner.
func (b *Bed) AwaitRunner(name string, p *process.Process) {
	b.T.Helper()
	Wait(b.T, StartTimeout, "runner "+name+" is connected", func(ctx context.Context) error {
		if !p.Running() {
			return Final(fmt.Errorf("the runner ended: %v", p.State()))
		}
		runners, err := b.Control().ListRunners(ctx, &controlv1.ListRunnersRequest{})
		if err != nil {
			return err
		}
		for _, r := range runners.GetRunners() {
			if r.GetName() == name && r.GetState() == "CONNECTED" {
				return nil
			}
		}
		return fmt.Errorf("runners: %v", runners.GetRunners())
	})
}

// LaunchRunner starts a runner and doesn't wait.
func (b *Bed) LaunchRunner(name string, env []string, args ...string) *process.Process {
	b.T.Helper()
	return b.Start("runner "+name, env, append([]string{
		"runner", "--name", name, "--coordinator", b.Coordinator, "--bootstrap-servers", b.Bootstrap, "--plugin-path", b.Plugins,
	}, args...)...)
}

// Processes are all that were started, in order.
func (b *Bed) Processes() []*process.Process { return b.processes }

// Start starts the binary with any command. Its sockets are below the bed's own folder.
func (b *Bed) Start(name string, env []string, args ...string) *process.Process {
	b.T.Helper()
	return b.start(name, b.Fencepost, env, args...)
}

func (b *Bed) start(name, path string, env []string, args ...string) *process.Process {
	b.T.Helper()
	log := filepath.Join(b.dir, fmt.Sprintf("%d-%s.log", len(b.processes), strings.ReplaceAll(name, " ", "-")))
	p, err := process.Start(process.Spec{Name: name, Path: path, Args: args, Env: append([]string{"TMPDIR=" + b.tmp}, env...), Dir: b.dir, Log: log})
	if err != nil {
		b.T.Fatal(err)
	}
	b.processes = append(b.processes, p)
	return p
}

// Result is what a command printed and how it ended.
type Result struct {
	Stdout, Stderr string
	Code           int
}

// CLI runs a client command to its end.
func (b *Bed) CLI(args ...string) Result {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.T.Context()), 2*time.Minute) // also after the test, to say how it ended
	defer cancel()
	cmd := exec.CommandContext(ctx, b.Fencepost, args...)
	cmd.Dir = b.dir
	cmd.Env = append(os.Environ(), "TMPDIR="+b.tmp, "FENCEPOST_COORDINATOR="+b.Coordinator)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		b.T.Fatalf("fencepost %s: %v", strings.Join(args, " "), err)
	}
	return Result{Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
}

// MustCLI runs a client command that has to work, and returns its stdout.
func (b *Bed) MustCLI(args ...string) string {
	b.T.Helper()
	r := b.CLI(args...)
	if r.Code != 0 {
		b.T.Fatalf("fencepost %s: exit code %d\n%s%s", strings.Join(args, " "), r.Code, r.Stdout, r.Stderr)
	}
	return r.Stdout
}

// ConnectorFile writes a connector's file, as users hand it to create, and returns its path.
func (b *Bed) ConnectorFile(name string, config map[string]string) string {
	b.T.Helper()
	text, err := json.Marshal(map[string]any{"name": name, "config": config})
	if err != nil {
		b.T.Fatal(err)
	}
	path := filepath.Join(b.T.TempDir(), "connector.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		b.T.Fatal(err)
	}
	return path
}

// Create creates a connector by the command line.
func (b *Bed) Create(name string, config map[string]string) {
	b.T.Helper()
	b.MustCLI("create", "-f", b.ConnectorFile(name, config))
	b.Explain(name)
}

// Explain shows what users would see of a connector, where the test fails.
func (b *Bed) Explain(name string) {
	b.T.Helper()
	b.T.Cleanup(func() {
		if b.T.Failed() {
			r := b.CLI("describe", name)
			b.T.Logf("describe %s:\n%s%s", name, r.Stdout, r.Stderr)
		}
	})
}

// Control is a client of the bed's coordinator; where there are several, of the one that leads now, or of the first where none does.
func (b *Bed) Control() controlv1.ControlClient {
	b.T.Helper()
	all := strings.Split(b.Coordinator, ",")
	if len(all) > 1 {
		if leader := b.Leader(b.T.Context()); leader != "" {
			return b.At(leader)
		}
	}
	return b.At(all[0])
}

// Leader is the address of the coordinator that says that it leads; empty where none does. Where several say so, one of them has lost the lead and doesn't know it: the one with the highest term is meant.
func (b *Bed) Leader(ctx context.Context) string {
	b.T.Helper()
	var leader string
	var term uint64
	for _, address := range strings.Split(b.Coordinator, ",") {
		asked, cancel := context.WithTimeout(ctx, leaderTimeout)
		cluster, err := b.At(address).GetCluster(asked, &controlv1.GetClusterRequest{})
		cancel()
		if err == nil && cluster.GetLeading() && (leader == "" || cluster.GetTerm() > term) {
			leader, term = address, cluster.GetTerm()
		}
	}
	return leader
}

// leaderTimeout is how long a coordinator may take to say whether it leads; one that is stopped says nothing.
const leaderTimeout = 500 * time.Millisecond

// At is a client of one coordinator.
func (b *Bed) At(address string) controlv1.ControlClient {
	b.T.Helper()
	conn := b.conns[address]
	if conn == nil {
		// A coordinator that was killed is to be found again soon after it is back.
		redial := grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond}, MinConnectTimeout: time.Second})
		var err error
		if conn, err = grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()), redial); err != nil {
			b.T.Fatal(err)
		}
		b.T.Cleanup(func() { conn.Close() })
		b.conns[address] = conn
	}
	return controlv1.NewControlClient(conn)
}

// Connector asks for a connector as users see it.
func (b *Bed) Connector(ctx context.Context, name string) (*controlv1.Connector, error) {
	resp, err := b.Control().GetConnector(ctx, &controlv1.GetConnectorRequest{Name: name})
	return resp.GetConnector(), err
}

// AwaitState waits until a connector is in one of the states.
func (b *Bed) AwaitState(timeout time.Duration, name string, states ...string) *controlv1.Connector {
	b.T.Helper()
	var c *controlv1.Connector
	Wait(b.T, timeout, fmt.Sprintf("%s is %s", name, strings.Join(states, " or ")), func(ctx context.Context) (err error) {
		c, err = b.Connector(ctx, name)
		if err == nil && !slices.Contains(states, c.GetState()) {
			err = fmt.Errorf("it is %s: %s; tasks %v", c.GetState(), c.GetMessage(), c.GetTasks())
		}
		return err
	})
	return c
}

// AwaitCaughtUp waits until every task of a connector has delivered and committed all that its source has.
func (b *Bed) AwaitCaughtUp(timeout time.Duration, name string) *controlv1.Connector {
	b.T.Helper()
	var c *controlv1.Connector
	Wait(b.T, timeout, name+" has caught up", func(ctx context.Context) (err error) {
		c, err = b.Connector(ctx, name)
		if err != nil {
			return err
		}
		if c.GetState() == "FAILED" {
			return Final(fmt.Errorf("it failed: %s; tasks %v", c.GetMessage(), c.GetTasks()))
		}
		if c.GetState() != "RUNNING" || len(c.GetTasks()) == 0 {
			return fmt.Errorf("it is %s: %s", c.GetState(), c.GetMessage())
		}
		for _, task := range c.GetTasks() {
			if !task.GetCaughtUp() {
				return fmt.Errorf("task %d hasn't: %v", task.GetTask(), task)
			}
		}
		return nil
	})
	return c
}

// FreeAddress is an address of this host that nobody listens on now.
func FreeAddress(t T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// Exists says whether a file is there.
func Exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}
