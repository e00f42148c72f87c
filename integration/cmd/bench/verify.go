package main

import (
	"bytes"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/reader"
)

// verify reads a topic as a read_committed reader: every number of the generator's only source partition once, and in order within a Kafka partition. There are millions of them, so this keeps a bit for
// each where reader.Exact keeps where it was.
func (b *bench) verify(topic string, records int) {
	seen := make([]bool, records+1)
	last := map[int32]int{}
	count := 0
	b.check(reader.Topic(b.Context(), b.broker.Addr, topic, func(r *kgo.Record) error {
		n, err := number(r.Value)
		switch {
		case err != nil:
			return fmt.Errorf("%s/%d offset %d: %w", topic, r.Partition, r.Offset, err)
		case n < 1 || n > records:
			return fmt.Errorf("%s/%d offset %d: number %d was never there", topic, r.Partition, r.Offset, n)
		case seen[n]:
			return fmt.Errorf("%s/%d offset %d: number %d is there twice", topic, r.Partition, r.Offset, n)
		case n < last[r.Partition]:
			return fmt.Errorf("%s/%d offset %d: number %d comes after %d", topic, r.Partition, r.Offset, n, last[r.Partition])
		}
		seen[n], last[r.Partition] = true, n
		count++
		return nil
	}))
	if count != records {
		b.Fatalf("%s: %d records are readable, want %d", topic, count, records)
	}
}

// number reads a record's number out of its value, "0:number" and dots.
func number(value []byte) (int, error) {
	text, ok := bytes.CutPrefix(value, []byte("0:"))
	if end := bytes.IndexByte(text, '.'); end >= 0 {
		text = text[:end]
	}
	n, err := strconv.Atoi(string(text))
	if !ok || err != nil {
		return 0, fmt.Errorf("value %.40q is not 0:NUMBER", value)
	}
	return n, nil
}

// count reads a topic of the baseline's, and counts.
func (b *bench) count(topic string, records int) {
	count := 0
	b.check(reader.Topic(b.Context(), b.broker.Addr, topic, func(*kgo.Record) error {
		count++
		return nil
	}))
	if count != records {
		b.Fatalf("%s: %d records are readable, want %d", topic, count, records)
	}
}

// sleep waits, or ends the part.
func (b *bench) sleep(d time.Duration) {
	select {
	case <-time.After(d):
	case <-b.Context().Done():
		b.Fatal(b.Context().Err())
	}
}
