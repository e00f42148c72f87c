//go:build !faults

package configlog

import (
	"context"
	"time"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// beforeCommit marks where tests hold a leader whose records are produced. Without the build tag it is nothing at all.
func beforeCommit(ctx context.Context, _ []state.Record, _ time.Duration) (held context.Context, done func()) {
	return ctx, func() {}
}
