package offsets

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// ownTopicSettings are those of all topics of Fencepost's own: an active segment is never compacted, so segments are small and short.
var ownTopicSettings = map[string]string{
	"cleanup.policy":            "compact",
	"segment.bytes":             "16777216",
	"segment.ms":                "600000",
	"min.cleanable.dirty.ratio": "0.01",
	"max.compaction.lag.ms":     "600000",
	"delete.retention.ms":       "600000",
}

// ensure makes sure that the offsets topic is there and is the one that was used before. It creates the topic, with one partition and the broker's default replication, only where none was ever
// known; otherwise a missing or replaced topic is a LostError. A topic that is set up otherwise is used as it is, with a warning.
func (r *reader) ensure(ctx context.Context) (topic kafka.TopicDescription, err error) {
	known := r.cfg.KnownID
	look := r.describe
	if known != "" {
		look = r.find
	}
	topic, exists, err := look(ctx)
	switch {
	case err != nil:
		return topic, err
	case exists && known != "" && known != idOf(topic):
		return topic, &LostError{Topic: r.cfg.Topic, KnownID: known, FoundID: idOf(topic)}
	case exists:
		r.checkSettings(ctx)
		return topic, allowed(topic, writing...)
	case known != "":
		return topic, &LostError{Topic: r.cfg.Topic, KnownID: known}
	}
	if err := r.create(ctx); err != nil {
		return topic, fmt.Errorf("create offsets topic %q: %w", r.cfg.Topic, err)
	}
	// The broker that answers next may not have heard of it yet.
	err = again(ctx, func() error {
		topic, exists, err = r.describe(ctx)
		if err == nil && !exists {
			err = kafka.NewError(kafka.ErrLeaderNotAvailable, "it isn't there yet", false)
		}
		return err
	})
	if err == nil {
		err = allowed(topic, writing...)
	}
	return topic, err
}

// writing is what a task may do with its offsets topic.
var writing = []kafka.ACLOperation{kafka.ACLOperationRead, kafka.ACLOperationWrite}

func (r *reader) create(ctx context.Context) error {
	return again(ctx, func() error {
		results, err := r.admin.CreateTopics(ctx, r.specification(), kafka.SetAdminRequestTimeout(limitOf(ctx)))
		if err != nil {
			return err
		}
		// Another task of the connector may have been first.
		if code := results[0].Error.Code(); code != kafka.ErrNoError && code != kafka.ErrTopicAlreadyExists {
			return results[0].Error
		}
		return nil
	})
}

func (r *reader) specification() []kafka.TopicSpecification {
	return []kafka.TopicSpecification{{Topic: r.cfg.Topic, NumPartitions: 1, ReplicationFactor: -1, Config: ownTopicSettings}}
}

// checkSettings only warns: whoever may not see a topic's settings can still use it.
func (r *reader) checkSettings(ctx context.Context) {
	results, err := r.admin.DescribeConfigs(ctx, []kafka.ConfigResource{{Type: kafka.ResourceTopic, Name: r.cfg.Topic}}, kafka.SetAdminRequestTimeout(limitOf(ctx)))
	if err != nil || len(results) != 1 || results[0].Error.Code() != kafka.ErrNoError {
		return
	}
	settings := results[0].Config
	if policy, ok := settings["cleanup.policy"]; ok && !strings.Contains(policy.Value, "compact") {
		r.cfg.warn("offsets topic %q has cleanup.policy=%s: it must be compact, or stored offsets are deleted with time, and the source is read again", r.cfg.Topic, policy.Value)
		return
	}
	var differs []string
	for _, key := range slices.Sorted(maps.Keys(ownTopicSettings)) {
		if entry, ok := settings[key]; ok && entry.Value != ownTopicSettings[key] {
			differs = append(differs, fmt.Sprintf("%s is %s instead of %s", key, entry.Value, ownTopicSettings[key]))
		}
	}
	if len(differs) > 0 && r.cfg.Logger != nil {
		r.cfg.Logger.Info("offsets topic differs from what Fencepost would create", "topic", r.cfg.Topic, "differences", strings.Join(differs, "; "))
	}
}
