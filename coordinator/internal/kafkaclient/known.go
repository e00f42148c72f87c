package kafkaclient

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// Known has those of topics that some broker knows. A broker that doesn't may only be behind the others, just after a topic was made or the broker was started, so where something follows from a topic's being gone, each broker is asked.
// One that doesn't answer may know it: that is an error, unless another one does. What a broker doesn't let this user see is known.
//
// A runner's client can't ask each broker: there the word of one has to last, see runner/internal/publish.
func Known(ctx context.Context, cl *kgo.Client, topics []string) (map[string]bool, error) {
	brokers, err := kadm.NewClient(cl).ListBrokers(ctx)
	if err != nil {
		return nil, fmt.Errorf("list brokers: %w", err)
	}
	var (
		wait    sync.WaitGroup
		mu      sync.Mutex
		known   = map[string]bool{}
		trouble []error
	)
	for _, broker := range brokers {
		wait.Go(func() {
			found, err := knownBy(ctx, cl, broker.NodeID, topics)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				trouble = append(trouble, fmt.Errorf("ask broker %d for topics: %w", broker.NodeID, err))
				return
			}
			for _, topic := range found {
				known[topic] = true
			}
		})
	}
	wait.Wait()
	for _, topic := range topics {
		if !known[topic] && len(trouble) > 0 {
			return nil, errors.Join(trouble...)
		}
	}
	return known, nil
}

// knownBy are the topics that one broker knows.
func knownBy(ctx context.Context, cl *kgo.Client, node int32, topics []string) (known []string, err error) {
	req := kmsg.NewPtrMetadataRequest()
	for i := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &topics[i]
		req.Topics = append(req.Topics, topic)
	}
	answer, err := cl.Broker(int(node)).Request(ctx, req)
	if err != nil {
		return nil, err
	}
	resp, ok := answer.(*kmsg.MetadataResponse)
	if !ok {
		return nil, fmt.Errorf("the broker answered with %T", answer)
	}
	for _, topic := range resp.Topics {
		if topic.Topic != nil && topic.ErrorCode != kerr.UnknownTopicOrPartition.Code {
			known = append(known, *topic.Topic)
		}
	}
	return known, nil
}
