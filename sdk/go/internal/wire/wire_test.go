package wire

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// fill sets every field of m to something that isn't its default, so that a field that conversion forgets shows. Of a oneof the field with the given index is set.
func fill(m protoreflect.Message, choice, depth int) {
	fields := m.Descriptor().Fields()
	for i := range fields.Len() {
		f := fields.Get(i)
		if one := f.ContainingOneof(); one != nil && !one.IsSynthetic() && one.Fields().Get(choice%one.Fields().Len()) != f {
			continue
		}
		if f.Message() != nil && !f.IsMap() && depth == 0 {
			continue
		}
		switch {
		case f.IsMap():
			m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), scalar(f.MapValue(), i))
		case f.IsList() && f.Message() != nil:
			fill(m.Mutable(f).List().AppendMutable().Message(), choice, depth-1)
		case f.IsList():
			m.Mutable(f).List().Append(scalar(f, i))
		case f.Message() != nil:
			below := choice
			if depth <= 3 && f.Message().Name() == "Value" {
				below = 0 // a Value cut off from its content would be null, and a null default is none
			}
			fill(m.Mutable(f).Message(), below, depth-1)
		default:
			m.Set(f, scalar(f, i))
		}
	}
}

func scalar(f protoreflect.FieldDescriptor, i int) protoreflect.Value {
	switch f.Kind() {
	case protoreflect.BoolKind:
		return protoreflect.ValueOfBool(true)
	case protoreflect.EnumKind:
		return protoreflect.ValueOfEnum(1)
	case protoreflect.Uint32Kind:
		return protoreflect.ValueOfUint32(uint32(i) + 1)
	case protoreflect.Int32Kind:
		return protoreflect.ValueOfInt32(int32(i) + 1)
	case protoreflect.Uint64Kind:
		return protoreflect.ValueOfUint64(uint64(i) + 1)
	case protoreflect.Sint64Kind:
		return protoreflect.ValueOfInt64(int64(i) + 1)
	case protoreflect.DoubleKind:
		return protoreflect.ValueOfFloat64(float64(i) + 1)
	case protoreflect.StringKind:
		return protoreflect.ValueOfString(fmt.Sprint("text ", i))
	case protoreflect.BytesKind:
		return protoreflect.ValueOfBytes(fmt.Append(nil, "bytes ", i))
	default:
		panic(f.FullName())
	}
}

// roundTrip checks that decoding and encoding again loses no field.
func roundTrip[M proto.Message](t *testing.T, m M, convert func(M) (proto.Message, error)) {
	t.Helper()
	for choice := range 12 { // more than any oneof has fields
		proto.Reset(m)
		fill(m.ProtoReflect(), choice, 4)
		again, err := convert(m)
		if err != nil {
			t.Fatalf("%T: %v", m, err)
		}
		if diff := cmp.Diff(proto.Message(m), again, protocmp.Transform()); diff != "" {
			t.Errorf("%T: %s", m, diff)
		}
	}
}

func TestNoFieldIsLost(t *testing.T) {
	roundTrip(t, &pluginv1.DescribeResponse{}, func(m *pluginv1.DescribeResponse) (proto.Message, error) {
		return EncodeDescription(DecodeDescription(m)), nil
	})
	roundTrip(t, &pluginv1.ValidateRequest{}, func(m *pluginv1.ValidateRequest) (proto.Message, error) {
		return EncodeValidateRequest(DecodeValidateRequest(m)), nil
	})
	roundTrip(t, &pluginv1.ValidateResponse{}, func(m *pluginv1.ValidateResponse) (proto.Message, error) {
		return EncodeValidation(DecodeValidation(m)), nil
	})
	roundTrip(t, &pluginv1.AlterOffsetsRequest{}, func(m *pluginv1.AlterOffsetsRequest) (proto.Message, error) {
		return EncodeAlterRequest(DecodeAlterRequest(m)), nil
	})
	roundTrip(t, &pluginv1.PlanOpen{}, func(m *pluginv1.PlanOpen) (proto.Message, error) {
		m.Abilities = nil // the runner's abilities aren't part of the Go interface
		return EncodePlanOpen(DecodePlanOpen(m)), nil
	})
	roundTrip(t, &pluginv1.RunOpen{}, func(m *pluginv1.RunOpen) (proto.Message, error) {
		m.Abilities = nil
		return EncodeRunOpen(DecodeRunOpen(m)), nil
	})
	roundTrip(t, &pluginv1.TaskSet{}, func(m *pluginv1.TaskSet) (proto.Message, error) {
		return EncodeTasks(m.GetVersion(), DecodeTasks(m)), nil
	})
	roundTrip(t, &pluginv1.Lookup{}, func(m *pluginv1.Lookup) (proto.Message, error) {
		return EncodeLookup(m.GetId(), DecodeLookup(m)), nil
	})
	roundTrip(t, &pluginv1.Schema{}, func(m *pluginv1.Schema) (proto.Message, error) {
		s, err := DecodeSchema(m)
		if err != nil {
			return nil, err
		}
		return EncodeSchema(s)
	})
	roundTrip(t, &pluginv1.Error{}, func(m *pluginv1.Error) (proto.Message, error) { return EncodeError(DecodeError(m)), nil })
}

