// Package harness runs Fencepost as its users do: binaries built from this tree, started as processes, spoken to over the command line and the control API.
//
// It owns the life of everything that it starts, and the question what is left afterwards: no plugin process, no socket file, no open transaction (see leftovers.go).
// Binaries are built once per test run, with the fault points of the runner in them. It decides nothing about records; that is package reader's.
//
// Reading order: bed.go (a cluster of processes), brokers.go (what they run on), wait.go.
package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// T is what the harness needs of a test. Benchmarks, which are programs, bring their own.
type T interface {
	Helper()
	Context() context.Context
	TempDir() string
	Cleanup(func())
	Failed() bool
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// Plugins that are built with the binary.
var plugins = []string{"./plugins/file", "./plugins/generator"}

// run is what lives as long as one `go test`.
var run struct {
	dir    string
	build  func() (*Binaries, error)
	broker func() (string, error)
	stop   []func()
}

// Main is what a TestMain calls. It ends what the tests of the package share, and returns the exit code.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "fencepost-it-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "integration:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	run.dir = dir
	run.build = sync.OnceValues(build)
	run.broker = sync.OnceValues(startShared)
	code := m.Run()
	for _, stop := range run.stop {
		stop()
	}
	return code
}

// Binaries are what a test run built.
type Binaries struct {
	// Fencepost is the binary, with fault points.
	Fencepost string
	// Plugins is the folder of plugins.
	Plugins string
}

// Build builds the binaries, once for all tests of a run.
func Build(t T) *Binaries {
	t.Helper()
	if run.build == nil {
		t.Fatal("the package's TestMain doesn't call harness.Main")
	}
	b, err := run.build()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func build() (*Binaries, error) {
	b := &Binaries{Fencepost: filepath.Join(run.dir, "fencepost"), Plugins: filepath.Join(run.dir, "plugins")}
	if err := goBuild(b.Fencepost, "./cmd/fencepost"); err != nil {
		return nil, err
	}
	return b, goBuild(b.Plugins+"/", plugins...)
}

// BuildPackage builds one more program of this tree, for example a plugin that only a test needs.
func BuildPackage(t T, pkg, to string) {
	t.Helper()
	if err := goBuild(to, pkg); err != nil {
		t.Fatal(err)
	}
}

func goBuild(to string, packages ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	if strings.HasSuffix(to, "/") {
		if err := os.MkdirAll(to, 0o755); err != nil {
			return fmt.Errorf("build: %w", err)
		}
	}
	cmd := exec.CommandContext(context.Background(), "go", append([]string{"build", "-tags", "faults", "-o", to}, packages...)...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", strings.Join(packages, " "), err, out)
	}
	return nil
}

// Root is the top of this tree.
func Root() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	if !ok {
		return "", errors.New("where the source of package harness is: unknown")
	}
	return filepath.Dir(filepath.Dir(filepath.Dir(file))), nil
}
