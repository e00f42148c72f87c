// Package convert owns how keys and values become the bytes that Kafka stores: bytes, string, and JSON without schema.
//
// A batch goes in and a batch comes out. Where nothing has to change it is the same one, and costs nothing; where something does, the new batch has an arena of its own and shares every other
// column. Null stays null, empty stays empty, and headers are never touched. It knows no topic and no offset: an error says which record of the batch it was, and the task says which that is.
//
// A Converter is a value without state, so it may be used by several goroutines at once.
// Where to read next: json.go and text.go for the two that do work; proto/fencepost/plugin/v1/value.proto for what comes in.
package convert

import (
	"errors"
	"fmt"

	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Converter converts the keys and values of one connector.
type Converter struct {
	key, value encoder
}

// RecordError says which record can't be converted.
type RecordError struct {
	// Index is the record's place in its batch.
	Index int
	// Part is "key" or "value".
	Part string
	// Err is the reason.
	Err error
}

// Error names the part and the reason; whoever knows the record's origin says that.
func (e *RecordError) Error() string { return e.Part + ": " + e.Err.Error() }

// Unwrap returns the reason.
func (e *RecordError) Unwrap() error { return e.Err }

// errUndeclared says that a schema's number means nothing on this stream.
var errUndeclared = errors.New("was not declared")

// encoder makes Kafka's bytes of one key or value that isn't null.
type encoder interface {
	// plain says whether bytes of this form go through as they are, and whether check may refuse them. Only what isn't plain is appended.
	plain(f form) (plain, checked bool)
	// check looks at what goes through as it is.
	check(f form, b []byte) error
	// append appends the converted bytes; null says that there are none.
	append(dst []byte, f form, b []byte) (out []byte, null bool, err error)
}

// form is what the bytes of a key or value in the arena are.
type form struct {
	kind   formKind
	schema *source.Schema
}

type formKind uint8

const (
	formBytes formKind = iota
	formText
	formValue
)

// New makes a Converter. It fails on a name that isn't a converter's.
func New(key, value settings.Converter) (*Converter, error) {
	k, err := encoderOf(key)
	if err != nil {
		return nil, fmt.Errorf("key converter: %w", err)
	}
	v, err := encoderOf(value)
	if err != nil {
		return nil, fmt.Errorf("value converter: %w", err)
	}
	return &Converter{key: k, value: v}, nil
}

func encoderOf(name settings.Converter) (encoder, error) {
	switch name {
	case settings.ConvertBytes:
		return bytesEncoder{}, nil
	case settings.ConvertString:
		return stringEncoder{}, nil
	case settings.ConvertJSON:
		return jsonEncoder{}, nil
	}
	return nil, fmt.Errorf("%q is not a converter", name)
}

// Convert converts a batch that has passed Check. Schemas are the declared ones by their number. The result is the batch itself where nothing changes; it is never changed. An error is a
// *RecordError.
func (c *Converter) Convert(b *source.Batch, schemas []*source.Schema) (*source.Batch, error) {
	key := column{encoder: c.key, part: "key", lengths: b.KeyLen, schemas: b.KeySchema, other: b.DefaultKeySchema, declared: schemas}
	value := column{encoder: c.value, part: "value", lengths: b.ValueLen, schemas: b.ValueSchema, other: b.DefaultValueSchema, declared: schemas}
	work := false
	for _, col := range [...]*column{&key, &value} {
		if err := col.survey(b.Count); err != nil {
			return nil, err
		}
		work = work || col.rewrite || col.look
	}
	if !work {
		return b, nil
	}
	if !key.rewrite && !value.rewrite {
		return b, check(b, &key, &value)
	}
	return rewrite(b, &key, &value)
}

// column is one side of a batch, keys or values.
type column struct {
	encoder  encoder
	part     string
	lengths  source.U32
	schemas  source.U32
	other    uint32
	declared []*source.Schema
	// rewrite: at least one has to be rewritten; look: at least one has to be looked at.
	rewrite, look bool
	last          uint32
	lastForm      form
	lastKnown     bool
}

// survey finds out what has to be done. A column without schemas costs one look.
func (c *column) survey(count int) error {
	if len(c.lengths) == 0 || count == 0 {
		return nil
	}
	if len(c.schemas) == 0 {
		return c.surveyOne(0)
	}
	for i := range count {
		if c.rewrite {
			return nil
		}
		if i > 0 && c.schemas.At(i) == c.schemas.At(i-1) {
			continue
		}
		if err := c.surveyOne(i); err != nil {
			return err
		}
	}
	return nil
}

func (c *column) surveyOne(i int) error {
	f, err := c.form(i)
	if err != nil {
		return c.fail(i, err)
	}
	plain, checked := c.encoder.plain(f)
	c.rewrite = c.rewrite || !plain
	c.look = c.look || checked
	return nil
}

// form is what record i has in this column.
func (c *column) form(i int) (form, error) {
	number := c.other
	if len(c.schemas) > 0 {
		number = c.schemas.At(i)
	}
	if c.lastKnown && number == c.last {
		return c.lastForm, nil
	}
	f, err := formOf(number, c.declared)
	if err != nil {
		return form{}, err
	}
	c.last, c.lastForm, c.lastKnown = number, f, true
	return f, nil
}

func formOf(number uint32, declared []*source.Schema) (form, error) {
	switch number {
	case source.SchemaBytes:
		return form{kind: formBytes}, nil
	case source.SchemaText:
		return form{kind: formText}, nil
	case source.SchemaAny, source.SchemaBoolean, source.SchemaInt64, source.SchemaFloat64:
		return form{kind: formValue}, nil
	}
	if uint64(number) >= uint64(len(declared)) || declared[number] == nil {
		return form{}, fmt.Errorf("schema %d %w", number, errUndeclared)
	}
	s := declared[number]
	switch s.Type {
	case source.TypeBytes:
		return form{kind: formBytes, schema: s}, nil
	case source.TypeString:
		return form{kind: formText, schema: s}, nil
	}
	return form{kind: formValue, schema: s}, nil
}

func (c *column) fail(i int, err error) error {
	return &RecordError{Index: i, Part: c.part, Err: err}
}

// length is the size of record i in this column, and whether it is there at all.
func (c *column) length(i int) (n int, present bool) {
	if len(c.lengths) == 0 {
		return 0, false
	}
	l := c.lengths.At(i)
	if l == 0 {
		return 0, false
	}
	return int(l) - 1, true
}

// check looks at what goes through as it is.
func check(b *source.Batch, key, value *column) error {
	w := walk{batch: b}
	for i := range b.Count {
		k, v, _ := w.record(i, key, value)
		if err := key.checkOne(i, k); err != nil {
			return err
		}
		if err := value.checkOne(i, v); err != nil {
			return err
		}
	}
	return nil
}

func (c *column) checkOne(i int, b []byte) error {
	if !c.look || b == nil {
		return nil
	}
	f, err := c.form(i)
	if err == nil {
		err = c.encoder.check(f, b)
	}
	if err != nil {
		return c.fail(i, err)
	}
	return nil
}

// rewrite makes a batch with an arena of its own.
func rewrite(b *source.Batch, key, value *column) (*source.Batch, error) {
	out := *b
	out.Arena = make([]byte, 0, len(b.Arena)+len(b.Arena)/2+8*b.Count)
	keys, values := newLengths(b.KeyLen), newLengths(b.ValueLen)
	w := walk{batch: b}
	for i := range b.Count {
		k, v, headers := w.record(i, key, value)
		var err error
		if keys, err = key.put(keys, &out.Arena, i, k); err != nil {
			return nil, err
		}
		if values, err = value.put(values, &out.Arena, i, v); err != nil {
			return nil, err
		}
		out.Arena = append(out.Arena, headers...)
	}
	out.KeyLen, out.ValueLen = keys, values
	// What comes out is bytes, whatever it was.
	out.KeySchema, out.ValueSchema, out.DefaultKeySchema, out.DefaultValueSchema = nil, nil, source.SchemaBytes, source.SchemaBytes
	return &out, nil
}

// newLengths is an empty column as large as c.
func newLengths(c source.U32) source.U32 {
	if len(c) == 0 {
		return nil
	}
	return make(source.U32, 0, len(c))
}

// put appends record i to the arena, and its length to the column.
func (c *column) put(lengths source.U32, arena *[]byte, i int, b []byte) (source.U32, error) {
	if len(c.lengths) == 0 {
		return lengths, nil
	}
	if b == nil {
		return lengths.Append(0), nil
	}
	f, err := c.form(i)
	if err != nil {
		return nil, c.fail(i, err)
	}
	before, null := len(*arena), false
	if plain, _ := c.encoder.plain(f); plain {
		err = c.encoder.check(f, b)
		*arena = append(*arena, b...)
	} else {
		*arena, null, err = c.encoder.append(*arena, f, b)
	}
	if err != nil {
		return nil, c.fail(i, err)
	}
	if null {
		return lengths.Append(0), nil
	}
	return lengths.Append(uint32(len(*arena)-before) + 1), nil
}

// walk goes through the arena record by record.
type walk struct {
	batch  *source.Batch
	at     int
	header int
}

// record returns the bytes of record i: key, value (nil is null), and all its headers together.
func (w *walk) record(i int, key, value *column) (k, v, headers []byte) {
	if n, present := key.length(i); present {
		k = w.take(n)
	}
	if n, present := value.length(i); present {
		v = w.take(n)
	}
	b := w.batch
	if len(b.HeaderCount) == 0 {
		return k, v, nil
	}
	size := 0
	for range b.HeaderCount.At(i) {
		size += int(b.HeaderNameLen.At(w.header))
		if len(b.HeaderValueLen) > 0 {
			if l := b.HeaderValueLen.At(w.header); l > 0 {
				size += int(l) - 1
			}
		}
		w.header++
	}
	return k, v, w.take(size)
}

func (w *walk) take(n int) []byte {
	b := w.batch.Arena[w.at : w.at+n : w.at+n]
	w.at += n
	if b == nil {
		return []byte{}
	}
	return b
}

// bytesEncoder lets bytes and text through and refuses structured values, as Kafka Connect's ByteArrayConverter does.
type bytesEncoder struct{}

func (bytesEncoder) plain(f form) (bool, bool) { return f.kind != formValue, false }
func (bytesEncoder) check(form, []byte) error  { return nil }
func (bytesEncoder) append([]byte, form, []byte) ([]byte, bool, error) {
	return nil, false, errors.New("is a structured value, which the converter bytes can't write: use json")
}
