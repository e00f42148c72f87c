package filesource

import (
	"fmt"
	"log"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// file is one file of the task.
type file struct {
	id   identity
	path string
	key  []byte
	part *source.Partition
	f    *os.File

	cursor
	size    int64     // as last seen
	grown   time.Time // when size last changed
	checked bool      // its head was compared since it was last opened or grew
	head    string    // the fingerprint that goes into the offset
	missing time.Time // since when it matches no more; zero while it does
	after   *file     // the file that had its path before: it is read to its end first
	bad     string    // why it can't be read just now
	skipped bool      // it starts at its end: that place has to be stored before there is a line
}

// hasMore says whether a turn could emit something: bytes that weren't looked at yet, or a last line that has waited long enough.
func (f *file) hasMore(lastMax time.Duration) bool {
	if f.after != nil && !f.after.done() {
		return false
	}
	f.after = nil
	unread := f.next + f.scanned
	return f.skipped || f.size > unread || f.size > f.next && f.ripe(lastMax)
}

// ripe says that a last line without terminator has waited long enough.
func (f *file) ripe(lastMax time.Duration) bool {
	return lastMax > 0 && !f.open && time.Since(f.grown) >= lastMax
}

// done says that everything up to the last sight of the file is read; a last line without terminator counts as read once the file is gone.
func (f *file) done() bool {
	return !f.unread() || f.bad != ""
}

// unread says that the file has bytes that weren't looked at.
func (f *file) unread() bool { return f.size > f.next+f.scanned }

// resume goes on from a stored offset.
func (f *file) resume(stored source.Fields) error {
	position, ok := stored.Int("position")
	head, hasHead := stored.Text("head")
	if !ok || position < 0 || !hasHead {
		return source.Fatalf("the offset stored for %s (%s) has no position and head: it isn't one of this connector", f.path, f.id)
	}
	f.next, f.head = position, head
	f.open, _ = stored["unterminated"].(bool)
	if path, ok := stored.Text("path"); ok {
		f.key = []byte(path) // the path it had at first: rotation must not change the key, or lines of one file would go to two partitions
	}
	return nil
}

// startAtEnd leaves out what is there. A line that is being written just now goes on as a line of its own.
func (f *file) startAtEnd(size int64) error {
	if size == 0 {
		return nil
	}
	opened, err := openRegular(f.path, f.id)
	if err != nil {
		return source.Retryf("find the end of %s: %w", f.path, err)
	}
	defer opened.Close()
	last := make([]byte, 1)
	if _, err := opened.ReadAt(last, size-1); err != nil {
		return source.Retryf("find the end of %s: %w", f.path, err)
	}
	f.next, f.open, f.skipped = size, last[0] != '\n', true
	return nil
}

// offset is the byte after the last emitted line's terminator, with what tells this file from another in its place.
func (f *file) offset(c cursor) (source.Fields, error) {
	if want := min(c.next, headBytes); !strings.HasPrefix(f.head, fmt.Sprintf("%d-", want)) {
		head, err := fingerprint(f.f, c.next)
		if err != nil {
			return nil, source.Retryf("%s: %w", f.path, err)
		}
		f.head = head
	}
	offset := source.Fields{"position": c.next, "head": f.head}
	if utf8.Valid(f.key) {
		offset["path"] = string(f.key)
	}
	if c.open {
		offset["unterminated"] = true
	}
	return offset, nil
}

// restart makes a file that was cut off, or another one in its place, start at its beginning.
func (f *file) restart() {
	log.Printf("%s was cut off or written anew: it is read from its beginning; lines that were not read before are lost", f.path)
	f.cursor, f.head, f.key = cursor{}, "", []byte(f.path)
}
