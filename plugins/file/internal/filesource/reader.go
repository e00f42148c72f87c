package filesource

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

const (
	// turnBytes is how much of one file is read before the next one gets its turn.
	turnBytes = 1 << 20
	// maxOpenFiles bounds file descriptors. A file beyond it is closed when it is read to its end, and opened again when it grows.
	maxOpenFiles = 256
	// maxNotices and maxNoticeRunes keep notices within the protocol's 20 of 500 bytes.
	maxNotices     = 20
	maxNoticeRunes = 120
)

// startedMark is a source partition that no file has: its offset says that the connector has run before, so that start.at=end applies to its first run alone. Without it a file that came while
// nobody read would be skipped.
var startedMark = source.Fields{"start": "done"}

// Open reads where the stored offsets say.
func (Connector) Open(ctx context.Context, task *source.Task) (source.Reader, error) {
	config := task.Config()
	r := &reader{
		task:    task,
		globs:   config.List(keyPaths),
		topic:   config.String(keyTopic),
		keyed:   config.String(keyRecordKey) == "path",
		every:   config.Duration(keyScan),
		lastMax: config.Duration(keyLastLine),
		files:   map[identity]*file{},
		byPath:  map[string]*file{},
		lost:    map[string]string{},
		split:   splitter{maxLine: int(config.Size(keyLineMax)), policy: tooLong(config.String(keyLineTooLong))},
	}
	if config.String(keyStartAt) == "end" {
		stored, err := task.Lookup(ctx, startedMark)
		if err != nil {
			return nil, err
		}
		r.atEnd = stored[0] == nil
	}
	return r, nil
}

// reader is one task's files. One goroutine uses it.
type reader struct {
	task    *source.Task
	globs   []string
	topic   string
	keyed   bool
	atEnd   bool // the next scan is the first one ever: what it sees is skipped
	every   time.Duration
	lastMax time.Duration

	files  map[identity]*file
	byPath map[string]*file
	order  []*file // by path of first sight, so that a turn is the same each time
	split  splitter
	open   int
	next   time.Time         // when the next one is due
	lost   map[string]string // files that went away before they were read, and what is lost
	said   string            // the problems that were logged last
	idle   bool              // Idle was said since anything was last read
}

// Read gives each file with something new its turn, and looks for files every so often.
func (r *reader) Read(ctx context.Context, out *source.Records) error {
	for ctx.Err() == nil {
		if now := time.Now(); !now.Before(r.next) {
			if err := r.scan(out); err != nil {
				return err
			}
		}
		progressed, err := r.turn(ctx, out)
		if err != nil || progressed {
			r.idle = false
			return err
		}
		if !r.idle {
			r.idle = true
			return out.Idle()
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(r.next)):
		}
	}
	return nil
}

// turn reads a piece of every file that has more, until the batch is full.
func (r *reader) turn(ctx context.Context, out *source.Records) (progressed bool, err error) {
	for _, f := range r.order {
		if ctx.Err() != nil || out.Full() {
			return progressed, nil
		}
		if !f.hasMore(r.lastMax) {
			continue
		}
		moved, err := r.read(f, out)
		progressed = progressed || moved
		if err != nil {
			return progressed, err
		}
	}
	return progressed, nil
}

