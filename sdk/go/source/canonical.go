package source

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// MaxJSONBytes is the largest source partition or offset: the limit of proto/fencepost/plugin/v1/plugin.proto.
const MaxJSONBytes = 64 << 10

// Canonical returns the canonical form of a source partition or offset: keys sorted by their bytes, no white space, the shortest escapes, and numbers as RFC 8785 writes
// them, but integers of any size exactly. Two objects with equal canonical forms are the same partition.
//
// It fails for what is no partition and no offset: anything but a JSON object of texts, numbers, booleans and nulls, an empty object, a repeated key, text that isn't valid
// Unicode, and more than MaxJSONBytes.
func Canonical(j JSON) ([]byte, error) {
	members, err := parseObject(j)
	if err != nil {
		return nil, err
	}
	out := make([]byte, 0, len(j))
	out = append(out, '{')
	for i, m := range members {
		if i > 0 {
			out = append(out, ',')
		}
		out = appendText(out, m.key)
		out = append(out, ':')
		out = append(out, m.value...)
	}
	return append(out, '}'), nil
}

// member is one key of an object with its value in canonical form; text is the value where it is a text.
type member struct {
	key   string
	value []byte
	text  string
}

// parseObject returns the members sorted by key.
func parseObject(j JSON) ([]member, error) {
	if len(j) > MaxJSONBytes {
		return nil, fmt.Errorf("is %d bytes long, the limit is %d", len(j), MaxJSONBytes)
	}
	p := parser{in: j}
	members, err := p.object()
	if err != nil {
		return nil, fmt.Errorf("byte %d: %w", p.at, err)
	}
	if len(members) == 0 {
		return nil, errors.New("is an empty object")
	}
	slices.SortFunc(members, func(a, b member) int { return strings.Compare(a.key, b.key) })
	for i := 1; i < len(members); i++ {
		if members[i].key == members[i-1].key {
			return nil, fmt.Errorf("has the key %q twice", members[i].key)
		}
	}
	return members, nil
}

// parser reads JSON strictly: encoding/json replaces bad Unicode in silence, and takes the last of two equal keys.
type parser struct {
	in []byte
	at int
}

func (p *parser) space() {
	for p.at < len(p.in) {
		switch p.in[p.at] {
		case ' ', '\t', '\n', '\r':
			p.at++
		default:
			return
		}
	}
}

// next skips white space and takes c.
func (p *parser) next(c byte) bool {
	p.space()
	if p.at < len(p.in) && p.in[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) object() ([]member, error) {
	if !p.next('{') {
		return nil, errors.New("a JSON object is expected")
	}
	var members []member
	for first := true; !p.next('}'); first = false {
		if !first && !p.next(',') {
			return nil, errors.New("',' or '}' is expected")
		}
		m, err := p.member()
		if err != nil {
			return nil, err
		}
		members = append(members, m)
	}
	p.space()
	if p.at != len(p.in) {
		return nil, errors.New("something follows the object")
	}
	return members, nil
}

func (p *parser) member() (member, error) {
	if !p.next('"') {
		return member{}, errors.New("a key in quotes is expected")
	}
	key, err := p.text()
	if err != nil {
		return member{}, err
	}
	if !p.next(':') {
		return member{}, fmt.Errorf("':' is expected after the key %q", key)
	}
	m := member{key: key}
	p.space()
	rest := p.in[p.at:]
	switch {
	case len(rest) == 0:
		return m, fmt.Errorf("the value of %q is missing", key)
	case rest[0] == '"':
		p.at++
		m.text, err = p.text()
		m.value = appendText(nil, m.text)
		return m, err
	case rest[0] == '{' || rest[0] == '[':
		return m, fmt.Errorf("the value of %q is an object or an array, but must be a text, a number, a boolean or null", key)
	}
	for _, word := range []string{"true", "false", "null"} {
		if bytes.HasPrefix(rest, []byte(word)) {
			p.at += len(word)
			m.value = []byte(word)
			return m, nil
		}
	}
	token, err := p.number()
	if err != nil {
		return m, fmt.Errorf("the value of %q: %w", key, err)
	}
	m.value, err = appendNumber(nil, token)
	return m, err
}

// text reads a string after its opening quote.
func (p *parser) text() (string, error) {
	start := p.at
	for p.at < len(p.in) && p.in[p.at] != '"' && p.in[p.at] != '\\' && p.in[p.at] >= ' ' {
		p.at++
	}
	out := p.in[start:p.at:p.at]
	for {
		if p.at >= len(p.in) {
			return "", errors.New("a text has no end")
		}
		switch c := p.in[p.at]; {
		case c == '"':
			if !utf8.Valid(out) {
				return "", errors.New("a text isn't valid UTF-8")
			}
			p.at++
			return string(out), nil
		case c < ' ':
			return "", errors.New("a control character in a text must be escaped")
		case c != '\\':
			out = append(out, c)
			p.at++
		default:
			r, err := p.escape()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, r)
		}
	}
}

