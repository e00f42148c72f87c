package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
	"github.com/fencepost-io/fencepost/integration/process"
)

// acl is one thing that a user may do.
type acl struct {
	user     string
	resource kmsg.ACLResourceType
	name     string // a prefix
	ops      []kmsg.ACLOperation
}

const (
	topicACL = kmsg.ACLResourceTypeTopic
	groupACL = kmsg.ACLResourceTypeGroup
	txnACL   = kmsg.ACLResourceTypeTransactionalId
)

var (
	read   = kmsg.ACLOperationRead
	write  = kmsg.ACLOperationWrite
	create = kmsg.ACLOperationCreate

	configs = kmsg.ACLOperationDescribeConfigs
)

// rights are what Fencepost needs, no more: docs/kafka-rights.md says the same in words.
func rights(cluster, output string) []acl {
	return []acl{
		{"coordinator", topicACL, cluster + ".", []kmsg.ACLOperation{read, write, create, configs}},
		{"coordinator", groupACL, cluster + ".", []kmsg.ACLOperation{read}},
		{"coordinator", txnACL, "fencepost." + cluster, []kmsg.ACLOperation{write}},
		{"coordinator", topicACL, output, []kmsg.ACLOperation{read}},
		{"runner", topicACL, cluster + ".offsets.", []kmsg.ACLOperation{read, write, create, configs}},
		{"runner", txnACL, "fencepost." + cluster + ".", []kmsg.ACLOperation{write}},
		{"runner", topicACL, output, []kmsg.ACLOperation{write}},
	}
}

// secured is a bed on a broker that asks who one is, and allows what ACLs allow.
type secured struct {
	*harness.Bed
	t      *testing.T
	broker *kafka.Broker
}

func newSecured(t *testing.T, broker *kafka.Broker, cluster string) *secured {
	t.Helper()
	bed := harness.New(t, cluster, broker.Addr)
	bed.Admin = broker.AdminAddr
	return &secured{Bed: bed, t: t, broker: broker}
}

// change makes ACLs, or takes them away.
func (s *secured) change(allow bool, acls ...acl) {
	s.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(s.broker.AdminAddr))
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	for _, a := range acls {
		for _, op := range a.ops {
			if allow {
				err = createACL(s.t.Context(), client, a, op)
			} else {
				err = deleteACL(s.t.Context(), client, a, op)
			}
			if err != nil {
				s.t.Fatalf("%v %v: %v", a, op, err)
			}
		}
	}
}

func createACL(ctx context.Context, client *kgo.Client, a acl, op kmsg.ACLOperation) error {
	req := kmsg.NewPtrCreateACLsRequest()
	creation := kmsg.NewCreateACLsRequestCreation()
	creation.ResourceType, creation.ResourceName, creation.ResourcePatternType = a.resource, a.name, kmsg.ACLResourcePatternTypePrefixed
	creation.Principal, creation.Host, creation.Operation, creation.PermissionType = "User:"+a.user, "*", op, kmsg.ACLPermissionTypeAllow
	req.Creations = append(req.Creations, creation)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.Results[0].ErrorCode)
}

func deleteACL(ctx context.Context, client *kgo.Client, a acl, op kmsg.ACLOperation) error {
	req := kmsg.NewPtrDeleteACLsRequest()
	filter := kmsg.NewDeleteACLsRequestFilter()
	filter.ResourceType, filter.ResourceName, filter.ResourcePatternType = a.resource, kmsg.StringPtr(a.name), kmsg.ACLResourcePatternTypePrefixed
	filter.Principal, filter.Operation, filter.PermissionType = kmsg.StringPtr("User:"+a.user), op, kmsg.ACLPermissionTypeAllow
	req.Filters = append(req.Filters, filter)
	resp, err := req.RequestWith(ctx, client)
	if err != nil {
		return err
	}
	if n := len(resp.Results[0].MatchingACLs); n != 1 {
		return fmt.Errorf("%d rights taken away, want 1", n)
	}
	return kerr.ErrorForCode(resp.Results[0].ErrorCode)
}

// config writes a configuration file with a user's credentials.
func (s *secured) config(user, mechanism string) string {
	s.t.Helper()
	path := filepath.Join(s.t.TempDir(), user+".yaml")
	text := fmt.Sprintf("kafka:\n  security.protocol: SASL_PLAINTEXT\n  sasl.mechanism: %s\n  sasl.username: %s\n  sasl.password: %s\n", mechanism, user, secretOf(user))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
	return path
}

