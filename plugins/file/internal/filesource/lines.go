package filesource

import (
	"bytes"
	"errors"
	"fmt"
	"io"
)

// tooLong says what happens to a line over the limit.
type tooLong string

const (
	tooLongFail     tooLong = "fail"
	tooLongSkip     tooLong = "skip"
	tooLongTruncate tooLong = "truncate"
)

// firstBufferBytes is the first size of the read buffer; a longer line makes it grow up to the limit of a line.
const firstBufferBytes = 256 << 10

var bom = []byte{0xEF, 0xBB, 0xBF}

// line is one line of a file, without its terminator.
type line struct {
	text []byte // valid until the next call
	end  int64  // the byte after its terminator
	cut  bool   // it was over the limit and is only its beginning
	skip bool   // it was over the limit and isn't there at all
	open bool   // it had no terminator when it was emitted
}

// splitter cuts files into lines. One splitter serves many files, one after the other: its buffer is the only memory that grows with a line's length, and
// it is bounded by the limit of a line.
type splitter struct {
	maxLine int
	policy  tooLong
	buf     []byte
}

// cursor is how far one file has been cut. All of it can be made again from `next` and `open`.
type cursor struct {
	next    int64 // the byte after the last emitted line's terminator: the offset (I03: from consumed bytes, never from the file's own position)
	open    bool  // the last emitted line had no terminator: one that comes now belongs to it
	scanned int64 // bytes after next that are known to hold no terminator
	giant   bool  // the line at next is over the limit, and its bytes are not kept
}

// errLineTooLong is the error of policy fail.
type errLineTooLong struct {
	at    int64
	limit int
}

func (e *errLineTooLong) Error() string {
	return fmt.Sprintf("the line that starts at byte %d is longer than %d bytes", e.at, e.limit)
}

// split emits the terminated lines of r from c on, as long as emit returns true. It returns false when no whole line is left.
func (s *splitter) split(r io.ReaderAt, c *cursor, emit func(line) (bool, error)) (more bool, err error) {
	for {
		if c.giant {
			found, goOn, err := s.skipGiant(r, c, emit)
			if err != nil || !found {
				return false, err
			}
			if !goOn {
				return true, nil
			}
			continue
		}
		n, full, err := s.fill(r, c.next)
		if err != nil {
			return false, err
		}
		data := s.buf[:n]
		if c.open {
			skip, wait := terminatorAtStart(data)
			if wait {
				return false, nil
			}
			c.open = false
			c.next += int64(skip)
			if skip > 0 {
				continue
			}
		}
		used, stopped, err := s.lines(data, c, emit)
		if err != nil || stopped {
			return stopped, err
		}
		switch {
		case used > 0 && full:
			continue // more lies behind the buffer
		case used > 0 || !full:
			c.scanned = int64(n - used)
			return false, nil
		case n > s.maxLine+1:
			if s.policy == tooLongFail {
				return false, &errLineTooLong{at: c.next, limit: s.maxLine}
			}
			c.giant, c.scanned = true, int64(n)
		default:
			c.scanned = int64(n)
			s.buf = append(s.buf, make([]byte, len(s.buf))...)
			if len(s.buf) > s.maxLine+2 {
				s.buf = s.buf[:s.maxLine+2]
			}
		}
	}
}

// fill reads from at; full says that the buffer has no room for what may follow.
func (s *splitter) fill(r io.ReaderAt, at int64) (n int, full bool, err error) {
	if s.buf == nil {
		s.buf = make([]byte, max(min(firstBufferBytes, s.maxLine+2), 16))
	}
	n, err = r.ReadAt(s.buf, at)
	if err != nil && !errors.Is(err, io.EOF) {
		return 0, false, err
	}
	return n, n == len(s.buf), nil
}

