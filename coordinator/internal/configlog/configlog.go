// Package configlog is the config log: one compacted Kafka partition that holds all that a leader knows, and the right to write it.
//
// Campaigning is: the topic is there and fit → elected by a consumer group over it → the log's transactional id initialised, which ends whatever an earlier leader had open and refuses its writes from then on → the log is settled
// and read to its end → leading. A coordinator that waits never initialises the id: that would cut off the one that leads. (I7)
//
// A write is one transaction, and one at a time. It has succeeded when a read_committed reader can read it: Kafka can answer a commit and yet leave its marker unwritten where the partition's broker dies just then, and
// the id's next transaction would decide over both. So every write waits for the last stable offset to pass it, and a take-over settles what an earlier leader left before anything is read. What is left then was never
// reported as written, so either outcome is right; it becomes visible.
//
// Any error that leaves the outcome open, any answer that the epoch isn't ours any more and the loss of the election end the leadership for good: later writes are refused without asking (never guess). The package knows nothing of
// the records but their keys, and adds one of its own, meta/leader, to a leader's first write, so that whoever waits knows whom to name.
//
// Read next: campaign.go, then writer.go.
package configlog

import (
	"cmp"
	"errors"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
)

// partition is the only one.
const partition = 0

// ErrEnded says that the leadership is over; what was written before stays.
var ErrEnded = errors.New("this coordinator doesn't lead any more")

// ErrTooLarge says that a record is larger than the topic takes. Nothing was written and the leadership goes on.
var ErrTooLarge = errors.New("too large for the config log")

// Config of a Log.
type Config struct {
	// Cluster is the cluster's name: it gives the names of topic, id and group.
	Cluster string
	// Address is what the leader writes into the log, for those who wait to name it.
	Address string
	// Settings make the clients of the election and of reading.
	Settings *kafkaclient.Settings
	// Direct sends the requests of a write.
	Direct *kafkaclient.Direct
	// Fencer initialises the log's id.
	Fencer *fence.Fencer
	// SessionTimeout is how long the election waits for a silent leader. Not under the broker's group.min.session.timeout.ms, which is 6 s by default. Default 6 s.
	SessionTimeout time.Duration
	// WriteTimeout is how long one write may take with all its repetitions; the leadership ends where it isn't enough. Default 10 s.
	WriteTimeout time.Duration
	// ReadTimeout is how long reading may go on without a record. Default 10 s.
	ReadTimeout time.Duration
	// Logger. Default: none.
	Logger hclog.Logger
}

// Log is the config log as seen by one coordinator.
type Log struct {
	config Config
	topic  string
	id     string
	group  string
	log    hclog.Logger
	leader atomic.Value // string

	// Why this coordinator can neither lead nor see who does; nil while it can, as far as is known.
	trouble atomic.Pointer[error]

	candidacy *election // of the goroutine that calls Campaign; nil where there is none
}

// New makes a Log; it asks nobody for anything.
func New(config Config) *Log {
	config.SessionTimeout = cmp.Or(config.SessionTimeout, 6*time.Second)
	config.WriteTimeout = cmp.Or(config.WriteTimeout, 10*time.Second)
	config.ReadTimeout = cmp.Or(config.ReadTimeout, 10*time.Second)
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	l := &Log{
		config: config, topic: names.LogTopic(config.Cluster), id: names.LogTransactionalID(config.Cluster), group: names.ElectionGroup(config.Cluster), log: config.Logger,
	}
	l.leader.Store("")
	return l
}

// Leader is the address of the last leader that the log names; empty where it isn't known. It is kept current by Follow and by leading.
func (l *Log) Leader() string {
	address, _ := l.leader.Load().(string) // Always a string.
	return address
}

// Trouble is why this coordinator has no part in the election just now: no broker answers, for example. It is nil where nothing is known to be wrong.
func (l *Log) Trouble() error {
	if err := l.trouble.Load(); err != nil {
		return *err
	}
	return nil
}
