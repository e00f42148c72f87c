package numbers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// forgetful is a reader whose source forgets what it was told is committed, as a queue does, or a database that drops its log. Whoever is told too early loses records, which a source that can be
// read again would hide.
type forgetful struct {
	*reader
	dir string
}

// newForgetful begins after what is stored and after what is forgotten, whichever is later. Where nobody is told too early that is always what is stored.
func newForgetful(r *reader, dir string) (*forgetful, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, source.Fatalf("forget.dir: %v", err)
	}
	f := &forgetful{reader: r, dir: dir}
	for _, p := range r.partitions {
		n, err := f.forgotten(p.source.Canonical())
		if err != nil {
			return nil, err
		}
		p.next = max(p.next, n+1)
	}
	return f, nil
}

// Committed implements source.Acknowledger.
func (f *forgetful) Committed(_ context.Context, positions []source.Position) error {
	for _, at := range positions {
		var offset struct{ N int64 }
		if err := json.Unmarshal(at.Offset, &offset); err != nil {
			return fmt.Errorf("committed offset %s of %s: %w", at.Offset, at.Partition.Canonical(), err)
		}
		if err := f.forget(at.Partition.Canonical(), offset.N); err != nil {
			return err
		}
	}
	return nil
}

// forget notes that the source has nothing up to n any more. A process that slept and tells it late brings nothing back.
func (f *forgetful) forget(partition string, n int64) error {
	before, err := f.forgotten(partition)
	if err != nil || n <= before {
		return err
	}
	fresh, err := os.CreateTemp(f.dir, ".new-*")
	if err != nil {
		return fmt.Errorf("forget.dir: %w", err)
	}
	_, err = fresh.WriteString(strconv.FormatInt(n, 10))
	if err = errors.Join(err, fresh.Close()); err == nil {
		err = os.Rename(fresh.Name(), f.path(partition))
	}
	if err != nil {
		os.Remove(fresh.Name())
		return fmt.Errorf("forget.dir: %w", err)
	}
	return nil
}

// forgotten is the last number that the source has forgotten; 0 is none.
func (f *forgetful) forgotten(partition string) (int64, error) {
	text, err := os.ReadFile(f.path(partition))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("forget.dir: %w", err)
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		return 0, source.Fatalf("forget.dir: %s: %v", f.path(partition), err)
	}
	return n, nil
}

// path is the file of a source partition, given in canonical form, of which only digits tell partitions apart.
func (f *forgetful) path(partition string) string {
	digits := strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, partition)
	return filepath.Join(f.dir, digits)
}
