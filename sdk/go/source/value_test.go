package source_test

import (
	"math"
	"testing"

	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// tree reads a value to its end.
func tree(b []byte) (*pluginv1.Value, error) {
	v, err := source.ReadValue(b)
	if err != nil {
		return nil, err
	}
	return treeOf(v)
}

func treeOf(v source.Value) (*pluginv1.Value, error) {
	switch v.Kind {
	case source.BoolValue:
		return &pluginv1.Value{Kind: &pluginv1.Value_Boolean{Boolean: v.Bool}}, nil
	case source.IntValue:
		return &pluginv1.Value{Kind: &pluginv1.Value_Integer{Integer: v.Int}}, nil
	case source.FloatValue:
		return &pluginv1.Value{Kind: &pluginv1.Value_Float{Float: v.Float}}, nil
	case source.TextValue:
		return &pluginv1.Value{Kind: &pluginv1.Value_Text{Text: string(v.Bytes)}}, nil
	case source.RawValue:
		return &pluginv1.Value{Kind: &pluginv1.Value_Raw{Raw: v.Bytes}}, nil
	case source.ListValue, source.StructValue:
		list := &pluginv1.Value_List{}
		for e, err := range v.Elements() {
			if err != nil {
				return nil, err
			}
			element, err := treeOf(e)
			if err != nil {
				return nil, err
			}
			list.Values = append(list.Values, element)
		}
		if v.Kind == source.ListValue {
			return &pluginv1.Value{Kind: &pluginv1.Value_List_{List: list}}, nil
		}
		return &pluginv1.Value{Kind: &pluginv1.Value_Struct{Struct: list}}, nil
	case source.MapValue:
		m := &pluginv1.Value_Map{}
		for e, err := range v.Entries() {
			if err != nil {
				return nil, err
			}
			key, err := treeOf(e.Key)
			if err != nil {
				return nil, err
			}
			value, err := treeOf(e.Value)
			if err != nil {
				return nil, err
			}
			m.Entries = append(m.Entries, &pluginv1.Value_Entry{Key: key, Value: value})
		}
		return &pluginv1.Value{Kind: &pluginv1.Value_Map_{Map: m}}, nil
	}
	return &pluginv1.Value{}, nil
}

// normal makes what isn't set and what is set to an empty Value the same: both are null.
func normal(v *pluginv1.Value) *pluginv1.Value {
	switch k := v.GetKind().(type) {
	case nil:
		return &pluginv1.Value{}
	case *pluginv1.Value_List_:
		for i := range k.List.GetValues() {
			k.List.Values[i] = normal(k.List.Values[i])
		}
	case *pluginv1.Value_Struct:
		for i := range k.Struct.GetValues() {
			k.Struct.Values[i] = normal(k.Struct.Values[i])
		}
	case *pluginv1.Value_Map_:
		for _, e := range k.Map.GetEntries() {
			e.Key, e.Value = normal(e.Key), normal(e.Value)
		}
	}
	return v
}

func examples() []*pluginv1.Value {
	text := &pluginv1.Value{Kind: &pluginv1.Value_Text{Text: "héllo"}}
	list := &pluginv1.Value_List{Values: []*pluginv1.Value{text, {}, {Kind: &pluginv1.Value_Float{Float: math.Inf(1)}}}}
	return []*pluginv1.Value{
		{}, text,
		{Kind: &pluginv1.Value_Boolean{Boolean: true}}, {Kind: &pluginv1.Value_Boolean{}},
		{Kind: &pluginv1.Value_Integer{Integer: math.MinInt64}}, {Kind: &pluginv1.Value_Integer{Integer: -1}}, {Kind: &pluginv1.Value_Integer{}},
		{Kind: &pluginv1.Value_Float{Float: -0.5}}, {Kind: &pluginv1.Value_Raw{Raw: []byte{0, 255}}}, {Kind: &pluginv1.Value_Raw{}},
		{Kind: &pluginv1.Value_List_{List: list}}, {Kind: &pluginv1.Value_Struct{Struct: list}}, {Kind: &pluginv1.Value_List_{List: &pluginv1.Value_List{}}},
		{Kind: &pluginv1.Value_Map_{Map: &pluginv1.Value_Map{Entries: []*pluginv1.Value_Entry{{Key: text, Value: &pluginv1.Value{Kind: &pluginv1.Value_List_{List: list}}}, {}}}}},
	}
}

func TestReadValueReadsWhatProtobufWrites(t *testing.T) {
	for _, want := range examples() {
		b, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree(b)
		if err != nil || !proto.Equal(got, normal(want)) {
			t.Errorf("%v: got %v, %v", want, got, err)
		}
	}
}

func TestReadValueRefusesTwoKinds(t *testing.T) {
	if _, err := source.ReadValue([]byte{0x08, 1, 0x10, 2}); err == nil {
		t.Error("a value that is a boolean and a number was read")
	}
}

// FuzzReadValue: what is read without an error is what the generated code reads.
func FuzzReadValue(f *testing.F) {
	for _, v := range examples() {
		b, err := proto.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("\x1000\xdb0")) // a field that nobody knows
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := tree(b)
		if err != nil {
			return
		}
		var want pluginv1.Value
		if err := (proto.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(b, &want); err != nil {
			t.Fatalf("%x was read as %v, protobuf says %v", b, got, err)
		}
		if !proto.Equal(got, normal(&want)) {
			t.Fatalf("%x: got %v, want %v", b, got, &want)
		}
	})
}
