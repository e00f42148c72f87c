package state

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/assign"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// Keys of a connector's configuration that the coordinator reads. All others are for the runner and the plugin.
const (
	keyClass           = "connector.class"
	keyTasksMax        = "tasks.max"
	keyPluginVersion   = "plugin.version"
	keyPluginSHA256    = "plugin.sha256"
	keyOffsetsTopic    = "offsets.storage.topic"
	keyGuarantee       = "delivery.guarantee"
	keyPlacementLabels = "placement.labels"
	keyPlacementPrefer = "placement.prefer"
	keyPlacementSpread = "placement.spread"
)

const (
	mostTasks = 10_000
	// mostConfigBytes is the most that a configuration, or what a plan says of one task, may take: a record of the log is to stay well below Kafka's default limit of 1 MiB.
	mostConfigBytes = 256 << 10
)

// settings are what the coordinator reads of a configuration.
type settings struct {
	need         assign.Need
	tasksMax     uint32
	offsetsTopic string
	// plain is 0 under exactly-once. Under at-least-once it is the message time-out of the plain producers: how long one may go on to send what it has, and nobody can fence it.
	plain time.Duration
}

// Values of delivery.guarantee. This version's runners refuse the second; the core knows what it means.
const (
	exactlyOnce = "exactly-once"
	atLeastOnce = "at-least-once"
)

// plainMessageTimeout is librdkafka's default of message.timeout.ms.
const plainMessageTimeout = 5 * time.Minute

// parse reads a configuration. The runner that validated it has checked these keys too, so that problems here mean that nobody asked it.
func parse(config map[string]string) (settings, []*pluginv1.Problem) {
	var problems []*pluginv1.Problem
	wrong := func(key, format string, args ...any) {
		problems = append(problems, &pluginv1.Problem{Key: key, Message: fmt.Sprintf(format, args...)})
	}
	s := settings{tasksMax: 1, offsetsTopic: config[keyOffsetsTopic], need: assign.Need{
		Type: config[keyClass], Version: config[keyPluginVersion], SHA256: config[keyPluginSHA256],
	}}
	if s.need.Type == "" {
		wrong(keyClass, "is missing: it names the connector type")
	}
	if text, set := config[keyTasksMax]; set {
		n, err := strconv.ParseUint(strings.TrimSpace(text), 10, 32)
		if err != nil || n < 1 || n > mostTasks {
			wrong(keyTasksMax, "is %q; it is a whole number from 1 to %d", text, mostTasks)
		}
		s.tasksMax = uint32(n)
	}
	switch text := config[keyGuarantee]; text {
	case "", exactlyOnce:
	case atLeastOnce:
		s.plain = messageTimeout(config)
	default:
		wrong(keyGuarantee, "is %q; it is %s or %s", text, exactlyOnce, atLeastOnce)
	}
	labels := func(key string) map[string]string {
		labels, ok := parseLabels(config[key])
		if !ok {
			wrong(key, "is %q; it is label=value, several separated by commas", config[key])
		}
		return labels
	}
	s.need.Labels, s.need.Prefer = labels(keyPlacementLabels), labels(keyPlacementPrefer)
	s.need.Spread = strings.TrimSpace(config[keyPlacementSpread])
	if strings.ContainsAny(s.need.Spread, "=,") {
		wrong(keyPlacementSpread, "is %q; it is the name of one label, without a value", config[keyPlacementSpread])
	}
	if size := len(encode(keyConnector, config).Value); size > mostConfigBytes {
		wrong("", "the configuration takes %d bytes as JSON, the limit is %d", size, mostConfigBytes)
	}
	return s, problems
}

// messageTimeout is how long a connector's plain producers try to send a record, under either of librdkafka's names for it.
func messageTimeout(config map[string]string) time.Duration {
	for _, key := range []string{"producer.override.message.timeout.ms", "producer.override.delivery.timeout.ms"} {
		if ms, err := strconv.ParseUint(strings.TrimSpace(config[key]), 10, 31); err == nil && ms > 0 {
			return time.Duration(ms) * time.Millisecond
		}
	}
	return plainMessageTimeout
}

// parseLabels reads label=value, several separated by commas. Empty is none.
func parseLabels(text string) (labels map[string]string, ok bool) {
	if text == "" {
		return nil, true
	}
	labels = map[string]string{}
	for pair := range strings.SplitSeq(text, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok || name == "" {
			return nil, false
		}
		labels[name] = value
	}
	return labels, true
}
