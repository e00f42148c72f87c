package host

import (
	"math/rand/v2"
	"testing"

	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// pieces cuts an encoded message into frames, as a connection does.
func pieces(encoded []byte) mem.BufferSlice {
	var out mem.BufferSlice
	for len(encoded) > 0 {
		n := min(len(encoded), 16<<10)
		out = append(out, mem.SliceBuffer(encoded[:n]))
		encoded = encoded[n:]
	}
	return out
}

func encoded(tb testing.TB, arena int) []byte {
	tb.Helper()
	m := batch(7, string(make([]byte, arena)))
	b := m.GetBatch()
	b.KeyLen, b.Offsets = []byte{1, 0, 0, 0}, []*pluginv1.Reached{{Partition: 1, Offset: []byte(`{"n":1}`)}}
	out, err := proto.Marshal(m)
	if err != nil {
		tb.Fatal(err)
	}
	return out
}

func TestCodecDecodesLikeTheOrdinaryOne(t *testing.T) {
	for _, size := range []int{0, 1, 100_000} {
		text := encoded(t, size)
		var ours, theirs pluginv1.RunResponse
		if err := (codec{}).Unmarshal(pieces(text), &ours); err != nil {
			t.Fatal(err)
		}
		if err := proto.Unmarshal(text, &theirs); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(&ours, &theirs) {
			t.Errorf("%d bytes: the messages differ", size)
		}
	}
}

func TestCodecRefusesDamageLikeTheOrdinaryOne(t *testing.T) {
	text := encoded(t, 1000)
	random := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		damaged := append([]byte(nil), text[:random.IntN(len(text)+1)]...)
		for range random.IntN(4) {
			if len(damaged) > 0 {
				damaged[random.IntN(min(len(damaged), 40))] = byte(random.Uint32())
			}
		}
		var ours, theirs pluginv1.RunResponse
		ourErr := (codec{}).Unmarshal(pieces(damaged), &ours)
		theirErr := proto.Unmarshal(damaged, &theirs)
		for _, m := range []*pluginv1.RunResponse{&ours, &theirs} { // unknown fields are nothing to compare
			forget(m.ProtoReflect())
		}
		if (ourErr == nil) != (theirErr == nil) {
			t.Fatalf("%x: ours %v, theirs %v", damaged, ourErr, theirErr)
		}
		if ourErr == nil && !proto.Equal(&ours, &theirs) {
			t.Fatalf("%x: the messages differ", damaged)
		}
	}
}

// forget drops unknown fields.
func forget(m protoreflect.Message) {
	m.SetUnknown(nil)
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case f.Message() == nil || f.IsMap():
		case f.IsList():
			for i := range v.List().Len() {
				forget(v.List().Get(i).Message())
			}
		default:
			forget(v.Message())
		}
		return true
	})
}

// TestCodecKnowsEveryFieldOfABatch fills each field with something that isn't its default.
func TestCodecKnowsEveryFieldOfABatch(t *testing.T) {
	b := &pluginv1.Batch{}
	m := b.ProtoReflect()
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		switch f.Kind() {
		case protoreflect.BytesKind:
			m.Set(f, protoreflect.ValueOfBytes([]byte{byte(i), 1, 2, 3}))
		case protoreflect.Uint32Kind:
			m.Set(f, protoreflect.ValueOfUint32(uint32(i)+1))
		case protoreflect.Uint64Kind:
			m.Set(f, protoreflect.ValueOfUint64(1<<40))
		case protoreflect.BoolKind:
			m.Set(f, protoreflect.ValueOfBool(true))
		case protoreflect.EnumKind:
			m.Set(f, protoreflect.ValueOfEnum(2))
		case protoreflect.MessageKind:
			b.Offsets = []*pluginv1.Reached{{Partition: 9, Offset: []byte("{}")}, {}}
		default:
			t.Fatalf("%s is of a kind that the codec doesn't know", f.Name())
		}
	}
	want := &pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{Batch: b}}
	text, err := proto.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	got := &pluginv1.RunResponse{}
	if err := (codec{}).Unmarshal(pieces(text), got); err != nil || !proto.Equal(got, want) {
		t.Fatalf("got %v, %v", got, err)
	}
}

func BenchmarkDecodeBatch(b *testing.B) {
	text := encoded(b, 4<<20)
	for name, c := range map[string]encoding.CodecV2{"aliased": codec{}, "ordinary": encoding.GetCodecV2("proto")} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := c.Unmarshal(pieces(text), &pluginv1.RunResponse{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
