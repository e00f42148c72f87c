package integration

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/fencepost-io/fencepost"

// layer is one row of the import table: what the packages below a path may and must not be linked with.
type layer struct {
	path string
	// only, where not nil, lists our own packages (and everything below them) that may be linked beside those of the layer itself.
	only []string
	// never lists packages, ours or others', that must not be linked.
	never []string
	// standard allows the standard library only.
	standard bool
}

var (
	controlPB = module + "/proto/gen/go/fencepost/control"
	runnerPB  = module + "/proto/gen/go/fencepost/runner"
	pluginPB  = module + "/proto/gen/go/fencepost/plugin"
	sdk       = module + "/sdk/go"
)

const (
	librdkafka = "github.com/confluentinc/confluent-kafka-go"
	franz      = "github.com/twmb/franz-go"
	goPlugin   = "github.com/hashicorp/go-plugin"
	prometheus = "github.com/prometheus"
)

// TestLayersPointOneWay checks the import table over what is really linked: plugin → runner → Kafka, and a coordinator that never sees a record.
func TestLayersPointOneWay(t *testing.T) {
	layers := []layer{
		{path: sdk + "/source", standard: true},
		{path: sdk + "/serve", only: []string{sdk + "/source", sdk + "/internal", pluginPB}, never: []string{librdkafka, franz, goPlugin, prometheus}},
		{path: sdk + "/host", only: []string{sdk + "/source", sdk + "/internal", pluginPB}, never: []string{librdkafka, franz, goPlugin, prometheus}},
		{path: module + "/plugins/file", only: []string{sdk, pluginPB}, never: []string{librdkafka, franz, goPlugin, prometheus, sdk + "/host"}},
		{path: module + "/plugins/generator", only: []string{sdk, pluginPB}, never: []string{librdkafka, franz, goPlugin, prometheus, sdk + "/host"}},
		{path: module + "/coordinator", only: []string{controlPB, runnerPB, pluginPB}, never: []string{librdkafka, goPlugin}},
		{path: module + "/runner", only: []string{runnerPB, pluginPB, sdk + "/source", sdk + "/host", sdk + "/internal"}, never: []string{franz}},
		// What works counts nothing: metrics stand beside it.
		{path: module + "/coordinator/internal/loop", never: []string{prometheus}},
		{path: module + "/runner/internal/supervisor", never: []string{prometheus}},
	}
	packages := linked(t)
	for _, l := range layers {
		t.Run(strings.TrimPrefix(l.path, module+"/"), func(t *testing.T) {
			seen := false
			for _, p := range packages {
				if !within(p.ImportPath, l.path) {
					continue
				}
				seen = true
				for _, dep := range p.Deps {
					if why := l.refuses(dep, packages); why != "" {
						t.Errorf("%s is linked with %s: %s", p.ImportPath, dep, why)
					}
				}
			}
			if !seen {
				t.Errorf("no package below %s: the table names a layer that isn't there", l.path)
			}
		})
	}
}

// TestOnlyTheSessionSpeaksToCoordinators checks direct imports that are finer than layers.
func TestOnlyTheSessionSpeaksToCoordinators(t *testing.T) {
	allowed := map[string][]string{
		runnerPB:   {module + "/runner/internal/session", module + "/coordinator", module + "/integration/puppet"},
		librdkafka: {module + "/runner/internal/publish", module + "/runner/internal/offsets", module + "/integration/cmd/baseline"},
		controlPB:  {module + "/coordinator", module + "/cmd", module + "/integration"},
	}
	for _, p := range linked(t) {
		if !within(p.ImportPath, module) || strings.Contains(p.ImportPath, "/proto/gen/") {
			continue
		}
		for _, imported := range p.Imports {
			for what, owners := range allowed {
				if within(imported, what) && !withinAny(p.ImportPath, owners) {
					t.Errorf("%s imports %s, which only %s may", p.ImportPath, imported, strings.Join(owners, ", "))
				}
			}
		}
	}
}

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

// linked is `go list -deps` of the module: every package of ours and all that it needs, tests left out.
func linked(t *testing.T) map[string]listed {
	t.Helper()
	cmd := exec.Command("go", "list", "-deps", "-json=ImportPath,Standard,Imports,Deps", module+"/...")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v\n%s", err, stderr.String())
	}
	packages := map[string]listed{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			return packages
		}
		if err != nil {
			t.Fatalf("go list: %v", err)
		}
		packages[p.ImportPath] = p
	}
}

// refuses says why a layer must not be linked with a package; empty is no objection.
func (l layer) refuses(dep string, packages map[string]listed) string {
	if within(dep, l.path) {
		return ""
	}
	if l.standard && !packages[dep].Standard {
		return "it uses the standard library only"
	}
	if withinAny(dep, l.never) {
		return "it must not be"
	}
	if l.only != nil && within(dep, module) && !withinAny(dep, l.only) {
		return "of ours it may use " + strings.Join(l.only, ", ")
	}
	return ""
}

func withinAny(path string, roots []string) bool {
	for _, root := range roots {
		if within(path, root) {
			return true
		}
	}
	return false
}

func within(path, root string) bool {
	return path == root || strings.HasPrefix(path, root+"/")
}
