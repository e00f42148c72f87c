// Package puppet is a runner that runs nothing: it speaks the runner's protocol, takes plans and tasks of its connector type "puppet", and says that they run. What a coordinator needs for many connectors
// and tasks is measured with it without the cost of their plugins and producers.
//
// It keeps no promise of a runner's but the protocol's order, and never touches Kafka.
package puppet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// Class is its connector type. A connector of it has as many tasks as tasks.max says.
const Class = "puppet"

const (
	level           = 1
	maxMessageBytes = 20 << 20
)

// Config says who it is.
type Config struct {
	Name        string
	Coordinator string
	// Ended is called after the last task that a runner held was given back, Granted with the first that it is granted then. Either may be nil.
	Ended, Granted func()
}

// Puppet is a connected puppet.
type Puppet struct {
	config Config
	stream grpc.BidiStreamingClient[runnerv1.SessionRequest, runnerv1.SessionResponse]
	conn   *grpc.ClientConn
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu   sync.Mutex
	term uint64
	held map[string]*runnerv1.Lease
	seq  uint64
	err  error
}

// Start connects one. It ends with Stop, or with the context.
func Start(ctx context.Context, config Config) (*Puppet, error) {
	conn, err := grpc.NewClient(config.Coordinator, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessageBytes), grpc.MaxCallSendMsgSize(maxMessageBytes)))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	p := &Puppet{config: config, conn: conn, cancel: cancel, held: map[string]*runnerv1.Lease{}}
	if p.stream, err = runnerv1.NewCoordinatorClient(conn).Session(ctx); err == nil {
		err = p.send(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Hello{Hello: p.hello()}})
	}
	if err == nil {
		err = p.welcome()
	}
	if err != nil {
		p.Stop()
		return nil, fmt.Errorf("puppet %s: %w", config.Name, err)
	}
	return p, nil
}

func (p *Puppet) hello() *runnerv1.Hello {
	about := &pluginv1.DescribeResponse{Name: Class, Version: "1.0.0", Types: []*pluginv1.ConnectorType{{Name: Class}}}
	return &runnerv1.Hello{
		Name: p.config.Name, ProcessId: rand.Text(), Version: "puppet", LevelMin: level, LevelMax: level,
		Offer: &runnerv1.Offer{Plugins: []*runnerv1.PluginInfo{{Description: about, Sha256: "00"}}},
	}
}

// welcome waits for the answer to Hello, and starts what goes on from there.
func (p *Puppet) welcome() error {
	m, err := p.stream.Recv()
	if err != nil {
		return err
	}
	w := m.GetWelcome()
	if w == nil {
		return fmt.Errorf("the coordinator said %v", m)
	}
	p.term = m.GetTerm()
	p.done.Go(p.receive)
	p.done.Go(func() { p.beat(time.Duration(w.GetHeartbeatMs()) * time.Millisecond) })
	return nil
}

// Stop ends it, without a word to the coordinator.
func (p *Puppet) Stop() {
	p.cancel()
	p.done.Wait()
	_ = p.conn.Close()
}

// Held is how many tasks it holds; an error is why it is not connected any more.
func (p *Puppet) Held() (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.held), p.err
}

// Generations says how many tasks it holds of each generation of a connector.
func (p *Puppet) Generations(connector string) map[uint64]int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := map[uint64]int{}
	for _, l := range p.held {
		if l.GetConnector() == connector {
			n[l.GetGeneration()]++
		}
	}
	return n
}

func (p *Puppet) send(m *runnerv1.SessionRequest) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sendLocked(m)
}

func (p *Puppet) sendLocked(m *runnerv1.SessionRequest) error {
	m.Term = p.term
	return p.stream.Send(m)
}

// beat renews the leases until the stream ends.
func (p *Puppet) beat(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-p.stream.Context().Done():
			return
		}
		p.mu.Lock()
		p.seq++
		beat := &runnerv1.Heartbeat{Seq: p.seq}
		for _, l := range p.held {
			beat.Leases = append(beat.Leases, l)
		}
		_ = p.sendLocked(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_Heartbeat{Heartbeat: beat}}) // receive says why
		p.mu.Unlock()
	}
}

// receive does what the coordinator wants until the stream ends.
func (p *Puppet) receive() {
	defer p.cancel()
	for {
		m, err := p.stream.Recv()
		if err == nil {
			if err = p.take(m); err != nil {
				_, err = p.stream.Recv() // a Send says only that the stream has ended
			}
		}
		if err != nil {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.err = err; errors.Is(err, io.EOF) {
				p.err = errors.New("the coordinator ended the session")
			}
			return
		}
	}
}

func (p *Puppet) take(m *runnerv1.SessionResponse) error {
	switch m := m.GetMessage().(type) {
	case *runnerv1.SessionResponse_Validate:
		answer := &runnerv1.ValidateAnswer{RequestId: m.Validate.GetRequestId()}
		return p.send(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_ValidateAnswer{ValidateAnswer: answer}})
	case *runnerv1.SessionResponse_StartPlan:
		result := &runnerv1.PlanResult{Plan: m.StartPlan.GetPlan(), TaskSet: taskSet(int(m.StartPlan.GetTasksMax()))}
		return p.send(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_PlanResult{PlanResult: result}})
	case *runnerv1.SessionResponse_Grant:
		return p.granted(m.Grant.GetLease())
	case *runnerv1.SessionResponse_Revoke:
		return p.revoked(m.Revoke.GetLease())
	}
	return nil
}

// taskSet has n tasks with a partition each.
func taskSet(n int) *pluginv1.TaskSet {
	set := &pluginv1.TaskSet{Version: 1}
	for i := range n {
		partition := fmt.Appendf(nil, `{"puppet":"%d"}`, i)
		set.Tasks = append(set.Tasks, &pluginv1.Task{Claim: &pluginv1.Claim{Rule: &pluginv1.Claim_Set{Set: &pluginv1.Claim_PartitionSet{Partitions: [][]byte{partition}}}}})
	}
	return set
}

func key(l *runnerv1.Lease) string { return l.GetConnector() + "/" + strconv.Itoa(int(l.GetTask())) }

func (p *Puppet) granted(l *runnerv1.Lease) error {
	p.mu.Lock()
	first := len(p.held) == 0
	p.held[key(l)] = l
	status := &runnerv1.TaskStatus{Lease: l, Seq: 1, State: runnerv1.TaskState_TASK_STATE_RUNNING, CaughtUp: true}
	err := p.sendLocked(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskStatus{TaskStatus: status}})
	p.mu.Unlock()
	if first && p.config.Granted != nil {
		p.config.Granted()
	}
	return err
}

func (p *Puppet) revoked(l *runnerv1.Lease) error {
	p.mu.Lock()
	delete(p.held, key(l))
	last := len(p.held) == 0
	err := p.sendLocked(&runnerv1.SessionRequest{Message: &runnerv1.SessionRequest_TaskEnded{TaskEnded: &runnerv1.TaskEnded{Lease: l, Clean: true}}})
	p.mu.Unlock()
	if last && p.config.Ended != nil {
		p.config.Ended()
	}
	return err
}
