package runner

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/runner/internal/pluginhost"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

const (
	// lookPause is how often a plugin at an address is tried that doesn't answer, and how often plugin paths are looked at again at most. dialTimeout is how long a try of an address may take: a runner doesn't
	// start later than that for want of one.
	lookPause    = 5 * time.Second
	dialTimeout  = 3 * time.Second
	dialTogether = 8
)

// scheme marks the path of a plugin at an address.
const scheme = "grpc://"

// plugins are those of one runner: files, and addresses.
type plugins struct {
	host *pluginhost.Host
	cfg  *Config

	again chan struct{} // Room for one question to watch: to look again covers all that was asked before.
	pause time.Duration // Between two looks.

	mu     sync.Mutex
	found  []Plugin
	broken []Broken
	// looked is when the plugin paths were looked at, replaced has the paths at which another file was found since.
	looked   time.Time
	replaced map[string]bool
	// silent are the names of addresses that haven't answered, each with its reason.
	silent map[string]string
}

func newPlugins(host *pluginhost.Host, cfg *Config) *plugins {
	return &plugins{host: host, cfg: cfg, again: make(chan struct{}, 1), pause: lookPause, replaced: map[string]bool{}, silent: map[string]string{}}
}

// discover asks every plugin what it is.
func (p *plugins) discover(ctx context.Context) {
	looked := time.Now()
	found, broken := p.host.Discover(ctx, p.cfg.PluginPath)
	p.mu.Lock()
	p.found, p.broken, p.looked = found, broken, looked
	for name := range p.cfg.PluginAddresses {
		p.silent[name] = "it hasn't been tried"
	}
	p.mu.Unlock()
	p.dialSilent(ctx)
	for _, b := range p.brokenNow() {
		p.cfg.Logger.Warn("plugin doesn't work", "path", b.Path, "reason", b.Reason)
	}
}

// dialSilent tries every address that hasn't answered, and says whether one does now.
func (p *plugins) dialSilent(ctx context.Context) bool {
	p.mu.Lock()
	names := slices.Sorted(maps.Keys(p.silent))
	p.mu.Unlock()
	var group errgroup.Group
	group.SetLimit(dialTogether)
	answered := false
	for _, name := range names {
		group.Go(func() error {
			d, err := p.dial(ctx, name)
			p.mu.Lock()
			defer p.mu.Unlock()
			if err != nil {
				p.silent[name] = err.Error()
				return nil
			}
			delete(p.silent, name)
			p.found = append(p.found, Plugin{Description: d, Path: scheme + p.cfg.PluginAddresses[name]})
			answered = true
			return nil
		})
	}
	_ = group.Wait() // Errors are reasons here.
	return answered
}

// dial asks a plugin at an address what it is.
func (p *plugins) dial(ctx context.Context, name string) (*source.Description, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	proc, err := p.host.Dial(ctx, p.cfg.PluginAddresses[name], p.cfg.TLS)
	if err != nil {
		return nil, err
	}
	defer proc.Kill() // It lets go of the connection; the process is somebody else's.
	d, err := proc.Plugin().Describe(ctx)
	if err != nil {
		return nil, err
	}
	if d.Name != name {
		return nil, fmt.Errorf("it is plugin %q, not %q", d.Name, name)
	}
	return d, nil
}

// all tells what works and what doesn't.
func (p *plugins) all() (found []Plugin, broken []Broken) {
	broken = p.brokenNow()
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.found), broken
}

func (p *plugins) brokenNow() []Broken {
	p.mu.Lock()
	defer p.mu.Unlock()
	broken := slices.Clone(p.broken)
	for _, name := range slices.Sorted(maps.Keys(p.silent)) {
		broken = append(broken, Broken{Path: scheme + p.cfg.PluginAddresses[name], Reason: p.silent[name]})
	}
	return broken
}

// start starts a plugin's process, or connects to its address.
func (p *plugins) start(ctx context.Context, plugin supervisor.Plugin, label string) (supervisor.Process, error) {
	if strings.HasPrefix(plugin.Path, scheme) {
		proc, err := p.host.Dial(ctx, plugin.Path, p.cfg.TLS)
		if err != nil {
			return nil, err // A nil *Process would be a Process that isn't nil.
		}
		return proc, nil
	}
	return p.startFile(ctx, plugin, label)
}

// toSupervisor says the same in the supervisor's words.
func toSupervisor(found []Plugin) []supervisor.Plugin {
	var out []supervisor.Plugin
	for _, p := range found {
		out = append(out, supervisor.Plugin{Description: p.Description, Path: p.Path, SHA256: p.SHA256})
	}
	return out
}

// brokenProblems adds, where a configuration's plugin is missing, those that are there and don't work: one of them may be it.
func brokenProblems(config map[string]string, problems []source.Problem, broken []Broken) []source.Problem {
	missing := slices.ContainsFunc(problems, func(p source.Problem) bool { return p.Key == settings.KeyConnectorClass })
	if !missing || config[settings.KeyConnectorClass] == "" {
		return nil
	}
	var more []source.Problem
	for _, b := range broken {
		more = append(more, source.Problem{Key: settings.KeyConnectorClass, Message: fmt.Sprintf("%s doesn't work as a plugin: %s", b.Path, b.Reason), Warning: true})
	}
	return more
}