// lines emits what is whole in data, which starts at c.next. It returns how many bytes it used.
func (s *splitter) lines(data []byte, c *cursor, emit func(line) (bool, error)) (used int, stopped bool, err error) {
	from := int(c.scanned)
	if from > len(data) {
		from = 0 // the file is shorter than it was; the caller finds out
	}
	for {
		i := bytes.IndexByte(data[min(used+from, len(data)):], '\n')
		if i < 0 {
			return used, false, nil
		}
		i += used + from
		from, c.scanned = 0, 0
		l := s.limit(s.clean(data[used:i], c.next == 0), c.next+int64(i+1-used))
		if l.skip || l.cut {
			if s.policy == tooLongFail {
				return used, false, &errLineTooLong{at: c.next, limit: s.maxLine}
			}
		}
		goOn, err := emit(l)
		if err != nil {
			return used, false, err
		}
		c.next = l.end
		used = i + 1
		if !goOn {
			return used, true, nil
		}
	}
}

// clean strips one CR before the LF, and a byte order mark at the very start of a file.
func (s *splitter) clean(text []byte, first bool) []byte {
	text = bytes.TrimSuffix(text, []byte{'\r'})
	if first {
		text = bytes.TrimPrefix(text, bom)
	}
	return text
}

func (s *splitter) limit(text []byte, end int64) line {
	l := line{text: text, end: end}
	if len(text) > s.maxLine {
		l.text, l.cut = text[:s.maxLine], s.policy == tooLongTruncate
		l.skip = !l.cut
	}
	return l
}

// skipGiant looks for the end of a line whose bytes are not kept.
func (s *splitter) skipGiant(r io.ReaderAt, c *cursor, emit func(line) (bool, error)) (found, goOn bool, err error) {
	for {
		n, full, err := s.fill(r, c.next+c.scanned)
		if err != nil {
			return false, false, err
		}
		if i := bytes.IndexByte(s.buf[:n], '\n'); i >= 0 {
			l := line{end: c.next + c.scanned + int64(i) + 1, skip: s.policy == tooLongSkip, cut: s.policy == tooLongTruncate}
			if l.cut {
				if l.text, err = s.beginning(r, c.next); err != nil {
					return false, false, err
				}
			}
			goOn, err := emit(l)
			if err != nil {
				return false, false, err
			}
			c.next, c.scanned, c.giant = l.end, 0, false
			return true, goOn, nil
		}
		c.scanned += int64(n)
		if !full {
			return false, false, nil
		}
	}
}

// beginning reads the first bytes of a line that was skipped over.
func (s *splitter) beginning(r io.ReaderAt, at int64) ([]byte, error) {
	n, _, err := s.fill(r, at)
	if err != nil {
		return nil, err
	}
	text := s.buf[:n]
	if at == 0 {
		text = bytes.TrimPrefix(text, bom)
	}
	return text[:min(len(text), s.maxLine)], nil
}

// unterminated emits what stands after the last terminator as a line of its own. A terminator that comes later belongs to it; any other byte begins a new line.
func (s *splitter) unterminated(r io.ReaderAt, c *cursor, emit func(line) (bool, error)) error {
	if c.giant || c.open {
		return nil
	}
	n, full, err := s.fill(r, c.next)
	if err != nil || n == 0 || full || bytes.IndexByte(s.buf[:n], '\n') >= 0 {
		return err
	}
	text := s.buf[:n]
	if text[n-1] == '\r' {
		return nil // half a terminator, most likely
	}
	l := s.limit(s.clean(text, c.next == 0), c.next+int64(n))
	if (l.skip || l.cut) && s.policy == tooLongFail {
		return &errLineTooLong{at: c.next, limit: s.maxLine}
	}
	l.open = true
	if _, err := emit(l); err != nil {
		return err
	}
	c.next, c.scanned, c.open = l.end, 0, true
	return nil
}

// terminatorAtStart says how many bytes of a terminator data begins with, or that it takes another byte to know.
func terminatorAtStart(data []byte) (skip int, wait bool) {
	switch {
	case len(data) == 0 || len(data) == 1 && data[0] == '\r':
		return 0, true
	case data[0] == '\n':
		return 1, false
	case data[0] == '\r' && data[1] == '\n':
		return 2, false
	default:
		return 0, false
	}
}
