package coordinator

import (
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

// KafkaClient makes a client of the cluster from the same keys that a Coordinator takes, for programs that also look at what a coordinator's cluster holds. The error has every mistake, a line each.
func KafkaClient(bootstrap string, kafka map[string]string, extra ...kgo.Opt) (*kgo.Client, error) {
	settings, err := kafkaclient.Parse(bootstrap, kafka)
	if err != nil {
		return nil, err
	}
	return settings.NewClient(extra...)
}
