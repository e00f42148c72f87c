// Package kafka starts and stops real Apache Kafka brokers for tests, benchmarks and `make kafka`.
//
// A broker is one Java process with both roles, on free ports, with its data in a folder of the caller's. Its jars come from Maven (pom.xml here) into bin/kafka-libs,
// or from where FENCEPOST_KAFKA_LIBS points; see libs.go. A broker that Start returned has answered a request.
package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/process"
)

// Options say how to run a broker. The zero value with a Dir runs one without security on free ports.
type Options struct {
	// Dir takes configuration, data and log. A folder that was used before is gone on with.
	Dir string
	// Port of the listener for clients; 0 is a free one.
	Port int
	// Properties are added to the broker's own, or replace them.
	Properties map[string]string
	// Users, where not empty, makes the listener for clients ask for SASL (PLAIN or SCRAM-SHA-256), and an authorizer refuse what no ACL allows.
	Users []User
	// Heap is the Java heap's largest size; empty is 512m.
	Heap string
	// Fast starts quicker and runs slower: right for tests, wrong for benchmarks.
	Fast bool
	// Links are addresses HOST:PORT of proxies that a test can cut. Each has a listener of its own, which tells clients to come by that address and no other: see Broker.Behind. Not together with Users or StartCluster.
	Links []string
	// Clock, where set, is what the broker reads the time from.
	Clock *Clock
	// Brokers is how many brokers StartCluster starts; 0 is 3. Start starts one, whatever this is.
	Brokers int
}

// User is an account of a broker with security.
type User struct{ Name, Password string }

// Broker is a running broker.
type Broker struct {
	// Addr is for clients.
	Addr string
	// AdminAddr never asks who one is, and allows everything. The same as Addr where there is no security.
	AdminAddr string

	opts    Options
	libs    string
	process *process.Process
	// node is its id, from 1 on, and voters are the controllers of its cluster. A broker that isn't one of them is no controller.
	node   int
	voters []string
	// controller is its own address as one, where it is.
	controller string
	// behind are the addresses of the listeners for Options.Links.
	behind []string
}

// Behind is where the proxy of Options.Links[i] has to lead to.
func (b *Broker) Behind(i int) string { return b.behind[i] }

// startTimeout is long: three brokers on a machine that compiles besides take a minute.
const startTimeout = 2 * time.Minute

// Start starts a broker and waits until it answers.
func Start(ctx context.Context, opts Options) (*Broker, error) {
	libs, err := Libs(ctx)
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(portsOfOne + len(opts.Links))
	if err != nil {
		return nil, err
	}
	if opts.Port != 0 {
		ports[0] = opts.Port
	}
	b := newBroker(opts, libs, 1, ports)
	for _, port := range ports[portsOfOne:] {
		b.behind = append(b.behind, address(port))
	}
	b.voters = []string{b.vote()}
	if err := b.configure(ctx); err != nil {
		return nil, err
	}
	return b, b.Start(ctx)
}

// portsOfOne is how many ports a broker needs: for clients, for the test, for controllers.
const portsOfOne = 3

func newBroker(opts Options, libs string, node int, ports []int) *Broker {
	b := &Broker{opts: opts, libs: libs, node: node, Addr: address(ports[0]), controller: address(ports[2])}
	b.AdminAddr = b.Addr
	if len(opts.Users) > 0 {
		b.AdminAddr = address(ports[1])
	}
	return b
}

// vote is the broker as one of the voters.
func (b *Broker) vote() string { return fmt.Sprintf("%d@%s", b.node, b.controller) }

func (b *Broker) votes() bool { return slices.Contains(b.voters, b.vote()) }

// Start starts a broker again, with its data and at its address, after Kill or Stop.
func (b *Broker) Start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if err := b.launch(); err != nil {
		return err
	}
	if err := b.ready(ctx); err != nil {
		b.process.Kill()
		return fmt.Errorf("start the broker: %w; its log ends with:\n%s", err, b.process.Tail(30))
	}
	return nil
}

// launch starts the process and doesn't wait for what it does.
func (b *Broker) launch() error {
	p, err := process.Start(process.Spec{
		Name: "kafka",
		Path: "java",
		Args: b.java("kafka.Kafka", b.path("server.properties")),
		Env:  b.opts.Clock.env(),
		Log:  b.path("broker.log"),
	})
	if err != nil {
		return err
	}
	b.process = p
	return nil
}

// Kill is kill -9.
func (b *Broker) Kill() { b.process.Kill() }

// Stop stops the broker in an orderly way.
func (b *Broker) Stop(ctx context.Context) error { return b.process.Stop(ctx) }

// Process is the broker's process.
func (b *Broker) Process() *process.Process { return b.process }

// Admin is a client that may do everything; the caller closes it.
func (b *Broker) Admin() (*kadm.Client, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(b.AdminAddr))
	if err != nil {
		return nil, err
	}
	return kadm.NewClient(client), nil
}

func (b *Broker) path(name string) string { return filepath.Join(b.opts.Dir, name) }

