// Package filesource reads lines of files: it follows files that match globs, through rotation by rename, and gives every terminated line once.
//
// It owns what a line is (lines.go), what a file is (identity.go) and which files there are (scan.go). A file's identity is its device and inode, checked by a fingerprint of its head;
// the offset is the byte after the last emitted line's terminator. It never changes a file, and never opens what isn't a regular one.
//
// Where to read next: reader.go.
package filesource

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Configuration keys.
const (
	keyPaths       = "paths"
	keyTopic       = "topic"
	keyRecordKey   = "record.key"
	keyStartAt     = "start.at"
	keyScan        = "scan.interval"
	keyLineMax     = "line.max.bytes"
	keyLineTooLong = "line.too.long"
	keyLastLine    = "last.line.timeout"
)

// maxLineLimit leaves room for the key within a record's limit of 8 MiB.
const maxLineLimit = 7 << 20

// Connector is the connector type "file".
type Connector struct{}

// Type describes the keys.
func (Connector) Type() source.Type {
	return source.Type{
		Name:    "file",
		Summary: "Follows files that match globs, and makes a record of each line.",
		Config: []source.Key{
			{Name: keyPaths, Type: source.List, Required: true, Importance: source.High, Doc: "Files to read: paths or globs (*, ?, [a-z], {a,b}, ** for any folders), separated by commas. New files that match are picked up as they come."},
			{Name: keyTopic, Type: source.String, Required: true, Importance: source.High, Doc: "Topic that the lines go to."},
			{Name: keyRecordKey, Type: source.String, Default: source.Default("path"), Allowed: []string{"path", "none"}, Importance: source.Medium, Doc: "Key of the records: the file's path (all lines of a file stay in order in one partition), or none."},
			{Name: keyStartAt, Type: source.String, Default: source.Default("beginning"), Allowed: []string{"beginning", "end"}, Importance: source.Medium, Doc: "Where to start in files that are there when the connector first runs and have no stored offset. Files that come later are read from their beginning."},
			{Name: keyScan, Type: source.Duration, Default: source.Default("250ms"), Min: number(10), Max: number(3_600_000), Importance: source.Low, Doc: "How often to look for new files and new lines."},
			{Name: keyLineMax, Type: source.Size, Default: source.Default("1MiB"), Min: number(1), Max: number(maxLineLimit), Importance: source.Medium, Doc: "Longest line, without its terminator."},
			{Name: keyLineTooLong, Type: source.String, Default: source.Default("fail"), Allowed: []string{"fail", "skip", "truncate"}, Importance: source.Medium, Doc: "What to do with a longer line: fail the task, skip the line, or keep its beginning."},
			{Name: keyLastLine, Type: source.Duration, Default: source.Default("0"), Min: number(0), Max: number(86_400_000), Importance: source.Low, Doc: "After how long without change a last line without terminator counts as a line; what is added later is then a line of its own. 0: never."},
		},
		Example: map[string]string{keyPaths: os.DevNull + "-*", keyTopic: "lines"},
	}
}

func number(n float64) *float64 { return &n }

// Validate checks globs, and says which named files can't be read. A file that isn't there yet is no problem.
func (Connector) Validate(_ context.Context, config source.Config) source.Validation {
	v := source.Validation{ExactlyOnce: source.Yes, ConnectorBoundaries: source.No}
	if wrong := source.CheckTopic(config.String(keyTopic)); config.Has(keyTopic) && wrong != nil {
		v.Problems = append(v.Problems, source.Problem{Key: keyTopic, Message: wrong.Error()})
	}
	globs := config.List(keyPaths)
	if len(globs) == 0 {
		v.Problems = append(v.Problems, source.Problem{Key: keyPaths, Message: "names no file", Hint: "give at least one path or glob"})
	}
	for _, glob := range globs {
		if !doublestar.ValidatePathPattern(glob) {
			v.Problems = append(v.Problems, source.Problem{Key: keyPaths, Message: fmt.Sprintf("%q is not a glob", glob), Hint: "close every [ and {, and put \\ before a character that is meant as it is"})
			continue
		}
		if p := checkPath(glob); p != nil {
			v.Problems = append(v.Problems, *p)
		}
	}
	return v
}

// checkPath looks at a path without wildcards: the user means this very file.
func checkPath(path string) *source.Problem {
	if hasWildcard(path) {
		return nil
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &source.Problem{Key: keyPaths, Warning: true, Message: path + " is not there yet", Hint: "it is read as soon as it is"}
	case err != nil:
		return &source.Problem{Key: keyPaths, Message: path + ": " + plain(err), Hint: "give the runner's user the right to read it"}
	case info.IsDir():
		return &source.Problem{Key: keyPaths, Message: path + " is a directory", Hint: "write " + path + "/* for the files in it"}
	case !info.Mode().IsRegular():
		return &source.Problem{Key: keyPaths, Message: path + " is " + kindOf(info.Mode()) + ", not a file", Hint: "name regular files"}
	}
	f, err := os.Open(path)
	if err != nil {
		return &source.Problem{Key: keyPaths, Message: path + ": " + plain(err), Hint: "give the runner's user the right to read it"}
	}
	_ = f.Close()
	return nil
}

// Plan shares all files by the hash of their identity: a new file belongs to a task without a new plan.
func (Connector) Plan(ctx context.Context, planning *source.Planning) error {
	return planning.SetTasks(ctx, source.Slots(planning.TasksMax())...)
}
