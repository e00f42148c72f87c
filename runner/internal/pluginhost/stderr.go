package pluginhost

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unicode"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"
)

// Limits of what is read from stderr.
const (
	// maxLine is where a line is cut.
	maxLine = 16 << 10
	// tailLines and maxTailLine are what an error shows of stderr's end.
	tailLines   = 20
	maxTailLine = 500
	// queuedLines is how many lines may wait for a slow log; more are dropped and counted.
	queuedLines = 256
	// linesPerSecond and lineBurst bound what one plugin may log.
	linesPerSecond = 200
	lineBurst      = 2000
	// maxFields is how many fields a structured line may have.
	maxFields = 50
)

// stderr reads a plugin's stderr for as long as the plugin lives, and makes log lines of it. Reading never waits for the log: what the log can't take is dropped and
// counted. Nothing of it reaches go-plugin.
type stderr struct {
	log     hclog.Logger
	limit   *rate.Limiter
	queue   chan string
	dropped atomic.Int64

	mu   sync.Mutex
	tail []string
	// cause is the latest line that begins like a fatal error: what follows it, a dump of threads, may be far longer than the tail.
	cause string
}

func newStderr(log hclog.Logger) *stderr {
	return &stderr{log: log, limit: rate.NewLimiter(linesPerSecond, lineBurst), queue: make(chan string, queuedLines)}
}

// read reads until r ends; write then ends too.
func (s *stderr) read(r io.Reader) {
	defer close(s.queue)
	buffer := make([]byte, readChunkSize)
	var line []byte
	cut := 0
	for {
		n, err := r.Read(buffer)
		rest := buffer[:n]
		for len(rest) > 0 {
			part, after, whole := bytes.Cut(rest, []byte{'\n'})
			room := min(len(part), maxLine-len(line))
			line = append(line, part[:room]...)
			cut += len(part) - room
			if whole {
				s.line(line, cut)
				line, cut = line[:0], 0
			}
			rest = after
		}
		if err != nil {
			if len(line) > 0 {
				s.line(line, cut)
			}
			return
		}
	}
}

// line takes one line, of which so many bytes were cut off.
func (s *stderr) line(line []byte, cut int) {
	text := strings.TrimRight(string(line), "\r")
	if cut > 0 {
		text += fmt.Sprintf(" … truncated: %d bytes more", cut)
	}
	if text == "" {
		return
	}
	s.remember(text)
	if !s.limit.Allow() {
		s.dropped.Add(1)
		return
	}
	select {
	case s.queue <- text:
	default:
		s.dropped.Add(1)
	}
}

func (s *stderr) remember(text string) {
	if len(text) > maxTailLine {
		text = text[:maxTailLine] + "… truncated"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.tail) == tailLines {
		copy(s.tail, s.tail[1:])
		s.tail = s.tail[:tailLines-1]
	}
	s.tail = append(s.tail, text)
	for _, beginning := range []string{"panic: ", "fatal error: ", "Exception in thread ", "Traceback "} {
		if strings.HasPrefix(text, beginning) {
			s.cause = text
		}
	}
}

// last gives the last lines, oldest first, led by the line of a fatal error that has been pushed out.
func (s *stderr) last() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	last := slices.Clone(s.tail)
	if s.cause != "" && !slices.Contains(last, s.cause) {
		last[0] = s.cause
	}
	for i, text := range last { // here and not line by line: a flood has too many of them
		last[i] = clean(text)
	}
	return last
}

// write logs lines until read has ended.
func (s *stderr) write() {
	for text := range s.queue {
		s.reportDropped()
		s.logLine(text)
	}
	s.reportDropped()
}

func (s *stderr) reportDropped() {
	if n := s.dropped.Swap(0); n > 0 {
		s.log.Warn("plugin stderr lines dropped", "lines", n)
	}
}

// logLine logs a line: with its own level and fields where it is hclog's JSON, as it is otherwise.
func (s *stderr) logLine(text string) {
	if strings.HasPrefix(text, "{") {
		if level, message, fields, ok := parseHclog(text); ok {
			s.log.Log(level, message, fields...)
			return
		}
	}
	s.log.Info(clean(text))
}

// parseHclog reads hclog's JSON form. Whatever isn't exactly that is a plain line, whatever types it has.
func parseHclog(text string) (level hclog.Level, message string, fields []any, ok bool) {
	var raw map[string]any
	decoder := json.NewDecoder(strings.NewReader(text))
	decoder.UseNumber()
	if decoder.Decode(&raw) != nil || decoder.More() {
		return 0, "", nil, false
	}
	name, ok1 := raw["@level"].(string)
	said, ok2 := raw["@message"].(string)
	level = hclog.LevelFromString(name)
	if !ok1 || !ok2 || level == hclog.NoLevel || level == hclog.Off {
		return 0, "", nil, false
	}
	for _, key := range slices.Sorted(maps.Keys(raw)) {
		if key == "@level" || key == "@message" || key == "@timestamp" || len(fields) >= 2*maxFields {
			continue
		}
		fields = append(fields, clean(strings.TrimPrefix(key, "@")), fieldValue(raw[key]))
	}
	return level, clean(said), fields, true
}

// fieldValue makes a JSON value safe to log: text is cleaned, numbers and booleans stay, everything else becomes JSON again.
func fieldValue(v any) any {
	switch v := v.(type) {
	case string:
		return clean(v)
	case bool, nil:
		return v
	case json.Number:
		return v.String()
	default:
		text, err := json.Marshal(v)
		if err != nil {
			return "?"
		}
		return clean(string(text))
	}
}

// color matches the escape sequences with which programs colour their lines.
var color = regexp.MustCompile(`\x1b\[[0-9;]*m`)

// clean makes a line safe to show: valid UTF-8, no control characters, which could move a terminal's cursor or forge a line.
func clean(text string) string {
	text = color.ReplaceAllString(text, "")
	return strings.Map(func(r rune) rune {
		if unicode.IsControl(r) && r != '\t' {
			return unicode.ReplacementChar
		}
		return r
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
}
