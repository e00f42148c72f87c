package fence

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

// TestTimesOfSeveralBrokersAreNotCompared: who leads a partition now, or is the only broker that is up, need not be who wrote what is in it.
func TestTimesOfSeveralBrokersAreNotCompared(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(3))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DisableClientMetrics())
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	f, admin := New(Config{Direct: kafkaclient.NewDirect(cl)}), kadm.NewClient(cl)
	// The fake cluster places partitions as it likes.
	on := map[int32]string{}
	for i := 0; len(on) < 2; i++ {
		name := fmt.Sprint("one-", i)
		on[replicasOf(t, admin, name, 1)[0]] = name
	}
	both := replicasOf(t, admin, "both", 2)
	brokers := slices.Sorted(maps.Keys(on))
	first, other := on[brokers[0]], on[brokers[1]]
	keepers := brokers[:1]
	for name, tc := range map[string]struct {
		topics  []string
		keepers []int32
		want    bool
	}{
		"one broker has all":       {[]string{first}, keepers, true},
		"another has a part":       {[]string{first, other}, keepers, false},
		"a part has two replicas":  {[]string{"both"}, keepers, false},
		"the decision has several": {[]string{"both"}, both, false},
		"it isn't known who has":   {[]string{first}, nil, false},
	} {
		var d decided
		for _, topic := range tc.topics {
			d.partitions = append(d.partitions, kmsg.TxnMetadataValueTopic{Topic: topic, Partitions: []int32{0}})
		}
		one, err := f.oneClock(t.Context(), admin, d, tc.keepers)
		if err != nil || one != tc.want {
			t.Errorf("%s: %v, %v; %v", name, one, err, tc.keepers)
		}
	}
}

// replicasOf makes a topic and says which brokers have it.
func replicasOf(t *testing.T, admin *kadm.Client, topic string, replicas int16) []int32 {
	t.Helper()
	if _, err := admin.CreateTopic(t.Context(), 1, replicas, nil, topic); err != nil {
		t.Fatal(err)
	}
	listed, err := admin.ListTopics(t.Context(), topic)
	if err != nil || len(listed[topic].Partitions[0].Replicas) != int(replicas) {
		t.Fatalf("%+v, %v", listed, err)
	}
	return listed[topic].Partitions[0].Replicas
}
