package offsets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// parseKey takes a record's key apart. ours is false for keys of other connectors and for what is no such key at all; an error is a key of this connector that names no source partition.
func parseKey(key []byte, connector string) (partition source.JSON, ours bool, err error) {
	name, partition, ok := splitKey(key)
	if !ok || name != connector {
		return nil, false, nil
	}
	if _, err := source.Canonical(partition); err != nil {
		return nil, true, fmt.Errorf("its source partition %w", err)
	}
	return partition, true, nil
}

// splitKey wants an array of a text and one more value.
func splitKey(key []byte) (connector string, partition source.JSON, ok bool) {
	var parts []json.RawMessage
	if json.Unmarshal(key, &parts) != nil || len(parts) != 2 || json.Unmarshal(parts[0], &connector) != nil {
		return "", nil, false
	}
	return connector, source.JSON(parts[1]), true
}

// parseValue returns the offset of a record's value; nil for a tombstone, which Kafka Connect may also write as JSON's null.
func parseValue(value []byte) (source.JSON, error) {
	if value == nil || string(bytes.TrimSpace(value)) == "null" {
		return nil, nil
	}
	if _, err := source.Canonical(source.JSON(value)); err != nil {
		return nil, fmt.Errorf("its source offset %w", err)
	}
	return source.JSON(value), nil
}

// newKey writes a key as Kafka Connect does, with the partition's fields in the order given.
func newKey(connector string, partition source.JSON) ([]byte, error) {
	var out bytes.Buffer
	out.WriteByte('[')
	out.Write(quote(connector))
	out.WriteByte(',')
	if err := json.Compact(&out, partition); err != nil {
		return nil, err
	}
	out.WriteByte(']')
	return out.Bytes(), nil
}

// compactJSON takes white space out and leaves everything else as it is.
func compactJSON(j source.JSON) ([]byte, error) {
	var out bytes.Buffer
	if err := json.Compact(&out, j); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// quote writes a JSON text with the escapes of Kafka Connect's writer: only quotes, backslashes and control characters, which a connector's name hasn't.
func quote(text string) []byte {
	out := []byte{'"'}
	for _, c := range []byte(text) {
		if c == '"' || c == '\\' {
			out = append(out, '\\')
		}
		out = append(out, c)
	}
	return append(out, '"')
}

// errNoPartitions can't happen with a topic that exists.
var errNoPartitions = errors.New("the topic has no partitions")

// partitionOf is where the Java client puts a key: its positive murmur2 modulo the number of partitions.
func partitionOf(key []byte, partitions int32) int32 {
	return int32(murmur2(key)&0x7fffffff) % partitions
}

// murmur2 is org.apache.kafka.common.utils.Utils.murmur2.
func murmur2(data []byte) uint32 {
	const (
		seed = 0x9747b28c
		m    = 0x5bd1e995
		r    = 24
	)
	h := uint32(seed) ^ uint32(len(data))
	for ; len(data) >= 4; data = data[4:] {
		k := uint32(data[0]) | uint32(data[1])<<8 | uint32(data[2])<<16 | uint32(data[3])<<24
		k *= m
		k ^= k >> r
		k *= m
		h = h*m ^ k
	}
	switch len(data) {
	case 3:
		h ^= uint32(data[2]) << 16
		fallthrough
	case 2:
		h ^= uint32(data[1]) << 8
		fallthrough
	case 1:
		h ^= uint32(data[0])
		h *= m
	}
	h ^= h >> 13
	h *= m
	return h ^ h>>15
}
