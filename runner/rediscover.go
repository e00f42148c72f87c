package runner

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
)

const (
	// describeWithin is how long a plugin of a replaced file may take to say what it is, and endWithin how long it may take to end where it is another one.
	describeWithin = 15 * time.Second
	endWithin      = 3 * time.Second
)

// startFile starts a plugin's process from its file. A file may have been replaced since it was looked at: a build of the same version is run, and anything else is refused and looked at again, so that a
// connector never runs another version than the one that its coordinator chose.
func (p *plugins) startFile(ctx context.Context, plugin supervisor.Plugin, label string) (supervisor.Process, error) {
	proc, err := p.host.Start(ctx, pluginhost.Spec{Path: plugin.Path, SHA256: plugin.Pin, Label: label})
	if err != nil {
		if !isStill(plugin.Path, plugin.SHA256) {
			p.lookAgain(plugin.Path)
		}
		return nil, err
	}
	if proc.SHA256() == plugin.SHA256 {
		return proc, nil
	}
	if err := p.identify(ctx, plugin, proc); err != nil {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
		defer cancel()
		if stopErr := proc.Stop(ending); stopErr != nil {
			p.cfg.Logger.Warn("plugin didn't stop well", "connector", label, "error", stopErr)
		}
		return nil, err
	}
	return proc, nil
}

// identify says why the process of a replaced file isn't the plugin that was found there.
func (p *plugins) identify(ctx context.Context, plugin supervisor.Plugin, proc supervisor.Process) error {
	ctx, cancel := context.WithTimeout(ctx, describeWithin)
	defer cancel()
	was := plugin.Description
	is, err := proc.Plugin().Describe(ctx)
	switch {
	case err != nil:
		p.lookAgain(plugin.Path)
		return fmt.Errorf("plugin file %q was replaced, and doesn't say what it is now: %w", plugin.Path, err)
	case is.Name != was.Name || is.Version != was.Version:
		p.lookAgain(plugin.Path)
		return fmt.Errorf("plugin file %q was replaced: it was %s %s, and is %s %s now, which isn't run in its place; put %s %s back, or set plugin.version to a version that is there, or leave plugin.version out",
			plugin.Path, was.Name, was.Version, is.Name, is.Version, was.Name, was.Version)
	case !reflect.DeepEqual(is.Types, was.Types):
		p.lookAgain(plugin.Path)
		return fmt.Errorf("plugin file %q was replaced by another build of %s %s, whose connector types differ: it is looked at again before it is run", plugin.Path, was.Name, was.Version)
	}
	return nil
}

// isStill says whether a path leads to a file that can be run and has a checksum.
func isStill(path, sha256 string) bool {
	sum, err := pluginhost.Sum(path)
	return err == nil && sum == sha256
}

// lookAgain asks watch to discover anew, and to keep an eye on a path from now on: the file that is wanted there may come back without another start. It never waits.
func (p *plugins) lookAgain(path string) {
	p.mu.Lock()
	p.replaced[path] = true
	p.mu.Unlock()
	select {
	case p.again <- struct{}{}:
	default: // One question is enough.
	}
}

// watch looks at the plugin paths again when a start found another file there than expected, or when such a file, or one that didn't work, has changed; and it tries addresses again that didn't answer, since a
// sidecar may start later than its runner. It calls changed when there is news. One look at a time, and at least a pause between two.
func (p *plugins) watch(ctx context.Context, changed func()) {
	tick, look := time.NewTicker(p.pause), time.NewTimer(p.pause)
	defer tick.Stop()
	defer look.Stop()
	look.Stop() // Until it is asked for.
	for {
		news := false
		select {
		case <-ctx.Done():
			return
		case <-p.again:
			look.Reset(p.untilLook())
		case <-look.C:
			news = p.rediscover(ctx)
		case <-tick.C:
			if news = p.dialSilent(ctx); p.mended() {
				look.Reset(p.untilLook())
			}
		}
		if news {
			changed()
		}
	}
}

// untilLook is how long the next look has to wait.
func (p *plugins) untilLook() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return max(0, time.Until(p.looked.Add(p.pause)))
}

// rediscover replaces what is known of files, and says whether it did. A plugin that doesn't answer although its file is the same stays: a machine that is busy for a moment must not end connectors.
func (p *plugins) rediscover(ctx context.Context) bool {
	p.cfg.Logger.Info("plugin paths are looked at again")
	looked := time.Now()
	found, broken := p.host.Discover(ctx, p.cfg.PluginPath)
	if ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	known := slices.Clone(p.found)
	p.mu.Unlock()
	for _, k := range known {
		i := slices.IndexFunc(broken, func(b Broken) bool { return b.Path == k.Path })
		switch {
		case strings.HasPrefix(k.Path, scheme):
			found = append(found, k)
		case i >= 0 && isStill(k.Path, k.SHA256):
			p.cfg.Logger.Warn("plugin doesn't answer now and is kept, since its file is the same", "path", k.Path, "reason", broken[i].Reason)
			found, broken = append(found, k), slices.Delete(broken, i, i+1)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.found, p.broken, p.looked = found, broken, looked
	for _, b := range broken {
		p.cfg.Logger.Warn("plugin doesn't work", "path", b.Path, "reason", b.Reason)
	}
	return true
}

// mended says whether a file that didn't work, or that took another's place, was changed since it was looked at. One that is still being copied is looked at again until it is whole.
func (p *plugins) mended() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.ContainsFunc(p.broken, func(b Broken) bool { return pluginhost.ChangedSince(b.Path, p.looked) }) ||
		slices.ContainsFunc(p.found, func(f Plugin) bool { return p.replaced[f.Path] && pluginhost.ChangedSince(f.Path, p.looked) })
}