func (r *reader) read(f *file, out *source.Records) (moved bool, err error) {
	if ok, err := r.ensureOpen(f); err != nil || !ok {
		return false, err
	}
	if f.skipped {
		f.skipped = false
		return true, r.reach(f, out)
	}
	start := f.next
	var refused error // of the runtime: the task's end, and no fault of the file
	emit := func(l line) (bool, error) {
		moved = true
		if refused = r.emit(f, l, out); refused != nil {
			return false, refused
		}
		return l.end-start < turnBytes && !out.Full(), nil
	}
	more, err := r.split.split(f.f, &f.cursor, emit)
	if err == nil && !more && f.ripe(r.lastMax) && f.size > f.next {
		err = r.split.unterminated(f.f, &f.cursor, emit)
	}
	var long *errLineTooLong
	switch {
	case refused != nil:
		return moved, refused
	case errors.As(err, &long):
		return moved, &source.Error{
			Kind: source.Fatal, Key: keyLineTooLong, Message: fmt.Sprintf("%s: %s", f.path, long),
			Hint: fmt.Sprintf("raise %s, or set %s to skip or truncate", keyLineMax, keyLineTooLong), Err: err,
		}
	case err != nil:
		// The rest of the batch is good: only this file has to wait.
		f.bad = plain(err)
		r.close(f)
		return moved, nil
	}
	if f.size < f.next+f.scanned {
		f.size = f.next + f.scanned // it grew since the scan
	}
	if moved {
		return true, r.reach(f, out)
	}
	return false, nil
}

// emit makes a record of a line.
func (r *reader) emit(f *file, l line, out *source.Records) error {
	if l.skip {
		if err := r.reach(f, out); err != nil { // what stands before it
			return err
		}
		skipped := f.cursor
		skipped.next, skipped.open = l.end, false
		offset, err := f.offset(skipped)
		if err != nil {
			return err
		}
		return out.Drop(f.part, offset, 1, fmt.Sprintf("%s: a line longer than %d bytes was skipped (%s)", f.path, r.split.maxLine, keyLineTooLong))
	}
	record := source.Record{Partition: f.part, Topic: r.topic, Value: l.text, ValueSchema: schemaOf(l.text)}
	if record.Value == nil {
		record.Value = []byte{} // an empty line is empty, not null
	}
	if r.keyed {
		record.Key, record.KeySchema = f.key, schemaOf(f.key)
	}
	return out.Add(record)
}

func schemaOf(b []byte) uint32 {
	if utf8.Valid(b) {
		return source.SchemaText
	}
	return source.SchemaBytes
}

// reach says how far the file has come.
func (r *reader) reach(f *file, out *source.Records) error {
	if f.next == 0 {
		return nil
	}
	offset, err := f.offset(f.cursor)
	if err != nil {
		return err
	}
	return out.Reach(f.part, offset)
}

// ensureOpen opens a file and checks that it is the one whose lines were read. One that was cut off or replaced in its place starts at its beginning.
func (r *reader) ensureOpen(f *file) (bool, error) {
	if f.f == nil {
		opened, err := openRegular(f.path, f.id)
		if err != nil {
			f.bad = plain(err)
			return false, nil //nolint:nilerr // the next scan looks again, and says what is wrong
		}
		f.f, f.checked = opened, false
		r.open++
	}
	if f.checked || f.head == "" {
		f.checked = true
		return true, nil
	}
	return r.compare(f)
}

// compare checks that an open file is the one whose lines were read.
func (r *reader) compare(f *file) (bool, error) {
	info, err := f.f.Stat()
	if err != nil {
		f.bad = plain(err)
		r.close(f)
		return false, nil //nolint:nilerr // as above
	}
	same, err := sameHead(f.f, f.head)
	if err != nil {
		return false, source.Fatalf("%s: %w", f.path, err)
	}
	if !same || info.Size() < f.next {
		f.restart()
	}
	f.size, f.checked = info.Size(), true
	return true, nil
}

func (r *reader) close(f *file) {
	if f.f != nil {
		_ = f.f.Close()
		f.f = nil
		r.open--
	}
}

// Close closes all files.
func (r *reader) Close() error {
	for _, f := range r.order {
		r.close(f)
	}
	return nil
}

