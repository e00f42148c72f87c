package model

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"slices"
	"time"
	"unsafe"

	"google.golang.org/protobuf/proto"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// What follows copies a State of the decision core and gives it a canonical form, by reflection over all of its fields, exported or not. So the core has no second copy of its own shape to keep up to date, and a field that is
// added to it can't be forgotten here, which would make the search take two different states for one without a word. Each State is copied and formed once per event that it meets, see cores.

// ignored fields don't count for what a State will decide. A new field that only counts up belongs here: with it, the search would find no end.
var ignored = map[string]string{
	"State.options":           "the same for all",
	"State.now":               "the zero of all times",
	"State.shifts":            "only counts up; it is for drains and balance, which are none of the model",
	"runner.drainSeen":        "the same",
	"connector.happened":      "for people",
	"runner.offer":            "runner.fits has what of it counts",
	"runner.since":            "for people, and for balance, which is none of the model",
	"connectorRecord.Created": "for people",
	"leaseRecord.Reason":      "for people",
}

// mirror copies one State.
type mirror struct {
	made map[unsafe.Pointer]reflect.Value
}

// clone makes a State that shares nothing with s that either of them changes.
func clone(s *state.State) *state.State {
	m := mirror{made: map[unsafe.Pointer]reflect.Value{}}
	return m.copy(reflect.ValueOf(s)).Interface().(*state.State) //nolint:errcheck // a copy has the type of its original
}

// open gives a value that reflection lets be read and set, also where it is a field that isn't exported.
func open(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), unsafe.Pointer(v.UnsafeAddr())).Elem()
}

var (
	timeType    = reflect.TypeFor[time.Time]()
	messageType = reflect.TypeFor[proto.Message]()
)

func (m *mirror) copy(v reflect.Value) reflect.Value {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() || v.Type().Implements(messageType) { // messages aren't changed once they are made
			return v
		}
		if made, again := m.made[v.UnsafePointer()]; again {
			return made
		}
		made := reflect.New(v.Type().Elem())
		m.made[v.UnsafePointer()] = made
		m.fill(made.Elem(), v.Elem())
		return made
	case reflect.Struct:
		made, from := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
		from.Set(v)
		m.fill(made, from)
		return made
	case reflect.Map:
		if v.IsNil() {
			return v
		}
		made := reflect.MakeMapWithSize(v.Type(), v.Len())
		for entries := v.MapRange(); entries.Next(); {
			made.SetMapIndex(m.copy(entries.Key()), m.copy(entries.Value()))
		}
		return made
	case reflect.Slice:
		if v.IsNil() {
			return v
		}
		made := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
		for i := range v.Len() {
			made.Index(i).Set(m.copy(v.Index(i)))
		}
		return made
	case reflect.Interface:
		if !v.IsNil() {
			panic(fmt.Sprintf("the core holds a %s between two steps", v.Elem().Type()))
		}
		return v
	case reflect.Chan, reflect.Func, reflect.UnsafePointer, reflect.Array:
		panic("the core holds a " + v.Kind().String())
	default:
		return v
	}
}

// fill copies a struct field by field; both are addressable.
func (m *mirror) fill(into, from reflect.Value) {
	if from.Kind() != reflect.Struct || from.Type() == timeType {
		into.Set(m.plain(from))
		return
	}
	for i := range from.NumField() {
		if ignored[from.Type().Name()+"."+from.Type().Field(i).Name] == "for people" && from.Field(i).Kind() == reflect.Slice {
			continue // a history that nobody reads
		}
		m.fillField(open(into.Field(i)), open(from.Field(i)))
	}
}

func (m *mirror) fillField(into, from reflect.Value) {
	if from.Kind() == reflect.Struct {
		m.fill(into, from)
		return
	}
	into.Set(m.copy(from))
}

func (m *mirror) plain(v reflect.Value) reflect.Value {
	if v.Type() == timeType {
		return v
	}
	return m.copy(v)
}

// former writes the canonical form of a State: the same bytes for two States exactly where they decide the same on whatever comes. Times are told by how far they are from now.
type former struct {
	now time.Time
	out []byte
}

func form(s *state.State, now time.Time) string {
	f := former{now: now}
	f.write(reflect.ValueOf(s))
	return string(f.out)
}

func (f *former) write(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			f.out = append(f.out, 0)
			return
		}
		f.out = append(f.out, 1)
		if message, ok := v.Interface().(proto.Message); ok {
			f.out, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend(f.out, message)
			return
		}
		f.write(v.Elem())
	case reflect.Struct:
		f.structure(v)
	case reflect.Map:
		f.entries(v)
	case reflect.Slice:
		f.number(uint64(v.Len()))
		for i := range v.Len() {
			f.write(v.Index(i))
		}
	case reflect.String:
		f.number(uint64(v.Len()))
		f.out = append(f.out, v.String()...)
	case reflect.Bool:
		f.out = append(f.out, map[bool]byte{true: 1}[v.Bool()])
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		f.number(uint64(v.Int()))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		f.number(v.Uint())
	case reflect.Interface:
		if !v.IsNil() {
			panic(fmt.Sprintf("the core holds a %s between two steps", v.Elem().Type()))
		}
	default:
		panic("the core holds a " + v.Kind().String())
	}
}

func (f *former) number(n uint64) { f.out = binary.AppendUvarint(f.out, n) }

func (f *former) structure(v reflect.Value) {
	t := v.Type()
	if t == timeType {
		f.moment(v)
		return
	}
	if !v.CanAddr() {
		addressable := reflect.New(t).Elem()
		addressable.Set(v)
		v = addressable
	}
	for i := range t.NumField() {
		if _, skip := ignored[t.Name()+"."+t.Field(i).Name]; !skip {
			f.write(open(v.Field(i)))
		}
	}
}

func (f *former) moment(v reflect.Value) {
	at := v.Interface().(time.Time) //nolint:errcheck // its type was looked at
	if at.IsZero() {
		f.out = append(f.out, 0)
		return
	}
	f.out = append(f.out, 1)
	// Of a time that has passed the core asks whether it has, and for the last transaction whether that is a quarter of a lease ago.
	f.number(uint64(max(at.Sub(f.now), -leaseBeats*beat/4).Milliseconds()))
}

// entries writes a map in the order of its entries' forms, so that keys which are pointers have one, too.
func (f *former) entries(v reflect.Value) {
	forms := make([]string, 0, v.Len())
	for entries := v.MapRange(); entries.Next(); {
		e := former{now: f.now}
		e.write(entries.Key())
		e.write(entries.Value())
		forms = append(forms, string(e.out))
	}
	slices.Sort(forms)
	f.number(uint64(len(forms)))
	for _, form := range forms {
		f.out = append(f.out, form...)
	}
}
