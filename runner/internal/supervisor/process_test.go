package supervisor

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/sdk/go/source"
)

type idle struct {
	done    chan struct{}
	stopped int
}

func (p *idle) Plugin() source.Plugin { return nil }
func (p *idle) Done() <-chan struct{} { return p.done }
func (p *idle) Err() error            { return nil }
func (p *idle) SHA256() string        { return "" }
func (p *idle) Kill()                 {}
func (p *idle) Stop(context.Context) error {
	p.stopped++
	close(p.done)
	return nil
}

var seq = Plugin{Description: &source.Description{Name: "seq"}, Path: "/p/seq"}

func TestAProcessIsStartedOnceForAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var started []*idle
		ps := newProcesses(func(context.Context, Plugin, string) (Process, error) {
			<-time.After(time.Second)
			started = append(started, &idle{done: make(chan struct{})})
			return started[len(started)-1], nil
		}, hclog.NewNullLogger())
		got := make(chan *shared, 3)
		for range 3 {
			go func() {
				sh, err := ps.acquire(t.Context(), "orders", seq)
				if err != nil {
					t.Error(err)
				}
				got <- sh
			}()
		}
		// One that doesn't wait for the start is no reason to end it.
		impatient, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		if _, err := ps.acquire(impatient, "orders", seq); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		a, b, c := <-got, <-got, <-got
		if len(started) != 1 || a != b || b != c {
			t.Fatal("not shared")
		}
		a.release(0)
		b.release(0)
		synctest.Wait()
		if started[0].stopped != 0 {
			t.Fatal("stopped under a user")
		}
		<-c.release(0)
		if started[0].stopped != 1 {
			t.Fatal("not stopped")
		}
		ps.close()
		if _, err := ps.acquire(t.Context(), "orders", seq); !errors.Is(err, errClosing) {
			t.Fatal(err)
		}
	})
}

func TestTheEndStopsWhatIsUsedOrKeptWarm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		procs := map[string]*idle{"used": {done: make(chan struct{})}, "warm": {done: make(chan struct{})}}
		ps := newProcesses(func(_ context.Context, _ Plugin, label string) (Process, error) { return procs[label], nil }, hclog.NewNullLogger())
		used, err := ps.acquire(t.Context(), "used", seq)
		if err != nil {
			t.Fatal(err)
		}
		warm, err := ps.acquire(t.Context(), "warm", seq)
		if err != nil {
			t.Fatal(err)
		}
		warm.release(keepWarm)
		ps.close()
		if procs["used"].stopped != 1 || procs["warm"].stopped != 1 {
			t.Fatal("not stopped")
		}
		used.release(0) // Its user comes later: nothing happens twice.
		synctest.Wait()
		if procs["used"].stopped != 1 {
			t.Fatal("stopped twice")
		}
	})
}

func TestVersionsOfOnePathDoNotShareAProcess(t *testing.T) {
	ps := newProcesses(func(context.Context, Plugin, string) (Process, error) { return &idle{done: make(chan struct{})}, nil }, hclog.NewNullLogger())
	defer ps.close()
	upgraded := Plugin{Description: &source.Description{Name: "seq", Version: "2.0.0"}, Path: seq.Path}
	was, err := ps.acquire(t.Context(), "orders", seq)
	if err != nil {
		t.Fatal(err)
	}
	is, err := ps.acquire(t.Context(), "orders", upgraded)
	if err != nil {
		t.Fatal(err)
	}
	if was == is {
		t.Fatal("the process of the file before it was replaced is handed out as the new one")
	}
}
