package filesource

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// collect splits what is there and returns "text@end" for each line.
func collect(t testing.TB, s *splitter, content string, c *cursor) []string {
	t.Helper()
	var out []string
	_, err := s.split(strings.NewReader(content), c, func(l line) (bool, error) {
		out = append(out, describeLine(l))
		return true, nil
	})
	if err != nil {
		out = append(out, "error: "+err.Error())
	}
	return out
}

func describeLine(l line) string {
	text := string(l.text)
	switch {
	case l.skip:
		text = "(skipped)"
	case l.cut:
		text += "(cut)"
	case l.open:
		text += "(open)"
	}
	return fmt.Sprintf("%s@%d", text, l.end)
}

func TestOnlyTerminatedLinesAreEmitted(t *testing.T) {
	s, c := &splitter{maxLine: 100, policy: tooLongFail}, &cursor{}
	var got []string
	content := ""
	for _, part := range []string{"\xEF\xBB\xBFa", "\r", "\nb\rc\n\n", "d"} {
		content += part
		got = append(got, collect(t, s, content, c)...)
		// A restart between two writes knows no more than the offset.
		c = &cursor{next: c.next}
	}
	want := []string{"a@6", "b\rc@10", "@11"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	got = collect(t, s, content+"\n", c)
	if diff := cmp.Diff([]string{"d@13"}, got); diff != "" {
		t.Errorf("the last line (-want +got):\n%s", diff)
	}
}

func TestOffsetIsTheByteAfterTheTerminator(t *testing.T) {
	for name, tc := range map[string]struct {
		content string
		want    []string
	}{
		"LF":         {"123456\n123456\n123456\n", []string{"123456@7", "123456@14", "123456@21"}},
		"CRLF":       {"123456\r\n123456\r\n123456\r\n", []string{"123456@8", "123456@16", "123456@24"}},
		"BOM and LF": {"\xEF\xBB\xBF123456\n123456\n123456\n", []string{"123456@10", "123456@17", "123456@24"}},
		"BOM inside": {"x\n\xEF\xBB\xBFy\n", []string{"x@2", "\xEF\xBB\xBFy@7"}},
		"two CR":     {"x\r\r\n", []string{"x\r@4"}},
	} {
		t.Run(name, func(t *testing.T) {
			got := collect(t, &splitter{maxLine: 100, policy: tooLongFail}, tc.content, &cursor{})
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLongLines(t *testing.T) {
	content := "short\n" + strings.Repeat("x", 50) + "\n" + strings.Repeat("y", 300) + "\nend\n"
	for policy, want := range map[tooLong][]string{
		tooLongFail:     {"short@6", "error: the line that starts at byte 6 is longer than 20 bytes"},
		tooLongSkip:     {"short@6", "(skipped)@57", "(skipped)@358", "end@362"},
		tooLongTruncate: {"short@6", strings.Repeat("x", 20) + "(cut)@57", strings.Repeat("y", 20) + "(cut)@358", "end@362"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			got := collect(t, &splitter{maxLine: 20, policy: policy}, content, &cursor{})
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALineOfTheLimitIsNotTooLong(t *testing.T) {
	for _, end := range []string{"\n", "\r\n"} {
		content := strings.Repeat("x", 20) + end
		got := collect(t, &splitter{maxLine: 20, policy: tooLongFail}, content, &cursor{})
		if want := []string{fmt.Sprintf("%s@%d", strings.Repeat("x", 20), len(content))}; !cmp.Equal(want, got) {
			t.Errorf("got %q", got)
		}
	}
}

func TestGiantLineKeepsMemoryBounded(t *testing.T) {
	s := &splitter{maxLine: 1 << 10, policy: tooLongSkip}
	content := bytes.Repeat([]byte("z"), 8<<20)
	got := collect(t, s, string(content)+"\nafter\n", &cursor{})
	want := []string{fmt.Sprintf("(skipped)@%d", len(content)+1), fmt.Sprintf("after@%d", len(content)+7)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("lines (-want +got):\n%s", diff)
	}
	if cap(s.buf) > 1<<12 {
		t.Errorf("the buffer has %d bytes for lines of at most %d", cap(s.buf), s.maxLine)
	}
}

func TestUnterminatedLastLineIsNeverGluedWrongly(t *testing.T) {
	for name, tc := range map[string]struct {
		later string
		want  []string
	}{
		"its own terminator":  {"\nnext\n", []string{"d(open)@1", "next@7"}},
		"its own CRLF":        {"\r\nnext\n", []string{"d(open)@1", "next@8"}},
		"more text":           {"more\n", []string{"d(open)@1", "more@6"}},
		"an empty line after": {"\n\n", []string{"d(open)@1", "@3"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, c := &splitter{maxLine: 100, policy: tooLongFail}, &cursor{}
			var got []string
			emit := func(l line) (bool, error) { got = append(got, describeLine(l)); return true, nil }
			if err := s.unterminated(strings.NewReader("d"), c, emit); err != nil {
				t.Fatal(err)
			}
			c = &cursor{next: c.next, open: c.open} // a restart
			if _, err := s.split(strings.NewReader("d"+tc.later), c, emit); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("lines (-want +got):\n%s", diff)
			}
		})
	}
}

// Whatever the content, the pieces in which it appears, and the points of restart: the lines are those of the whole file.
func TestSplitIsTheSameForEveryWayOfWriting(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		content := rapid.StringOfN(rapid.SampledFrom([]rune{'a', 'b', '\r', '\n'}), 0, 200, -1).Draw(t, "content")
		maxLine := rapid.IntRange(3, 60).Draw(t, "limit")
		policy := rapid.SampledFrom([]tooLong{tooLongSkip, tooLongTruncate}).Draw(t, "policy")
		want := naive(content, maxLine, policy)
		s, c := &splitter{maxLine: maxLine, policy: policy}, &cursor{}
		var got []string
		for written := 0; written < len(content); {
			written += rapid.IntRange(1, len(content)-written).Draw(t, "written")
			_, err := s.split(strings.NewReader(content[:written]), c, func(l line) (bool, error) {
				got = append(got, describeLine(l))
				return rapid.Bool().Draw(t, "goOn"), nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if rapid.Bool().Draw(t, "restart") {
				c = &cursor{next: c.next}
			}
		}
		for range content { // emit may have stopped early
			_, _ = s.split(strings.NewReader(content), c, func(l line) (bool, error) {
				got = append(got, describeLine(l))
				return true, nil
			})
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("lines of %q (-want +got):\n%s", content, diff)
		}
	})
}

// naive is the obvious way to split, for comparison.
func naive(content string, maxLine int, policy tooLong) (out []string) {
	at := 0
	for {
		i := strings.IndexByte(content[at:], '\n')
		if i < 0 {
			return out
		}
		text := strings.TrimSuffix(content[at:at+i], "\r")
		at += i + 1
		l := line{text: []byte(text), end: int64(at)}
		if len(text) > maxLine {
			l.text = l.text[:maxLine]
			l.skip, l.cut = policy == tooLongSkip, policy == tooLongTruncate
		}
		out = append(out, describeLine(l))
	}
}
