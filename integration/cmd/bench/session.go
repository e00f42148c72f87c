package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
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

func (s *session) child() *session { return newSession(s.ctx) }

// fatal ends a part.
type fatal struct{ error }

// try runs f; a Fatal in it is its error.
func (s *session) try(f func()) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case fatal:
			s.failures = append(s.failures, r.error)
			err = r.error
		default:
			panic(r)
		}
	}()
	f()
	return nil
}

// end runs the cleanups, last first.
func (s *session) end() error {
	s.cancel()
	for _, f := range slices.Backward(s.cleanups) {
		f()
	}
	return nil
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

func (s *session) TempDir() string {
	dir, err := os.MkdirTemp("", "fencepost-bench-")
	s.check(err)
	s.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (s *session) Logf(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) }

func (s *session) Errorf(format string, args ...any) {
	s.failures = append(s.failures, fmt.Errorf(format, args...))
	s.Logf(format, args...)
}

func (s *session) Fatalf(format string, args ...any) { panic(fatal{fmt.Errorf(format, args...)}) }

func (s *session) Fatal(args ...any) {
	if err, ok := args[0].(error); ok && len(args) == 1 {
		panic(fatal{err})
	}
	panic(fatal{errors.New(fmt.Sprint(args...))})
}
