package settings

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// OffsetsTopicName is the topic in which a connector's offsets are kept: the one that its configuration names, or one of its own.
func (s *Settings) OffsetsTopicName(cluster, connector string) string {
	if s.OffsetsTopic != "" {
		return s.OffsetsTopic
	}
	return cluster + ".offsets." + Escape(connector)
}

const (
	longestEscaped = 120
	keptOfLong     = 80
)

// Escape makes a connector's name fit for topics and transactional ids: different names never give one result.
// A byte outside [A-Za-z0-9-] is '_' and two hex digits; a result over 120 bytes is its first 80, "_x" and 32 hex digits of the name's SHA-256. No hex digit is 'x', so neither form can be taken for the other.
func Escape(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "_%02x", c)
		}
	}
	if b.Len() <= longestEscaped {
		return b.String()
	}
	sum := sha256.Sum256([]byte(name))
	return b.String()[:keptOfLong] + "_x" + hex.EncodeToString(sum[:])[:32]
}

// isPlain says whether a byte stands for itself in names.
func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-'
}
