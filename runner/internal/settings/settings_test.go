package settings_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// with makes a good configuration and changes it; an empty value takes the key away.
func with(pairs ...string) map[string]string {
	config := map[string]string{"connector.class": "file"}
	for i := 0; i < len(pairs); i += 2 {
		config[pairs[i]] = pairs[i+1]
	}
	return config
}

func TestDefaults(t *testing.T) {
	got, own, problems := settings.Parse(with("path", "/data"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	want := &settings.Settings{
		Type: "file", TasksMax: 1, KeyConverter: settings.ConvertBytes, ValueConverter: settings.ConvertBytes,
		Boundary:          settings.Boundary{Rule: source.Adaptive, MaxRecords: 100_000, MaxBytes: 16 << 20, MaxTime: 500 * time.Millisecond, Interval: 5 * time.Second},
		ProducerOverrides: map[string]string{}, TransactionTimeout: time.Minute,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(map[string]string{"path": "/data"}, own); d != "" {
		t.Error(d)
	}
}

func TestEveryKeyIsRead(t *testing.T) {
	got, own, problems := settings.Parse(with("name", "orders", "tasks.max", " 7 ", "plugin.version", "1.4.0", "plugin.sha256", strings.Repeat("a1", 32),
		"key.converter", "org.apache.kafka.connect.storage.StringConverter", "value.converter", "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable", "False",
		"transaction.boundary", "INTERVAL", "transaction.boundary.interval.ms", "200", "transaction.boundary.max.records", "10", "transaction.boundary.max.bytes", "2MB", "transaction.boundary.max.ms", "50",
		"exactly.once.support", "required", "delivery.guarantee", "exactly-once", "errors.tolerance", "none", "offsets.storage.topic", "my.offsets", "placement.labels", "zone=a, disk=", "placement.prefer", "disk=ssd", "placement.spread", "zone",
		"producer.override.compression.type", "lz4", "producer.override.transaction.timeout.ms", "30000"))
	if len(problems) > 0 || len(own) > 0 {
		t.Fatal(problems, own)
	}
	want := &settings.Settings{
		Name: "orders", Type: "file", TasksMax: 7, PluginVersion: "1.4.0", PluginSHA256: strings.Repeat("a1", 32),
		KeyConverter: settings.ConvertString, ValueConverter: settings.ConvertJSON,
		Boundary:           settings.Boundary{Rule: source.Interval, MaxRecords: 10, MaxBytes: 2_000_000, MaxTime: 50 * time.Millisecond, Interval: 200 * time.Millisecond},
		RequireExactlyOnce: true, OffsetsTopic: "my.offsets", ProducerOverrides: map[string]string{"compression.type": "lz4"}, TransactionTimeout: 30 * time.Second,
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestEachMistakeNamesItsKey(t *testing.T) {
	for _, c := range []struct {
		name   string
		config map[string]string
		key    string
	}{
		{"no connector class", map[string]string{}, "connector.class"},
		{"empty connector class", with("connector.class", " "), "connector.class"},
		{"wrong type", with("tasks.max", "two"), "tasks.max"},
		{"decimal", with("tasks.max", "1.5"), "tasks.max"},
		{"overflow", with("tasks.max", "99999999999999999999"), "tasks.max"},
		{"below range", with("tasks.max", "0"), "tasks.max"},
		{"above range", with("tasks.max", "10001"), "tasks.max"},
		{"unknown word", with("transaction.boundary", "sometimes"), "transaction.boundary"},
		{"bad size", with("transaction.boundary.max.bytes", "16 parsecs"), "transaction.boundary.max.bytes"},
		{"huge size", with("transaction.boundary.max.bytes", "9223372036854775807GiB"), "transaction.boundary.max.bytes"},
		{"half of the time-out", with("transaction.boundary.max.ms", "30001"), "transaction.boundary.max.ms"},
		{"interval too long", with("transaction.boundary", "interval", "transaction.boundary.interval.ms", "60000"), "transaction.boundary.interval.ms"},
		{"short time-out", with("transaction.boundary.max.ms", "600", "producer.override.transaction.timeout.ms", "1000"), "transaction.boundary.max.ms"},
		{"time-out no broker takes", with("producer.override.transaction.timeout.ms", "3600000"), "producer.override.transaction.timeout.ms"},
		{"message time-out above it", with("producer.override.transaction.timeout.ms", "5000", "producer.override.message.timeout.ms", "60000"), "producer.override.message.timeout.ms"},
		{"other cluster", with("producer.override.bootstrap.servers", "other:9092"), "producer.override.bootstrap.servers"},
		{"other user", with("producer.override.sasl.password", "x"), "producer.override.sasl.password"},
		{"nameless override", with("producer.override.", "x"), "producer.override."},
		{"Avro", with("value.converter", "io.confluent.connect.avro.AvroConverter"), "value.converter"},
		{"JSON with schemas", with("value.converter", "json", "value.converter.schemas.enable", "true"), "value.converter.schemas.enable"},
		{"Connect's JSON default", with("key.converter", "org.apache.kafka.connect.json.JsonConverter"), "key.converter"},
		{"converter's other settings", with("value.converter.decimal.format", "NUMERIC"), "value.converter.decimal.format"},
		{"at-least-once", with("delivery.guarantee", "at-least-once"), "delivery.guarantee"},
		{"tolerance", with("errors.tolerance", "all"), "errors.tolerance"},
		{"transforms", with("transforms", "a"), "transforms"},
		{"a transform's key", with("transforms.a.type", "x"), "transforms.a.type"},
		{"topic creation", with("topic.creation.default.partitions", "3"), "topic.creation.default.partitions"},
		{"topic name", with("offsets.storage.topic", "a b"), "offsets.storage.topic"},
		{"long topic name", with("offsets.storage.topic", strings.Repeat("a", 250)), "offsets.storage.topic"},
		{"dots", with("offsets.storage.topic", ".."), "offsets.storage.topic"},
		{"label without a value", with("placement.labels", "zone"), "placement.labels"},
		{"value without a label", with("placement.labels", "zone=a,=b"), "placement.labels"},
		{"empty label", with("placement.labels", "zone=a,"), "placement.labels"},
		{"preferred label without a value", with("placement.prefer", "ssd"), "placement.prefer"},
		{"spread over a value", with("placement.spread", "zone=a"), "placement.spread"},
		{"spread over two labels", with("placement.spread", "zone,rack"), "placement.spread"},
		{"sum", with("plugin.sha256", "abc"), "plugin.sha256"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, problems := settings.Parse(c.config)
			if len(problems) != 1 || problems[0].Key != c.key || problems[0].Message == "" {
				t.Fatalf("want one problem of %s, got %+v", c.key, problems)
			}
		})
	}
}

func TestAllMistakesAtOnce(t *testing.T) {
	_, _, problems := settings.Parse(map[string]string{"tasks.max": "-1", "value.converter": "avro", "transaction.boundary": "x", "producer.override.ssl.ca.location": "y"})
	var keys []string
	for _, p := range problems {
		keys = append(keys, p.Key)
	}
	if want := []string{"connector.class", "producer.override.ssl.ca.location", "tasks.max", "transaction.boundary", "value.converter"}; !slices.Equal(keys, want) {
		t.Fatalf("got %q, want %q", keys, want)
	}
}

func TestUnknownKeysNameTheNearest(t *testing.T) {
	file := source.Type{Name: "file", Config: []source.Key{{Name: "path", Type: source.String, Required: true}, {Name: "start.at", Type: source.String}}, OpenPrefixes: []string{"debezium."}}
	_, own, problems := settings.Parse(with("path", "/x", "task.max", "3", "strat.at", "end", "debezium.anything", "1", "zzzzzzzzzzzz", "1"))
	if len(problems) > 0 {
		t.Fatal(problems)
	}
	taken, problems := settings.Split(own, file)
	if d := cmp.Diff(map[string]string{"path": "/x", "debezium.anything": "1"}, taken); d != "" {
		t.Error(d)
	}
	hints := map[string]string{}
	for _, p := range problems {
		hints[p.Key] = p.Hint
	}
	if d := cmp.Diff(map[string]string{"task.max": "did you mean tasks.max?", "strat.at": "did you mean start.at?", "zzzzzzzzzzzz": "leave it out"}, hints); d != "" {
		t.Error(d)
	}
}

func TestSplitChecksTheTypesOfOwnKeys(t *testing.T) {
	typ := source.Type{Name: "generator", Config: []source.Key{{Name: "count", Type: source.Long, Required: true}}}
	if _, problems := settings.Split(map[string]string{"count": "many"}, typ); len(problems) != 1 || problems[0].Key != "count" {
		t.Fatal(problems)
	}
	if _, problems := settings.Split(nil, typ); len(problems) != 1 || problems[0].Key != "count" {
		t.Fatal(problems)
	}
}

func TestMisspeltRuntimeKeysAreToldWithoutThePlugin(t *testing.T) {
	if problems := settings.Misspelt(map[string]string{"taks.max": "1", "something.of.the.plugin": "2", "rate": "3"}); len(problems) != 1 || problems[0].Key != "taks.max" || !problems[0].Warning {
		t.Fatal(problems)
	}
}

func TestEveryKeyIsDocumented(t *testing.T) {
	seen := map[string]bool{}
	for _, k := range settings.Keys() {
		if k.Doc == "" || k.Type == 0 || seen[k.Name] {
			t.Errorf("%+v", k)
		}
		seen[k.Name] = true
	}
}

func TestDifferentConnectorsNeverShareAnOffsetsTopic(t *testing.T) {
	names := []string{"a", "A", "a b", "a_b", "a_20b", "a-b", "a.b", "ü", strings.Repeat("x", 121), strings.Repeat("x", 122), strings.Repeat("x", 80) + "_x", strings.Repeat("ü", 100)}
	seen := map[string]string{}
	s := &settings.Settings{}
	for _, n := range names {
		topic := s.OffsetsTopicName("fencepost", n)
		if other, taken := seen[topic]; taken {
			t.Errorf("%q and %q share %q", n, other, topic)
		}
		if len(topic) > 249 || strings.Trim(topic, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != "" {
			t.Errorf("%q isn't a topic name", topic)
		}
		seen[topic] = n
	}
	if got := s.OffsetsTopicName("fencepost", "a b"); got != "fencepost.offsets.a_20b" {
		t.Errorf("got %q", got)
	}
	s.OffsetsTopic = "mine"
	if got := s.OffsetsTopicName("fencepost", "a"); got != "mine" {
		t.Errorf("got %q", got)
	}
}
