package configlog

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

// TestAnInterruptedElectionIsLoggedNowAndThen plays the client, which fails to join again four times a second.
func TestAnInterruptedElectionIsLoggedNowAndThen(t *testing.T) {
	settings, err := kafkaclient.Parse("k:9092", nil)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		l := New(Config{Cluster: "c", Settings: settings, Logger: hclog.New(&hclog.LoggerOptions{Output: &out})})
		e := &election{log: l, changed: make(chan struct{}, 1)}
		for range 4 * 70 {
			e.OnGroupManageError(errors.New("refused"))
			<-time.After(250 * time.Millisecond) // in a synctest bubble: its clock moves, and nobody waits
		}
		if n, again := strings.Count(out.String(), "the election is interrupted"), strings.Count(out.String(), "still interrupted"); n != 1 || again != 2 || l.Trouble() == nil {
			t.Errorf("said %d times and %d times more in 70 s, trouble %v:\n%s", n, again, l.Trouble(), out.String())
		}
		e.goesOn()
		e.goesOn()
		if n := strings.Count(out.String(), "the election goes on: group=c.coordinator after=1m10s"); n != 1 || l.Trouble() != nil {
			t.Errorf("its end is said %d times, trouble %v:\n%s", n, l.Trouble(), out.String())
		}
		e.OnGroupManageError(errors.New("refused"))
		if n := strings.Count(out.String(), "the election is interrupted"); n != 2 {
			t.Errorf("a second interruption: said %d times", n)
		}
	})
}
