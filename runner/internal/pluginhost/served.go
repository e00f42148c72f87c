package pluginhost

import (
	"context"
	"errors"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// served is a plugin of a process: its errors say how the process ended, where that is why a call failed.
type served struct{ process *Process }

var (
	_ source.Plugin        = (*served)(nil)
	_ source.OffsetAlterer = (*served)(nil)
)

// Describe is source.Plugin's.
func (s *served) Describe(ctx context.Context) (*source.Description, error) {
	d, err := s.process.client.Describe(ctx)
	return d, s.explain(ctx, err)
}

// Validate is source.Plugin's.
func (s *served) Validate(ctx context.Context, req *source.ValidateRequest) (*source.Validation, error) {
	v, err := s.process.client.Validate(ctx, req)
	return v, s.explain(ctx, err)
}

// Plan is source.Plugin's.
func (s *served) Plan(ctx context.Context, open *source.PlanOpen, host source.PlanHost) error {
	return s.explain(ctx, s.process.client.Plan(ctx, open, host))
}

// Run is source.Plugin's.
func (s *served) Run(ctx context.Context, open *source.RunOpen, host source.RunHost) error {
	return s.explain(ctx, s.process.client.Run(ctx, open, host))
}

// AlterOffsets is source.OffsetAlterer's.
func (s *served) AlterOffsets(ctx context.Context, req *source.AlterRequest) (*source.AlterAnswer, error) {
	a, err := s.process.client.AlterOffsets(ctx, req)
	return a, s.explain(ctx, err)
}

// crashNotice is how long after a broken connection the end of the process is waited for: the one is seen before the other, and the last words are read in between.
const crashNotice = pipeGrace + time.Second

// explain replaces the error of a broken connection by the end of the process that broke it. Such an error is UNAVAILABLE or, where the end was seen first and the
// connection closed for it, CANCELLED; both may also be the plugin's own answer, which stays where the process lives.
func (s *served) explain(ctx context.Context, err error) error {
	var e *source.Error
	if err == nil || s.process.child == nil || ctx.Err() != nil || !errors.As(err, &e) || e.Kind != source.Retriable {
		return err
	}
	if status.Code(e.Err) != codes.Unavailable && !errors.Is(e, context.Canceled) || !waitFor(ctx, s.process.done, crashNotice) {
		return err
	}
	exit := s.process.Err()
	return &source.Error{Kind: source.Retriable, Message: exit.Error(), Err: exit}
}
