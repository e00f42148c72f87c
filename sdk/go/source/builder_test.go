package source

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// plain is a record that can be compared.
type plain struct {
	Key, Value             []byte
	Headers                []Header
	Partition, Topic       uint32
	KeySchema, ValueSchema uint32
	KafkaPartition         int32
	TimestampMS            int64
}

func plainOf(v RecordView) plain {
	p := plain{v.Key, v.Value, nil, v.Partition, v.Topic, v.KeySchema, v.ValueSchema, v.KafkaPartition, v.TimestampMS}
	for name, value := range v.Headers.All() {
		p.Headers = append(p.Headers, Header{string(name), value})
	}
	return p
}

func plainRecords(b *Batch) []plain {
	var out []plain
	for _, v := range b.Records() {
		out = append(out, plainOf(v))
	}
	return out
}

func (p plain) addTo(b *Builder) {
	b.Add(RecordView{Key: p.Key, Value: p.Value, Partition: p.Partition, Topic: p.Topic, KeySchema: p.KeySchema, ValueSchema: p.ValueSchema,
		KafkaPartition: p.KafkaPartition, TimestampMS: p.TimestampMS})
	for _, h := range p.Headers {
		b.Header(h.Name, h.Value)
	}
}

// drawBytes gives null, empty and filled ones.
func drawBytes(t *rapid.T, name string) []byte {
	if rapid.Bool().Draw(t, name+" null") {
		return nil
	}
	return append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 6).Draw(t, name)...)
}

func drawRecords(t *rapid.T) []plain {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) plain {
		p := plain{
			Key: drawBytes(t, "key"), Value: drawBytes(t, "value"),
			Partition: rapid.Uint32Range(1, 3).Draw(t, "partition"), Topic: rapid.Uint32Range(1, 2).Draw(t, "topic"),
			KeySchema: rapid.Uint32Range(0, 1).Draw(t, "key schema"), ValueSchema: rapid.SampledFrom([]uint32{0, 0, 0, 17}).Draw(t, "value schema"),
			KafkaPartition: rapid.SampledFrom([]int32{-1, -1, 0, 5}).Draw(t, "kafka partition"),
			TimestampMS:    rapid.SampledFrom([]int64{NoTimestamp, NoTimestamp, 1, MaxTimestampMS}).Draw(t, "timestamp"),
		}
		for range rapid.SampledFrom([]int{0, 0, 0, 1, 3}).Draw(t, "headers") {
			p.Headers = append(p.Headers, Header{rapid.StringN(0, 3, 9).Draw(t, "name"), drawBytes(t, "header")})
		}
		return p
	}), 0, 12).Draw(t, "records")
}

func TestRecordsComeOutAsTheyWentIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var b Builder
		reuse := rapid.Bool().Draw(t, "reuse")
		for seq := uint64(1); seq < 4; seq++ {
			want := drawRecords(t)
			for _, p := range want {
				p.addTo(&b)
			}
			if b.Len() > 0 {
				b.Reach(1, JSON(`{"n":1}`))
			}
			bound := b.Bound()
			batch := b.Batch(seq)
			if err := batch.Check(Limits{}); err != nil {
				t.Fatal(err)
			}
			if batch.Size() > bound {
				t.Fatalf("size is %d, the bound was %d", batch.Size(), bound)
			}
			if diff := cmp.Diff(want, plainRecords(batch), cmp.Comparer(func(a, b []byte) bool { return bytes.Equal(a, b) && (a == nil) == (b == nil) })); diff != "" && len(want) > 0 {
				t.Fatal(diff)
			}
			// A view goes into another builder whole.
			var copied Builder
			for _, v := range batch.Records() {
				copied.Add(v)
			}
			again := copied.Batch(seq)
			again.Offsets = batch.Offsets
			if diff := cmp.Diff(plainRecords(batch), plainRecords(again)); diff != "" {
				t.Fatal(diff)
			}
			if reuse {
				b.Reuse(batch)
			}
		}
	})
}

func TestColumnsAreLeftOutWhereTheDefaultHolds(t *testing.T) {
	var b Builder
	for range 3 {
		plain{Value: []byte("x"), Partition: 7, Topic: 2, KafkaPartition: -1, TimestampMS: NoTimestamp}.addTo(&b)
	}
	got := b.Batch(1)
	want := &Batch{Seq: 1, Count: 3, Arena: []byte("xxx"), ValueLen: U32{2, 0, 0, 0, 2, 0, 0, 0, 2, 0, 0, 0}, DefaultPartition: 7, DefaultTopic: 2}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatal(diff)
	}
}

func TestBuilderGoesOnInOtherMemory(t *testing.T) {
	var b Builder
	plain{Value: []byte("one"), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: NoTimestamp}.addTo(&b)
	first := b.Batch(1)
	plain{Value: []byte("two"), Partition: 1, Topic: 1, KafkaPartition: -1, TimestampMS: NoTimestamp}.addTo(&b)
	b.Batch(2)
	if string(first.Arena) != "one" {
		t.Fatalf("the first batch became %q", first.Arena)
	}
}

// TestBatchOfTheProtocolsExample is the example in plugin.proto.
func TestBatchOfTheProtocolsExample(t *testing.T) {
	b := &Batch{Seq: 1, Count: 2, Arena: []byte("axy"), KeyLen: U32{}.Append(2).Append(0), ValueLen: U32{}.Append(3).Append(1), DefaultTopic: 1, DefaultPartition: 1}
	if err := b.Check(Limits{}); err != nil {
		t.Fatal(err)
	}
	got := plainRecords(b)
	if string(got[0].Key) != "a" || string(got[0].Value) != "xy" || got[1].Key != nil || got[1].Value == nil || len(got[1].Value) != 0 {
		t.Fatalf("got %+v", got)
	}
}

