package kafka_test

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

func TestBrokerKeepsItsDataAndAddress(t *testing.T) {
	ctx := t.Context()
	broker, err := kafka.Start(ctx, kafka.Options{Dir: t.TempDir(), Fast: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Kill)
	admin, err := broker.Admin()
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Close()
	if _, err := admin.CreateTopic(ctx, 1, 1, nil, "kept"); err != nil {
		t.Fatal(err)
	}
	broker.Kill()
	if err := broker.Start(ctx); err != nil {
		t.Fatal(err)
	}
	topics, err := admin.ListTopics(ctx)
	if err != nil || !topics.Has("kept") {
		t.Errorf("topics after a kill and a start: %v, %v", topics.Names(), err)
	}
}

// TestAClusterOutlivesOneOfItsBrokers: any one of three, and the one of two that is no controller.
func TestAClusterOutlivesOneOfItsBrokers(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			ctx := t.Context()
			cluster, err := kafka.StartCluster(ctx, kafka.Options{Dir: t.TempDir(), Fast: true, Brokers: n})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(cluster.Kill)
			admin, err := cluster.Brokers[0].Admin()
			if err != nil {
				t.Fatal(err)
			}
			defer admin.Close()
			if _, err := admin.CreateTopic(ctx, 1, -1, nil, "replicated"); err != nil {
				t.Fatal(err)
			}
			there := func(when string) {
				t.Helper()
				harness.Wait(t, 30*time.Second, "the topic is there "+when, func(ctx context.Context) error {
					topics, err := admin.ListTopics(ctx)
					if err == nil && (!topics.Has("replicated") || len(topics["replicated"].Partitions[0].Replicas) != n) {
						err = fmt.Errorf("topics %v", topics)
					}
					return err
				})
			}
			there("at once")
			last := cluster.Brokers[n-1]
			last.Kill()
			there("while a broker is away")
			if err := last.Start(ctx); err != nil {
				t.Fatal(err)
			}
			if n == 2 {
				return
			}
			cluster.Kill()
			if err := cluster.Start(ctx); err != nil {
				t.Fatal(err)
			}
			there("after all were killed")
		})
	}
}

func TestBrokerWithUsersRefusesStrangers(t *testing.T) {
	broker, err := kafka.Start(t.Context(), kafka.Options{Dir: t.TempDir(), Fast: true, Users: []kafka.User{{Name: "alice", Password: "wonder land"}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(broker.Kill)
	for name, tc := range map[string]struct {
		mechanism sasl.Mechanism
		want      bool
	}{
		"plain":          {plain.Auth{User: "alice", Pass: "wonder land"}.AsMechanism(), true},
		"scram":          {scram.Auth{User: "alice", Pass: "wonder land"}.AsSha256Mechanism(), true},
		"wrong password": {plain.Auth{User: "alice", Pass: "x"}.AsMechanism(), false},
		"no mechanism":   {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			opts := []kgo.Opt{kgo.SeedBrokers(broker.Addr), kgo.RequestRetries(0)}
			if tc.mechanism != nil {
				opts = append(opts, kgo.SASL(tc.mechanism))
			}
			client, err := kgo.NewClient(opts...)
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
			defer cancel()
			_, err = kadm.NewClient(client).ListBrokers(ctx)
			if (err == nil) != tc.want {
				t.Errorf("a request: %v", err)
			}
		})
	}
}
