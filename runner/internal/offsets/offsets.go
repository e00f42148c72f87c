// Package offsets keeps a connector's stored offsets: source partition → source offset, in a compacted topic, in Kafka Connect's own form (key ["connector",{partition}], value {offset}), so that
// a connector can move from Kafka Connect to Fencepost and back.
//
// It never writes: Stage makes the records, and the task's publisher writes them last in the transaction that they belong to (I1). It never guesses: an offsets topic that is missing, replaced, unreadable or
// held by an open transaction is an error, and no position is ever taken from anything but committed records (I3, I4).
//
// Where to read next: sharing.go for who reads, ensure.go for the topic, load.go for reading it, store.go for what is read and staged, key.go for the form. runner/internal/publish is the only other package that uses librdkafka.
package offsets

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
)

// Config says whose offsets, and where they are.
type Config struct {
	// Topic is the offsets topic. Required.
	Topic string
	// Connector is the connector's name; other connectors' offsets in the topic are left alone. Required.
	Connector string
	// KnownID is the topic id that was noted when the topic was used before, in hex; empty where it never was.
	KnownID string
	// Client has librdkafka's keys, bootstrap.servers among them; those that don't say how to connect are left out. Required.
	Client map[string]string
	// Warn is told what an operator should look at, in words for users. It may be nil: then it is logged.
	Warn func(text string)
	// Logger may be nil.
	Logger hclog.Logger
}

func (c *Config) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	switch {
	case c.Warn != nil:
		c.Warn(text)
	case c.Logger != nil:
		c.Logger.Warn("offsets topic", "topic", c.Topic, "problem", text)
	}
}

// defaultLimit bounds Open and Peek where their context has no deadline.
const defaultLimit = 60 * time.Second

// pause is between two tries of a request.
const pause = 50 * time.Millisecond

// connectionPrefixes are the beginnings of keys that say how to connect.
var connectionPrefixes = []string{
	"bootstrap.", "metadata.", "security.", "sasl.", "ssl.", "enable.ssl.", "enable.sasl.", "broker.", "client.", "socket.", "reconnect.", "retry.", "connections.", "debug", "https.",
}

// reader is a connection for one Open or Peek.
type reader struct {
	cfg      *Config
	consumer *kafka.Consumer
	admin    *kafka.AdminClient
}

// open makes a reader; it connects on its first request.
func open(cfg *Config) (*reader, error) {
	settings := kafka.ConfigMap{"client.id": "fencepost-offsets", "reconnect.backoff.max.ms": 1000}
	for key, value := range cfg.Client {
		for _, prefix := range connectionPrefixes {
			if strings.HasPrefix(key, prefix) {
				settings[key] = value
			}
		}
	}
	// A group is named because the client insists; it is never joined, and nothing is committed to it.
	settings["group.id"] = "fencepost-offsets"
	settings["enable.auto.commit"] = false
	settings["enable.auto.offset.store"] = false
	settings["auto.offset.reset"] = "error"
	settings["isolation.level"] = "read_committed"
	settings["enable.partition.eof"] = true
	// The end shows only when a fetch comes back empty, which takes this long.
	settings["fetch.wait.max.ms"] = 10
	// I10: what is fetched and not yet looked at.
	settings["queued.max.messages.kbytes"] = 4096
	settings["queued.min.messages"] = 1000
	// How long the client doesn't fetch once so much is waiting. By default that is a second, which a topic with more records than that costs each start of a task.
	settings["fetch.queue.backoff.ms"] = 1
	// Errors come as events; the log would repeat them.
	settings["log_level"] = 2
	consumer, err := kafka.NewConsumer(&settings)
	if err != nil {
		return nil, fmt.Errorf("client for offsets topic %q: %w", cfg.Topic, err)
	}
	admin, err := kafka.NewAdminClientFromConsumer(consumer)
	if err != nil {
		_ = consumer.Close()
		return nil, fmt.Errorf("client for offsets topic %q: %w", cfg.Topic, err)
	}
	return &reader{cfg: cfg, consumer: consumer, admin: admin}, nil
}

func (r *reader) close() {
	r.admin.Close()
	// Nothing was joined and nothing is to be committed, so there is nothing that could fail.
	_ = r.consumer.Close()
}

// bounded gives ctx a deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, defaultLimit)
}

