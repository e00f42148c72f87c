//go:build faults

package configlog

import (
	"context"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// For tests of the whole: FENCEPOST_FAULT=log:PREFIX holds each write of a record whose key begins so right before its commit, until the file FENCEPOST_FAULT_GATE exists, and adds a line to FENCEPOST_FAULT_MARK. No context ends the
// wait: it stands for a process that sleeps. The write has its whole time again after it.
func beforeCommit(ctx context.Context, records []state.Record, timeout time.Duration) (held context.Context, done func()) {
	prefix, is := strings.CutPrefix(os.Getenv("FENCEPOST_FAULT"), "log:")
	meant := func(r state.Record) bool { return strings.HasPrefix(r.Key, prefix) }
	if !is || gateIsOpen() || !slices.ContainsFunc(records, meant) {
		return ctx, func() {}
	}
	if mark, err := os.OpenFile(os.Getenv("FENCEPOST_FAULT_MARK"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600); err == nil {
		_, _ = mark.WriteString("log\n")
		_ = mark.Close()
	}
	for !gateIsOpen() {
		<-time.After(5 * time.Millisecond)
	}
	return context.WithTimeout(context.WithoutCancel(ctx), timeout)
}

func gateIsOpen() bool {
	_, err := os.Stat(os.Getenv("FENCEPOST_FAULT_GATE"))
	return err == nil
}
