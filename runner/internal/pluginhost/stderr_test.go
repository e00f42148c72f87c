package pluginhost

import (
	"bytes"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/go-hclog"
)

// logged runs lines through a stderr and gives the log.
func logged(t *testing.T, text string) string {
	t.Helper()
	var out bytes.Buffer
	s := newStderr(hclog.New(&hclog.LoggerOptions{Output: &out, Level: hclog.Info, DisableTime: true}))
	s.read(strings.NewReader(text))
	s.write()
	return out.String()
}

func TestStderrLineBecomesALogLine(t *testing.T) {
	cases := map[string]struct{ in, want string }{
		"plain":           {"hello\r\n", "[INFO]  hello\n"},
		"without end":     {"hello", "[INFO]  hello\n"},
		"hclog":           {`{"@level":"warn","@message":"slow","@module":"m","@timestamp":"x","rows":12345678901234567890,"ok":true}` + "\n", "[WARN]  slow: module=m ok=true rows=12345678901234567890\n"},
		"nested":          {`{"@level":"error","@message":"m","a":{"b":[1,2]}}` + "\n", `[ERROR] m: a="{\"b\":[1,2]}"` + "\n"},
		"below the level": {`{"@level":"debug","@message":"m"}` + "\n", ""},
		"wrong message":   {`{"@message": 1}` + "\n", `[INFO]  {"@message": 1}` + "\n"},
		"wrong level":     {`{"@message":"m","@level":[]}` + "\n", `[INFO]  {"@message":"m","@level":[]}` + "\n"},
		"two objects":     {`{"@message":"m","@level":"info"}{}` + "\n", `[INFO]  {"@message":"m","@level":"info"}{}` + "\n"},
		"invalid UTF-8":   {"a\xe2b\n", "[INFO]  a\ufffdb\n"},
		"escapes":         {"\x1b[31mred\x1b[0m \x1b]0;title\x07\n", "[INFO]  red \ufffd]0;title\ufffd\n"},
		"forged line":     {`{"@level":"info","@message":"a\n[ERROR] b"}` + "\n", "[INFO]  a\ufffd[ERROR] b\n"},
		"empty":           {"\n\n", ""},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := logged(t, tc.in); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}

func TestLongLineIsCutAndSaysSo(t *testing.T) {
	got := logged(t, strings.Repeat("x", 1_000_000)+"\nnext\n")
	if len(got) > maxLine+200 || !strings.Contains(got, "truncated: 983616 bytes more") || !strings.Contains(got, "next") {
		t.Errorf("%d bytes: …%q", len(got), got[max(0, len(got)-100):])
	}
}

// blocked is a log that takes nothing until it is let go.
type blocked struct{ free chan struct{} }

func (b *blocked) Write(p []byte) (int, error) {
	<-b.free
	return len(p), nil
}

func TestReadingNeverWaitsForTheLog(t *testing.T) {
	log := &blocked{free: make(chan struct{})}
	s := newStderr(hclog.New(&hclog.LoggerOptions{Output: log}))
	written := make(chan struct{})
	go func() { defer close(written); s.write() }()
	s.read(strings.NewReader(strings.Repeat("line\n", 1_000_000))) // ends although nothing was logged
	if s.dropped.Load() < 900_000 {
		t.Errorf("%d lines dropped", s.dropped.Load())
	}
	close(log.free)
	<-written
}

func TestExitIsClassified(t *testing.T) {
	cases := map[string]struct {
		status       syscall.WaitStatus
		known, asked bool
		class        ExitClass
		want         string
	}{
		"code":    {3 << 8, true, false, ExitCode, "exited with code 3"},
		"core":    {11 | 0x80, true, false, ExitSignal, "crashed: signal 11 (segmentation fault), core dumped"},
		"memory":  {9, true, false, ExitMemory, "ran out of memory"},
		"asked":   {9, true, true, ExitAsked, "was ended by the runner"},
		"unknown": {0, false, false, ExitUnknown, "didn't say how"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			e := &ExitError{Label: "c"}
			e.classify(tc.status, tc.known, tc.asked)
			if e.Class != tc.class || !strings.Contains(e.Error(), tc.want) {
				t.Errorf("got %+v: %s", e, e)
			}
		})
	}
}
