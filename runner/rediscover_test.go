package runner

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	pluginserve "github.com/fencepost-io/fencepost/sdk/go/serve"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// pluginVariable makes the test binary a plugin: it has the plugin's version, and after a colon its connector type.
const pluginVariable = "FENCEPOST_TEST_PLUGIN"

// pluginMain is the plugin.
func pluginMain(what string) {
	version, typ, _ := strings.Cut(what, ":")
	pluginserve.Serve(source.New("seq", version, seq{typ: typ}))
}

type seq struct {
	source.OneTask
	typ string
}

func (s seq) Type() source.Type { return source.Type{Name: s.typ} }
func (seq) Open(context.Context, *source.Task) (source.Reader, error) {
	return nil, source.Fatalf("nothing to read")
}

// install puts a plugin of a version where another one may be.
func install(t *testing.T, path, what, remark string) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\n# %s\nexec env %s=%s %s\n", remark, pluginVariable, what, self)
	if err := os.WriteFile(path+".new", []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// installed has one plugin file, looked at, and watches it. Each news is sent.
func installed(t *testing.T) (p *plugins, path string, news chan struct{}) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "seq")
	install(t, path, "1.0.0:seq", "")
	cfg := Config{PluginPath: []string{path}, SocketDir: shortDir(t)}
	host, p, err := alone(&cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.pause = 10 * time.Millisecond
	p.discover(t.Context())
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	news = make(chan struct{}, 100)
	go func() {
		defer close(ended)
		p.watch(ctx, func() { news <- struct{}{} })
	}()
	t.Cleanup(func() {
		stop()
		<-ended
		host.Close()
	})
	return p, path, news
}

// only is the one plugin that works.
func only(t *testing.T, p *plugins) supervisor.Plugin {
	t.Helper()
	found, broken := p.all()
	if len(found) != 1 || len(broken) != 0 {
		t.Fatal(found, broken)
	}
	return toSupervisor(found)[0]
}

func await(t *testing.T, news chan struct{}) {
	t.Helper()
	select {
	case <-news:
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was looked at again")
	}
}

func TestAnotherVersionIsNeverRunInPlaceOfTheOneThatWasFound(t *testing.T) {
	for what, text := range map[string]string{"2.0.0:seq": "is seq 2.0.0 now", "1.0.0:other": "connector types differ"} {
		p, path, news := installed(t)
		before := only(t, p)
		install(t, path, what, "")
		if _, err := p.start(t.Context(), before, "orders"); err == nil || !strings.Contains(err.Error(), text) || !strings.Contains(err.Error(), "seq 1.0.0") {
			t.Fatalf("%s ran: %v", what, err)
		}
		await(t, news)
		after := only(t, p)
		if got := after.Description.Version + ":" + after.Description.Types[0].Name; got != what {
			t.Fatalf("found %s, want %s", got, what)
		}
		proc, err := p.start(t.Context(), after, "orders")
		if err != nil {
			t.Fatal(err)
		}
		if err := proc.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		// The one that is wanted comes back: nobody has to start anything.
		install(t, path, "1.0.0:seq", "")
		for {
			await(t, news)
			if d := only(t, p).Description; d.Version == "1.0.0" && d.Types[0].Name == "seq" {
				break
			}
		}
	}
}

func TestAnotherBuildOfTheSameVersionIsRun(t *testing.T) {
	p, path, _ := installed(t)
	before := only(t, p)
	install(t, path, "1.0.0:seq", "another build")
	proc, err := p.start(t.Context(), before, "orders")
	if err != nil {
		t.Fatal(err)
	}
	if proc.SHA256() == before.SHA256 {
		t.Error("it wasn't replaced")
	}
	if err := proc.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestAPluginThatIsGoneIsNoLongerOfferedUntilItIsBack(t *testing.T) {
	p, path, news := installed(t)
	plugin := only(t, p)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := p.start(t.Context(), plugin, "orders"); err == nil {
		t.Fatal("it started")
	}
	await(t, news)
	if found, broken := p.all(); len(found) != 0 || len(broken) != 1 || !strings.Contains(broken[0].Reason, "run bit") {
		t.Fatal(found, broken)
	}
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for {
		await(t, news)
		if found, _ := p.all(); len(found) == 1 {
			return
		}
	}
}

func TestAPluginThatDoesNotAnswerForAMomentStays(t *testing.T) {
	p, _, _ := installed(t)
	p.host.Close() // Nothing can be started.
	if !p.rediscover(t.Context()) {
		t.Fatal("not looked at")
	}
	only(t, p)
}