func secretOf(user string) string { return user + "-s3cret" }

func securedBroker(t *testing.T) *kafka.Broker {
	t.Helper()
	var users []kafka.User
	for _, name := range []string{"coordinator", "runner", "dev"} {
		users = append(users, kafka.User{Name: name, Password: secretOf(name)})
	}
	return harness.OwnKafka(t, kafka.Options{Users: users})
}

// TestRights runs on a broker with SASL and an authorizer. With the rights that the documentation lists everything works; without any one of them the error names the resource and the right,
// where the user looks.
func TestRights(t *testing.T) {
	broker := securedBroker(t)
	t.Run("enough", func(t *testing.T) {
		s := newSecured(t, broker, "rights")
		load := numbers{topic: "rights-numbers", count: 1000, partitions: 2, tasks: 2, transaction: 100}
		harness.CreateTopic(t, broker.AdminAddr, load.topic, 2)
		s.change(true, rights(s.Cluster, load.topic)...)
		s.StartCoordinator("--config", s.config("coordinator", "PLAIN"))
		s.StartRunner("runner", nil, "--config", s.config("runner", "SCRAM-SHA-256"))
		s.Create("numbers", load.config())
		s.AwaitCaughtUp(time.Minute, "numbers")
		load.exact(t, broker.AdminAddr, offsetsTopic(s.Bed, "numbers"), "numbers")
		s.MustCLI("stop", "numbers")
	})
	t.Run("dev", func(t *testing.T) {
		s := newSecured(t, broker, "rights-dev")
		load := numbers{topic: "rights-dev-numbers", count: 100, partitions: 1, tasks: 1, transaction: 10}
		harness.CreateTopic(t, broker.AdminAddr, load.topic, 1)
		for _, a := range rights(s.Cluster, load.topic) {
			a.user = "dev"
			s.change(true, a)
		}
		s.MustCLI("dev", "--once", "-f", s.ConnectorFile("numbers", load.config()), "--plugin-path", s.Plugins, "--cluster", s.Cluster,
			"--bootstrap-servers", broker.Addr, "--config", s.config("dev", "SCRAM-SHA-256"))
		load.exact(t, broker.AdminAddr, offsetsTopic(s.Bed, "numbers"), "numbers")
	})
	t.Run("wrong password", func(t *testing.T) {
		s := newSecured(t, broker, "rights-password")
		path := s.config("coordinator", "PLAIN")
		if err := os.WriteFile(path, []byte("kafka:\n  security.protocol: SASL_PLAINTEXT\n  sasl.mechanism: PLAIN\n  sasl.username: coordinator\n  sasl.password: WR0NG\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		p := s.LaunchCoordinator("--config", path)
		harness.Wait(t, time.Minute, "the log says why", func(context.Context) error {
			if log := strings.ToLower(p.Tail(50)); !strings.Contains(log, "authentication") && !strings.Contains(log, "password") {
				return fmt.Errorf("it says %s", log)
			}
			return nil
		})
		if strings.Contains(p.Tail(1000), "WR0NG") {
			t.Error("the log shows the password")
		}
	})
}

// TestMissingRight takes one right away after the other.
func TestMissingRight(t *testing.T) {
	broker := securedBroker(t)
	for i, tc := range []struct {
		name    string
		without acl
		// says is what the error has to name.
		says []string
		// later: the right is missed only when there is something to read.
		later bool
	}{
		{"runner/write-topic", acl{"runner", topicACL, "OUTPUT", []kmsg.ACLOperation{write}}, []string{"OUTPUT", "Write"}, false},
		{"runner/write-id", acl{"runner", txnACL, "fencepost.CLUSTER.", []kmsg.ACLOperation{write}}, []string{"fencepost.CLUSTER.numbers.0", "Write"}, false},
		{"runner/write-offsets", acl{"runner", topicACL, "CLUSTER.offsets.", []kmsg.ACLOperation{write}}, []string{"CLUSTER.offsets.numbers", "Write"}, false},
		{"runner/read-offsets", acl{"runner", topicACL, "CLUSTER.offsets.", []kmsg.ACLOperation{read}}, []string{"CLUSTER.offsets.numbers", "Read"}, true},
		{"runner/create-offsets", acl{"runner", topicACL, "CLUSTER.offsets.", []kmsg.ACLOperation{create}}, []string{"CLUSTER.offsets.numbers", "Create"}, false},
		{"coordinator/write-id", acl{"coordinator", txnACL, "fencepost.CLUSTER", []kmsg.ACLOperation{write}}, []string{"fencepost.CLUSTER", "Write"}, false},
		{"coordinator/create-log", acl{"coordinator", topicACL, "CLUSTER.", []kmsg.ACLOperation{create}}, []string{"CLUSTER.config", "Create"}, false},
		{"coordinator/write-log", acl{"coordinator", topicACL, "CLUSTER.", []kmsg.ACLOperation{write}}, []string{"CLUSTER.config", "Write"}, false},
		{"coordinator/read-group", acl{"coordinator", groupACL, "CLUSTER.", []kmsg.ACLOperation{read}}, []string{"CLUSTER.coordinator", "Read"}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cluster := fmt.Sprintf("lacks-%d", i) // a name without the words that the errors have to say
			s := newSecured(t, broker, cluster)
			load := numbers{topic: cluster + "-numbers", count: 100, partitions: 1, tasks: 1, transaction: 10}
			fill := strings.NewReplacer("CLUSTER", cluster, "OUTPUT", load.topic)
			tc.without.name = fill.Replace(tc.without.name)
			harness.CreateTopic(t, broker.AdminAddr, load.topic, 1)
			s.change(true, rights(cluster, load.topic)...)
			if !tc.later {
				s.change(false, tc.without)
			}
			coordinator := s.LaunchCoordinator("--config", s.config("coordinator", "SCRAM-SHA-256"))
			s.LaunchRunner("runner", nil, "--config", s.config("runner", "PLAIN"))
			file := s.ConnectorFile("numbers", load.config())
			if tc.later {
				harness.Wait(t, time.Minute, "the connector is there", func(context.Context) error {
					if r := s.CLI("apply", "-f", file); r.Code != 0 {
						return errors.New(r.Stderr)
					}
					return nil
				})
				s.AwaitCaughtUp(time.Minute, "numbers")
				s.change(false, tc.without)
				s.MustCLI("restart", "numbers")
			}
			harness.Wait(t, time.Minute, "the error names the resource and the right", func(context.Context) error {
				said := warnings(coordinator)
				if tc.without.user == "runner" {
					r := s.CLI("apply", "-f", file)
					said = r.Stderr + problems(t, s.Bed, "numbers")
				}
				for _, word := range tc.says {
					if !strings.Contains(strings.ToLower(said), strings.ToLower(fill.Replace(word))) {
						return fmt.Errorf("%q isn't in: %s", fill.Replace(word), said)
					}
				}
				return nil
			})
			s.change(true, tc.without) // and then it goes on, without anybody's help or after a restart of the connector
			harness.Wait(t, time.Minute, "it works once the right is there", func(ctx context.Context) error {
				s.CLI("apply", "-f", file)
				c, err := s.Connector(ctx, "numbers")
				if err == nil && c.GetState() == "FAILED" {
					s.CLI("restart", "numbers", "--only-failed")
				}
				if err == nil && (c.GetState() != "RUNNING" || len(c.GetTasks()) == 0 || !c.GetTasks()[0].GetCaughtUp()) {
					err = fmt.Errorf("%s: %s", c.GetState(), c.GetMessage())
				}
				return err
			})
			load.exact(t, broker.AdminAddr, offsetsTopic(s.Bed, "numbers"), "numbers")
		})
	}
}

// warnings are the lines of a log that say that something is wrong.
func warnings(p *process.Process) string {
	var lines []string
	for line := range strings.Lines(p.Tail(200)) {
		if strings.Contains(line, "[WARN]") || strings.Contains(line, "[ERROR]") {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "")
}

// problems is what is wrong with a connector, as users see it: its message, and the last error of each task.
func problems(t *testing.T, bed *harness.Bed, connector string) string {
	t.Helper()
	c, err := bed.Connector(t.Context(), connector)
	if err != nil {
		return err.Error()
	}
	lines := []string{c.GetMessage()}
	for _, task := range c.GetTasks() {
		lines = append(lines, task.GetError())
	}
	return strings.Join(lines, "\n")
}
