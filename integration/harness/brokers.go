package harness

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/integration/kafka"
)

const stopTimeout = 20 * time.Second

// Kfake starts a broker in this process, in memory. It ends with the test.
func Kfake(t T) string {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatalf("kfake: %v", err)
	}
	t.Cleanup(cluster.Close)
	return cluster.ListenAddrs()[0]
}

// Kafka is a real broker that all tests of the run share: a test keeps to its own cluster name and topics.
func Kafka(t T) string {
	t.Helper()
	if run.broker == nil {
		t.Fatal("the package's TestMain doesn't call harness.Main")
	}
	addr, err := run.broker()
	if err != nil {
		t.Fatal(err)
	}
	return addr
}

func startShared() (string, error) {
	broker, err := kafka.Start(context.Background(), kafka.Options{Dir: filepath.Join(run.dir, "kafka"), Fast: true})
	if err != nil {
		return "", err
	}
	run.stop = append(run.stop, broker.Kill)
	return broker.Addr, nil
}

// OwnKafka starts a real broker for one test, which may kill it and start it again.
func OwnKafka(t T, opts kafka.Options) *kafka.Broker {
	t.Helper()
	opts.Dir, opts.Fast = t.TempDir(), true
	broker, err := kafka.Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		broker.Kill()
		if t.Failed() {
			t.Logf("the broker's log ends with:\n%s", broker.Process().Tail(30))
		}
	})
	return broker
}

// Admin is a client of a broker that ends with the test.
func Admin(t T, bootstrap string) *kadm.Client {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return kadm.NewClient(client)
}

// CreateTopic makes a topic.
func CreateTopic(t T, bootstrap, topic string, partitions int32) {
	t.Helper()
	if _, err := Admin(t, bootstrap).CreateTopic(t.Context(), partitions, 1, nil, topic); err != nil {
		t.Fatalf("create topic %s: %v", topic, err)
	}
}

// CreateTopicOn makes a topic that only one broker of a cluster has, with settings of its own.
func CreateTopicOn(t T, bootstrap string, broker int32, topic string, partitions int32, settings map[string]string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(bootstrap, ",")...))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrCreateTopicsRequest()
	want := kmsg.NewCreateTopicsRequestTopic()
	want.Topic, want.NumPartitions, want.ReplicationFactor = topic, -1, -1
	for p := range partitions {
		want.ReplicaAssignment = append(want.ReplicaAssignment, kmsg.CreateTopicsRequestTopicReplicaAssignment{Partition: p, Replicas: []int32{broker}})
	}
	for key, value := range settings {
		want.Configs = append(want.Configs, kmsg.CreateTopicsRequestTopicConfig{Name: key, Value: &value})
	}
	req.Topics = append(req.Topics, want)
	resp, err := req.RequestWith(t.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("create topic %s: %v", topic, err)
	}
}

// ShortDir is a folder with a short name, for sockets: a test's own folders are too long for them.
func ShortDir(t T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "fp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// OwnCluster starts brokers of one cluster for one test, which may kill them and start them again.
func OwnCluster(t T, opts kafka.Options) *kafka.Cluster {
	t.Helper()
	opts.Dir, opts.Fast = t.TempDir(), true
	cluster, err := kafka.StartCluster(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cluster.Kill()
		if t.Failed() {
			for i, broker := range cluster.Brokers {
				t.Logf("the log of broker %d ends with:\n%s", i+1, broker.Process().Tail(20))
			}
		}
	})
	return cluster
}
