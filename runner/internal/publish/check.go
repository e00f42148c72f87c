package publish

/*
#include <stdlib.h>
#include "librdkafka.h"
*/
import "C"

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/agnivade/levenshtein"
	"github.com/confluentinc/confluent-kafka-go/v2/kafka"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// owned has the keys, and beginnings of keys that end in a dot, that Fencepost sets itself, each with what to do instead.
var owned = map[string]string{
	"transactional.id":           "it is made of the cluster's, the connector's and the task's name",
	keyBootstrap:                 "set the brokers' addresses with bootstrap-servers",
	"metadata.broker.list":       "set the brokers' addresses with bootstrap-servers",
	"enable.idempotence":         "exactly-once needs it, so it is always on",
	"acks":                       "exactly-once needs all",
	"request.required.acks":      "exactly-once needs all",
	"isolation.level":            "Fencepost reads committed records only",
	"enable.gapless.guarantee":   "transactions give more",
	"group.id":                   "Fencepost joins no group",
	"group.instance.id":          "Fencepost joins no group",
	"group.protocol":             "Fencepost joins no group",
	"enable.auto.commit":         "offsets are written by the producer",
	"auto.commit.interval.ms":    "offsets are written by the producer",
	"enable.auto.offset.store":   "offsets are written by the producer",
	"auto.offset.reset":          "Fencepost always reads from a known offset",
	"enable.partition.eof":       "Fencepost needs it",
	"statistics.interval.ms":     "nothing reads these statistics",
	"delivery.report.only.error": "the client needs all delivery reports",
	"plugin.library.paths":       "Fencepost loads no code into the client",
	"log.queue":                  "the client's log goes to Fencepost's",
	"log_level":                  "set the runner's log level",
	"builtin.features":           "it can't be changed",
	"go.":                        "Fencepost sets it",
	"test.mock.":                 "it is for tests of the client",
}

// connectionPrefixes say, with bootstrap.servers, which cluster a client talks to and as whom. A connector may not change it: the coordinator has to fence its ids on the same cluster.
var connectionPrefixes = []string{"security.", "sasl.", "ssl.", "enable.sasl.", "enable.ssl.", "broker.address."}

