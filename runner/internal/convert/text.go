package convert

import (
	"errors"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// stringEncoder writes text: text and bytes that are UTF-8 as they are, numbers and booleans in their usual spelling.
type stringEncoder struct{}

func (stringEncoder) plain(f form) (bool, bool) { return f.kind != formValue, true }

func (stringEncoder) check(f form, b []byte) error {
	if utf8.Valid(b) {
		return nil
	}
	if f.kind == formText {
		return errors.New("is declared as text and isn't valid UTF-8")
	}
	return errors.New("isn't valid UTF-8, which the converter string needs: use bytes")
}

func (e stringEncoder) append(dst []byte, f form, b []byte) (out []byte, null bool, err error) {
	v, err := source.ReadValue(b)
	if err != nil {
		return nil, false, err
	}
	switch v.Kind {
	case source.NullValue:
		return dst, true, nil
	case source.BoolValue:
		return strconv.AppendBool(dst, v.Bool), false, nil
	case source.IntValue:
		return strconv.AppendInt(dst, v.Int, 10), false, nil
	case source.FloatValue:
		return appendFloatText(dst, v.Float, bits(f.schema)), false, nil
	case source.TextValue:
		return append(dst, v.Bytes...), false, nil
	case source.RawValue:
		return append(dst, v.Bytes...), false, e.check(form{kind: formBytes}, v.Bytes)
	}
	return nil, false, errors.New("is a list, a map or a struct, which the converter string can't write: use json")
}

// bits is how wide a schema's floating point numbers are: FLOAT32 travels as a double, and is written with the digits that it has.
func bits(s *source.Schema) int {
	if s != nil && s.Type == source.TypeFloat32 {
		return 32
	}
	return 64
}

// appendFloatText appends a floating point number as text; the three that JSON doesn't have get Java's names.
func appendFloatText(dst []byte, f float64, bits int) []byte {
	switch {
	case math.IsNaN(f):
		return append(dst, "NaN"...)
	case math.IsInf(f, 1):
		return append(dst, "Infinity"...)
	case math.IsInf(f, -1):
		return append(dst, "-Infinity"...)
	}
	return appendFinite(dst, f, bits)
}

// appendFinite appends the shortest digits that give the number back, so that it still reads as a floating point number: 1 is 1.0.
func appendFinite(dst []byte, f float64, bits int) []byte {
	format := byte('f')
	if abs := math.Abs(f); abs != 0 && (abs < 1e-6 || abs >= 1e21) {
		format = 'e'
	}
	from := len(dst)
	dst = strconv.AppendFloat(dst, f, format, -1, bits)
	for _, c := range dst[from:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, ".0"...)
}
