package publish

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// Keys that this package reads.
const (
	keyBootstrap          = "bootstrap.servers"
	keyTransactionTimeout = "transaction.timeout.ms"
	keyMessageTimeout     = "message.timeout.ms"
)

const (
	defaultTransactionTimeout = 60 * time.Second
	maxMessageTimeout         = 30 * time.Second
)

// defaults are the client's settings unless the user says otherwise.
var defaults = map[string]string{
	// Throughput gains nothing beyond a few milliseconds, and a commit doesn't wait for it.
	"linger.ms":  "5",
	"batch.size": "1000000",
	// The protocol's limit of a record is 8 MiB; what a topic takes is the topic's affair, and its refusal names it. Batches of several records end at batch.size.
	"message.max.bytes": "8650752",
	// As many records as the adaptive boundary puts in one transaction, and four times as many bytes: a task never holds more (I10).
	"queue.buffering.max.messages": "100000",
	"queue.buffering.max.kbytes":   "65536",
	"compression.codec":            "none",
	// Java's clients put a key in the same partition.
	"partitioner": "murmur2_random",
	// The default of 10 s is longer than most restarts of a broker.
	"reconnect.backoff.max.ms": "1000",
	"socket.keepalive.enable":  "true",
	// How long a topic that metadata doesn't know is waited for; Topics looks before the first record.
	"topic.metadata.propagation.max.ms": "10000",
}

// aliases are second names of keys; a map with both would be applied in no order.
var aliases = map[string]string{
	"metadata.broker.list":   keyBootstrap,
	"queue.buffering.max.ms": "linger.ms",
	"compression.type":       "compression.codec",
	"delivery.timeout.ms":    keyMessageTimeout,
	"request.required.acks":  "acks",
	"retries":                "message.send.max.retries",
	"max.in.flight":          "max.in.flight.requests.per.connection",
	"sasl.mechanism":         "sasl.mechanisms",
}

// canonicalKey replaces an alias.
func canonicalKey(key string) string {
	if name, ok := aliases[key]; ok {
		return name
	}
	return key
}

// clientSettings merges defaults, the runner's keys, the connector's and those that Fencepost owns, each winning over those before it.
func clientSettings(cfg Config) (kafka.ConfigMap, time.Duration, error) {
	if cfg.TransactionalID == "" {
		return nil, 0, fmt.Errorf("the transactional id is empty")
	}
	if cfg.Client[keyBootstrap] == "" {
		return nil, 0, fmt.Errorf("%s is empty", keyBootstrap)
	}
	for _, key := range sortedKeys(cfg.Overrides) {
		if _, own := ownedBy(key); own || connects(key) {
			return nil, 0, fmt.Errorf("a connector can't set %s", key)
		}
	}
	merged, timeout, err := mergeSettings(cfg.Client, cfg.Overrides, cfg.TransactionTimeout)
	if err != nil {
		return nil, 0, err
	}
	settings := kafka.ConfigMap{}
	if _, ok := merged["client.id"]; !ok {
		merged["client.id"] = cfg.TransactionalID
	}
	for key, value := range merged {
		settings[key] = value
	}
	settings["transactional.id"] = cfg.TransactionalID
	settings["enable.idempotence"] = true
	settings["acks"] = "all"
	settings["statistics.interval.ms"] = 0
	settings["go.delivery.reports"] = false
	settings["go.delivery.report.fields"] = "none"
	settings["go.events.channel.size"] = eventsCapacity
	settings["go.produce.channel.size"] = produceCapacity
	settings["log.queue"] = true // see queue
	return settings, timeout, nil
}

func mergeSettings(client, overrides map[string]string, timeout time.Duration) (map[string]string, time.Duration, error) {
	merged := map[string]string{}
	for _, from := range []map[string]string{defaults, client, overrides} {
		for key, value := range from {
			merged[canonicalKey(key)] = value
		}
	}
	if timeout == 0 {
		timeout = defaultTransactionTimeout
	}
	if text, ok := merged[keyTransactionTimeout]; ok {
		ms, err := strconv.Atoi(strings.TrimSpace(text))
		if err != nil || ms <= 0 {
			return nil, 0, fmt.Errorf("%s is %q: milliseconds are needed", keyTransactionTimeout, text)
		}
		timeout = time.Duration(ms) * time.Millisecond
	}
	merged[keyTransactionTimeout] = milliseconds(timeout)
	// A message that can't be delivered must show before the broker ends the transaction.
	if _, ok := merged[keyMessageTimeout]; !ok {
		merged[keyMessageTimeout] = milliseconds(min(timeout/2, maxMessageTimeout))
	}
	return merged, timeout, nil
}

func milliseconds(d time.Duration) string { return strconv.FormatInt(d.Milliseconds(), 10) }
