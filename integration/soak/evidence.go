package soak

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"
)

// event is something that a fault may have caused: what a fault has to show to count.
type event struct {
	at   time.Time
	what what
	// runner is where it happened; from is the runner that a lease moved away from.
	runner, from string
	connector    string
	// cause is the runner's word for why an attempt ended.
	cause string
	// by is the fault that it was taken as evidence for.
	by *outcome
}

// what an event is.
type what string

const (
	aborted what = "transaction aborted"
	moved   what = "lease moved"
	dropped what = "session dropped"
)

// evidence reads the logs of runners and coordinators, as they grow.
type evidence struct {
	mu     sync.Mutex
	events []*event
	// holders are the runners that hold each task, by connector and task.
	holders map[string]string
	// joined are the runners that have had a session.
	joined map[string]bool
	// rewinds counts ended attempts by cause.
	rewinds map[string]int
}

func newEvidence() *evidence {
	return &evidence{holders: map[string]string{}, joined: map[string]bool{}, rewinds: map[string]int{}}
}

// line is what is read of a line of a log.
type line struct {
	Message    string          `json:"@message"`
	Timestamp  string          `json:"@timestamp"`
	Connector  string          `json:"connector"`
	Task       json.RawMessage `json:"task"`
	Generation json.RawMessage `json:"generation"`
	Cause      string          `json:"cause"`
	Text       string          `json:"text"`
}

const tailEvery = 200 * time.Millisecond

// follow reads a member's log until the context ends, and then what is left of it.
func (e *evidence) follow(ctx context.Context, m *member) error {
	file, err := os.Open(m.log)
	if err != nil {
		return err
	}
	defer file.Close()
	tick := time.NewTicker(tailEvery)
	defer tick.Stop()
	var rest []byte
	for last := false; ; {
		more, err := io.ReadAll(file)
		if err != nil {
			return err
		}
		rest = e.take(m.name, append(rest, more...))
		if last {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			last = true
		}
	}
}

// take takes whole lines, and gives back the rest.
func (e *evidence) take(member string, text []byte) []byte {
	for {
		one, rest, ok := bytes.Cut(text, []byte("\n"))
		if !ok {
			return text
		}
		text = rest
		var l line
		if json.Unmarshal(one, &l) != nil {
			continue // a plugin's, or a panic's
		}
		at, err := time.Parse("2006-01-02T15:04:05.000000Z07:00", l.Timestamp)
		if err != nil {
			continue
		}
		e.read(member, at, &l)
	}
}

// read makes an event of a line that is one.
func (e *evidence) read(member string, at time.Time, l *line) {
	e.mu.Lock()
	defer e.mu.Unlock()
	next := &event{at: at, runner: member, connector: l.Connector}
	switch l.Message {
	case "attempt failed":
		next.what, next.cause = aborted, l.Cause
		e.rewinds[l.Cause]++
	case "task granted":
		key := l.Connector + "/" + string(l.Task)
		next.what, next.from = moved, e.holders[key]
		e.holders[key] = member
		if next.from == "" {
			return // the first grant is no move
		}
	case "lost the coordinator":
		next.what = dropped
	case "joined the cluster":
		if !e.joined[member] {
			e.joined[member] = true
			return // the first session is no new one
		}
		next.what = dropped
	case "connector event":
		runner, after, _ := strings.Cut(strings.TrimPrefix(l.Text, "runner "), " disconnected")
		if after == "" || !strings.HasPrefix(l.Text, "runner ") {
			return
		}
		next.what, next.runner = dropped, runner
	default:
		return
	}
	e.events = append(e.events, next)
}

// window is how long after a fault was healed its effects may show.
const window = 10 * time.Second

// judge finds for each fault an event that it caused: of its target, from when it struck until a while after it was healed. No event is evidence for two.
func (e *evidence) judge(outcomes []*outcome) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, o := range outcomes {
		if o.left != "" {
			continue
		}
		for _, ev := range e.events {
			if ev.by == nil && !ev.at.Before(o.struck) && ev.at.Before(o.healed.Add(window)) && o.mayCause(ev) {
				ev.by, o.evidence = o, ev
				break
			}
		}
	}
}

// mayCause says whether an event fits a fault's kind and target.
func (o *outcome) mayCause(ev *event) bool {
	if len(o.kind.shows) > 0 && !slices.Contains(o.kind.shows, ev.what) {
		return false
	}
	switch o.kind.scope {
	case mortals, anyRunner:
		return ev.runner == o.Target || ev.from == o.Target
	case aConnector:
		return ev.connector == o.Target
	}
	return true
}
