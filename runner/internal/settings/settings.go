// Package settings owns the runtime's part of a connector configuration: which keys a runner itself understands, their types, defaults and limits, and what each says in words a user reads.
//
// A configuration is one flat map. Parse takes the runtime's keys out of it and gives back what is left, which belongs to the plugin; Split then says which of that the plugin knows. Every problem is
// found in one go, each with its key, what is wrong and what would be right; unknown keys name the nearest known one.
//
// It never talks to anyone: what only a broker, a plugin or librdkafka can tell is checked by runner/internal/supervisor, which calls this package first.
// Where to read next: keys.go for the table of keys.
package settings

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Settings is what the runtime's keys say. It is read by many goroutines and changed by none.
type Settings struct {
	// Name is the connector's name where the configuration repeats it, else empty.
	Name string
	// Type is the connector type: connector.class.
	Type string
	// PluginVersion and PluginSHA256 pin the plugin; empty is any.
	PluginVersion string
	PluginSHA256  string
	// TasksMax is the most tasks that a plan may have.
	TasksMax int
	// KeyConverter and ValueConverter turn a plugin's keys and values into bytes.
	KeyConverter   Converter
	ValueConverter Converter
	// Boundary says when a transaction is committed.
	Boundary Boundary
	// RequireExactlyOnce refuses a connector that can't say that it is able to be exactly-once.
	RequireExactlyOnce bool
	// OffsetsTopic is where source offsets are kept; empty is the connector's own topic, see OffsetsTopicName.
	OffsetsTopic string
	// ProducerOverrides are librdkafka keys without their prefix; the transaction's time-out isn't among them.
	ProducerOverrides map[string]string
	// TransactionTimeout is how long the broker lets a transaction be open.
	TransactionTimeout time.Duration
}

// Boundary is the rule by which transactions are committed, and its limits.
type Boundary struct {
	// Rule is transaction.boundary.
	Rule source.BoundaryRule
	// MaxRecords, MaxBytes and MaxTime bound a transaction under the rules that may merge batches: adaptive, poll and source.
	MaxRecords int
	MaxBytes   int64
	MaxTime    time.Duration
	// Interval is the time between commits under the rule interval.
	Interval time.Duration
}

// Converter names how a key or value becomes bytes.
type Converter string

// The converters.
const (
	ConvertBytes  Converter = "bytes"
	ConvertString Converter = "string"
	ConvertJSON   Converter = "json"
)

// Parse reads the runtime's keys. The map that it returns has every other key, which is the plugin's to judge: see Split.
// Settings are complete, with defaults in place of what was wrong, also where there are problems; nothing may be run with them then.
func Parse(config map[string]string) (*Settings, map[string]string, []source.Problem) {
	p := &parser{config: config, settings: &Settings{}, own: map[string]string{}}
	maps.Copy(p.own, config)
	p.keys()
	p.converter(keyConverter, &p.settings.KeyConverter)
	p.converter(valueConverter, &p.settings.ValueConverter)
	p.overrides()
	p.unsupported()
	p.names()
	p.labels()
	p.boundaryFits()
	return p.settings, p.own, sorted(p.problems)
}

// parser holds one configuration while it is read.
type parser struct {
	config   map[string]string
	settings *Settings
	own      map[string]string
	problems []source.Problem
}

// keys reads the keys of the table. Values are trimmed, and those of a list of words may be written in any case, as in Kafka Connect. A wrong value leaves the default in place.
func (p *parser) keys() {
	given := map[string]string{}
	for i := range table {
		k := &table[i].Key
		delete(p.own, k.Name)
		v, ok := p.config[k.Name]
		if v = strings.TrimSpace(v); len(k.Allowed) > 0 {
			v = strings.ToLower(v)
		}
		if ok && (v != "" || k.Required) {
			given[k.Name] = v
		}
	}
	p.problems = source.CheckConfig(source.Type{Config: Keys()}, given)
	for i := range table {
		k := &table[i]
		v, ok := given[k.Name]
		if (!ok || p.hasProblem(k.Name)) && k.Default != nil {
			v = *k.Default
		}
		k.assign(p.settings, v)
	}
}

// problem notes a mistake.
func (p *parser) problem(key, message, hint string) {
	p.problems = append(p.problems, source.Problem{Key: key, Message: message, Hint: hint})
}

// hasProblem says whether a key has one already, so that a check that builds on its value is left out.
func (p *parser) hasProblem(key string) bool {
	return slices.ContainsFunc(p.problems, func(have source.Problem) bool { return have.Key == key })
}

// sorted orders problems by key, so that the same mistakes always read the same.
func sorted(problems []source.Problem) []source.Problem {
	slices.SortStableFunc(problems, func(a, b source.Problem) int { return strings.Compare(a.Key, b.Key) })
	return problems
}