func TestEmptyIsNotNullWithoutAnArena(t *testing.T) {
	b := &Batch{Count: 1, KeyLen: U32{}.Append(1), ValueLen: U32{}.Append(0), DefaultTopic: 1, DefaultPartition: 1}
	if err := b.Check(Limits{}); err != nil {
		t.Fatal(err)
	}
	got := plainRecords(b)[0]
	if got.Key == nil || got.Value != nil {
		t.Fatalf("got %+v", got)
	}
}

func TestMalformedBatchIsNamedByItsColumn(t *testing.T) {
	good := func() *Batch {
		var b Builder
		for i := range 2 {
			plain{Key: []byte("k"), Value: []byte("vv"), Partition: 1 + uint32(i), Topic: 1 + uint32(i), KafkaPartition: int32(i), TimestampMS: 5,
				KeySchema: uint32(i), ValueSchema: uint32(i), Headers: []Header{{"h", []byte("w")}}}.addTo(&b)
		}
		b.Reach(1, JSON(`{"n":1}`))
		b.Reach(2, JSON(`{"n":1}`))
		return b.Batch(1)
	}
	if err := good().Check(Limits{}); err != nil {
		t.Fatal(err)
	}
	for want, spoil := range map[string]func(b *Batch){
		"count":                  func(b *Batch) { b.Count = -1 },
		"count is 100001":        func(b *Batch) { b.Count = 100_001 },
		"column key_len":         func(b *Batch) { b.KeyLen = b.KeyLen[:7] },
		"column value_len":       func(b *Batch) { b.ValueLen = b.ValueLen.Append(1) },
		"column partition has":   func(b *Batch) { b.Partition = b.Partition[:4] },
		"column topic has":       func(b *Batch) { b.Topic = b.Topic[:4] },
		"column kafka_partition": func(b *Batch) { b.KafkaPartition = b.KafkaPartition[:4] },
		"column timestamp_ms has": func(b *Batch) {
			b.TimestampMS = b.TimestampMS[:8]
		},
		"column key_schema":            func(b *Batch) { b.KeySchema = b.KeySchema[:4] },
		"column value_schema":          func(b *Batch) { b.ValueSchema = b.ValueSchema[:4] },
		"column header_count":          func(b *Batch) { b.HeaderCount = b.HeaderCount[:4] },
		"column header_name_len":       func(b *Batch) { b.HeaderNameLen = b.HeaderNameLen[:4] },
		"column header_value_len":      func(b *Batch) { b.HeaderValueLen = b.HeaderValueLen[:4] },
		"header_name_len has 8":        func(b *Batch) { b.HeaderCount = U32{}.Append(1 << 31).Append(1 << 31) },
		"the arena has 9":              func(b *Batch) { b.Arena = b.Arena[:9] },
		"the arena has 11":             func(b *Batch) { b.Arena = append(b.Arena, 'x') },
		"record 0 has":                 func(b *Batch) { b.KeyLen = U32{}.Append(1 << 30).Append(2) },
		"default_partition":            func(b *Batch) { b.Partition, b.DefaultPartition = nil, 0 },
		"default_topic":                func(b *Batch) { b.Topic, b.DefaultTopic = nil, 0 },
		"partition: record 1 has the":  func(b *Batch) { b.Partition = U32{}.Append(1).Append(0) },
		"topic: record 1 has the":      func(b *Batch) { b.Topic = U32{}.Append(1).Append(0) },
		"kafka_partition: record 1":    func(b *Batch) { b.KafkaPartition = U32{}.Append(0).Append(1 << 31) },
		"timestamp_ms: record 1 has 0": func(b *Batch) { b.TimestampMS = I64{}.Append(1).Append(0) },
		"has 9200000000001":            func(b *Batch) { b.TimestampMS = I64{}.Append(1).Append(MaxTimestampMS + 1) },
		"boundary 4":                   func(b *Batch) { b.Boundary = 4 },
		"event goes on":                func(b *Batch) { b.Boundary, b.Continues = MarkSource, true },
		"two offsets":                  func(b *Batch) { b.Offsets[1].Partition = 1 },
		"number 0":                     func(b *Batch) { b.Offsets[1].Partition = 0 },
		"0 bytes":                      func(b *Batch) { b.Offsets[1].Offset = nil },
		"the limit is 16777216":        func(b *Batch) { b.Arena = make([]byte, MaxBatchBytes) },
	} {
		b := good()
		spoil(b)
		if err := b.Check(Limits{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func FuzzCheckedBatchIsSafeToRead(f *testing.F) {
	f.Add(2, []byte("axy"), []byte{2, 0, 0, 0, 0, 0, 0, 0}, []byte{3, 0, 0, 0, 1, 0, 0, 0}, []byte{}, []byte{}, []byte{})
	f.Add(1, []byte("nv"), []byte{}, []byte{}, []byte{1, 0, 0, 0}, []byte{1, 0, 0, 0}, []byte{2, 0, 0, 0})
	f.Fuzz(func(t *testing.T, count int, arena, keys, values, headers, names, headerValues []byte) {
		b := &Batch{Count: count, Arena: arena, KeyLen: keys, ValueLen: values, HeaderCount: headers, HeaderNameLen: names, HeaderValueLen: headerValues, DefaultPartition: 1, DefaultTopic: 1}
		if b.Check(Limits{}) != nil {
			return
		}
		total := 0
		for _, p := range plainRecords(b) {
			total += len(p.Key) + len(p.Value)
			for _, h := range p.Headers {
				total += len(h.Name) + len(h.Value)
			}
		}
		if total != len(arena) {
			t.Fatalf("the records have %d bytes, the arena %d", total, len(arena))
		}
	})
}
