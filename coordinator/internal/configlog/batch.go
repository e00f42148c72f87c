package configlog

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	recordMagic          = 2
	attributeTransaction = 1 << 4
	// noTimestamp: a broker refuses records that are more than an hour ahead of its own clock, and nothing in the log depends on when it was written.
	noTimestamp = -1
	// Bytes of a batch before its CRC (first offset, length, leader epoch, magic), and where the length and the CRC's own bytes end.
	lengthEnd = 12
	crcAt     = 17
	crcEnd    = 21
	// A record needs at most this much beside its key and value.
	recordOverhead = 32
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// batch is a record batch as it goes over the wire.
type batch struct {
	data  []byte
	count int32
}

// batches encodes records into batches of at most limit bytes; an ErrTooLarge names the record that doesn't fit into one. Sequence numbers begin at sequence.
func batches(records []state.Record, limit int, producer int64, epoch int16, sequence int32) ([]batch, error) {
	var all []batch
	var body []byte
	var count int32
	flush := func() {
		if count > 0 {
			all = append(all, encodeBatch(body, count, producer, epoch, sequence))
			sequence += count
			body, count = nil, 0
		}
	}
	for _, r := range records {
		size := len(r.Key) + len(r.Value) + recordOverhead
		if size > limit {
			return nil, fmt.Errorf("record %q has %d bytes, the topic takes %d: %w", r.Key, len(r.Value), limit, ErrTooLarge)
		}
		if len(body)+size > limit {
			flush()
		}
		body = appendRecord(body, r, count)
		count++
	}
	flush()
	return all, nil
}

func appendRecord(body []byte, r state.Record, delta int32) []byte {
	record := kmsg.Record{OffsetDelta: delta, Key: []byte(r.Key), Value: r.Value}
	// A length of 0 takes one byte; what follows it is what is counted.
	record.Length = int32(len(record.AppendTo(nil)) - 1)
	return record.AppendTo(body)
}

func encodeBatch(body []byte, count int32, producer int64, epoch int16, sequence int32) batch {
	b := kmsg.RecordBatch{
		PartitionLeaderEpoch: -1, Magic: recordMagic, Attributes: attributeTransaction, LastOffsetDelta: count - 1, FirstTimestamp: noTimestamp, MaxTimestamp: noTimestamp,
		ProducerID: producer, ProducerEpoch: epoch, FirstSequence: sequence, NumRecords: count, Records: body,
	}
	data := b.AppendTo(nil)
	binary.BigEndian.PutUint32(data[lengthEnd-4:], uint32(len(data)-lengthEnd))
	binary.BigEndian.PutUint32(data[crcAt:], crc32.Checksum(data[crcEnd:], castagnoli))
	return batch{data: data, count: count}
}
