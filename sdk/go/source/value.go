package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math"
	"unicode/utf8"
)

// ValueKind says which of a Value's fields counts.
type ValueKind uint8

// The kinds of values.
const (
	NullValue ValueKind = iota
	BoolValue
	IntValue
	FloatValue
	TextValue
	RawValue
	ListValue
	MapValue
	StructValue
)

// Value is an encoded structured value, one level of it: what the Value message of proto/fencepost/plugin/v1/value.proto says. It is read by slicing and costs no allocation.
type Value struct {
	Kind ValueKind
	// Bool, Int and Float are those kinds' values.
	Bool  bool
	Int   int64
	Float float64
	// Bytes is the text (valid UTF-8), the raw bytes, or, for a list, a map and a struct, the elements as Elements and Entries read them. It is part of what was read.
	Bytes []byte
}

// errCut says that an encoded value ends in its middle.
var errCut = errors.New("an encoded value is cut short")

// ReadValue reads an encoded Value. Nothing at all is null, as in the protocol. Fields that it doesn't know are skipped; a value of two kinds is an error.
func ReadValue(b []byte) (Value, error) {
	var v Value
	for len(b) > 0 {
		f, rest, err := readField(b)
		if err != nil {
			return Value{}, err
		}
		b = rest
		kind, err := valueField(f, &v)
		if err != nil {
			return Value{}, err
		}
		if kind == NullValue {
			continue
		}
		if v.Kind != NullValue {
			return Value{}, errors.New("an encoded value is of two kinds")
		}
		v.Kind = kind
	}
	return v, nil
}

// valueFields are the fields of a Value by their number. No field has number 0.
var valueFields = [...]struct {
	wire uint8
	kind ValueKind
}{
	1: {wireVarint, BoolValue}, 2: {wireVarint, IntValue}, 3: {wire64, FloatValue}, 4: {wireBytes, TextValue},
	5: {wireBytes, RawValue}, 6: {wireBytes, ListValue}, 7: {wireBytes, MapValue}, 8: {wireBytes, StructValue},
}

// valueField takes one field of a Value; NullValue is a field that isn't known.
func valueField(f field, v *Value) (ValueKind, error) {
	if f.number >= uint64(len(valueFields)) || valueFields[f.number].wire != f.wire {
		return NullValue, nil
	}
	kind := valueFields[f.number].kind
	switch kind {
	case BoolValue:
		v.Bool = f.varint != 0
	case IntValue:
		v.Int = int64(f.varint>>1) ^ -int64(f.varint&1)
	case FloatValue:
		v.Float = math.Float64frombits(f.varint)
	case TextValue:
		if !utf8.Valid(f.bytes) {
			return NullValue, errors.New("an encoded text isn't valid UTF-8")
		}
		v.Bytes = f.bytes
	default:
		v.Bytes = f.bytes
	}
	return kind, nil
}

// Elements yields the elements of a list or a struct in order. An error is the last thing that it yields.
func (v Value) Elements() iter.Seq2[Value, error] {
	return func(yield func(Value, error) bool) {
		for rest := v.Bytes; ; {
			message, after, ok, err := nextMessage(rest)
			if err != nil {
				yield(Value{}, err)
				return
			}
			if !ok {
				return
			}
			element, err := ReadValue(message)
			if !yield(element, err) || err != nil {
				return
			}
			rest = after
		}
	}
}

// ValueEntry is an entry of a map.
type ValueEntry struct{ Key, Value Value }

// Entries yields the entries of a map in order. An error is the last thing that it yields.
func (v Value) Entries() iter.Seq2[ValueEntry, error] {
	return func(yield func(ValueEntry, error) bool) {
		for rest := v.Bytes; ; {
			message, after, ok, err := nextMessage(rest)
			if err != nil {
				yield(ValueEntry{}, err)
				return
			}
			if !ok {
				return
			}
			entry, err := readEntry(message)
			if !yield(entry, err) || err != nil {
				return
			}
			rest = after
		}
	}
}

func readEntry(b []byte) (ValueEntry, error) {
	var entry ValueEntry
	var seen [3]bool
	for len(b) > 0 {
		f, rest, err := readField(b)
		if err != nil {
			return ValueEntry{}, err
		}
		b = rest
		if f.wire != wireBytes || f.number > 2 {
			continue
		}
		if seen[f.number] {
			return ValueEntry{}, errors.New("an encoded entry has two keys or two values")
		}
		seen[f.number] = true
		part := &entry.Key
		if f.number == 2 {
			part = &entry.Value
		}
		if *part, err = ReadValue(f.bytes); err != nil {
			return ValueEntry{}, err
		}
	}
	return entry, nil
}

// nextMessage finds the next message in field 1 and skips what isn't known.
func nextMessage(b []byte) (message, rest []byte, ok bool, err error) {
	for len(b) > 0 {
		f, rest, err := readField(b)
		if err != nil {
			return nil, nil, false, err
		}
		if f.number == 1 && f.wire == wireBytes {
			return f.bytes, rest, true, nil
		}
		b = rest
	}
	return nil, nil, false, nil
}

// Wire types of the protobuf encoding.
const (
	wireVarint = 0
	wire64     = 1
	wireBytes  = 2
	wire32     = 5
)

// field is one field of an encoded message. A 64-bit number is in varint as well.
type field struct {
	number uint64
	wire   uint8
	varint uint64
	bytes  []byte
}

// readField reads one field and returns what follows it.
func readField(b []byte) (f field, rest []byte, err error) {
	tag, b, err := readVarint(b)
	if err != nil {
		return f, nil, err
	}
	f.number, f.wire = tag>>3, uint8(tag&7)
	if f.number == 0 || f.number > 1<<29-1 {
		return f, nil, fmt.Errorf("an encoded value has a field %d", f.number)
	}
	switch f.wire {
	case wireVarint:
		f.varint, b, err = readVarint(b)
		return f, b, err
	case wire64:
		if len(b) < 8 {
			return f, nil, errCut
		}
		f.varint = binary.LittleEndian.Uint64(b)
		return f, b[8:], nil
	case wireBytes:
		n, b, err := readVarint(b)
		if err != nil {
			return f, nil, err
		}
		if n > uint64(len(b)) {
			return f, nil, errCut
		}
		f.bytes = b[:n:n]
		return f, b[n:], nil
	case wire32:
		if len(b) < 4 {
			return f, nil, errCut
		}
		return f, b[4:], nil
	}
	return f, nil, fmt.Errorf("an encoded value has a field of wire type %d", f.wire)
}

// readVarint reads a base-128 number.
func readVarint(b []byte) (uint64, []byte, error) {
	v, n := binary.Uvarint(b)
	if n <= 0 {
		return 0, nil, errCut
	}
	return v, b[n:], nil
}
