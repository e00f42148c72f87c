package configlog

import (
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

// verdict is what an error of one request means for the write that it is part of.
type verdict struct {
	// final: the write can't succeed under this epoch.
	final bool
	// moved: ask again which broker answers.
	moved bool
	first time.Duration
	max   time.Duration
}

func (v verdict) delay(attempt int) time.Duration { return min(v.first<<min(attempt, 16), v.max) }

// classify is the one place that knows what an error of a write means. What isn't known is final: the next leader finds out what was written.
func classify(err error) verdict {
	if errors.Is(err, errNotReadable) {
		return verdict{first: 500 * time.Microsecond, max: 20 * time.Millisecond}
	}
	var code *kerr.Error
	if !errors.As(err, &code) { // The connection, not the broker.
		return verdict{moved: true, first: 20 * time.Millisecond, max: 250 * time.Millisecond}
	}
	switch code {
	case kerr.ConcurrentTransactions: // The markers of the transaction before are being written.
		return verdict{first: time.Millisecond, max: 20 * time.Millisecond}
	case kerr.CoordinatorLoadInProgress, kerr.CoordinatorNotAvailable, kerr.NotCoordinator, kerr.NotLeaderForPartition, kerr.LeaderNotAvailable, kerr.FencedLeaderEpoch,
		kerr.UnknownLeaderEpoch, kerr.NotEnoughReplicas, kerr.NotEnoughReplicasAfterAppend, kerr.RequestTimedOut, kerr.NetworkException, kerr.KafkaStorageError, kerr.OffsetNotAvailable,
		kerr.UnknownTopicOrPartition:
		return verdict{moved: true, first: 5 * time.Millisecond, max: 250 * time.Millisecond}
	}
	return verdict{final: true}
}
