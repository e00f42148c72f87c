package history

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/configlog"
)

const (
	partition    = 0
	mostReplicas = 3
	// metadataMinAge is how soon a topic that is just being created is looked for again.
	metadataMinAge = 250 * time.Millisecond
)

// read reads the newest record of each key, oldest first. A topic that isn't there is made.
func (h *History) read(ctx context.Context) ([]entry, error) {
	ctx, cancel := context.WithTimeout(ctx, readWithin)
	defer cancel()
	client, err := h.config.Settings.NewClient(kgo.KeepControlRecords(), kgo.MetadataMinAge(metadataMinAge))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	made, err := h.ensure(ctx, admin)
	if err != nil || made {
		return nil, err
	}
	start, end, err := h.span(ctx, admin)
	if err != nil || start >= end {
		return nil, err
	}
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{h.topic: {partition: kgo.NewOffset().At(start)}})
	newest := newNewest()
	for next := start; next < end; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err0(); err != nil {
			return nil, fmt.Errorf("read topic %q: %w", h.topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			next = r.Offset + 1
			if r.Offset < end && !r.Attrs.IsControl() {
				newest.add(r.Key, r.Value)
			}
		})
		if err := fetches.Err(); err != nil && fetches.NumRecords() == 0 {
			return nil, fmt.Errorf("read topic %q: %w", h.topic, err)
		}
	}
	if newest.foreign > 0 {
		h.log.Warn("records of another form are left out", "topic", h.topic, "records", newest.foreign)
	}
	return newest.list(), nil
}

// span is what is read: the end of the topic, and not more than mostRead records before it.
func (h *History) span(ctx context.Context, admin *kadm.Client) (start, end int64, err error) {
	starts, err := admin.ListStartOffsets(ctx, h.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("look up topic %q: %w", h.topic, err)
	}
	ends, err := admin.ListEndOffsets(ctx, h.topic)
	if err != nil {
		return 0, 0, fmt.Errorf("look up topic %q: %w", h.topic, err)
	}
	first, _ := starts.Lookup(h.topic, partition)
	last, _ := ends.Lookup(h.topic, partition)
	if err := errors.Join(first.Err, last.Err); err != nil {
		return 0, 0, fmt.Errorf("look up topic %q: %w", h.topic, err)
	}
	return max(first.Offset, last.Offset-mostRead), last.Offset, nil
}

// newest has the newest record of each key, in the order of their first.
type newest struct {
	at      map[string]int
	entries []entry
	foreign int
}

func newNewest() *newest { return &newest{at: map[string]int{}} }

func (n *newest) add(key, value []byte) {
	e, ours := parse(string(key), value)
	if !ours {
		n.foreign++
		return
	}
	i, again := n.at[e.key]
	switch {
	case !again:
		n.at[e.key] = len(n.entries)
		n.entries = append(n.entries, e)
	case e.value == nil, e.term >= n.entries[i].term: // A leader that was replaced may have had something on its way.
		n.entries[i] = e
	}
}

func (n *newest) list() []entry {
	return slices.DeleteFunc(n.entries, func(e entry) bool { return e.value == nil })
}

// ensure makes the topic where it is missing, and reports one that differs.
func (h *History) ensure(ctx context.Context, admin *kadm.Client) (made bool, err error) {
	listed, err := admin.ListTopics(ctx, h.topic)
	if err != nil {
		return false, fmt.Errorf("look up topic %q: %w", h.topic, err)
	}
	detail := listed[h.topic]
	switch {
	case errors.Is(detail.Err, kerr.UnknownTopicOrPartition):
		return h.create(ctx, admin)
	case detail.Err != nil:
		return false, h.explain(fmt.Errorf("look up topic %q: %w", h.topic, detail.Err))
	}
	if n := len(detail.Partitions); n != 1 {
		h.log.Warn("the topic has more partitions than the one that is used", "topic", h.topic, "partitions", n)
	}
	h.check(ctx, admin)
	return false, nil
}

func (h *History) create(ctx context.Context, admin *kadm.Client) (made bool, err error) {
	wanted := map[string]*string{}
	for key, value := range configlog.TopicSettings() {
		wanted[key] = &value
	}
	brokers, err := admin.ListBrokers(ctx)
	if err != nil {
		return false, fmt.Errorf("count the brokers: %w", err)
	}
	_, err = admin.CreateTopic(ctx, 1, int16(min(len(brokers), mostReplicas)), wanted, h.topic)
	if errors.Is(err, kerr.TopicAlreadyExists) { // The client may have remembered that it wasn't there.
		return false, nil
	}
	if err != nil {
		return false, h.explain(fmt.Errorf("create topic %q: %w", h.topic, err))
	}
	h.log.Info("created the topic for what happens to connectors", "topic", h.topic)
	return true, nil
}

// check says what differs from the settings of own topics. The right to read them isn't needed.
func (h *History) check(ctx context.Context, admin *kadm.Client) {
	described, err := admin.DescribeTopicConfigs(ctx, h.topic)
	if err != nil || len(described) != 1 || described[0].Err != nil {
		return
	}
	actual := map[string]string{}
	for _, c := range described[0].Configs {
		actual[c.Key] = c.MaybeValue()
	}
	wanted := configlog.TopicSettings()
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		if value, known := actual[key]; known && value != wanted[key] {
			h.log.Warn("the topic has another setting than it should have", "topic", h.topic, "setting", key, "is", value, "should_be", wanted[key])
		}
	}
}

// explain adds what to do where a right is missing.
func (h *History) explain(err error) error {
	if errors.Is(err, kerr.TopicAuthorizationFailed) || errors.Is(err, kerr.ClusterAuthorizationFailed) {
		return fmt.Errorf("the coordinator's user needs the rights Describe, Read, Write and Create on topic %q: %w", h.topic, err)
	}
	return err
}