// scan looks for new, changed and vanished files.
func (r *reader) scan(out *source.Records) error {
	began := time.Now()
	s := scanGlobs(r.globs)
	seen := make(map[identity]bool, len(s.files))
	added := false
	for _, found := range s.files {
		seen[found.id] = true
		f := r.files[found.id]
		if f == nil {
			var err error
			if f, err = r.add(found); err != nil {
				return err
			}
			if f == nil {
				continue // another task's
			}
			added = true
		}
		r.update(f, found)
	}
	if added {
		slices.SortStableFunc(r.order, func(a, b *file) int { return strings.Compare(a.path, b.path) })
	}
	moved := folders{}
	if r.next.IsZero() {
		if err := r.adoptMoved(seen, moved, began); err != nil {
			return err
		}
	}
	r.forget(seen, moved, began)
	if err := r.report(s.problems, out); err != nil {
		return err
	}
	if err := r.markStarted(out); err != nil {
		return err
	}
	// A scan may take a twentieth of the time at most, however many files there are.
	took := time.Since(began)
	r.next = began.Add(max(r.every, 20*took))
	return nil
}

// markStarted ends the first run's exception.
func (r *reader) markStarted(out *source.Records) error {
	if !r.atEnd {
		return nil
	}
	r.atEnd = false
	if !r.task.Has(startedMark) {
		return nil // another task's
	}
	part, err := r.task.Partition(startedMark)
	if err != nil {
		return err
	}
	return out.Reach(part, source.Fields{"started": true})
}

// add takes a file up, where the task may read it.
func (r *reader) add(found found) (*file, error) {
	fields := source.Fields{"device": found.id.device, "inode": found.id.inode}
	if !r.task.Has(fields) {
		return nil, nil
	}
	part, err := r.task.Partition(fields)
	if err != nil {
		return nil, err
	}
	f := &file{id: found.id, path: found.path, key: []byte(found.path), part: part}
	if stored, ok := part.Stored(); ok {
		if err := f.resume(stored); err != nil {
			return nil, err
		}
	} else if r.atEnd {
		if err := f.startAtEnd(found.size); err != nil {
			return nil, err
		}
	}
	if old := r.byPath[found.path]; old != nil && old != f {
		f.after = old // rotation, or a link that points elsewhere: first the old one to its end
	}
	r.files[found.id] = f
	r.order = append(r.order, f)
	return f, nil
}

func (r *reader) update(f *file, found found) {
	if f.path != found.path || r.byPath[found.path] != f {
		r.byPath[found.path] = f
		f.path = found.path
	}
	f.missing = time.Time{}
	if found.size != f.size || f.bad != "" {
		if found.size != f.size {
			f.grown = time.Now()
		}
		// It may have been cut off and written anew: compare its head before anything more is read.
		f.checked, f.bad = false, ""
		f.size = found.size
		if f.size < f.next+f.scanned {
			f.cursor.scanned, f.giant = 0, false
			if f.size > 0 && f.size < f.next {
				f.restart()
			}
		}
	}
}

// report tells people which paths can't be read, at each change. The files beside them go on.
func (r *reader) report(problems map[string]string, out *source.Records) error {
	maps.Copy(problems, r.lost)
	for _, f := range r.order {
		if f.bad != "" {
			problems[f.path] = f.bad
		}
	}
	var texts []string
	for path, why := range problems {
		texts = append(texts, notice(path, why))
	}
	slices.Sort(texts)
	if len(texts) > maxNotices {
		more := fmt.Sprintf("and %d more paths that can't be read", len(texts)-maxNotices+1)
		texts = append(texts[:maxNotices-1], more)
	}
	if all := strings.Join(texts, "\n"); all != r.said {
		r.said = all
		return out.Notice(texts...)
	}
	return nil
}

// notice is one line of text, whatever bytes the path has.
func notice(path, why string) string {
	quoted := path
	if strings.ContainsFunc(path, func(c rune) bool { return c < ' ' || c == utf8.RuneError }) {
		quoted = strconv.Quote(path)
	}
	text := []rune(quoted + ": " + why)
	return string(text[:min(len(text), maxNoticeRunes)])
}
