package main

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// runLocked is a source that one reader at a time may have: the reader holds a lock on a file for as long as it has the task, and writes into it when it got the lock and when it let go. It sends what the others
// send, lock-silent nothing at all, and then it is idle.
//
// Its fault is that it waits for the lock only: it never looks whether it is still wanted, as a database's replication slot doesn't.
func (r *rogue) runLocked(stream pluginv1.Plugin_RunServer) error {
	next, open, err := r.open(stream)
	if err != nil {
		return err
	}
	lock, err := take(stream, open.GetConfig()["lock"])
	if err != nil {
		return err
	}
	defer lock.release()
	for seq := uint64(1); next < records && r.is("lock"); seq++ {
		if err := r.send(stream, r.batch(seq, next)); err != nil {
			return err
		}
		next += 10
	}
	return r.untilStopped(stream)
}

// lock is a file that is locked, which its readers use as a log, too.
type lock struct{ file *os.File }

// take waits for the lock, or for the end of the stream.
func take(stream pluginv1.Plugin_RunServer, path string) (*lock, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			l := &lock{file}
			l.note("got")
			return l, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, err
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-stream.Context().Done():
			return nil, stream.Context().Err()
		}
	}
}

func (l *lock) note(what string) { fmt.Fprintf(l.file, "%s %d\n", what, os.Getpid()) }

func (l *lock) release() {
	l.note("left")
	_ = l.file.Close()
}
