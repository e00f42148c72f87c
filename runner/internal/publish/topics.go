package publish

import (
	"context"
	"slices"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// TopicInfo says whether records can be written to a topic.
type TopicInfo struct {
	// Exists is false where Kafka doesn't know the topic, or doesn't let the principal know.
	Exists bool
	// Partitions is how many it has.
	Partitions int
	// Err is why records can't be written to it: a right that is missing, a name that isn't allowed. nil for a topic that only doesn't exist.
	Err error
}

// maxTopicsAsked bounds one request.
const maxTopicsAsked = 1000

// Topics looks topics up. A record for a topic that doesn't exist fails only when it times out, so ask before the first record of each. It needs a connection, and no transaction.
func (p *Producer) Topics(ctx context.Context, names []string) (map[string]TopicInfo, error) {
	if err := p.usable(opDescribe); err != nil {
		return nil, err
	}
	admin, err := kafka.NewAdminClientFromProducer(p.client)
	if err != nil {
		return nil, p.wrap(opDescribe, err)
	}
	defer admin.Close()
	infos := make(map[string]TopicInfo, len(names))
	for some := range slices.Chunk(names, maxTopicsAsked) {
		result, err := admin.DescribeTopics(ctx, kafka.NewTopicCollectionOfTopicNames(some),
			kafka.SetAdminOptionIncludeAuthorizedOperations(true), kafka.SetAdminRequestTimeout(requestTimeout(ctx)))
		if err != nil {
			return nil, p.wrap(opDescribe, err)
		}
		for _, topic := range result.TopicDescriptions {
			infos[topic.Name] = p.topicInfo(topic)
		}
	}
	return infos, nil
}

func (p *Producer) topicInfo(topic kafka.TopicDescription) TopicInfo {
	refused := func(err kafka.Error) error {
		e := p.wrap(opDescribe, err)
		e.Topic = topic.Name
		return e
	}
	switch code := topic.Error.Code(); code {
	case kafka.ErrNoError, kafka.ErrLeaderNotAvailable, kafka.ErrListenerNotFound, kafka.ErrReplicaNotAvailable:
	case kafka.ErrUnknownTopicOrPart:
		return TopicInfo{}
	default:
		return TopicInfo{Exists: code != kafka.ErrTopicException && code != kafka.ErrTopicAuthorizationFailed, Err: refused(topic.Error)}
	}
	info := TopicInfo{Exists: true, Partitions: len(topic.Partitions)}
	// A broker without an authorizer, or one that doesn't say, gives all operations or none.
	if len(topic.AuthorizedOperations) > 0 && !slices.Contains(topic.AuthorizedOperations, kafka.ACLOperationWrite) && !slices.Contains(topic.AuthorizedOperations, kafka.ACLOperationAll) {
		info.Err = refused(kafka.NewError(kafka.ErrTopicAuthorizationFailed, "no right to write", false))
	}
	return info
}

// defaultRequestTimeout bounds an admin request where the context has no deadline.
const defaultRequestTimeout = 30 * time.Second

func requestTimeout(ctx context.Context) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Until(deadline), time.Millisecond)
	}
	return defaultRequestTimeout
}
