package history

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Keys, as in the config log: connector/<name> and task/<name>/<task>. A name may hold slashes; nothing that follows it does.
const (
	keyConnector = "connector/"
	keyTask      = "task/"
)

// recordVersion is the version of every record's form. One of another version is left out.
const recordVersion = 1

// frame is what every value has.
type frame[B any] struct {
	V    int    `json:"v"`
	Term uint64 `json:"term"`
	B    B      `json:"b"`
}

// connectorRecord is connector/<name>.
type connectorRecord struct {
	Incarnation string            `json:"incarnation"`
	Happened    []happeningRecord `json:"happened,omitempty"`
}

type happeningRecord struct {
	At    time.Time `json:"at"`
	First time.Time `json:"first,omitzero"` // where Count is more than 1
	Count uint64    `json:"count,omitempty"`
	Text  string    `json:"text"`
}

// taskRecord is task/<name>/<task>.
type taskRecord struct {
	Incarnation string      `json:"incarnation"`
	Lease       state.Lease `json:"lease"`
	State       string      `json:"state,omitempty"`
	// Status is the last one under the lease.
	Status statusRecord `json:"status"`
	// Error is the last thing that went wrong, whether or not the task has got over it.
	Error *errorRecord `json:"error,omitempty"`
}

type errorRecord struct {
	At    time.Time `json:"at"`
	Cause string    `json:"cause,omitempty"`
	Text  string    `json:"text"`
}

// statusRecord leaves out what says nothing a moment later: what the task is doing, and its open transaction.
type statusRecord struct {
	Error         string            `json:"error,omitempty"`
	Cause         string            `json:"cause,omitempty"`
	Attempt       uint32            `json:"attempt,omitempty"`
	BudgetLeft    uint32            `json:"budget_left,omitempty"`
	Endless       bool              `json:"endless,omitempty"`
	Records       uint64            `json:"records,omitempty"`
	Bytes         uint64            `json:"bytes,omitempty"`
	Commits       uint64            `json:"commits,omitempty"`
	Aborts        uint64            `json:"aborts,omitempty"`
	Dropped       uint64            `json:"dropped,omitempty"`
	DroppedReason string            `json:"dropped_reason,omitempty"`
	PluginVersion string            `json:"plugin_version,omitempty"`
	PluginSHA256  string            `json:"plugin_sha256,omitempty"`
	Rewinds       map[string]uint64 `json:"rewinds,omitempty"`
	Notices       []string          `json:"notices,omitempty"`
}

// records are the values of a connector's keys.
func records(last *state.LastKnown, term uint64) map[string][]byte {
	c := connectorRecord{Incarnation: last.Incarnation}
	for _, h := range last.Happenings {
		r := happeningRecord{At: h.At.Round(0), Text: h.Text}
		if h.Count > 1 {
			r.First, r.Count = h.First.Round(0), h.Count
		}
		c.Happened = append(c.Happened, r)
	}
	out := map[string][]byte{keyConnector + last.Name: encode(term, c)}
	for task, t := range last.Tasks {
		r := taskRecord{Incarnation: last.Incarnation, Lease: t.Lease, State: t.State, Status: toRecord(&t.Status)}
		if !t.Error.At.IsZero() {
			r.Error = &errorRecord{At: t.Error.At.Round(0), Cause: t.Error.Cause, Text: t.Error.Text}
		}
		out[keyTask+last.Name+"/"+strconv.FormatUint(uint64(task), 10)] = encode(term, r)
	}
	return out
}

func encode[B any](term uint64, body B) []byte {
	value, err := json.Marshal(frame[B]{V: recordVersion, Term: term, B: body})
	if err != nil {
		panic(fmt.Sprintf("a record of plain data can't be written as JSON: %v", err))
	}
	return value
}

func toRecord(s *state.TaskStatus) statusRecord {
	return statusRecord{
		Error: s.Error, Cause: s.Cause, Attempt: s.Attempt, BudgetLeft: s.BudgetLeft, Endless: s.Endless, Records: s.Records, Bytes: s.Bytes, Commits: s.Commits, Aborts: s.Aborts, Dropped: s.Dropped,
		DroppedReason: s.DroppedReason, PluginVersion: s.PluginVersion, PluginSHA256: s.PluginSHA256, Rewinds: s.Rewinds, Notices: s.Notices,
	}
}

func ofRecord(r *statusRecord) state.TaskStatus {
	return state.TaskStatus{
		Error: r.Error, Cause: r.Cause, Attempt: r.Attempt, BudgetLeft: r.BudgetLeft, Endless: r.Endless, Records: r.Records, Bytes: r.Bytes, Commits: r.Commits, Aborts: r.Aborts, Dropped: r.Dropped,
		DroppedReason: r.DroppedReason, PluginVersion: r.PluginVersion, PluginSHA256: r.PluginSHA256, Rewinds: r.Rewinds, Notices: r.Notices,
	}
}

// entry is the newest record of a key.
type entry struct {
	key, connector string
	task           int64 // of a task's key; -1 in a connector's
	term           uint64
	value          []byte
}

// parse reads a key and the term; false is a record that isn't ours.
func parse(key string, value []byte) (e entry, ours bool) {
	e = entry{key: key, task: -1, value: value}
	switch {
	case strings.HasPrefix(key, keyConnector):
		e.connector = key[len(keyConnector):]
	case strings.HasPrefix(key, keyTask):
		rest := key[len(keyTask):]
		at := strings.LastIndexByte(rest, '/')
		if at < 0 {
			return e, false
		}
		n, err := strconv.ParseUint(rest[at+1:], 10, 32)
		if err != nil {
			return e, false
		}
		e.connector, e.task = rest[:at], int64(n)
	default:
		return e, false
	}
	if value == nil {
		return e, true
	}
	var f frame[json.RawMessage]
	if json.Unmarshal(value, &f) != nil || f.V != recordVersion {
		return e, false
	}
	e.term = f.Term
	return e, true
}

// lastKnown makes of entries what a State takes, by name. A body that can't be read is left out.
func lastKnown(kept []entry) []state.LastKnown {
	all := map[string]*state.LastKnown{}
	for _, e := range kept {
		var f frame[connectorRecord]
		if e.task >= 0 || json.Unmarshal(e.value, &f) != nil {
			continue
		}
		last := &state.LastKnown{Name: e.connector, Incarnation: f.B.Incarnation, Tasks: map[uint32]state.LastStatus{}}
		for _, h := range f.B.Happened {
			one := state.Happening{Connector: e.connector, At: h.At, First: h.At, Count: max(h.Count, 1), Text: h.Text}
			if h.Count > 1 {
				one.First = h.First
			}
			last.Happenings = append(last.Happenings, one)
		}
		all[e.connector] = last
	}
	for _, e := range kept {
		last := all[e.connector]
		var f frame[taskRecord]
		if e.task < 0 || last == nil || json.Unmarshal(e.value, &f) != nil || f.B.Incarnation != last.Incarnation {
			continue
		}
		t := state.LastStatus{Lease: f.B.Lease, State: f.B.State, Status: ofRecord(&f.B.Status)}
		if f.B.Error != nil {
			t.Error = state.LastError{At: f.B.Error.At, Cause: f.B.Error.Cause, Text: f.B.Error.Text}
		}
		last.Tasks[uint32(e.task)] = t
	}
	var list []state.LastKnown
	for _, last := range all {
		list = append(list, *last)
	}
	slices.SortFunc(list, func(a, b state.LastKnown) int { return strings.Compare(a.Name, b.Name) })
	return list
}