func connects(key string) bool {
	return slices.ContainsFunc(connectionPrefixes, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
}

// CheckClientConfig checks keys of librdkafka, as users write them under kafka: — that each exists, isn't one that Fencepost owns, has a value that librdkafka takes, and that they don't contradict
// one another. It finds all problems at once, sorted by key, and connects to nothing.
func CheckClientConfig(keys map[string]string) []source.Problem {
	problems := checkKeys(keys)
	if len(problems) == 0 {
		problems = checkTogether(keys, nil)
	}
	return problems
}

// CheckOverrides checks a connector's producer.override.* keys, given without that prefix, on top of the runner's own keys. It finds what CheckClientConfig finds, and keys
// that only the runner may set. Keys of the problems have no prefix either.
func CheckOverrides(client, overrides map[string]string) []source.Problem {
	var problems []source.Problem
	for key := range overrides {
		if connects(key) {
			problems = append(problems, source.Problem{Key: key, Message: "a connector can't change how Kafka is reached",
				Hint: "set it for the runner, under kafka:"})
		}
	}
	problems = append(problems, checkKeys(overrides)...)
	if len(problems) == 0 {
		problems = checkTogether(client, overrides)
	}
	sortProblems(problems)
	return problems
}

// checkKeys looks at each key by itself.
func checkKeys(keys map[string]string) []source.Problem {
	conf := C.rd_kafka_conf_new()
	defer C.rd_kafka_conf_destroy(conf)
	var problems []source.Problem
	seen := map[string]string{}
	for _, key := range sortedKeys(keys) {
		name := canonicalKey(key)
		if other, twice := seen[name]; twice {
			problems = append(problems, source.Problem{Key: key, Message: "is the same as " + other, Hint: "set one of them"})
			continue
		}
		seen[name] = key
		if why, ok := ownedBy(key); ok {
			problems = append(problems, source.Problem{Key: key, Message: "is set by Fencepost: " + why, Hint: "leave it out"})
			continue
		}
		if problem, ok := tryKey(conf, key, keys[key]); !ok {
			problems = append(problems, problem)
		}
	}
	return problems
}

func ownedBy(key string) (string, bool) {
	if why, ok := owned[key]; ok {
		return why, true
	}
	for prefix, why := range owned {
		if strings.HasSuffix(prefix, ".") && strings.HasPrefix(key, prefix) {
			return why, true
		}
	}
	return "", false
}

// tryKey sets a key on a configuration that no client is made of.
func tryKey(conf *C.rd_kafka_conf_t, key, value string) (source.Problem, bool) {
	name, text := C.CString(key), C.CString(value)
	defer C.free(unsafe.Pointer(name))
	defer C.free(unsafe.Pointer(text))
	var reason [512]C.char
	switch C.rd_kafka_conf_set(conf, name, text, &reason[0], C.size_t(len(reason))) {
	case C.RD_KAFKA_CONF_OK:
		return source.Problem{}, true
	case C.RD_KAFKA_CONF_UNKNOWN:
		return source.Problem{Key: key, Message: "is not a key of Kafka's client", Hint: nearest(key)}, false
	default:
		// I9: librdkafka quotes the value, which may be a secret.
		message := "the value is not allowed"
		if !secret(key) {
			message = C.GoString(&reason[0])
		}
		return source.Problem{Key: key, Message: message, Hint: "librdkafka's list of settings has what is allowed"}, false
	}
}

// secret keys' values are never shown.
func secret(key string) bool {
	return slices.ContainsFunc([]string{"password", "secret", "pem", "token", "jaas", "key"}, func(word string) bool { return strings.Contains(key, word) })
}

// nearest names the known key that is the fewest edits away, where that is close enough to be meant.
func nearest(key string) string {
	best, distance := "", len(key)/3+1
	for _, known := range knownKeys() {
		if _, own := ownedBy(known); own {
			continue
		}
		if d := levenshtein.ComputeDistance(key, known); d < distance {
			best, distance = known, d
		}
	}
	if best == "" {
		return "librdkafka's list of settings has those that exist"
	}
	return fmt.Sprintf("did you mean %s?", best)
}

// knownKeys asks librdkafka.
func knownKeys() []string {
	conf := C.rd_kafka_conf_new()
	defer C.rd_kafka_conf_destroy(conf)
	topicConf := C.rd_kafka_topic_conf_new()
	defer C.rd_kafka_topic_conf_destroy(topicConf)
	keys := []string{"security.protocol", "sasl.username", "sasl.password"}
	var n C.size_t
	dump := C.rd_kafka_conf_dump(conf, &n)
	keys = append(keys, namesOf(dump, n)...)
	C.rd_kafka_conf_dump_free(dump, n)
	dump = C.rd_kafka_topic_conf_dump(topicConf, &n)
	keys = append(keys, namesOf(dump, n)...)
	C.rd_kafka_conf_dump_free(dump, n)
	for alias, name := range aliases {
		keys = append(keys, alias, name)
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

// namesOf takes every other string of a dump, which has names and values in turn.
func namesOf(dump **C.char, n C.size_t) []string {
	var names []string
	for i, text := range unsafe.Slice(dump, int(n)) {
		if i%2 == 0 {
			names = append(names, C.GoString(text))
		}
	}
	return names
}

// checkTogether looks for keys that contradict one another: by making a client that has no address to connect to, since librdkafka checks them only then.
func checkTogether(client, overrides map[string]string) []source.Problem {
	given := map[string]string{} // canonical name → as the user wrote it
	for _, from := range []map[string]string{client, overrides} {
		for key := range from {
			given[canonicalKey(key)] = key
		}
	}
	merged, timeout, err := mergeSettings(client, overrides, 0)
	if err != nil {
		return []source.Problem{{Key: given[keyTransactionTimeout], Message: err.Error()}}
	}
	if ms, err := strconv.ParseInt(merged[keyMessageTimeout], 10, 64); err == nil && (ms == 0 || ms >= timeout.Milliseconds()) {
		key := given[keyMessageTimeout]
		return []source.Problem{{Key: key, Message: fmt.Sprintf("%s must be below %s (%d)", merged[keyMessageTimeout], keyTransactionTimeout, timeout.Milliseconds()),
			Hint: "lower it, or raise " + keyTransactionTimeout}}
	}
	// Fetching tokens is the one thing that a client does without an address.
	if merged["sasl.oauthbearer.method"] == "oidc" {
		return nil
	}
	delete(merged, keyBootstrap)
	settings := kafka.ConfigMap{"transactional.id": "check", "log_level": 0, "go.events.channel.size": eventsCapacity, "go.produce.channel.size": produceCapacity}
	for key, value := range merged {
		settings[key] = value
	}
	trial, err := kafka.NewProducer(&settings)
	if err == nil {
		trial.Close()
		return nil
	}
	return []source.Problem{{Key: blamed(err.Error(), given, merged), Message: err.Error()}}
}

// blamed picks the given key that librdkafka's message speaks of, by its name or by its value. It only chooses beside which key the message is shown.
func blamed(message string, given, values map[string]string) string {
	best := ""
	for _, name := range sortedKeys(given) {
		named := strings.Contains(message, name) || strings.Contains(message, given[name])
		if named && (best == "" || len(name) > len(best)) {
			best = name
		}
	}
	for _, name := range sortedKeys(given) {
		if best == "" && !secret(name) && values[name] != "" && strings.Contains(message, values[name]) {
			best = name
		}
	}
	return given[best]
}

func sortedKeys(m map[string]string) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

func sortProblems(problems []source.Problem) {
	slices.SortStableFunc(problems, func(a, b source.Problem) int { return strings.Compare(a.Key, b.Key) })
}
