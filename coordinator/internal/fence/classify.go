package fence

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	// The broker is done with a transaction's markers in milliseconds.
	firstBusyDelay = 2 * time.Millisecond
	maxBusyDelay   = 50 * time.Millisecond
	// A broker that is away comes back in seconds.
	firstAwayDelay = 20 * time.Millisecond
	maxAwayDelay   = 500 * time.Millisecond
)

// verdict is what an error of one attempt means.
type verdict struct {
	// final: asking again gives the same answer until a person does something.
	final bool
	// moved: the broker isn't the id's coordinator any more, or never was.
	moved bool
	first time.Duration
	max   time.Duration
}

func (v verdict) delay(attempt int) time.Duration {
	return min(v.first<<min(attempt, 16), v.max)
}

var (
	busy = verdict{first: firstBusyDelay, max: maxBusyDelay}
	away = verdict{first: firstAwayDelay, max: maxAwayDelay, moved: true}
)

// classify is the one place that knows what an error of DescribeTransactions or InitProducerId means. Whatever isn't known is asked again: a round is superseded, never failed by accident.
func classify(err error) verdict {
	if errors.Is(err, errDeciding) {
		return busy
	}
	var code *kerr.Error
	if !errors.As(err, &code) {
		return away
	}
	switch code {
	case kerr.ConcurrentTransactions, kerr.CoordinatorLoadInProgress, kerr.ProducerFenced, kerr.InvalidProducerEpoch:
		return busy
	case kerr.NotCoordinator, kerr.CoordinatorNotAvailable:
		return verdict{first: firstBusyDelay, max: maxBusyDelay, moved: true}
	case kerr.TransactionalIDAuthorizationFailed, kerr.ClusterAuthorizationFailed, kerr.InvalidTransactionTimeout, kerr.UnsupportedVersion:
		return verdict{final: true}
	}
	return away
}

// Refused is an answer of the broker that stays the same until a person does something.
type Refused struct {
	// ID is the transactional id.
	ID string
	// Reason names the id and what is missing, for users.
	Reason string
	cause  error
}

// Error is the reason.
func (r *Refused) Error() string { return r.Reason }

// Unwrap is the broker's answer.
func (r *Refused) Unwrap() error { return r.cause }

func (f *Fencer) refused(id string, err error) *Refused {
	reason := fmt.Sprintf("the broker refuses the transactional id %q: %v", id, err)
	switch {
	case errors.Is(err, kerr.TransactionalIDAuthorizationFailed):
		reason = fmt.Sprintf("the coordinator may not use the transactional id %q: grant its user the rights Describe and Write on TransactionalId, best for the prefix %q (PREFIXED)", id, prefix(id))
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		reason = fmt.Sprintf("the coordinator may not initialise the transactional id %q: grant its user the right IdempotentWrite on the cluster", id)
	case errors.Is(err, kerr.InvalidTransactionTimeout):
		reason = fmt.Sprintf("the transactional id %q can't be initialised with a transaction time-out of %v: the broker's transaction.max.timeout.ms is below that; raise it to at least %d", id, f.timeout, f.timeout.Milliseconds())
	case errors.Is(err, kerr.UnsupportedVersion):
		reason = fmt.Sprintf("the broker is too old to fence the transactional id %q: it needs DescribeTransactions, which Apache Kafka has from 3.0 on", id)
	}
	return &Refused{ID: id, Reason: reason, cause: err}
}

// prefix of an id is what all ids of its cluster begin with: "fencepost.<cluster>.".
func prefix(id string) string {
	parts := strings.SplitN(id, ".", 3)
	if len(parts) < 3 {
		return id
	}
	return parts[0] + "." + parts[1] + "."
}

// ended says that ctx ended an operation, and not the broker.
func ended(ctx context.Context) bool { return ctx.Err() != nil }
