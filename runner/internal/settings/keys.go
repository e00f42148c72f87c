package settings

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Names of keys that more than one place speaks of.
const (
	keyConverter     = "key.converter"
	valueConverter   = "value.converter"
	schemasEnable    = ".schemas.enable"
	boundaryMaxMS    = "transaction.boundary.max.ms"
	boundaryInterval = "transaction.boundary.interval.ms"
	pluginSHA256     = "plugin.sha256"
	offsetsTopic     = "offsets.storage.topic"
	transactionTime  = "transaction.timeout.ms"
	placementLabels  = "placement.labels"
	placementPrefer  = "placement.prefer"
	placementSpread  = "placement.spread"
)

// Keys that the supervisor speaks of: what they are compared with is known there.
const (
	KeyConnectorClass = "connector.class"
	KeyName           = "name"
	KeyPluginVersion  = "plugin.version"
	KeyBoundary       = "transaction.boundary"
	KeyExactlyOnce    = "exactly.once.support"
	// OverridePrefix stands before the keys of the producer's client.
	OverridePrefix = "producer.override."
)

// The limits of the keys.
const (
	defaultTxnTime  = time.Minute
	smallestTxnTime = time.Second
	largestTxnTime  = 15 * time.Minute // A broker's transaction.max.timeout.ms, unless it was changed.
	mostTasks       = 10_000
	mostRecords     = 1_000_000
	mostBytes       = 256 << 20
)

// runtimeKey is one row of the table: how a key is described to users, and where its value goes.
type runtimeKey struct {
	source.Key
	assign func(*Settings, string)
}

// rules are the values of transaction.boundary.
var rules = map[string]source.BoundaryRule{
	"adaptive": source.Adaptive, "poll": source.PerPoll, "interval": source.Interval, "source": source.PerSource, "connector": source.ByConnector,
}

