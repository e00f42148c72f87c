package settings

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// classes are Kafka Connect's names for the converters.
var classes = map[string]Converter{
	"bytes": ConvertBytes, "string": ConvertString, "json": ConvertJSON,
	"org.apache.kafka.connect.converters.ByteArrayConverter": ConvertBytes,
	"org.apache.kafka.connect.storage.StringConverter":       ConvertString,
	"org.apache.kafka.connect.json.JsonConverter":            ConvertJSON,
}

// converter replaces a converter's name by ours, and judges its settings.
func (p *parser) converter(key string, c *Converter) {
	for name := range p.own {
		if strings.HasPrefix(name, key+".") {
			delete(p.own, name)
			p.problem(name, "isn't a setting of this converter", fmt.Sprintf("only %s%s is known: leave it out", key, schemasEnable))
		}
	}
	given := string(*c)
	known, ok := classes[given]
	if !ok {
		p.problem(key, fmt.Sprintf("can't be %q, which isn't a converter of this version", clip(given)),
			"one of bytes, string, json, or Kafka Connect's ByteArrayConverter, StringConverter, JsonConverter with their packages")
		known = ConvertBytes
	}
	*c = known
	// Connect's JsonConverter writes schemas unless told otherwise. Writing none where a user expects them would change his data in silence.
	_, said := p.config[key+schemasEnable]
	if known == ConvertJSON && given != string(ConvertJSON) && !said {
		p.problem(key, "would write JSON with schemas, which this version can't", fmt.Sprintf("set %s%s=false, or %s=json", key, schemasEnable, key))
	}
}

// connection has what a producer override may not touch: the coordinator must be able to fence every id on the same cluster.
var connection = []string{"bootstrap.servers", "metadata.broker.list", "security.", "sasl.", "ssl."}

// overrides takes producer.override.* apart. Whether librdkafka has a key is checked where librdkafka is.
func (p *parser) overrides() {
	s := p.settings
	s.ProducerOverrides = map[string]string{}
	s.TransactionTimeout = defaultTxnTime
	for full, v := range p.config {
		key, found := strings.CutPrefix(full, OverridePrefix)
		if !found {
			continue
		}
		delete(p.own, full)
		switch {
		case key == "":
			p.problem(full, "names no producer setting", "for example producer.override.compression.type=lz4")
		case slices.ContainsFunc(connection, func(begin string) bool { return strings.HasPrefix(key, begin) }):
			p.problem(full, "can't be overridden", "every connector uses the runner's own connection: set it in the runner's `kafka:` map")
		case key == transactionTime:
			s.TransactionTimeout = p.duration(full, v, defaultTxnTime)
		default:
			s.ProducerOverrides[key] = v
		}
	}
	for _, key := range []string{"message.timeout.ms", "delivery.timeout.ms"} {
		if v, given := s.ProducerOverrides[key]; given {
			if d := p.duration(OverridePrefix+key, v, s.TransactionTimeout); d > s.TransactionTimeout {
				p.problem(OverridePrefix+key, fmt.Sprintf("is longer than the transaction time-out of %s", s.TransactionTimeout), "at most "+OverridePrefix+transactionTime)
			}
		}
	}
}

// duration reads a time-out in milliseconds. Where it is wrong the caller goes on with another.
func (p *parser) duration(key, text string, otherwise time.Duration) time.Duration {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if d := time.Duration(n) * time.Millisecond; err == nil && n < int64(time.Hour) && d >= smallestTxnTime && d <= largestTxnTime {
		return d
	}
	p.problem(key, fmt.Sprintf("can't be %q", clip(text)), fmt.Sprintf("a whole number of milliseconds from %d to %d", smallestTxnTime.Milliseconds(), largestTxnTime.Milliseconds()))
	return otherwise
}

// unsupported refuses what Kafka Connect has and this version doesn't.
func (p *parser) unsupported() {
	for key := range p.own {
		if isLater(key) {
			delete(p.own, key)
			p.problem(key, "isn't supported by this version", "leave it out")
		}
	}
}

// boundaryFits refuses a boundary that leaves a transaction no time to be committed: half of the time-out is for the records, half for the commit.
func (p *parser) boundaryFits() {
	b, key := p.settings.Boundary, boundaryMaxMS
	open := b.MaxTime
	switch b.Rule {
	case source.Interval:
		open, key = b.Interval, boundaryInterval
	case source.ByConnector:
		return
	}
	if open > p.settings.TransactionTimeout/2 && !p.hasProblem(key) {
		p.problem(key, fmt.Sprintf("is %d, more than half of the transaction time-out of %d ms", open.Milliseconds(), p.settings.TransactionTimeout.Milliseconds()),
			fmt.Sprintf("at most %d, or a longer %s%s", p.settings.TransactionTimeout.Milliseconds()/2, OverridePrefix, transactionTime))
	}
}

// names checks texts that have a form of their own.
func (p *parser) names() {
	if topic := p.settings.OffsetsTopic; topic != "" && source.CheckTopic(topic) != nil {
		p.problem(offsetsTopic, fmt.Sprintf("can't be %q, which isn't a topic name", clip(topic)), "1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'")
	}
	if sum := p.settings.PluginSHA256; sum != "" && (len(sum) != 64 || strings.Trim(sum, "0123456789abcdef") != "") {
		p.problem(pluginSHA256, "isn't a SHA-256", "64 lower-case hex digits, as sha256sum prints them")
	}
}

// labels checks the form of labels for the coordinator, which reads them.
func (p *parser) labels() {
	for _, key := range []string{placementLabels, placementPrefer} {
		text := p.config[key]
		if text == "" {
			continue
		}
		for pair := range strings.SplitSeq(text, ",") {
			if name, _, ok := strings.Cut(strings.TrimSpace(pair), "="); !ok || name == "" {
				p.problem(key, fmt.Sprintf("can't be %q", clip(text)), "label=value, several separated by commas")
				break
			}
		}
	}
	if text := p.config[placementSpread]; strings.ContainsAny(text, "=,") {
		p.problem(placementSpread, fmt.Sprintf("can't be %q", clip(text)), "the name of one label, without a value")
	}
}

// clip keeps what an error repeats short.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return strings.ToValidUTF8(s[:most], "") + "…"
}
