package publish

import (
	"testing"
	"testing/synctest"
	"time"
)

// The report of a failed delivery may come a moment after the commit that it made fail; the error waits for it, and not for ever.
func TestAFailureIsWaitedForAMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &events{named: make(chan struct{}, 1)}
		if f := e.await(t.Context(), time.Second); f != nil {
			t.Errorf("nothing failed, and %+v came", f)
		}
		time.AfterFunc(500*time.Millisecond, func() { e.fail(&Failure{Topic: "t"}) })
		if f := e.await(t.Context(), time.Second); f == nil || f.Topic != "t" {
			t.Errorf("%+v came", f)
		}
		// A later transaction's wait isn't answered by the signal of an earlier one.
		e.fail(&Failure{Topic: "t"})
		e.forgetFailure()
		if f := e.await(t.Context(), time.Second); f != nil {
			t.Errorf("%+v came of the transaction before", f)
		}
	})
}
