package filesource

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/bmatcuk/doublestar/v4"
)

// found is a file that a scan saw.
type found struct {
	id   identity
	path string
	size int64
	// changed is when it was last written; set by folders only.
	changed time.Time
}

// scan is one look at all globs.
type scan struct {
	files []found // by path; each identity once
	// problems are paths that match and can't be read, and why. They disturb nobody else.
	problems map[string]string
}

// scanGlobs resolves links, so that a link and its target are one file (I06), and leaves out what isn't a regular file without ever opening it: opening a FIFO would block.
func scanGlobs(globs []string) scan {
	s := scan{problems: map[string]string{}}
	seen := map[identity]bool{}
	for _, path := range expand(globs, s.problems) {
		info, err := os.Stat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue // a dangling link, or gone since: it may come (back)
		case err != nil:
			s.problems[path] = plain(err)
			continue
		case info.IsDir():
			continue // what a wildcard matches along the way
		case !info.Mode().IsRegular():
			s.problems[path] = "is " + kindOf(info.Mode()) + ", not a file: it is not read"
			continue
		}
		id, ok := identityOf(info)
		if !ok || seen[id] {
			continue
		}
		seen[id] = true
		s.files = append(s.files, found{id: id, path: path, size: info.Size()})
	}
	return s
}

// expand returns the paths that match, each once, sorted.
func expand(globs []string, problems map[string]string) []string {
	var paths []string
	for _, glob := range globs {
		if !hasWildcard(glob) {
			paths = append(paths, glob)
			continue
		}
		// ** doesn't follow links to folders: one to a folder above would lead round and round. Hidden files match as any other: to leave out what a glob names would be a loss that nobody sees.
		matches, err := doublestar.FilepathGlob(glob, doublestar.WithFailOnIOErrors(), doublestar.WithNoFollow())
		if err != nil {
			// Some folder can't be read: say so, and take what the others give.
			problems[glob] = plain(err)
			matches, _ = doublestar.FilepathGlob(glob, doublestar.WithNoFollow())
		}
		paths = append(paths, matches...)
	}
	slices.Sort(paths)
	return slices.Compact(paths)
}

func hasWildcard(glob string) bool { return strings.ContainsAny(glob, "*?[{\\") }

func kindOf(mode fs.FileMode) string {
	switch {
	case mode&fs.ModeNamedPipe != 0:
		return "a FIFO"
	case mode&fs.ModeSocket != 0:
		return "a socket"
	case mode&fs.ModeDevice != 0:
		return "a device"
	case mode.IsDir():
		return "a directory"
	default:
		return "something else"
	}
}

// plain takes the path out of an error that stands beside its path.
func plain(err error) string {
	var path *fs.PathError
	if errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}

// openRegular opens a file that was seen to be regular, and checks that it still is the one with that identity: between a look and an open it may have been replaced, even by a FIFO.
func openRegular(path string, id identity) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	if now, ok := identityOf(info); !ok || now != id || !info.Mode().IsRegular() {
		_ = f.Close()
		return nil, fmt.Errorf("%s is another file by now: %w", path, errReplaced)
	}
	return f, nil
}

var errReplaced = errors.New("replaced")
