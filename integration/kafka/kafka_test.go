package kafka_test

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl"
	"github.com/twmb/franz-go/pkg/sasl/plain"
	"github.com/twmb/franz-go/pkg/sasl/scram"

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
