package scene

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/integration/reader"
)

// fillers is how many transactions Fill has open at once.
const fillers = 24

// Fill makes the offsets topic of a stopped connector as long as that many more commits would: each is a transaction with the record of an offset, as it is stored already, and leaves a marker behind. Tasks would take minutes
// for a hundred thousand of them.
func (w *Watched) Fill(commits int) {
	w.scene.T.Helper()
	topic := w.State().GetOffsetsTopic()
	var last *kgo.Record
	err := reader.Topic(w.scene.T.Context(), w.scene.Admin, topic, func(r *kgo.Record) error {
		last = r
		return nil
	})
	if err == nil && last == nil {
		err = fmt.Errorf("%s is empty", topic)
	}
	if err == nil {
		group, ctx := errgroup.WithContext(w.scene.T.Context())
		for n := range fillers {
			group.Go(func() error { return w.fill(ctx, n, commits/fillers, last) })
		}
		err = group.Wait()
	}
	if err != nil {
		w.scene.T.Fatalf("fill %s: %v", topic, err)
	}
}

func (w *Watched) fill(ctx context.Context, n, commits int, like *kgo.Record) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(w.scene.Admin), kgo.TransactionalID(fmt.Sprintf("fill.%s.%s.%d", w.scene.Cluster, w.Name, n)), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerLinger(0))
	if err != nil {
		return err
	}
	defer client.Close()
	for range commits {
		if err := client.BeginTransaction(); err != nil {
			return err
		}
		r := &kgo.Record{Topic: like.Topic, Partition: like.Partition, Key: like.Key, Value: like.Value}
		if err := client.ProduceSync(ctx, r).FirstErr(); err != nil {
			return err
		}
		if err := client.EndTransaction(ctx, kgo.TryCommit); err != nil {
			return err
		}
	}
	return nil
}
