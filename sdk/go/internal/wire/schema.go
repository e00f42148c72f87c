package wire

import (
	"fmt"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// MaxDepth is how deep schemas and structured values may be nested.
const MaxDepth = 100

// errTooDeep keeps a hostile schema from using up the stack.
var errTooDeep = fmt.Errorf("nested deeper than %d", MaxDepth)

// EncodeSchema makes the wire form of a schema.
func EncodeSchema(s *source.Schema) (*pluginv1.Schema, error) { return encodeSchema(s, 0) }

func encodeSchema(s *source.Schema, depth int) (*pluginv1.Schema, error) {
	if s == nil {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, errTooDeep
	}
	out := &pluginv1.Schema{
		Type: pluginv1.Schema_Type(s.Type), Optional: s.Optional, Name: s.Name, Version: s.Version, Doc: s.Doc, Parameters: s.Parameters,
	}
	var err error
	if s.Default != nil {
		if out.DefaultValue, err = EncodeValue(s.Default); err != nil {
			return nil, fmt.Errorf("default: %w", err)
		}
	}
	for _, f := range s.Fields {
		field, err := encodeSchema(f.Schema, depth+1)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		out.Fields = append(out.Fields, &pluginv1.Field{Name: f.Name, Schema: field})
	}
	if out.Key, err = encodeSchema(s.Key, depth+1); err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if out.Value, err = encodeSchema(s.Value, depth+1); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	return out, nil
}

// DecodeSchema reads a schema.
func DecodeSchema(s *pluginv1.Schema) (*source.Schema, error) { return decodeSchema(s, 0) }

func decodeSchema(s *pluginv1.Schema, depth int) (*source.Schema, error) {
	if s == nil {
		return nil, nil
	}
	if depth >= MaxDepth {
		return nil, errTooDeep
	}
	out := &source.Schema{
		Type: source.SchemaType(s.Type), Optional: s.Optional, Name: s.Name, Version: s.Version, Doc: s.Doc, Parameters: s.Parameters,
	}
	var err error
	if out.Default, err = DecodeValue(s.DefaultValue); err != nil {
		return nil, fmt.Errorf("default: %w", err)
	}
	for _, f := range s.Fields {
		field, err := decodeSchema(f.GetSchema(), depth+1)
		if err != nil {
			return nil, fmt.Errorf("field %q: %w", f.GetName(), err)
		}
		out.Fields = append(out.Fields, source.Field{Name: f.GetName(), Schema: field})
	}
	if out.Key, err = decodeSchema(s.Key, depth+1); err != nil {
		return nil, fmt.Errorf("key: %w", err)
	}
	if out.Value, err = decodeSchema(s.Value, depth+1); err != nil {
		return nil, fmt.Errorf("value: %w", err)
	}
	return out, nil
}

// EncodeValue makes the wire form of a structured value; source.Struct says which Go types it may be made of.
func EncodeValue(v any) (*pluginv1.Value, error) { return encodeValue(v, 0) }

func encodeValue(v any, depth int) (*pluginv1.Value, error) {
	if depth >= MaxDepth {
		return nil, errTooDeep
	}
	switch v := v.(type) {
	case nil:
		return &pluginv1.Value{}, nil
	case bool:
		return &pluginv1.Value{Kind: &pluginv1.Value_Boolean{Boolean: v}}, nil
	case int64:
		return &pluginv1.Value{Kind: &pluginv1.Value_Integer{Integer: v}}, nil
	case float64:
		return &pluginv1.Value{Kind: &pluginv1.Value_Float{Float: v}}, nil
	case string:
		return &pluginv1.Value{Kind: &pluginv1.Value_Text{Text: v}}, nil
	case []byte:
		return &pluginv1.Value{Kind: &pluginv1.Value_Raw{Raw: v}}, nil
	case []any:
		list, err := encodeList(v, depth)
		return &pluginv1.Value{Kind: &pluginv1.Value_List_{List: list}}, err
	case source.Struct:
		list, err := encodeList(v, depth)
		return &pluginv1.Value{Kind: &pluginv1.Value_Struct{Struct: list}}, err
	case source.Map:
		m, err := encodeMap(v, depth)
		return &pluginv1.Value{Kind: &pluginv1.Value_Map_{Map: m}}, err
	default:
		return nil, fmt.Errorf("%T is no structured value", v)
	}
}

func encodeList(values []any, depth int) (*pluginv1.Value_List, error) {
	out := &pluginv1.Value_List{Values: make([]*pluginv1.Value, len(values))}
	for i, v := range values {
		var err error
		if out.Values[i], err = encodeValue(v, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func encodeMap(entries source.Map, depth int) (*pluginv1.Value_Map, error) {
	out := &pluginv1.Value_Map{Entries: make([]*pluginv1.Value_Entry, len(entries))}
	for i, e := range entries {
		key, err := encodeValue(e.Key, depth+1)
		if err != nil {
			return nil, err
		}
		value, err := encodeValue(e.Value, depth+1)
		if err != nil {
			return nil, err
		}
		out.Entries[i] = &pluginv1.Value_Entry{Key: key, Value: value}
	}
	return out, nil
}

// DecodeValue reads a structured value.
func DecodeValue(v *pluginv1.Value) (any, error) { return decodeValue(v, 0) }

func decodeValue(v *pluginv1.Value, depth int) (any, error) {
	if depth >= MaxDepth {
		return nil, errTooDeep
	}
	switch k := v.GetKind().(type) {
	case nil:
		return nil, nil
	case *pluginv1.Value_Boolean:
		return k.Boolean, nil
	case *pluginv1.Value_Integer:
		return k.Integer, nil
	case *pluginv1.Value_Float:
		return k.Float, nil
	case *pluginv1.Value_Text:
		return k.Text, nil
	case *pluginv1.Value_Raw:
		return k.Raw, nil
	case *pluginv1.Value_List_:
		return decodeList(k.List, depth)
	case *pluginv1.Value_Struct:
		values, err := decodeList(k.Struct, depth)
		return source.Struct(values), err
	case *pluginv1.Value_Map_:
		return decodeMap(k.Map, depth)
	default:
		return nil, fmt.Errorf("%T is not known", k)
	}
}

func decodeList(list *pluginv1.Value_List, depth int) ([]any, error) {
	out := make([]any, len(list.GetValues()))
	for i, v := range list.GetValues() {
		var err error
		if out[i], err = decodeValue(v, depth+1); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func decodeMap(m *pluginv1.Value_Map, depth int) (source.Map, error) {
	out := make(source.Map, len(m.GetEntries()))
	for i, e := range m.GetEntries() {
		key, err := decodeValue(e.GetKey(), depth+1)
		if err != nil {
			return nil, err
		}
		value, err := decodeValue(e.GetValue(), depth+1)
		if err != nil {
			return nil, err
		}
		out[i] = source.Entry{Key: key, Value: value}
	}
	return out, nil
}
