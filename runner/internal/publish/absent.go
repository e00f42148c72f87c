package publish

import (
	"context"
	"fmt"
	"time"
)

// AbsentFor is how long Kafka has to say that a topic isn't as it should be until that is believed.
const AbsentFor = 5 * time.Second

const (
	firstAskAgain = 50 * time.Millisecond
	maxAskAgain   = 400 * time.Millisecond
)

// Known asks for topics until they are known as they should be: there, with as many partitions or the id that is expected. A broker that doesn't know them may only be behind the others, just after a topic was made or the broker was
// started: its word counts only when it lasts for AbsentFor, since what follows from it is an operator's affair, or a start from nothing. Everything that could take a topic for missing asks through Known.
//
// sure, where set, asks once whoever decides which topics there are: its word counts at once. An error of ask ends the asking.
func Known(ctx context.Context, ask func(context.Context) (known bool, err error), sure func(context.Context) (absent bool)) (known bool, err error) {
	pause := firstAskAgain
	for until := time.Now().Add(AbsentFor); ; pause = min(2*pause, maxAskAgain) {
		known, err := ask(ctx)
		if err != nil || known {
			return known, err
		}
		if sure != nil && sure(ctx) || !time.Now().Before(until) {
			return false, nil
		}
		sure = nil
		select {
		case <-ctx.Done():
			return false, fmt.Errorf("no broker knows it so far: %w", context.Cause(ctx))
		case <-time.After(pause):
		}
	}
}
