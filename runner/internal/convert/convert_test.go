package convert_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/runner/internal/convert"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// one is a batch of one record without a key.
func one(value []byte, schema uint32) *source.Batch {
	return batch(source.RecordView{Value: value, ValueSchema: schema})
}

func batch(records ...source.RecordView) *source.Batch {
	var b source.Builder
	for _, r := range records {
		r.Partition, r.Topic, r.KafkaPartition, r.TimestampMS = 1, 1, -1, source.NoTimestamp
		b.Add(r)
	}
	return b.Batch(1)
}

func converter(t *testing.T, key, value settings.Converter) *convert.Converter {
	t.Helper()
	c, err := convert.New(key, value)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// values are what comes out: nil is null.
func values(t *testing.T, b *source.Batch) (keys, values [][]byte) {
	t.Helper()
	if err := b.Check(source.Limits{}); err != nil {
		t.Fatalf("the converted batch is malformed: %v", err)
	}
	for _, r := range b.Records() {
		if r.KeySchema != 0 || r.ValueSchema != 0 {
			t.Fatalf("a converted record has schemas %d, %d", r.KeySchema, r.ValueSchema)
		}
		keys, values = append(keys, r.Key), append(values, r.Value)
	}
	return keys, values
}

func encoded(t *testing.T, v *pluginv1.Value) []byte {
	t.Helper()
	b, err := proto.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		b = []byte{}
	}
	return b
}

func text(s string) *pluginv1.Value {
	return &pluginv1.Value{Kind: &pluginv1.Value_Text{Text: s}}
}

func integer(i int64) *pluginv1.Value {
	return &pluginv1.Value{Kind: &pluginv1.Value_Integer{Integer: i}}
}

func float(f float64) *pluginv1.Value {
	return &pluginv1.Value{Kind: &pluginv1.Value_Float{Float: f}}
}

func list(vs ...*pluginv1.Value) *pluginv1.Value {
	return &pluginv1.Value{Kind: &pluginv1.Value_List_{List: &pluginv1.Value_List{Values: vs}}}
}

func structure(vs ...*pluginv1.Value) *pluginv1.Value {
	return &pluginv1.Value{Kind: &pluginv1.Value_Struct{Struct: &pluginv1.Value_List{Values: vs}}}
}

func object(kv ...*pluginv1.Value) *pluginv1.Value {
	m := &pluginv1.Value_Map{}
	for i := 0; i < len(kv); i += 2 {
		m.Entries = append(m.Entries, &pluginv1.Value_Entry{Key: kv[i], Value: kv[i+1]})
	}
	return &pluginv1.Value{Kind: &pluginv1.Value_Map_{Map: m}}
}

func TestBytesAndTextAreTheSameBatchUnderTheBytesConverter(t *testing.T) {
	c := converter(t, settings.ConvertBytes, settings.ConvertBytes)
	in := batch(
		source.RecordView{Key: []byte("k"), Value: []byte{0xff, 0xfe}},
		source.RecordView{Key: nil, Value: []byte("text"), ValueSchema: source.SchemaText},
		source.RecordView{Key: []byte{}, Value: nil},
	)
	out, err := c.Convert(in, nil)
	if err != nil || out != in {
		t.Fatalf("got %p, %v, want the batch %p itself", out, err, in)
	}
	if n := testing.AllocsPerRun(100, func() { _, _ = c.Convert(in, nil) }); n > 0 {
		t.Errorf("the identity allocates %v times", n)
	}
}

