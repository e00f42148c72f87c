// Package kfakelog makes transactions of the embedded broker survive a kill. It owns a journal beside the broker's data, and what is done with both before the broker reads them.
//
// kfake ends a transaction partition by partition, and after a kill it takes every transaction without a marker for aborted, in memory only. So a commit that was interrupted would come back half
// committed and half aborted, which is the one thing that must not happen (I1), and an aborted one would be committed by the next transaction of its producer. Hence:
//
//   - Before a commit reaches the broker the journal says so, and when the producer's next transaction begins it says that, too: a transaction that is open on disk while its producer is in the
//     journal was being committed.
//   - Before the broker starts, every open transaction gets its marker on disk: commit where the journal says so, abort otherwise.
//
// Watch has to see every request, and Open must be done before the broker starts. Where to read next: recover.go.
package kfakelog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// journalName is beside kfake's own files, none of which is called so.
const journalName = "commits.journal"

// maxJournal is the size at which the journal is written anew, with what still counts.
const maxJournal = 1 << 20

// Journal notes commits before they happen. One goroutine uses it, kfake's.
type Journal struct {
	path       string
	file       *os.File
	size       int
	committing map[int64]int16 // producer id → epoch
}

// entry is a line of the journal: a producer commits, or it has begun another transaction.
type entry struct {
	Producer int64 `json:"producer"`
	Epoch    int16 `json:"epoch,omitempty"`
	Begun    bool  `json:"begun,omitempty"`
}

// Open mends the data in a folder that a broker was killed on, and starts a new journal there. The folder need not exist yet.
func Open(dir string) (*Journal, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	j := &Journal{path: filepath.Join(dir, journalName), committing: map[int64]int16{}}
	if err := j.read(); err != nil {
		return nil, err
	}
	if err := recoverPartitions(filepath.Join(dir, "partitions"), j.committing); err != nil {
		return nil, fmt.Errorf("mend %s: %w", dir, err)
	}
	clear(j.committing)
	return j, j.rewrite()
}

// Close closes the journal. The broker must have been closed before.
func (j *Journal) Close() error { return j.file.Close() }

// read reads the journal of the run before. A last line that was cut off was never acted on.
func (j *Journal) read() error {
	text, err := os.ReadFile(j.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("journal of commits: %w", err)
	}
	for line := range bytes.Lines(text) {
		var e entry
		if json.Unmarshal(line, &e) != nil {
			break
		}
		j.take(e)
	}
	return nil
}

func (j *Journal) take(e entry) {
	if e.Begun {
		delete(j.committing, e.Producer)
	} else {
		j.committing[e.Producer] = e.Epoch
	}
}

// Watch notes what the broker is about to do. A commit that can't be noted is not made: its connection is closed, and the producer asks again.
func (j *Journal) Watch(cluster *kfake.Cluster) {
	observe := func(key kmsg.Key, entries func(kmsg.Request) []entry) {
		cluster.ControlKey(key.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			for _, e := range entries(req) {
				if err := j.note(e); err != nil {
					return nil, err, true
				}
			}
			return nil, nil, false
		})
	}
	observe(kmsg.EndTxn, func(req kmsg.Request) []entry {
		if end, ok := req.(*kmsg.EndTxnRequest); ok && end.Commit {
			return []entry{{Producer: end.ProducerID, Epoch: end.ProducerEpoch}}
		}
		return nil
	})
	// A producer that adds partitions by producing (transactions of version 2) has another epoch for each transaction: it needs no note that the next one has begun.
	observe(kmsg.AddPartitionsToTxn, func(req kmsg.Request) []entry {
		add, ok := req.(*kmsg.AddPartitionsToTxnRequest)
		if !ok {
			return nil
		}
		begun := []entry{{Producer: add.ProducerID, Begun: true}}
		for _, txn := range add.Transactions {
			begun = append(begun, entry{Producer: txn.ProducerID, Begun: true})
		}
		return begun
	})
}

// note writes an entry and waits until it is on disk.
func (j *Journal) note(e entry) error {
	if _, committing := j.committing[e.Producer]; e.Begun && !committing {
		return nil
	}
	line, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("journal of commits: %w", err)
	}
	if err := j.append(append(line, '\n')); err != nil {
		return fmt.Errorf("journal of commits: %w", err)
	}
	j.take(e)
	if j.size > maxJournal {
		return j.rewrite()
	}
	return nil
}

// append leaves the file as it was where it fails: half a line would hide those after it.
func (j *Journal) append(line []byte) error {
	if _, err := j.file.Write(line); err != nil {
		return errors.Join(err, j.file.Truncate(int64(j.size)))
	}
	j.size += len(line)
	return j.file.Sync()
}

// rewrite replaces the journal by one with what still counts.
func (j *Journal) rewrite() error {
	var text bytes.Buffer
	enc := json.NewEncoder(&text)
	for producer, epoch := range j.committing {
		if err := enc.Encode(entry{Producer: producer, Epoch: epoch}); err != nil {
			return fmt.Errorf("journal of commits: %w", err)
		}
	}
	fresh := j.path + ".new"
	file, err := os.OpenFile(fresh, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("journal of commits: %w", err)
	}
	_, err = file.Write(text.Bytes())
	if err = errors.Join(err, file.Sync()); err == nil {
		err = os.Rename(fresh, j.path)
	}
	if err != nil {
		return fmt.Errorf("journal of commits: %w", errors.Join(err, file.Close()))
	}
	if j.file != nil {
		_ = j.file.Close() // it is replaced
	}
	j.file, j.size = file, text.Len()
	return nil
}
