package fence

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// OpenTransaction is a transaction that is open, or is being ended.
type OpenTransaction struct {
	ID string
	// State is as the transaction coordinator calls it: Ongoing, PrepareCommit, PrepareAbort or PrepareEpochFence.
	State         string
	ProducerID    int64
	ProducerEpoch int16
	// Since is when it began.
	Since time.Time
	// Partitions are those that it has written, as far as the user may see them; of one that is being ended, those whose marker isn't written.
	Partitions []state.TopicPartition
}

// Open lists the transactions that are open or being ended, of ids with a prefix, by id.
func (f *Fencer) Open(ctx context.Context, prefix string) ([]OpenTransaction, error) {
	admin := kadm.NewClient(f.direct.Client())
	listed, err := admin.ListTransactions(ctx, nil, []string{stateOngoing, statePrepareCommit, statePrepareAbort, statePrepareFence})
	if err != nil {
		return nil, fmt.Errorf("list transactions: %w", err)
	}
	var ids []string
	for _, txn := range listed.Sorted() {
		if strings.HasPrefix(txn.TxnID, prefix) {
			ids = append(ids, txn.TxnID)
		}
	}
	if len(ids) == 0 {
		return nil, nil
	}
	described, err := admin.DescribeTransactions(ctx, ids...)
	if err != nil {
		return nil, fmt.Errorf("describe transactions: %w", err)
	}
	var open []OpenTransaction
	for _, d := range described.Sorted() {
		switch {
		case errors.Is(d.Err, kerr.TransactionalIDNotFound), d.Err == nil && len(d.Topics) == 0 && d.State != stateOngoing && !strings.HasPrefix(d.State, "Prepare"):
			continue // it ended meanwhile
		case d.Err != nil:
			return nil, fmt.Errorf("describe the transactions of %q: %w", d.TxnID, d.Err)
		}
		t := OpenTransaction{ID: d.TxnID, State: d.State, ProducerID: d.ProducerID, ProducerEpoch: d.ProducerEpoch}
		if d.StartTimestamp > 0 {
			t.Since = time.UnixMilli(d.StartTimestamp)
		}
		for _, topic := range d.Topics.Sorted() {
			for _, partition := range topic.Partitions {
				t.Partitions = append(t.Partitions, state.TopicPartition{Topic: topic.Topic, Partition: partition})
			}
		}
		open = append(open, t)
	}
	return open, nil
}

// Ends has the high watermarks of topics: what hangs ends there at the latest.
func (f *Fencer) Ends(ctx context.Context, topics ...string) (map[state.TopicPartition]int64, error) {
	slices.Sort(topics)
	listed, err := kadm.NewClient(f.direct.Client()).ListEndOffsets(ctx, slices.Compact(topics)...)
	if err != nil {
		return nil, fmt.Errorf("list high watermarks: %w", err)
	}
	ends := map[state.TopicPartition]int64{}
	listed.Each(func(o kadm.ListedOffset) {
		if o.Err == nil {
			ends[state.TopicPartition{Topic: o.Topic, Partition: o.Partition}] = o.Offset
		}
	})
	return ends, nil
}
