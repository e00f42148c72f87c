package fence

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"
)

// Probe asks whether id may be initialised, without initialising it: a transaction time-out of 0 is refused after the rights were checked and before anything is done, so live transactions go on and
// nothing is created. The error is a *Refused where the right is missing, else says why that isn't known; ctx bounds the asking.
func (f *Fencer) Probe(ctx context.Context, id string) error {
	for attempt := 0; ; attempt++ {
		_, err := f.init(ctx, id, 0)
		if err == nil {
			// The broker took it: unlike Apache Kafka's, it doesn't check time-outs, and the right is there.
			return nil
		}
		if errors.Is(err, kerr.InvalidTransactionTimeout) {
			return nil
		}
		verdict := classify(err)
		if verdict.final {
			return f.refused(id, err)
		}
		if verdict.moved {
			f.direct.Forget(id)
		}
		if waited := wait(ctx, verdict.delay(attempt)); waited != nil {
			return fmt.Errorf("probe the rights on %q: %w", id, errors.Join(waited, err))
		}
	}
}
