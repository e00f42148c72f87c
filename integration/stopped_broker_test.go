package integration

import (
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/kafka"
)

// TestHangingPartsOfOneTransactionGoTheSameWay: a single broker is stopped, with SIGTERM, while ten tasks commit, and is away until every open transaction has expired. It calls commits complete whose markers it never wrote, and the
// abort of the transaction that each of these ids had begun meanwhile deletes the parts that it names. What is left hanging of the commit has to go the same way as its offsets.
func TestHangingPartsOfOneTransactionGoTheSameWay(t *testing.T) {
	t.Parallel()
	rounds := 1
	if full() {
		rounds = 10
	}
	for range rounds {
		stoppedUnderCommits(t)
	}
}

func stoppedUnderCommits(t *testing.T) {
	broker := harness.OwnKafka(t, kafka.Options{})
	bed := harness.New(t, "stopped-broker", broker.Addr)
	load := numbers{topic: "stopped-broker.numbers", count: 3000, partitions: 10, tasks: 10, transaction: 5, rate: 20}
	harness.CreateTopic(t, bed.Bootstrap, load.topic, 3)
	bed.StartCoordinator("--lease-ttl", "2s")
	bed.StartRunner("runner", nil)
	config := load.config()
	config["producer.override.transaction.timeout.ms"] = "8000"
	bed.Create("numbers", config)
	awaitRecords(bed, "numbers", 300)
	if err := broker.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-time.After(9 * time.Second) // an outage has a length
	if err := broker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	load.arrived(t, bed.Bootstrap)
	load.exact(t, bed.Bootstrap, offsetsTopic(bed, "numbers"), "numbers")
	bed.StopAll()
	broker.Kill()
}
