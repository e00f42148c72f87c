package convert

import (
	"encoding/base64"
	"errors"
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// maxDepth is how deep a structured value may be nested. (A hostile one can't use up the stack.)
const maxDepth = 100

// jsonEncoder writes JSON without a schema, as Kafka Connect's JsonConverter does with schemas.enable=false: text as a string, bytes as a string in base64, a struct as an object.
type jsonEncoder struct{}

func (jsonEncoder) plain(form) (bool, bool)  { return false, false }
func (jsonEncoder) check(form, []byte) error { return nil }

func (jsonEncoder) append(dst []byte, f form, b []byte) (out []byte, null bool, err error) {
	switch f.kind {
	case formBytes:
		return appendBase64(dst, b), false, nil
	case formText:
		out, err = appendString(dst, b)
		return out, false, err
	}
	v, err := source.ReadValue(b)
	if err != nil {
		return nil, false, err
	}
	if v.Kind == source.NullValue {
		return dst, true, nil
	}
	out, err = appendValue(dst, v, f.schema, 0)
	return out, false, err
}

// appendValue appends a value. The schema may be nil.
func appendValue(dst []byte, v source.Value, s *source.Schema, depth int) ([]byte, error) {
	if depth >= maxDepth {
		return nil, fmt.Errorf("is nested deeper than %d", maxDepth)
	}
	switch v.Kind {
	case source.NullValue:
		return append(dst, "null"...), nil
	case source.BoolValue:
		return strconv.AppendBool(dst, v.Bool), nil
	case source.IntValue:
		return strconv.AppendInt(dst, v.Int, 10), nil
	case source.FloatValue:
		if math.IsNaN(v.Float) || math.IsInf(v.Float, 0) {
			return nil, fmt.Errorf("has the number %v, which JSON can't say", v.Float)
		}
		return appendFinite(dst, v.Float, bits(s)), nil
	case source.TextValue:
		return appendString(dst, v.Bytes)
	case source.RawValue:
		return appendBase64(dst, v.Bytes), nil
	case source.ListValue:
		return appendList(dst, v, s, depth)
	case source.MapValue:
		return appendMap(dst, v, s, depth)
	}
	return appendStruct(dst, v, s, depth)
}

func appendList(dst []byte, v source.Value, s *source.Schema, depth int) ([]byte, error) {
	element := valueSchema(s)
	dst = append(dst, '[')
	first := true
	for e, err := range v.Elements() {
		if err != nil {
			return nil, err
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if dst, err = appendValue(dst, e, element, depth+1); err != nil {
			return nil, err
		}
	}
	return append(dst, ']'), nil
}

// appendMap writes an object where every key is a text, and otherwise an array of pairs, as JsonConverter does.
func appendMap(dst []byte, v source.Value, s *source.Schema, depth int) ([]byte, error) {
	texts := true
	for e, err := range v.Entries() {
		if err != nil {
			return nil, err
		}
		texts = texts && e.Key.Kind == source.TextValue
	}
	open, between, end := byte('{'), byte(':'), byte('}')
	if !texts {
		open, between, end = '[', ',', ']'
	}
	var keys *source.Schema
	if s != nil {
		keys = s.Key
	}
	dst = append(dst, open)
	first := true
	for e, err := range v.Entries() {
		if err != nil {
			return nil, err
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		if !texts {
			dst = append(dst, '[')
		}
		if dst, err = appendValue(dst, e.Key, keys, depth+1); err != nil {
			return nil, err
		}
		dst = append(dst, between)
		if dst, err = appendValue(dst, e.Value, valueSchema(s), depth+1); err != nil {
			return nil, err
		}
		if !texts {
			dst = append(dst, ']')
		}
	}
	return append(dst, end), nil
}

// appendStruct writes an object with the schema's names: a struct travels without them.
func appendStruct(dst []byte, v source.Value, s *source.Schema, depth int) ([]byte, error) {
	if s == nil || s.Type != source.TypeStruct {
		return nil, errors.New("has a struct where the schema has none")
	}
	dst = append(dst, '{')
	i := 0
	for e, err := range v.Elements() {
		if err != nil {
			return nil, err
		}
		if i >= len(s.Fields) {
			return nil, fmt.Errorf("has more values than the %d fields of its struct %q", len(s.Fields), s.Name)
		}
		f := s.Fields[i]
		if i > 0 {
			dst = append(dst, ',')
		}
		if dst, err = appendString(dst, []byte(f.Name)); err != nil {
			return nil, err
		}
		dst = append(dst, ':')
		if dst, err = appendValue(dst, e, f.Schema, depth+1); err != nil {
			return nil, fmt.Errorf("field %q: %w", f.Name, err)
		}
		i++
	}
	if i < len(s.Fields) {
		return nil, fmt.Errorf("has %d values for the %d fields of its struct %q", i, len(s.Fields), s.Name)
	}
	return append(dst, '}'), nil
}

// valueSchema is the schema of a list's elements or a map's values.
func valueSchema(s *source.Schema) *source.Schema {
	if s == nil {
		return nil
	}
	return s.Value
}

func appendBase64(dst, b []byte) []byte {
	dst = append(dst, '"')
	dst = base64.StdEncoding.AppendEncode(dst, b)
	return append(dst, '"')
}

// appendString appends text in quotes, with the escapes that JSON asks for and no others.
func appendString(dst, s []byte) ([]byte, error) {
	if !utf8.Valid(s) {
		return nil, errors.New("is declared as text and isn't valid UTF-8")
	}
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i, c := range s {
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	return append(append(dst, s[from:]...), '"'), nil
}