func TestNullEmptyAndTheTextNullStayApart(t *testing.T) {
	in := []source.RecordView{
		{Key: nil, Value: nil}, {Key: []byte{}, Value: []byte{}}, {Key: []byte("k"), Value: nil}, {Key: []byte("k"), Value: []byte("null")},
	}
	for i := range in {
		in[i].KeySchema, in[i].ValueSchema = source.SchemaText, source.SchemaText
	}
	want := map[settings.Converter][2][][]byte{
		settings.ConvertBytes:  {{nil, {}, []byte("k"), []byte("k")}, {nil, {}, nil, []byte("null")}},
		settings.ConvertString: {{nil, {}, []byte("k"), []byte("k")}, {nil, {}, nil, []byte("null")}},
		settings.ConvertJSON:   {{nil, []byte(`""`), []byte(`"k"`), []byte(`"k"`)}, {nil, []byte(`""`), nil, []byte(`"null"`)}},
	}
	for name, w := range want {
		b := batch(in...)
		out, err := converter(t, name, name).Convert(b, nil)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if name != settings.ConvertJSON && out != b {
			t.Errorf("%s: plain text was copied", name)
		}
		// Text schemas may stay where nothing was rewritten; only the bytes count here.
		var ks, vs [][]byte
		for _, r := range out.Records() {
			ks, vs = append(ks, r.Key), append(vs, r.Value)
		}
		if d := cmp.Diff(w, [2][][]byte{ks, vs}); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

func TestConvertValues(t *testing.T) {
	version := int32(1)
	person := &source.Schema{Type: source.TypeStruct, Name: "person", Version: &version, Fields: []source.Field{
		{Name: "name", Schema: &source.Schema{Type: source.TypeString}},
		{Name: "height", Schema: &source.Schema{Type: source.TypeFloat32}},
		{Name: `we"ird`, Schema: &source.Schema{Type: source.TypeArray, Value: &source.Schema{Type: source.TypeFloat32}}},
	}}
	schemas := make([]*source.Schema, 20)
	schemas[16] = person
	schemas[17] = &source.Schema{Type: source.TypeString}
	schemas[18] = &source.Schema{Type: source.TypeBytes}
	schemas[19] = &source.Schema{Type: source.TypeMap, Key: &source.Schema{Type: source.TypeInt32}, Value: &source.Schema{Type: source.TypeString}}
	deep := text("x")
	for range 120 {
		deep = list(deep)
	}
	for _, c := range []struct {
		name   string
		value  []byte
		schema uint32
		text   string // what the string converter gives; "!" begins an error
		json   string
	}{
		{"text", []byte("héllo \"\\\x01\n"), source.SchemaText, "héllo \"\\\x01\n", `"héllo \"\\\u0001\n"`},
		{"bytes", []byte("abc"), source.SchemaBytes, "abc", `"YWJj"`},
		{"bytes that are no text", []byte{0xff, 0xfe, 0, 0x80}, source.SchemaBytes, "!isn't valid UTF-8", `"//4AgA=="`},
		{"text that is none", []byte{0xff}, source.SchemaText, "!declared as text", "!declared as text"},
		{"declared text", []byte("x"), 17, "x", `"x"`},
		{"declared bytes", []byte("x"), 18, "x", `"eA=="`},
		{"integer", encoded(t, integer(math.MinInt64)), source.SchemaInt64, "-9223372036854775808", "-9223372036854775808"},
		{"boolean", encoded(t, &pluginv1.Value{Kind: &pluginv1.Value_Boolean{}}), source.SchemaBoolean, "false", "false"},
		{"whole float", encoded(t, float(3)), source.SchemaFloat64, "3.0", "3.0"},
		{"small float", encoded(t, float(1e-9)), source.SchemaFloat64, "1e-09", "1e-09"},
		{"large float", encoded(t, float(1e300)), source.SchemaFloat64, "1e+300", "1e+300"},
		{"nan", encoded(t, float(math.NaN())), source.SchemaFloat64, "NaN", "!NaN"},
		{"infinity", encoded(t, float(math.Inf(-1))), source.SchemaFloat64, "-Infinity", "!-Inf"},
		{"any text", encoded(t, text("x")), source.SchemaAny, "x", `"x"`},
		{"any raw", encoded(t, &pluginv1.Value{Kind: &pluginv1.Value_Raw{Raw: []byte{0xff}}}), source.SchemaAny, "!isn't valid UTF-8", `"/w=="`},
		{"any null", encoded(t, &pluginv1.Value{}), source.SchemaAny, "<null>", "<null>"},
		{"object", encoded(t, object(text("a"), integer(1), text("b"), list(text("x"), &pluginv1.Value{}))), source.SchemaAny, "!use json", `{"a":1,"b":["x",null]}`},
		{"empty list", encoded(t, list()), source.SchemaAny, "!use json", `[]`},
		{"map of numbers", encoded(t, object(integer(1), text("a"), integer(2), text("b"))), 19, "!use json", `[[1,"a"],[2,"b"]]`},
		{"struct", encoded(t, structure(text("Bo"), float(float64(float32(1.8))), list(float(float64(float32(0.1)))))), 16, "!use json",
			`{"name":"Bo","height":1.8,"we\"ird":[0.1]}`},
		{"struct with too few values", encoded(t, structure(text("Bo"))), 16, "!use json", `!1 values for the 3 fields of its struct "person"`},
		{"struct with too many", encoded(t, structure(text("a"), float(1), list(), text("b"))), 16, "!use json", "!more values than the 3 fields"},
		{"struct without schema", encoded(t, structure()), source.SchemaAny, "!use json", "!struct where the schema has none"},
		{"nested NaN", encoded(t, structure(text("a"), float(math.NaN()), list())), 16, "!use json", `!field "height"`},
		{"too deep", encoded(t, deep), source.SchemaAny, "!use json", "!deeper than 100"},
		{"rubbish", []byte{0xff, 0xff}, source.SchemaAny, "!cut short", "!cut short"},
		{"undeclared", []byte("x"), 300, "!schema 300 was not declared", "!schema 300 was not declared"},
		{"kept number", []byte("x"), 7, "!schema 7 was not declared", "!schema 7 was not declared"},
	} {
		t.Run(c.name, func(t *testing.T) {
			for name, want := range map[settings.Converter]string{settings.ConvertString: c.text, settings.ConvertJSON: c.json} {
				out, err := converter(t, name, name).Convert(one(c.value, c.schema), schemas)
				if rule, isError := strings.CutPrefix(want, "!"); isError {
					var e *convert.RecordError
					if !errors.As(err, &e) || e.Part != "value" || e.Index != 0 || !strings.Contains(err.Error(), rule) {
						t.Errorf("%s: got %v, want an error with %q", name, err, rule)
					}
					continue
				}
				if err != nil {
					t.Errorf("%s: %v", name, err)
					continue
				}
				got := "<null>"
				for _, r := range out.Records() {
					if r.Value != nil {
						got = string(r.Value)
					}
				}
				if got != want {
					t.Errorf("%s: got %s, want %s", name, got, want)
				}
				if name == settings.ConvertJSON && got != "<null>" && !json.Valid([]byte(got)) {
					t.Errorf("%s isn't JSON", got)
				}
			}
		})
	}
}

func TestStructuredValuesAreRefusedByTheBytesConverter(t *testing.T) {
	_, err := converter(t, settings.ConvertBytes, settings.ConvertBytes).Convert(batch(
		source.RecordView{Value: []byte("plain")}, source.RecordView{Value: encoded(t, integer(1)), ValueSchema: source.SchemaInt64},
	), nil)
	var e *convert.RecordError
	if !errors.As(err, &e) || e.Index != 1 {
		t.Fatalf("got %v, want an error of record 1", err)
	}
}

func TestHeadersAndOtherColumnsSurviveARewrite(t *testing.T) {
	var b source.Builder
	for i, v := range []string{"a", "bb", ""} {
		b.Add(source.RecordView{Key: []byte{byte('0' + i)}, Value: []byte(v), Partition: uint32(i + 1), Topic: 3, KafkaPartition: int32(i), TimestampMS: int64(i + 1), ValueSchema: source.SchemaText})
		for range i {
			b.Header("n", nil)
			b.Header("", []byte{})
			b.Header("h", []byte{0xc3, 0x28})
		}
	}
	in := b.Batch(9)
	out, err := converter(t, settings.ConvertBytes, settings.ConvertJSON).Convert(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	keys, vals := values(t, out)
	if d := cmp.Diff([]string{"0", "1", "2"}, texts(keys)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{`"a"`, `"bb"`, `""`}, texts(vals)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(headers(in), headers(out), cmp.AllowUnexported(header{})); d != "" {
		t.Error(d)
	}
	if !bytes.Equal(in.Partition, out.Partition) || !bytes.Equal(in.TimestampMS, out.TimestampMS) || out.Seq != 9 {
		t.Error("a column that has nothing to do with the conversion changed")
	}
}

func texts(bs [][]byte) []string {
	out := make([]string, len(bs))
	for i, b := range bs {
		out[i] = string(b)
	}
	return out
}

type header struct {
	record      int
	name, value string
	null        bool
}

func headers(b *source.Batch) []header {
	var out []header
	for i, r := range b.Records() {
		for n, v := range r.Headers.All() {
			out = append(out, header{i, string(n), string(v), v == nil})
		}
	}
	return out
}

func TestMixedSchemasOfOneColumn(t *testing.T) {
	in := batch(
		source.RecordView{Value: []byte("text"), ValueSchema: source.SchemaText},
		source.RecordView{Value: encoded(t, integer(7)), ValueSchema: source.SchemaInt64},
		source.RecordView{Value: []byte("bytes")},
		source.RecordView{Value: nil, ValueSchema: source.SchemaInt64},
	)
	out, err := converter(t, settings.ConvertBytes, settings.ConvertString).Convert(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	_, vals := values(t, out)
	if d := cmp.Diff([][]byte{[]byte("text"), []byte("7"), []byte("bytes"), nil}, vals); d != "" {
		t.Error(d)
	}
}

func TestUnknownConvertersAreRefused(t *testing.T) {
	if _, err := convert.New("avro", settings.ConvertBytes); err == nil || !strings.Contains(err.Error(), "avro") {
		t.Errorf("got %v", err)
	}
}

func FuzzJSONIsValidOrAnError(f *testing.F) {
	f.Add([]byte{}, uint32(2))
	f.Add([]byte{0x22, 0x01, 'x'}, uint32(2))
	f.Add([]byte("text"), uint32(1))
	c, err := convert.New(settings.ConvertJSON, settings.ConvertJSON)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, value []byte, schema uint32) {
		out, err := c.Convert(one(append([]byte{}, value...), schema%8), nil)
		if err != nil {
			return
		}
		for _, r := range out.Records() {
			if r.Value != nil && !json.Valid(r.Value) {
				t.Fatalf("%x became %s", value, r.Value)
			}
		}
	})
}

func BenchmarkConvert(b *testing.B) {
	records := make([]source.RecordView, 1000)
	for i := range records {
		records[i] = source.RecordView{Key: []byte("12345678"), Value: bytes.Repeat([]byte("v"), 100), ValueSchema: source.SchemaText}
	}
	in := batch(records...)
	for _, name := range []settings.Converter{settings.ConvertBytes, settings.ConvertString, settings.ConvertJSON} {
		c, err := convert.New(settings.ConvertBytes, name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(string(name), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.Convert(in, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
