package source

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"
)

// JSON returns f in canonical form. It fails for an empty map, for a value of a kind that Fields doesn't list, and beyond MaxJSONBytes.
func (f Fields) JSON() (JSON, error) {
	return appendFields(nil, f)
}

// Int returns a whole number of 64 bits; false where there is none of that name.
func (f Fields) Int(name string) (int64, bool) {
	switch v := f[name].(type) {
	case int64:
		return v, true
	case int:
		return int64(v), true
	}
	return 0, false
}

// Text returns a text; false where there is none of that name.
func (f Fields) Text(name string) (string, bool) {
	s, ok := f[name].(string)
	return s, ok
}

// Fields decodes j: texts are string, whole numbers int64 where they fit and json.Number where not, other numbers float64. It fails where Canonical fails.
func (j JSON) Fields() (Fields, error) {
	members, err := parseObject(j)
	if err != nil {
		return nil, err
	}
	f := make(Fields, len(members))
	for _, m := range members {
		f[m.key] = m.decode()
	}
	return f, nil
}

// decode returns the member's value, which is known to be right.
func (m member) decode() any {
	switch m.value[0] {
	case '"':
		return m.text
	case 't':
		return true
	case 'f':
		return false
	case 'n':
		return nil
	}
	s := string(m.value)
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i
	}
	for _, c := range m.value {
		if c == '.' || c == 'e' {
			if v, err := strconv.ParseFloat(s, 64); err == nil {
				return v
			}
		}
	}
	return json.Number(s)
}

// appendFields appends f in canonical form. It allocates nothing for up to eight keys, where dst is large enough: it runs once per record that has an offset of its own.
func appendFields(dst []byte, f Fields) ([]byte, error) {
	if len(f) == 0 {
		return nil, errors.New("is an empty object")
	}
	start := len(dst)
	dst = append(dst, '{')
	var few [8]string
	keys := few[:0]
	for k := range f {
		keys = append(keys, k)
	}
	if len(keys) > 1 {
		slices.Sort(keys)
	}
	var err error
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		if !utf8.ValidString(k) {
			return nil, fmt.Errorf("the key %q isn't valid UTF-8", k)
		}
		dst = appendText(dst, k)
		dst = append(dst, ':')
		if dst, err = appendValue(dst, f[k]); err != nil {
			return nil, fmt.Errorf("the value of %q: %w", k, err)
		}
	}
	dst = append(dst, '}')
	if n := len(dst) - start; n > MaxJSONBytes {
		return nil, fmt.Errorf("is %d bytes long, the limit is %d", n, MaxJSONBytes)
	}
	return dst, nil
}

func appendValue(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case nil:
		return append(dst, "null"...), nil
	case string:
		if !utf8.ValidString(v) {
			return nil, errors.New("isn't valid UTF-8")
		}
		return appendText(dst, v), nil
	case bool:
		return strconv.AppendBool(dst, v), nil
	case int:
		return strconv.AppendInt(dst, int64(v), 10), nil
	case int64:
		return strconv.AppendInt(dst, v, 10), nil
	case uint64:
		return strconv.AppendUint(dst, v, 10), nil
	case float64:
		return appendFloat(dst, v)
	case json.Number:
		if b := []byte(v); numberLen(b) == len(b) && len(b) > 0 {
			return appendNumber(dst, b)
		}
		return nil, fmt.Errorf("%q is not a JSON number", string(v))
	}
	return nil, fmt.Errorf("is a %T, but must be a string, bool, int, int64, uint64, float64, json.Number or nil", v)
}