// table has every key that the runtime understands, apart from the open prefixes (producer.override., and the converters' own settings).
var table = []runtimeKey{
	{source.Key{Name: KeyConnectorClass, Type: source.String, Required: true, Importance: source.High,
		Doc: "The connector type, as a plugin declares it: `fencepost plugins` lists them."},
		func(s *Settings, v string) { s.Type = v }},
	{source.Key{Name: KeyName, Type: source.String, Importance: source.High,
		Doc: "The connector's name. It may be left out; where it is given it must be the name that the connector is created under."},
		func(s *Settings, v string) { s.Name = v }},
	{source.Key{Name: "tasks.max", Type: source.Int, Default: source.Default("1"), Importance: source.High, Min: number(1), Max: number(mostTasks),
		Doc: "The most tasks that the connector may be divided into. It may use fewer."},
		func(s *Settings, v string) { s.TasksMax = int(whole(v)) }},
	{source.Key{Name: KeyPluginVersion, Type: source.String, Importance: source.Low,
		Doc: "Run this version of the plugin only, for example 1.4.0. Left out: the newest that a runner offers."},
		func(s *Settings, v string) { s.PluginVersion = v }},
	{source.Key{Name: pluginSHA256, Type: source.String, Importance: source.Low,
		Doc: "Run only an executable with this SHA-256, 64 hex digits."},
		func(s *Settings, v string) { s.PluginSHA256 = v }},
	{source.Key{Name: placementLabels, Type: source.List, Importance: source.Low,
		Doc: "Labels that a runner must have to get tasks of this connector, as label=value, several separated by commas. The coordinator reads it."}, ignore},
	{source.Key{Name: placementPrefer, Type: source.List, Importance: source.Low,
		Doc: "Labels that a runner should have, as label=value, several separated by commas: the tasks go to the runners with the most of them, whatever else those run, and to others where none of those is there. The coordinator reads it."}, ignore},
	{source.Key{Name: placementSpread, Type: source.String, Importance: source.Low,
		Doc: "The name of a label, for example zone: the connector's tasks are spread evenly over its values. It comes before placement.prefer, and gives way where the runners of a value are gone. The coordinator reads it."}, ignore},
	{source.Key{Name: keyConverter, Type: source.String, Default: source.Default(string(ConvertBytes)), Importance: source.Medium,
		Doc: "How keys become bytes: bytes, string or json, or Kafka Connect's class name for one of them."},
		func(s *Settings, v string) { s.KeyConverter = Converter(v) }},
	{source.Key{Name: valueConverter, Type: source.String, Default: source.Default(string(ConvertBytes)), Importance: source.Medium,
		Doc: "How values become bytes: bytes, string or json, or Kafka Connect's class name for one of them."},
		func(s *Settings, v string) { s.ValueConverter = Converter(v) }},
	{source.Key{Name: keyConverter + schemasEnable, Type: source.Bool, Default: source.Default("false"), Importance: source.Low, Allowed: []string{"false"},
		Doc: "Whether JSON keys carry their schema. This version writes JSON without schemas only."}, ignore},
	{source.Key{Name: valueConverter + schemasEnable, Type: source.Bool, Default: source.Default("false"), Importance: source.Low, Allowed: []string{"false"},
		Doc: "Whether JSON values carry their schema. This version writes JSON without schemas only."}, ignore},
	{source.Key{Name: KeyBoundary, Type: source.String, Default: source.Default("adaptive"), Importance: source.Medium, Allowed: []string{"adaptive", "poll", "interval", "source", "connector"},
		Doc: "When a transaction is committed: as soon as nothing more is waiting (adaptive), after each batch of the plugin (poll), by a timer (interval), where the plugin marks the end of a source transaction (source), or when the plugin says so (connector)."},
		func(s *Settings, v string) { s.Boundary.Rule = rules[v] }},
	{source.Key{Name: "transaction.boundary.max.records", Type: source.Int, Default: source.Default("100000"), Importance: source.Low, Min: number(1), Max: number(mostRecords),
		Doc: "The most records in a transaction of several batches."},
		func(s *Settings, v string) { s.Boundary.MaxRecords = int(whole(v)) }},
	{source.Key{Name: "transaction.boundary.max.bytes", Type: source.Size, Default: source.Default("16MiB"), Importance: source.Low, Min: number(1), Max: number(mostBytes),
		Doc: "The most bytes in a transaction of several batches, for example 16MiB; a bare number is bytes."},
		func(s *Settings, v string) { s.Boundary.MaxBytes = size(v) }},
	{source.Key{Name: boundaryMaxMS, Type: source.Long, Default: source.Default("500"), Importance: source.Low, Min: number(1), Max: milliseconds(largestTxnTime / 2),
		Doc: "The longest that a transaction of several batches is kept open, in milliseconds; at most half of the transaction time-out."},
		func(s *Settings, v string) { s.Boundary.MaxTime = span(v) }},
	{source.Key{Name: boundaryInterval, Type: source.Long, Default: source.Default("5000"), Importance: source.Low, Min: number(1), Max: milliseconds(largestTxnTime / 2),
		Doc: "The time between commits under transaction.boundary=interval, in milliseconds; at most half of the transaction time-out."},
		func(s *Settings, v string) { s.Boundary.Interval = span(v) }},
	{source.Key{Name: KeyExactlyOnce, Type: source.String, Default: source.Default("requested"), Importance: source.Medium, Allowed: []string{"requested", "required"},
		Doc: "`required` refuses the connector unless its plugin says that this configuration can be exactly-once."},
		func(s *Settings, v string) { s.RequireExactlyOnce = v == "required" }},
	{source.Key{Name: offsetsTopic, Type: source.String, Importance: source.Low,
		Doc: "The topic for source offsets. Left out: a topic of the connector's own, so that no connector waits for another's open transaction."},
		func(s *Settings, v string) { s.OffsetsTopic = v }},
	{source.Key{Name: "delivery.guarantee", Type: source.String, Default: source.Default("exactly-once"), Importance: source.Medium, Allowed: []string{"exactly-once"},
		Doc: "This version delivers exactly-once only."}, ignore},
	{source.Key{Name: "errors.tolerance", Type: source.String, Default: source.Default("none"), Importance: source.Medium, Allowed: []string{"none"},
		Doc: "What to do with a record that can't be converted. This version stops the task (none)."}, ignore},
}

// later has beginnings of Kafka Connect's keys that this version doesn't have. They are refused plainly, since a typing error isn't what is wrong with them.
var later = []string{
	"header.converter", "transforms", "predicates", "topic.creation.", "errors.", "config.action.reload", "config.providers", "consumer.override.", "admin.override.",
	"plugin.process", "offsets.store", "tasks.max.enforce",
}

// Keys describes every key that the runtime understands, for documentation and for tools. The caller may change the slice, not what it refers to.
func Keys() []source.Key {
	keys := make([]source.Key, len(table))
	for i := range table {
		keys[i] = table[i].Key
	}
	return keys
}

// isLater says whether a key is one of Kafka Connect's that this version doesn't have.
func isLater(key string) bool {
	return slices.ContainsFunc(later, func(begin string) bool {
		return key == begin || strings.HasPrefix(key, strings.TrimSuffix(begin, ".")+".")
	})
}

func ignore(*Settings, string) {}

// The values that these read have been checked; what couldn't be read has a problem, and its default stands here.
func whole(v string) int64 {
	n, _ := strconv.ParseInt(v, 10, 64)
	return n
}

func size(v string) int64 {
	n, _ := source.ParseSize(v)
	return n
}

func span(v string) time.Duration { return time.Duration(whole(v)) * time.Millisecond }

func number(f float64) *float64             { return &f }
func milliseconds(d time.Duration) *float64 { return number(float64(d.Milliseconds())) }