func TestEveryTaskMessageAndSignalSurvives(t *testing.T) {
	roundTrip(t, &pluginv1.RunResponse{}, func(m *pluginv1.RunResponse) (proto.Message, error) {
		if m.GetLookup() != nil || m.GetError() != nil {
			return m, nil // not messages of source
		}
		decoded, err := DecodeMessage(m)
		if err != nil {
			return nil, err
		}
		return EncodeMessage(decoded)
	})
	roundTrip(t, &pluginv1.RunRequest{}, func(m *pluginv1.RunRequest) (proto.Message, error) {
		s, ok := DecodeSignal(m)
		if !ok {
			return m, nil // not signals
		}
		return EncodeSignal(s)
	})
}

func TestNullAndEmptyStayApart(t *testing.T) {
	in := []source.PartitionOffset{{Partition: source.JSON(`{}`)}, {Partition: source.JSON(`{}`), Offset: source.JSON{}}}
	encoded, err := proto.Marshal(&pluginv1.StoredOffsets{Offsets: EncodeOffsets(in)})
	if err != nil {
		t.Fatal(err)
	}
	var out pluginv1.StoredOffsets
	if err := proto.Unmarshal(encoded, &out); err != nil {
		t.Fatal(err)
	}
	got := DecodeOffsets(out.GetOffsets())
	if got[0].Offset != nil || got[1].Offset == nil {
		t.Fatalf("got %#v", got)
	}
	for _, c := range []source.Claim{{}, {Set: []source.JSON{}}, {Prefix: []byte{}}, {Range: &source.Range{}}, {Slot: &source.Slot{Of: 1}}} {
		encoded, _ := proto.Marshal(EncodeClaim(c))
		var out pluginv1.Claim
		if err := proto.Unmarshal(encoded, &out); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c, DecodeClaim(&out)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestStoredOffsetsAreDividedAndTheLastSaysSo(t *testing.T) {
	if got := EncodeStored(nil); len(got) != 1 || !got[0].GetLast() {
		t.Fatalf("no offsets: %v", got)
	}
	offsets := make([]source.PartitionOffset, 40)
	for i := range offsets {
		offsets[i] = source.PartitionOffset{Partition: make([]byte, 60<<10), Offset: make([]byte, 60<<10)}
	}
	total := 0
	pieces := EncodeStored(offsets)
	for i, p := range pieces {
		if size := proto.Size(p); size > MaxStoredOffsetsBytes {
			t.Errorf("piece %d has %d bytes", i, size)
		}
		if p.GetLast() != (i == len(pieces)-1) {
			t.Errorf("piece %d of %d: last is %v", i, len(pieces), p.GetLast())
		}
		total += len(p.GetOffsets())
	}
	if total != len(offsets) {
		t.Fatalf("%d offsets of %d", total, len(offsets))
	}
}

func TestStatusKeepsKindKeyAndHint(t *testing.T) {
	in := &source.Error{Kind: source.Configuration, Message: "no such file", Key: "path", Hint: "check it"}
	var out *source.Error
	if !errors.As(DecodeStatus(EncodeStatus(fmt.Errorf("open: %w", in))), &out) {
		t.Fatal("no *source.Error")
	}
	if out.Kind != in.Kind || out.Key != in.Key || out.Hint != in.Hint || out.Message != "open: no such file" {
		t.Fatalf("got %+v", out)
	}
	if err := EncodeStatus(errors.New("bad \xff text")); status.Code(err) != codes.Unavailable {
		t.Fatalf("an ordinary error became %v", err)
	}
	if err := DecodeStatus(EncodeStatus(context.Canceled)); !errors.Is(err, context.Canceled) {
		t.Fatalf("cancelled became %v", err)
	}
	if !errors.Is(DecodeStatus(status.Error(codes.Unimplemented, "")), ErrUnimplemented) {
		t.Fatal("UNIMPLEMENTED isn't ErrUnimplemented")
	}
	if DecodeStatus(nil) != nil || EncodeStatus(nil) != nil {
		t.Fatal("nil isn't nil")
	}
}

func TestVerdictThatIsNotKnownIsAVeto(t *testing.T) {
	for _, a := range []source.AlterAnswer{{}, {Done: true}, {Veto: "no"}} {
		if got := DecodeAlterAnswer(EncodeAlterAnswer(&a)); *got != a {
			t.Errorf("%+v became %+v", a, got)
		}
	}
	if got := DecodeAlterAnswer(&pluginv1.AlterOffsetsResponse{Verdict: 9}); got.Veto == "" {
		t.Errorf("got %+v", got)
	}
}

func TestNilMessagesInListsDoNotPanic(t *testing.T) {
	DecodeDescription(&pluginv1.DescribeResponse{Types: []*pluginv1.ConnectorType{nil, {Config: []*pluginv1.ConfigKey{nil}}}})
	DecodeTasks(&pluginv1.TaskSet{Tasks: []*pluginv1.Task{nil}})
	if _, err := DecodeMessage(&pluginv1.RunResponse{Message: &pluginv1.RunResponse_Batch{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := DecodeMessage(&pluginv1.RunResponse{}); err == nil {
		t.Fatal("an empty message was taken")
	}
}
