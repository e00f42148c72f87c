package configlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
)

const (
	cleanupPolicy   = "cleanup.policy"
	maxMessageBytes = "max.message.bytes"
	// The largest message of the runner protocol is 20 MiB; what a plan says of one task may be nearly that.
	largestBatch = 32 << 20
	// What a batch may have where the topic's limit can't be read: Kafka's default of 1,048,588 less some room.
	cautiousBatch = 1 << 20
	batchOverhead = 128
	// Losing the log is losing every connector, and Kafka's own default is one replica.
	mostReplicas = 3
)

// settings are those of every own topic, so that a log that is written all the time stays short, and its size limit.
var settings = map[string]string{
	cleanupPolicy: "compact", "segment.bytes": "16777216", "segment.ms": "600000", "min.cleanable.dirty.ratio": "0.01",
	"max.compaction.lag.ms": "600000", "delete.retention.ms": "600000", maxMessageBytes: strconv.Itoa(largestBatch),
}

// TopicSettings are those of every topic of Fencepost's own. The map is the caller's.
func TopicSettings() map[string]string {
	own := maps.Clone(settings)
	delete(own, maxMessageBytes)
	return own
}

// ensureTopic creates the topic where it is missing and refuses one that can't hold the log. It returns the most bytes that a batch may have.
func (l *Log) ensureTopic(ctx context.Context) (int, error) {
	admin := kadm.NewClient(l.config.Direct.Client())
	detail, err := l.lookUp(ctx, admin)
	if err != nil {
		return 0, err
	}
	if errors.Is(detail.Err, kerr.UnknownTopicOrPartition) {
		made, err := l.createTopic(ctx, admin)
		if made || err != nil {
			return largestBatch, err
		}
		if detail, err = l.appears(ctx, admin); err != nil {
			return 0, err
		}
	}
	if detail.Err != nil {
		return 0, fmt.Errorf("look up topic %q: %w", l.topic, l.explain(detail.Err))
	}
	if n := len(detail.Partitions); n != 1 {
		return 0, fmt.Errorf("topic %q has %d partitions, the config log has exactly one: it must not have been changed or created by something else; "+
			"give the cluster of coordinators another name, or, where this is no Fencepost cluster yet, delete the topic and start again", l.topic, n)
	}
	return l.checkSettings(ctx, admin)
}

func (l *Log) lookUp(ctx context.Context, admin *kadm.Client) (kadm.TopicDetail, error) {
	listed, err := admin.ListTopics(ctx, l.topic)
	if err != nil {
		return kadm.TopicDetail{}, fmt.Errorf("look up topic %q: %w", l.topic, l.explain(err))
	}
	return listed[l.topic], nil
}

// behindFor is how long a broker may not know a topic that the controller has.
const behindFor = 5 * time.Second

// appears waits until the topic is known to the broker that is asked: somebody else made it, or that broker was behind, and then it may be one that can't hold the log.
func (l *Log) appears(ctx context.Context, admin *kadm.Client) (kadm.TopicDetail, error) {
	ctx, cancel := context.WithTimeout(ctx, behindFor)
	defer cancel()
	for {
		detail, err := l.lookUp(ctx, admin)
		if err != nil || !errors.Is(detail.Err, kerr.UnknownTopicOrPartition) {
			return detail, err
		}
		select {
		case <-ctx.Done():
			return detail, fmt.Errorf("look up topic %q: it is there, and the broker that was asked doesn't know it yet: %w", l.topic, detail.Err)
		case <-time.After(metadataMinAge):
		}
	}
}

// createTopic makes the topic; made is false where it is there already.
func (l *Log) createTopic(ctx context.Context, admin *kadm.Client) (made bool, err error) {
	wanted := make(map[string]*string, len(settings))
	for key, value := range settings {
		wanted[key] = &value
	}
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return false, fmt.Errorf("count the brokers: %w", err)
	}
	_, err = admin.CreateTopic(ctx, 1, int16(min(len(brokers), mostReplicas)), wanted, l.topic)
	if errors.Is(err, kerr.TopicAlreadyExists) { // Two coordinators may start at once.
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create topic %q with one partition and %s: %w", l.topic, describeSettings(), l.explain(err))
	}
	l.log.Info("created the config log", "topic", l.topic)
	return true, nil
}

func describeSettings() string {
	var parts []string
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		parts = append(parts, key+"="+settings[key])
	}
	return strings.Join(parts, ", ")
}

func (l *Log) checkSettings(ctx context.Context, admin *kadm.Client) (int, error) {
	described, err := admin.DescribeTopicConfigs(ctx, l.topic)
	if err == nil && len(described) == 1 {
		err = described[0].Err
	}
	if err != nil {
		// The right to read settings is not needed to lead.
		l.log.Warn("the settings of the config log could not be read", "topic", l.topic, "error", err)
		return cautiousBatch, nil
	}
	actual := map[string]string{}
	for _, c := range described[0].Configs {
		actual[c.Key] = c.MaybeValue()
	}
	if policy := actual[cleanupPolicy]; policy != "compact" {
		return 0, fmt.Errorf("topic %q has cleanup.policy=%s: Kafka would delete parts of the config log; set it by `kafka-configs.sh --alter --entity-type topics --entity-name %s --add-config cleanup.policy=compact`",
			l.topic, policy, l.topic)
	}
	for _, key := range slices.Sorted(maps.Keys(settings)) {
		if value, known := actual[key]; known && value != settings[key] {
			l.log.Warn("the config log has another setting than it should have", "topic", l.topic, "setting", key, "is", value, "should_be", settings[key])
		}
	}
	limit, err := strconv.Atoi(actual[maxMessageBytes])
	if err != nil || limit <= 0 {
		return cautiousBatch, nil //nolint:nilerr // a broker that doesn't tell its limit has the usual one
	}
	return min(limit, largestBatch), nil
}

// explain adds what to do where a right is missing.
func (l *Log) explain(err error) error {
	switch {
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("the coordinator's user needs the rights Describe, Read, Write and Create on topic %q: %w", l.topic, err)
	case errors.Is(err, kerr.ClusterAuthorizationFailed):
		return fmt.Errorf("the coordinator's user needs the right Create on topic %q, or the topic must be created for it: %w", l.topic, err)
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		return fmt.Errorf("the coordinator's user needs the right Read on group %q: %w", l.group, err)
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return fmt.Errorf("session time-out %v is outside the broker's group.min.session.timeout.ms and group.max.session.timeout.ms: %w", l.config.SessionTimeout, err)
	}
	return err
}