// again repeats a request while its error is one that passes.
func again(ctx context.Context, request func() error) error {
	for {
		err := request()
		if err == nil || publish.Classify(err).Class != publish.RetryCall {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}

// limitOf is what is left of ctx, for requests that take a time-out.
func limitOf(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return defaultLimit
	}
	return max(time.Until(deadline), time.Millisecond)
}

// describe looks the topic up; exists is false where Kafka doesn't know it.
func (r *reader) describe(ctx context.Context) (topic kafka.TopicDescription, exists bool, err error) {
	err = again(ctx, func() error {
		result, err := r.admin.DescribeTopics(ctx, kafka.NewTopicCollectionOfTopicNames([]string{r.cfg.Topic}),
			kafka.SetAdminOptionIncludeAuthorizedOperations(true), kafka.SetAdminRequestTimeout(limitOf(ctx)))
		if err != nil {
			return err
		}
		topic = result.TopicDescriptions[0]
		switch topic.Error.Code() {
		case kafka.ErrNoError:
			exists = true
			return nil
		case kafka.ErrUnknownTopicOrPart:
			return nil
		default:
			return topic.Error
		}
	})
	if err != nil {
		return topic, false, fmt.Errorf("look up offsets topic %q: %w", r.cfg.Topic, err)
	}
	return topic, exists, nil
}

// find is describe for a topic that must be there, with the id that it had. What a broker that is behind says doesn't count, see publish.Known.
func (r *reader) find(ctx context.Context) (topic kafka.TopicDescription, exists bool, err error) {
	return r.known(ctx, nil)
}

// seek is find for a topic that may not be there yet, as nobody minds: who decides which topics there are is asked first.
func (r *reader) seek(ctx context.Context) (topic kafka.TopicDescription, exists bool, err error) {
	return r.known(ctx, r.absent)
}

func (r *reader) known(ctx context.Context, sure func(context.Context) bool) (topic kafka.TopicDescription, exists bool, err error) {
	_, err = publish.Known(ctx, func(ctx context.Context) (bool, error) {
		var err error
		topic, exists, err = r.describe(ctx)
		// A broker that is behind may also know the topic that had the name before.
		return exists && (r.cfg.KnownID == "" || r.cfg.KnownID == idOf(topic)), err
	}, sure)
	if err != nil && !exists && ctx.Err() != nil {
		err = fmt.Errorf("look up offsets topic %q: %w", r.cfg.Topic, err)
	}
	return topic, exists, err
}

// absent asks the cluster's controller, which no broker is ahead of, by a creation that is only checked. False is also where it doesn't say: the right to create the topic may be missing.
func (r *reader) absent(ctx context.Context) bool {
	results, err := r.admin.CreateTopics(ctx, r.specification(), kafka.SetAdminRequestTimeout(limitOf(ctx)), kafka.SetAdminValidateOnly(true))
	return err == nil && results[0].Error.Code() == kafka.ErrNoError
}

// allowed says which right on the topic is missing: a refused write names no topic later. A broker that doesn't say which rights there are gives none.
func allowed(topic kafka.TopicDescription, needed ...kafka.ACLOperation) error {
	have := topic.AuthorizedOperations
	if len(have) == 0 || slices.Contains(have, kafka.ACLOperationAll) {
		return nil
	}
	for _, op := range needed {
		if !slices.Contains(have, op) {
			return fmt.Errorf("look up offsets topic %q: %w", topic.Name, kafka.NewError(kafka.ErrTopicAuthorizationFailed, "no right to "+strings.ToLower(op.String()), false))
		}
	}
	return nil
}

// idOf is a topic id in hex; empty where the broker has none.
func idOf(topic kafka.TopicDescription) string {
	high, low := uint64(topic.TopicID.GetMostSignificantBits()), uint64(topic.TopicID.GetLeastSignificantBits())
	if high == 0 && low == 0 {
		return ""
	}
	return fmt.Sprintf("%016x%016x", high, low)
}

// LostError says that the offsets topic isn't the one in which this connector's offsets were stored. Going on would read the source from its beginning, so an operator decides.
type LostError struct {
	// Topic is its name, KnownID the id that it had.
	Topic, KnownID string
	// FoundID is the id of the topic that has the name now; empty where there is none.
	FoundID string
}

// Error says what happened.
func (e *LostError) Error() string {
	if e.FoundID == "" {
		return fmt.Sprintf("offsets topic %q (id %s) doesn't exist any more", e.Topic, e.KnownID)
	}
	return fmt.Sprintf("offsets topic %q was deleted and created again: its id was %s and is %s", e.Topic, e.KnownID, e.FoundID)
}

// Verdict is publish.Fail.
func (e *LostError) Verdict() publish.Verdict {
	return publish.Verdict{Class: publish.Fail, Cause: publish.CauseOffsets, Text: e.Error() +
		": the stored positions are gone with it, and an operator must decide: restore the topic, or let the connector read its source from the beginning under a new offsets topic"}
}

// HeldError says that the committed end of an offsets partition couldn't be reached in time.
type HeldError struct {
	Topic     string
	Partition int32
	// Position is how far committed records could be read, Target the end that was to be reached.
	Position, Target int64
}

// Error names them all.
func (e *HeldError) Error() string {
	return fmt.Sprintf("offsets topic %q, partition %d: committed records can be read up to %d, and the end is %d: an open transaction holds it", e.Topic, e.Partition, e.Position, e.Target)
}

// Verdict is publish.Again: transactions end, at the latest when they expire.
func (e *HeldError) Verdict() publish.Verdict {
	return publish.Verdict{Class: publish.Again, Cause: publish.CauseOffsets, Text: e.Error() +
		"; it is read again. Where this lasts longer than transaction.timeout.ms, look for the transaction with kafka-transactions.sh find-hanging"}
}

// DamagedError says that a record of this connector can't be understood.
type DamagedError struct {
	Topic     string
	Partition int32
	Offset    int64
	Err       error
}

// Error names the record.
func (e *DamagedError) Error() string {
	return fmt.Sprintf("offsets topic %q, partition %d, record %d is no stored offset: %v", e.Topic, e.Partition, e.Offset, e.Err)
}

// Unwrap is what is wrong with it.
func (e *DamagedError) Unwrap() error { return e.Err }

// Verdict is publish.Fail.
func (e *DamagedError) Verdict() publish.Verdict {
	return publish.Verdict{Class: publish.Fail, Cause: publish.CauseOffsets, Text: e.Error() + ": write a right one under the same key, or a tombstone to start that partition from its beginning"}
}
