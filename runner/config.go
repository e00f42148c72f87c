package runner

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

const (
	maxNameBytes = 100
	maxLabels    = 1000
)

// ConfigError has every problem of a Config. Keys are those of a runner's configuration file.
type ConfigError struct{ Problems []source.Problem }

// Error has all of them, one a line.
func (e *ConfigError) Error() string {
	lines := make([]string, 0, len(e.Problems))
	for _, p := range e.Problems {
		line := p.Key + ": " + p.Message
		if p.Hint != "" {
			line += " (" + p.Hint + ")"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

// check finds every problem.
func (c *Config) check() error {
	var problems []source.Problem
	wrong := func(key, message, hint string) {
		problems = append(problems, source.Problem{Key: key, Message: message, Hint: hint})
	}
	if c.Name == "" || len(c.Name) > maxNameBytes || !utf8.ValidString(c.Name) {
		wrong("name", fmt.Sprintf("can't be %.100q", c.Name), "1 to 100 bytes of UTF-8, unique in the cluster")
	}
	if len(c.Coordinators) == 0 {
		wrong("coordinator", "is missing", "HOST:PORT of at least one coordinator")
	}
	for _, address := range c.Coordinators {
		if !isAddress(address) {
			wrong("coordinator", fmt.Sprintf("can't be %.100q", address), "HOST:PORT")
		}
	}
	if c.Bootstrap == "" {
		wrong("bootstrap-servers", "is missing", "HOST:PORT of at least one Kafka broker")
	}
	for name, address := range c.PluginAddresses {
		if !isAddress(strings.TrimPrefix(address, scheme)) {
			wrong("plugin-address", fmt.Sprintf("of plugin %q can't be %.100q", name, address), "HOST:PORT")
		}
	}
	if len(c.Labels) > maxLabels {
		wrong("label", fmt.Sprintf("%d labels", len(c.Labels)), fmt.Sprintf("at most %d", maxLabels))
	}
	if c.CommitsPerSecond < 0 {
		wrong("commits-per-second", fmt.Sprintf("can't be %d", c.CommitsPerSecond), "at least 1")
	}
	problems = append(problems, c.checkKafka()...)
	if len(problems) == 0 {
		return nil
	}
	slices.SortStableFunc(problems, func(a, b source.Problem) int { return strings.Compare(a.Key, b.Key) })
	return &ConfigError{Problems: problems}
}

// checkKafka checks the client's keys.
func (c *Config) checkKafka() []source.Problem {
	problems := publish.CheckClientConfig(c.Kafka)
	for i := range problems {
		problems[i].Key = "kafka." + problems[i].Key
	}
	if _, given := c.Kafka["transaction.timeout.ms"]; given {
		problems = append(problems, source.Problem{Key: "kafka.transaction.timeout.ms", Message: "is a connector's to set", Hint: "producer.override.transaction.timeout.ms in its configuration"})
	}
	return problems
}

// isAddress says whether a text is HOST:PORT.
func isAddress(address string) bool {
	_, port, err := net.SplitHostPort(address)
	return err == nil && port != ""
}