func (b *Broker) java(class string, args ...string) []string {
	heap := b.opts.Heap
	if heap == "" {
		heap = "512m"
	}
	all := []string{"-Xms256m", "-Xmx" + heap, "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true"}
	if b.opts.Fast {
		all = append(all, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
	} else {
		all = append(all, "-XX:+UseG1GC")
	}
	return append(append(all, "-cp", filepath.Join(b.libs, "*"), class), args...)
}

// configure writes the properties and formats the folder, unless it was formatted before.
func (b *Broker) configure(ctx context.Context) error {
	if err := os.MkdirAll(b.opts.Dir, 0o755); err != nil {
		return fmt.Errorf("broker folder: %w", err)
	}
	props := b.properties()
	var text strings.Builder
	for _, key := range slices.Sorted(maps.Keys(props)) {
		fmt.Fprintf(&text, "%s=%s\n", key, props[key])
	}
	if err := os.WriteFile(b.path("server.properties"), []byte(text.String()), 0o600); err != nil {
		return fmt.Errorf("broker configuration: %w", err)
	}
	if _, err := os.Stat(b.path("data/meta.properties")); err == nil {
		return nil
	}
	args := []string{"format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", b.path("server.properties")}
	for _, u := range b.opts.Users {
		args = append(args, "--add-scram", fmt.Sprintf("SCRAM-SHA-256=[name=%s,password=%s]", u.Name, u.Password))
	}
	p, err := process.Start(process.Spec{Name: "kafka format", Path: "java", Args: b.java("kafka.tools.StorageTool", args...), Log: b.path("format.log")})
	if err != nil {
		return err
	}
	code, err := p.Wait(ctx)
	if err != nil {
		p.Kill()
		return err
	}
	if code != 0 {
		return fmt.Errorf("format the broker's folder: exit code %d:\n%s", code, p.Tail(20))
	}
	return nil
}

func (b *Broker) properties() map[string]string {
	replicas := strconv.Itoa(min(3, max(1, b.opts.Brokers)))
	props := map[string]string{
		"process.roles":                            "broker",
		"node.id":                                  strconv.Itoa(b.node),
		"controller.quorum.voters":                 strings.Join(b.voters, ","),
		"controller.listener.names":                "CONTROLLER",
		"listeners":                                "PLAINTEXT://" + b.Addr,
		"log.dirs":                                 b.path("data"),
		"num.partitions":                           "1",
		"offsets.topic.num.partitions":             "5",
		"offsets.topic.replication.factor":         replicas,
		"default.replication.factor":               replicas,
		"transaction.state.log.num.partitions":     "5",
		"transaction.state.log.replication.factor": replicas,
		"transaction.state.log.min.isr":            "1",
		"group.initial.rebalance.delay.ms":         "0",
		"auto.create.topics.enable":                "false",
		// Ten seconds by default: expired transactions would be noticed late.
		"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000",
	}
	if len(b.opts.Users) > 0 {
		b.secure(props)
	}
	b.link(props)
	if b.votes() {
		props["process.roles"] = "broker,controller"
		props["listeners"] += ",CONTROLLER://" + b.controller
	}
	maps.Copy(props, b.opts.Properties)
	return props
}

// link adds the listeners for Options.Links.
func (b *Broker) link(props map[string]string) {
	if len(b.behind) == 0 {
		return
	}
	advertised, protocols := "PLAINTEXT://"+b.Addr, "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT"
	for i, own := range b.behind {
		props["listeners"] += fmt.Sprintf(",LINK%d://%s", i, own)
		advertised += fmt.Sprintf(",LINK%d://%s", i, b.opts.Links[i])
		protocols += fmt.Sprintf(",LINK%d:PLAINTEXT", i)
	}
	props["advertised.listeners"], props["listener.security.protocol.map"], props["inter.broker.listener.name"] = advertised, protocols, "PLAINTEXT"
}

// secure makes the clients' listener ask who one is. The broker's own traffic, and the test's, goes over a listener that doesn't.
func (b *Broker) secure(props map[string]string) {
	props["listeners"] = "CLIENT://" + b.Addr + ",ADMIN://" + b.AdminAddr
	props["inter.broker.listener.name"] = "ADMIN"
	props["listener.security.protocol.map"] = "CLIENT:SASL_PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT"
	props["sasl.enabled.mechanisms"] = "PLAIN,SCRAM-SHA-256"
	props["authorizer.class.name"] = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
	props["super.users"] = "User:ANONYMOUS"
	plain := "org.apache.kafka.common.security.plain.PlainLoginModule required"
	for _, u := range b.opts.Users {
		plain += fmt.Sprintf(" user_%s=%q", u.Name, u.Password)
	}
	props["listener.name.client.plain.sasl.jaas.config"] = plain + ";"
	props["listener.name.client.scram-sha-256.sasl.jaas.config"] = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
}

// ready waits for an answer to a real request.
func (b *Broker) ready(ctx context.Context) error { return b.knows(ctx, []int32{int32(b.node)}) } //nolint:gosec // a handful

// knows waits until the broker answers, and names these nodes among those that are there.
func (b *Broker) knows(ctx context.Context, nodes []int32) error {
	admin, err := b.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	ask := func() (struct{}, error) {
		if !b.process.Running() {
			return struct{}{}, backoff.Permanent(errors.New("the broker ended"))
		}
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		brokers, err := admin.ListBrokers(ctx)
		for _, node := range nodes {
			if err == nil && !slices.Contains(brokers.NodeIDs(), node) {
				err = fmt.Errorf("broker %d isn't registered yet", node)
			}
		}
		return struct{}{}, err
	}
	_, err = backoff.Retry(ctx, ask, backoff.WithBackOff(backoff.NewConstantBackOff(100*time.Millisecond)), backoff.WithMaxElapsedTime(startTimeout))
	return err
}

func address(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// freePorts finds ports that are free now. Somebody else may take one before the broker does; the start then fails with its log.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("free port: %w", err)
		}
		defer l.Close()
		addr, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return nil, fmt.Errorf("free port: %v is no TCP address", l.Addr())
		}
		ports = append(ports, addr.Port)
	}
	return ports, nil
}
