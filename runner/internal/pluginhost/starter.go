package pluginhost

import "runtime"

// starter runs functions on one operating-system thread for a Host's whole life. Linux sends the parent-death signal when the thread that forked ends, not the
// process, and Go ends threads when it likes: a plugin that was started from any thread could be killed at any moment.
type starter struct {
	jobs  chan func()
	ended chan struct{}
}

func newStarter() *starter {
	s := &starter{jobs: make(chan func()), ended: make(chan struct{})}
	go s.run()
	return s
}

func (s *starter) run() {
	defer close(s.ended)
	runtime.LockOSThread() // never unlocked: the thread ends with this goroutine, after the last plugin
	for job := range s.jobs {
		job()
	}
}

// do runs a function on the thread and returns when it has returned. It must not be called after stop.
func (s *starter) do(f func()) {
	done := make(chan struct{})
	s.jobs <- func() {
		defer close(done)
		f()
	}
	<-done
}

// stop ends the thread.
func (s *starter) stop() {
	close(s.jobs)
	<-s.ended
}
