package source

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func TestCanonicalFormIsOneSpelling(t *testing.T) {
	for in, want := range map[string]string{
		`{"b":1,"a":2}`:                        `{"a":2,"b":1}`,
		" {\t\"a\" :\n1 } ":                    `{"a":1}`,
		`{"a":"\u0041\/\u00e9"}`:               `{"a":"A/é"}`,
		`{"a":"\u0000\u001f\u0008\t\"\\"}`:     `{"a":"\u0000\u001f\b\t\"\\"}`,
		`{"a":"\ud83d\ude00"}`:                 `{"a":"😀"}`,
		`{"a":1.0}`:                            `{"a":1}`,
		`{"a":-0}`:                             `{"a":0}`,
		`{"a":-0.0}`:                           `{"a":0}`,
		`{"a":1e2}`:                            `{"a":100}`,
		`{"a":1E+30}`:                          `{"a":1e+30}`,
		`{"a":1e-7}`:                           `{"a":1e-7}`,
		`{"a":0.000001}`:                       `{"a":0.000001}`,
		`{"a":9007199254740993}`:               `{"a":9007199254740993}`,
		`{"a":123456789012345678901234567890}`: `{"a":123456789012345678901234567890}`,
		`{"a":true,"b":false,"c":null}`:        `{"a":true,"b":false,"c":null}`,
		`{"":""}`:                              `{"":""}`,
		`{"é":1,"z":2,"\ud83d\ude00":3,"ﬀ":4}`: `{"z":2,"é":1,"ﬀ":4,"😀":3}`,
	} {
		got, err := Canonical(JSON(in))
		if err != nil || string(got) != want {
			t.Errorf("Canonical(%s) = %s, %v; want %s", in, got, err, want)
		}
	}
}

func TestWhatIsNoPartitionHasNoCanonicalForm(t *testing.T) {
	for in, want := range map[string]string{
		``:                     "a JSON object is expected",
		`[]`:                   "a JSON object is expected",
		`null`:                 "a JSON object is expected",
		`{}`:                   "empty object",
		`{"a":1}x`:             "something follows",
		`{"a":1,}`:             "a key in quotes",
		`{"a" 1}`:              "':' is expected",
		`{"a":}`:               "is expected",
		`{"a":01}`:             "is expected",
		`{"a":1.}`:             "is expected",
		`{"a":+1}`:             "is expected",
		`{"a":NaN}`:            "is expected",
		`{"a":nul}`:            "is expected",
		`{"a":1e400}`:          "doesn't fit",
		`{"a":{}}`:             "an object or an array",
		`{"a":[1]}`:            "an object or an array",
		`{"a":1,"a":2}`:        "twice",
		`{"a":1,"\u0061":2}`:   "twice",
		`{"a":"\ud800"}`:       "half a surrogate",
		`{"a":"\ud800\ud800"}`: "half a surrogate",
		`{"a":"\udc00\ud800"}`: "half a surrogate",
		`{"a":"\u12"}`:         "hexadecimal",
		`{"a":"\x"}`:           "unknown escape",
		"{\"a\":\"\n\"}":       "control character",
		"{\"a\":\"\xff\"}":     "UTF-8",
		`{"a":"b`:              "no end",
		`{"a":"` + strings.Repeat("x", 65536) + `"}`: "the limit is 65536",
	} {
		if got, err := Canonical(JSON(in)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Canonical(%.60q) = %s, %v; want an error with %q", in, got, err, want)
		}
	}
}

func TestFieldsAreWrittenInCanonicalForm(t *testing.T) {
	f := Fields{"z": "a\"b", "y": 1, "x": int64(math.MinInt64), "w": uint64(math.MaxUint64), "v": 1.5, "u": json.Number("1.50e1"), "t": nil, "s": true, "r": math.Copysign(0, -1)}
	j, err := f.JSON()
	want := `{"r":0,"s":true,"t":null,"u":15,"v":1.5,"w":18446744073709551615,"x":-9223372036854775808,"y":1,"z":"a\"b"}`
	if err != nil || string(j) != want {
		t.Fatalf("got %s, %v\nwant %s", j, err, want)
	}
	back, err := j.Fields()
	if err != nil {
		t.Fatal(err)
	}
	if n, ok := back.Int("x"); !ok || n != math.MinInt64 {
		t.Errorf("x is %v", back["x"])
	}
	if s, ok := back.Text("z"); !ok || s != `a"b` {
		t.Errorf("z is %v", back["z"])
	}
	if back["w"] != json.Number("18446744073709551615") || back["v"] != 1.5 || back["t"] != nil || back["s"] != true {
		t.Errorf("got %v", back)
	}
}

func TestFieldsRefuseWhatJSONCannotHold(t *testing.T) {
	for name, f := range map[string]Fields{
		"empty": {}, "nil": nil, "struct": {"a": struct{}{}}, "nan": {"a": math.NaN()}, "utf8": {"a": "\xff"}, "key": {"\xff": 1},
		"number": {"a": json.Number("1x")}, "no number": {"a": json.Number("")}, "long": {"a": strings.Repeat("x", MaxJSONBytes)},
	} {
		if j, err := f.JSON(); err == nil {
			t.Errorf("%s: got %s", name, j)
		}
	}
}

func FuzzCanonical(f *testing.F) {
	for _, seed := range []string{`{"a":1}`, `{"b":"x\u00e9\ud83d\ude00","a":-1.50e-7}`, `{"a":null,"b":true,"c":false}`, `{}`, `{"a":"\ud800"}`, `{"a":1e400}`,
		`{"a":123456789012345678901234567890}`, "{\"a\":\"\xff\"}", `{"a":-0}`, ` { "a" : [1] } `} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		c, err := Canonical(in)
		if err != nil {
			return
		}
		var ours, theirs map[string]any
		if err := json.Unmarshal(in, &theirs); err != nil {
			t.Fatalf("Canonical took %q, encoding/json doesn't: %v", in, err)
		}
		if err := json.Unmarshal(c, &ours); err != nil || len(ours) != len(theirs) {
			t.Fatalf("%q became %q: %v", in, c, err)
		}
		again, err := Canonical(c)
		if err != nil || string(again) != string(c) {
			t.Fatalf("not stable: %q became %q, %v", c, again, err)
		}
		fields, err := JSON(in).Fields()
		if err != nil {
			t.Fatal(err)
		}
		written, err := fields.JSON()
		if err != nil || string(written) != string(c) {
			t.Fatalf("through Fields: %q became %q, %v", c, written, err)
		}
	})
}
