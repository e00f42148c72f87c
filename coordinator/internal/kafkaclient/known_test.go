package kafkaclient_test

import (
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

// TestOneBrokersWordThatATopicIsGoneDoesntCount: it may be behind the others.
func TestOneBrokersWordThatATopicIsGoneDoesntCount(t *testing.T) {
	const (
		behind = "behind"
		silent = "silent"
	)
	for name, c := range map[string]struct {
		brokers [2]string
		want    map[string]bool
		fails   bool
	}{
		"the first is behind":              {[2]string{behind, ""}, map[string]bool{"there": true}, false},
		"the second is behind":             {[2]string{"", behind}, map[string]bool{"there": true}, false},
		"no broker knows it":               {[2]string{behind, behind}, map[string]bool{}, false},
		"one knows nothing, one is silent": {[2]string{behind, silent}, nil, true},
		"one knows one, one is silent":     {[2]string{silent, ""}, nil, true},
		"nobody answers":                   {[2]string{silent, silent}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(2), kfake.SeedTopics(1, "there"))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.RetryTimeout(200*time.Millisecond), kgo.DisableClientMetrics())
			if err != nil {
				t.Fatal(err)
			}
			defer cl.Close()
			cluster.ControlKey(int16(kmsg.Metadata), func(req kmsg.Request) (kmsg.Response, error, bool) {
				cluster.KeepControl()
				m, is := req.(*kmsg.MetadataRequest)
				switch state := c.brokers[cluster.CurrentNode()]; {
				case !is || len(m.Topics) == 0 || state == "":
					return nil, nil, false
				case state == silent:
					return nil, net.ErrClosed, true
				}
				return knowsNothing(t, cluster, m), nil, true
			})
			if alone, err := kafkaclient.Known(t.Context(), cl, []string{"there"}); c.brokers[1] == "" && (err != nil || !alone["there"]) {
				t.Errorf("what the second knows needs no answer of the first: %v, %v", alone, err)
			}
			known, err := kafkaclient.Known(t.Context(), cl, []string{"there", "gone"})
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, known); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// knowsNothing is the answer of a broker that knows all brokers and none of the topics.
func knowsNothing(t *testing.T, cluster *kfake.Cluster, m *kmsg.MetadataRequest) *kmsg.MetadataResponse {
	resp, _ := m.ResponseKind().(*kmsg.MetadataResponse)
	for node, address := range cluster.ListenAddrs() {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Error(err)
		}
		number, err := strconv.ParseInt(port, 10, 32)
		if err != nil {
			t.Error(err)
		}
		resp.Brokers = append(resp.Brokers, kmsg.MetadataResponseBroker{NodeID: int32(node), Host: host, Port: int32(number)})
	}
	for _, topic := range m.Topics {
		one := kmsg.NewMetadataResponseTopic()
		one.Topic, one.ErrorCode = topic.Topic, kerr.UnknownTopicOrPartition.Code
		resp.Topics = append(resp.Topics, one)
	}
	return resp
}