// escape reads one escape sequence, both halves of a surrogate pair together.
func (p *parser) escape() (rune, error) {
	if p.at+1 >= len(p.in) {
		return 0, errors.New("a text has no end")
	}
	c := p.in[p.at+1]
	if i := strings.IndexByte(`"\/bfnrt`, c); i >= 0 {
		p.at += 2
		return rune("\"\\/\b\f\n\r\t"[i]), nil
	}
	if c != 'u' {
		return 0, errors.New("unknown escape in a text")
	}
	r, err := p.hex()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if p.at+1 < len(p.in) && p.in[p.at] == '\\' && p.in[p.at+1] == 'u' {
		low, err := p.hex()
		if err != nil {
			return 0, err
		}
		if both := utf16.DecodeRune(r, low); both != utf8.RuneError {
			return both, nil
		}
	}
	return 0, errors.New("half a surrogate pair in a text")
}

// hex reads \uXXXX.
func (p *parser) hex() (rune, error) {
	if p.at+6 > len(p.in) {
		return 0, errors.New("a text has no end")
	}
	v, err := strconv.ParseUint(string(p.in[p.at+2:p.at+6]), 16, 16)
	if err != nil {
		return 0, errors.New(`\u is followed by four hexadecimal digits`)
	}
	p.at += 6
	return rune(v), nil
}

func (p *parser) number() ([]byte, error) {
	n := numberLen(p.in[p.at:])
	if n == 0 {
		return nil, errors.New("a text, a number, a boolean or null is expected")
	}
	token := p.in[p.at : p.at+n]
	p.at += n
	return token, nil
}

// numberLen is the length of the number that b begins with in JSON's grammar; 0 is none.
func numberLen(b []byte) int {
	digits := func(i int) int {
		for i < len(b) && b[i] >= '0' && b[i] <= '9' {
			i++
		}
		return i
	}
	start := 0
	if len(b) > 0 && b[0] == '-' {
		start = 1
	}
	i := digits(start)
	if i == start || (b[start] == '0' && i > start+1) {
		return 0
	}
	if i < len(b) && b[i] == '.' {
		end := digits(i + 1)
		if end == i+1 {
			return 0
		}
		i = end
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		from := i + 1
		if from < len(b) && (b[from] == '+' || b[from] == '-') {
			from++
		}
		end := digits(from)
		if end == from {
			return 0
		}
		i = end
	}
	return i
}

// appendNumber appends a JSON number in canonical form.
func appendNumber(dst, token []byte) ([]byte, error) {
	if bytes.ContainsAny(token, ".eE") {
		f, err := strconv.ParseFloat(string(token), 64)
		if err != nil {
			return nil, fmt.Errorf("the number %.40s doesn't fit into 64 bits of floating point", token)
		}
		return appendFloat(dst, f)
	}
	if string(token) == "-0" {
		token = token[1:]
	}
	return append(dst, token...), nil
}

// appendFloat appends f as ECMAScript, and so RFC 8785, writes it.
func appendFloat(dst []byte, f float64) ([]byte, error) {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, fmt.Errorf("%v is not a JSON number", f)
	}
	if f == 0 {
		return append(dst, '0'), nil
	}
	if abs := math.Abs(f); abs >= 1e-6 && abs < 1e21 {
		return strconv.AppendFloat(dst, f, 'f', -1, 64), nil
	}
	dst = strconv.AppendFloat(dst, f, 'e', -1, 64)
	// Go pads the exponent to two digits: e-07 is e-7.
	if n := len(dst); dst[n-4] == 'e' && dst[n-2] == '0' {
		dst[n-2] = dst[n-1]
		dst = dst[:n-1]
	}
	return dst, nil
}

// appendText appends s, which is valid UTF-8, in quotes with the shortest escapes.
func appendText(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' {
			continue
		}
		dst = append(dst, s[from:i]...)
		from = i + 1
		if short := strings.IndexByte("\"\\\b\f\n\r\t", c); short >= 0 {
			dst = append(dst, '\\', `"\bfnrt`[short])
		} else {
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
