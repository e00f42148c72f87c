// Package names makes the names that Fencepost uses in Kafka from the names that people choose: topics, groups and transactional ids.
//
// Two different pairs of cluster and connector never give one name: that is what makes fencing one connector harmless to every other. Names are predictable, so that rights can
// be granted by prefix. The package knows no Kafka client and keeps nothing.
package names

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// MaxConnectorBytes is the longest connector name.
const MaxConnectorBytes = 200

const (
	maxClusterBytes = 40
	maxEscapedBytes = 120
	keptBytes       = 80
	hexDigits       = "0123456789abcdef"
)

// CheckCluster says what is wrong with a cluster's name; empty is nothing.
func CheckCluster(name string) string {
	if name == "" || len(name) > maxClusterBytes {
		return "a cluster name has 1 to 40 characters"
	}
	for i := range len(name) {
		if c := name[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return "a cluster name has lower-case letters, digits and hyphens only, not " + strconv.QuoteRune(rune(c))
		}
	}
	return ""
}

// CheckConnector says what is wrong with a connector's name; empty is nothing.
func CheckConnector(name string) string {
	switch {
	case name == "":
		return "a connector needs a name"
	case len(name) > MaxConnectorBytes:
		return "a connector name has at most 200 bytes of UTF-8, this one has " + strconv.Itoa(len(name))
	case !utf8.ValidString(name):
		return "a connector name is UTF-8, this one isn't"
	}
	for _, r := range name {
		if unicode.IsControl(r) {
			return "a connector name has no control characters, this one has " + strconv.QuoteRune(r)
		}
	}
	return ""
}

// Escape writes a connector's name with letters, digits, hyphens and underscores only: a byte outside [A-Za-z0-9-] is an underscore and two hex digits, and a result of more than 120
// bytes is its first 80, "_x" and 32 hex digits of the name's SHA-256. Different names give different results: "_x" is no byte.
func Escape(connector string) string {
	var b strings.Builder
	for i := range len(connector) {
		if c := connector[i]; plain(c) {
			b.WriteByte(c)
		} else {
			b.WriteByte('_')
			b.WriteByte(hexDigits[c>>4])
			b.WriteByte(hexDigits[c&15])
		}
	}
	if b.Len() <= maxEscapedBytes {
		return b.String()
	}
	sum := sha256.Sum256([]byte(connector))
	return b.String()[:keptBytes] + "_x" + hex.EncodeToString(sum[:16])
}

func plain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}

// TransactionalID is the transactional id of one task.
func TransactionalID(cluster, connector string, task uint32) string {
	return TransactionalIDPrefix(cluster, connector) + strconv.FormatUint(uint64(task), 10)
}

// TransactionalIDPrefix is what the ids of all tasks of a connector begin with, and nothing else's do.
func TransactionalIDPrefix(cluster, connector string) string {
	return LogTransactionalID(cluster) + "." + Escape(connector) + "."
}

// OffsetsTopic is the topic that holds a connector's offsets unless its configuration names another.
func OffsetsTopic(cluster, connector string) string {
	return cluster + ".offsets." + Escape(connector)
}

// LogTopic is the topic of the config log.
func LogTopic(cluster string) string { return cluster + ".config" }

// StatusTopic is the topic that keeps what happened lately to connectors.
func StatusTopic(cluster string) string { return cluster + ".status" }

// LogTransactionalID is the transactional id that every write to the config log bears.
func LogTransactionalID(cluster string) string { return "fencepost." + cluster }

// ElectionGroup is the consumer group that elects the leading coordinator.
func ElectionGroup(cluster string) string { return cluster + ".coordinator" }
