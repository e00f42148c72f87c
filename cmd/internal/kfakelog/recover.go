package kfakelog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// A partition's folder has segments: N.dat is record batches as Kafka has them, N.idx an entry of indexBytes for each batch. The index says whether a batch was transactional when it was written.
const (
	batchHeader  = 61
	indexBytes   = 15
	indexVersion = 1

	attributeTransactional = 0x10
	attributeControl       = 0x20
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// recoverPartitions gives every open transaction its marker.
func recoverPartitions(dir string, committing map[int64]int16) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		if err := recoverPartition(filepath.Join(dir, e.Name()), committing); err != nil {
			return fmt.Errorf("partition %s: %w", e.Name(), err)
		}
	}
	return nil
}

// partition is what a scan of a partition found.
type partition struct {
	base  int64           // of the last segment
	bytes int64           // of the last segment, up to the last whole batch
	index []byte          // of the last segment, an entry for each whole batch
	next  int64           // offset of the next batch
	epoch uint32          // the leader's
	open  map[int64]int16 // producer id → epoch
	short bool            // the last segment's index lacks entries
}

func recoverPartition(dir string, committing map[int64]int16) error {
	bases, err := segments(dir)
	if err != nil || len(bases) == 0 {
		return err
	}
	p := &partition{open: map[int64]int16{}}
	for _, base := range bases {
		if err := p.scan(dir, base); err != nil {
			return err
		}
	}
	if len(p.open) == 0 && !p.short {
		return nil
	}
	var markers []byte
	for _, producer := range slices.Sorted(maps.Keys(p.open)) {
		epoch, committed := committing[producer]
		markers = append(markers, marker(p.next, producer, p.open[producer], p.epoch, committed && epoch == p.open[producer])...)
		p.index = append(p.index, indexEntry(p.epoch, false)...)
		p.next++
	}
	// The index is longer than the segment for a moment; kfake cuts off what is too much there, but takes a batch without an entry for one outside of any transaction.
	if err := writeAt(filepath.Join(dir, fmt.Sprintf("%d.idx", p.base)), p.index, 0); err != nil {
		return err
	}
	return writeAt(filepath.Join(dir, fmt.Sprintf("%d.dat", p.base)), markers, p.bytes)
}

// segments lists a partition's segments by their first offset.
func segments(dir string) ([]int64, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var bases []int64
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), ".dat"); ok {
			if base, err := strconv.ParseInt(name, 10, 64); err == nil {
				bases = append(bases, base)
			}
		}
	}
	slices.Sort(bases)
	return bases, nil
}

// scan follows the transactions through a segment, up to its last whole batch.
func (p *partition) scan(dir string, base int64) error {
	raw, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.dat", base)))
	if err != nil {
		return err
	}
	index, err := os.ReadFile(filepath.Join(dir, fmt.Sprintf("%d.idx", base)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	p.base, p.bytes, p.short = base, 0, false
	p.index = nil
	for n := 0; ; n++ {
		b := wholeBatch(raw[p.bytes:])
		if b == nil {
			return nil
		}
		attributes := binary.BigEndian.Uint16(b[21:])
		control := attributes&attributeControl != 0
		transactional := attributes&attributeTransactional != 0 && !control
		entry := indexEntry(p.epoch, transactional)
		if end := (n + 1) * indexBytes; end <= len(index) {
			entry = index[end-indexBytes : end]
			p.epoch = binary.LittleEndian.Uint32(entry[2:])
			transactional = entry[indexBytes-1]&1 != 0 // compaction clears it
		} else {
			p.short = true
		}
		p.index = append(p.index, entry...)
		producer := int64(binary.BigEndian.Uint64(b[43:]))
		switch {
		case control:
			delete(p.open, producer)
		case transactional:
			p.open[producer] = int16(binary.BigEndian.Uint16(b[51:]))
		}
		p.next = int64(binary.BigEndian.Uint64(b)) + int64(int32(binary.BigEndian.Uint32(b[23:]))) + 1
		p.bytes += int64(len(b))
	}
}

// wholeBatch is the batch at the beginning of raw; nil where there is none, or not all of it.
func wholeBatch(raw []byte) []byte {
	if len(raw) < batchHeader {
		return nil
	}
	size := 12 + int64(binary.BigEndian.Uint32(raw[8:]))
	if size < batchHeader || size > int64(len(raw)) {
		return nil
	}
	b := raw[:size]
	if crc32.Checksum(b[21:], castagnoli) != binary.BigEndian.Uint32(b[17:]) {
		return nil
	}
	return b
}

// marker is the batch that ends a transaction.
func marker(offset, producer int64, producerEpoch int16, leaderEpoch uint32, commit bool) []byte {
	key := kmsg.ControlRecordKey{Type: kmsg.ControlRecordKeyTypeAbort}
	if commit {
		key.Type = kmsg.ControlRecordKeyTypeCommit
	}
	end := kmsg.EndTxnMarker{}
	record := kmsg.Record{Key: key.AppendTo(nil), Value: end.AppendTo(nil)}
	record.Length = int32(len(record.AppendTo(nil)) - 1) // the length itself takes one byte
	now := time.Now().UnixMilli()
	b := kmsg.RecordBatch{
		FirstOffset: offset, PartitionLeaderEpoch: int32(leaderEpoch), Magic: 2, Attributes: attributeTransactional | attributeControl,
		FirstTimestamp: now, MaxTimestamp: now, ProducerID: producer, ProducerEpoch: producerEpoch, FirstSequence: -1, NumRecords: 1, Records: record.AppendTo(nil),
	}
	raw := b.AppendTo(nil)
	binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
	binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], castagnoli))
	return raw
}

// indexEntry is a batch's entry in the index.
func indexEntry(leaderEpoch uint32, transactional bool) []byte {
	e := make([]byte, indexBytes)
	e[0] = indexVersion
	binary.LittleEndian.PutUint32(e[2:], leaderEpoch)
	if transactional {
		e[indexBytes-1] = 1
	}
	e[1] = byte(crc32.Checksum(e[2:], castagnoli))
	return e
}

// writeAt writes a file from a position to its new end, and waits until it is on disk.
func writeAt(path string, text []byte, at int64) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	err = f.Truncate(at)
	if err == nil {
		_, err = f.WriteAt(text, at)
	}
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}
