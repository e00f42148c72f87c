package pluginhost

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Info is a plugin that was found.
type Info struct {
	*source.Description
	Path string
	// SHA256 of the file that gave the description, in hex.
	SHA256 string
}

// Broken is a file that looks like a plugin and isn't one that works.
type Broken struct {
	Path string
	// Reason is for users.
	Reason string
}

// Limits of Discover.
const (
	describeTogether = 4
	describeWithin   = 15 * time.Second
	stopWithin       = 3 * time.Second
	maxFiles         = 1000
)

// Discover starts each plugin, asks what it is, and ends it; a few at a time, each within 15 s. A path is a folder of plugins or one plugin. Both results are in the
// order of the paths and, within a folder, of the names.
func (h *Host) Discover(ctx context.Context, paths []string) (found []Info, broken []Broken) {
	type result struct {
		info   *Info
		broken *Broken
	}
	files, failed := listPlugins(paths)
	results := make([]result, len(files))
	var group errgroup.Group
	group.SetLimit(describeTogether)
	for i, path := range files {
		group.Go(func() error {
			info, err := h.describe(ctx, path)
			if err != nil {
				results[i].broken = &Broken{Path: path, Reason: err.Error()}
				return nil
			}
			results[i].info = info
			return nil
		})
	}
	_ = group.Wait() // errors are results here
	for _, r := range results {
		if r.info != nil {
			found = append(found, *r.info)
		} else {
			failed = append(failed, *r.broken)
		}
	}
	return found, failed
}

// describe asks one plugin what it is.
func (h *Host) describe(ctx context.Context, path string) (*Info, error) {
	ctx, cancel := context.WithTimeout(ctx, describeWithin)
	defer cancel()
	p, err := h.Start(ctx, Spec{Path: path})
	if err != nil {
		return nil, err
	}
	d, err := p.Plugin().Describe(ctx)
	stopCtx, stopped := context.WithTimeout(context.WithoutCancel(ctx), stopWithin)
	defer stopped()
	if stopErr := p.Stop(stopCtx); err == nil {
		err = stopErr
	}
	if err != nil {
		return nil, fmt.Errorf("plugin %q: %w", path, err)
	}
	return &Info{Description: d, Path: path, SHA256: p.SHA256()}, nil
}

// listPlugins names the files to start, and those that can't be.
func listPlugins(paths []string) (files []string, broken []Broken) {
	for _, path := range paths {
		info, err := os.Stat(path)
		if err != nil || !info.IsDir() {
			files, broken = sortOut(path, true, files, broken)
			continue
		}
		entries, err := os.ReadDir(path)
		if err == nil && len(entries) > maxFiles {
			err = fmt.Errorf("the folder has %d entries; the limit is %d", len(entries), maxFiles)
		}
		if err != nil {
			broken = append(broken, Broken{Path: path, Reason: err.Error()})
			continue
		}
		for _, e := range entries {
			if !strings.HasPrefix(e.Name(), ".") {
				files, broken = sortOut(filepath.Join(path, e.Name()), false, files, broken)
			}
		}
	}
	return files, broken
}

// notPlugins are the endings of files that lie beside plugins and, without a run bit, are nothing to complain about.
var notPlugins = []string{".md", ".yaml", ".yml", ".json", ".txt", ".log"}

// sortOut adds a path to the files to start or to the broken ones. A path that a user named is never passed over in silence.
func sortOut(path string, named bool, files []string, broken []Broken) ([]string, []Broken) {
	err := checkProgram(path)
	if err == nil {
		return append(files, path), broken
	}
	var notProgram errNotProgram
	if !named && errors.As(err, &notProgram) {
		if info, statErr := os.Stat(path); statErr == nil && !info.Mode().IsRegular() {
			return files, broken // folders and devices beside plugins
		}
		for _, ending := range notPlugins {
			if strings.EqualFold(filepath.Ext(path), ending) {
				return files, broken
			}
		}
	}
	return files, append(broken, Broken{Path: path, Reason: err.Error()})
}
