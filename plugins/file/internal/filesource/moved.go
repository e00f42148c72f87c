package filesource

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// goneGrace is how long a file that matches no more is still watched for lines that a writer adds through its old handle.
const goneGrace = 10 * time.Second

// maxLost bounds how many files are named that went away before they were read.
const maxLost = 100

// folders finds files that were renamed within their folder, out of what the globs match. Each folder is listed once for each look.
type folders map[string]map[identity]found

func (fs folders) find(id identity, path string) (found, bool) {
	dir := filepath.Dir(path)
	files, known := fs[dir]
	if !known {
		files = map[identity]found{}
		fs[dir] = files
		entries, _ := os.ReadDir(dir) // what can't be listed holds nothing to find
		for _, e := range entries {
			info, err := e.Info()
			if err != nil || !info.Mode().IsRegular() {
				continue
			}
			if at, ok := identityOf(info); ok {
				files[at] = found{id: at, path: filepath.Join(dir, e.Name()), size: info.Size(), changed: info.ModTime()}
			}
		}
	}
	file, ok := files[id]
	return file, ok
}

// adoptMoved takes up files that were being read and match no more: rotation doesn't wait for a reader that is down. They are looked for in the folder that they were in, and read to their end before the
// file that has their name now.
func (r *reader) adoptMoved(seen map[identity]bool, moved folders, now time.Time) error {
	for _, part := range r.task.Stored() {
		stored, ok := part.Stored()
		fields := part.Fields()
		device, isFile := fields.Int("device")
		inode, _ := fields.Int("inode")
		path, hasPath := stored.Text("path")
		id := identity{device: uint64(device), inode: uint64(inode)} //nolint:gosec // as they were stored
		if !ok || !isFile || !hasPath || seen[id] {
			continue
		}
		file, ok := moved.find(id, path)
		if position, _ := stored.Int("position"); !ok || file.size <= position && now.Sub(file.changed) > goneGrace {
			continue // removed, or read to its end and left alone
		}
		f, err := r.add(file)
		if err != nil {
			return err
		}
		f.size, f.grown, f.missing = file.size, now, now
		// An open handle is what keeps it for the writer that may still add to it.
		if _, err := r.ensureOpen(f); err != nil {
			return err
		}
		if successor := r.byPath[path]; successor != nil && successor != f {
			successor.after = f
		}
	}
	return nil
}

// forget lets go of files that match no more and are read to their end, and of handles beyond the bound.
func (r *reader) forget(seen map[identity]bool, moved folders, now time.Time) {
	r.order = slices.DeleteFunc(r.order, func(f *file) bool {
		if seen[f.id] {
			if r.open > maxOpenFiles && f.done() {
				r.close(f)
			}
			return false
		}
		if f.missing.IsZero() {
			f.missing = now
		}
		if r.lookAtGone(f, moved, now); f.f != nil && (f.unread() || now.Sub(f.grown) < goneGrace || now.Sub(f.missing) < goneGrace) {
			return false
		}
		if f.f == nil && f.unread() {
			file, ok := moved.find(f.id, f.path)
			if ok {
				f.path, f.bad, f.checked = file.path, "", false
				return false
			}
			r.noteLost(f)
		}
		r.close(f)
		delete(r.files, f.id)
		if r.byPath[f.path] == f {
			delete(r.byPath, f.path)
		}
		return true
	})
}

// noteLost keeps what can't be read any more in sight.
func (r *reader) noteLost(f *file) {
	if len(r.lost) < maxLost {
		r.lost[f.path] = fmt.Sprintf("was removed, or renamed out of its folder, before it was read: its last %d bytes are lost", f.size-f.next)
	}
}

// lookAtGone sees whether a writer still adds to a file through its old handle.
func (r *reader) lookAtGone(f *file, moved folders, now time.Time) {
	size := f.size
	if f.f == nil {
		if file, ok := moved.find(f.id, f.path); ok {
			size = file.size
		}
	} else if info, err := f.f.Stat(); err == nil {
		size = info.Size()
	}
	if size != f.size {
		f.size, f.grown = size, now
	}
}
