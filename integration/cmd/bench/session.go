package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/fencepost-io/fencepost/integration/harness"
)

// session is what a test is to the harness: it ends what was started, and a Fatal ends the part that is being measured.
type session struct {
	ctx      context.Context //nolint:containedctx // a test has one too, and the harness asks for it
	cancel   context.CancelFunc
	cleanups []func()
	failures []error
}

func newSession(ctx context.Context) *session {
	s := &session{}
	s.ctx, s.cancel = context.WithCancel(ctx)
	return s
}

// fatal ends a part.
type fatal struct{ error }

// try runs f. Its error is a Fatal in it, or what Errorf said.
func (s *session) try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			s.failures = append(s.failures, r.error)
		default:
			panic(r)
		}
		err = errors.Join(s.failures...)
	}()
	f()
	return nil
}

// end runs the cleanups, last first.
func (s *session) end() {
	s.cancel()
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
}

func (s *session) check(err error) {
	if err != nil {
		s.Fatal(err)
	}
}

// The rest is harness.T.

func (s *session) Helper()                  {}
func (s *session) Context() context.Context { return s.ctx }
func (s *session) Cleanup(f func())         { s.cleanups = append(s.cleanups, f) }
func (s *session) Failed() bool             { return len(s.failures) > 0 }

// TempDir is beside the binaries: the harness makes hard links to them.
func (s *session) TempDir() string {
	root, err := harness.Root()
	s.check(err)
	parent := filepath.Join(root, "bin", "bench")
	s.check(os.MkdirAll(parent, 0o755))
	dir, err := os.MkdirTemp(parent, "tmp-")
	s.check(err)
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *session) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *session) Errorf(format string, args ...any) {
	s.failures = append(s.failures, fmt.Errorf(format, args...))
}

func (s *session) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

func (s *session) Fatal(args ...any) {
	if err, ok := args[0].(error); ok && len(args) == 1 {
		panic(fatal{err})
	}
	panic(fatal{errors.New(fmt.Sprint(args...))})
}
