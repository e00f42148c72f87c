// Package configlog is the config log: one compacted Kafka partition that holds all that a leader knows, and the right to write it.
//
// Campaigning is: the topic is there and fit → elected by a consumer group over it → the log's transactional id initialised, which ends whatever an earlier leader had open and refuses its writes from then on → the log is settled
// and read to its end → leading. A coordinator that waits never initialises the id: that would cut off the one that leads. (I7)
//
// A write is one transaction, and one at a time. It has succeeded when a read_committed reader can read it: Kafka can answer a commit and yet leave its marker unwritten where the partition's broker dies just then, and
// the id's next transaction would decide over both. So every write waits for the last stable offset to pass it, and a take-over has what hangs ended as it was decided before anything is read or written: a transaction may have been
// aborted when it was half produced. What isn't proven, or isn't of the log's id, is named, and nobody leads meanwhile; whoever waits says so too (follow.go).
//
// Whoever waits follows the log as well, and knows from it who leads, in which term and at which level; the group says who else waits (roster.go). Records that weren't written in a transaction are none of a coordinator's
// and don't count (content.go).
//
// Any error that leaves the outcome open, any answer that the epoch isn't ours any more and the loss of the election end the leadership for good: later writes are refused without asking (never guess). The package knows nothing of
// the records but their keys, and adds one of its own, meta/leader, to a leader's first write, so that whoever waits knows whom to name.
//
// Read next: campaign.go, then writer.go.
package configlog

import (
	"cmp"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
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
	// Version, and the levels at which this coordinator can lead, are what the others are told of it.
	Version            string
	LevelMin, LevelMax uint32
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
	// Quiet is for how long nothing may come before whoever follows looks whether the log is held. Default 10 s.
	Quiet time.Duration
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
	self   state.Coordinator

	mu    sync.Mutex
	heard Heard

	roster     atomic.Pointer[[]state.Coordinator]
	twin       atomic.Pointer[error] // another coordinator has this one's address
	rebalanced chan struct{}         // one token: the group has a new generation
	grown      chan struct{}         // one token: Follow has read something

	// Why this coordinator can neither lead nor see who does; nil while it can, as far as is known.
	trouble atomic.Pointer[error]

	held atomic.Pointer[error] // what holds the log; nil where nothing is known to

	// Of the goroutine that calls Campaign.
	candidacy *election      // nil where there is none
	noted     state.Decision // the last decision on the log's id that was seen before it was taken
}

// New makes a Log; it asks nobody for anything.
func New(config Config) *Log {
	config.SessionTimeout = cmp.Or(config.SessionTimeout, 6*time.Second)
	config.WriteTimeout = cmp.Or(config.WriteTimeout, 10*time.Second)
	config.ReadTimeout = cmp.Or(config.ReadTimeout, 10*time.Second)
	config.Quiet = cmp.Or(config.Quiet, 10*time.Second)
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	return &Log{
		config: config, topic: names.LogTopic(config.Cluster), id: names.LogTransactionalID(config.Cluster), group: names.ElectionGroup(config.Cluster), log: config.Logger,
		self:       state.Coordinator{Address: config.Address, ID: processID(), Version: config.Version, LevelMin: config.LevelMin, LevelMax: config.LevelMax},
		rebalanced: make(chan struct{}, 1), grown: make(chan struct{}, 1),
	}
}

// processID tells this process from every other coordinator, also from one with the same address.
func processID() string {
	var id [8]byte
	_, _ = rand.Read(id[:]) // It never fails.
	return hex.EncodeToString(id[:])
}

// Heard is what the log says of the cluster, as far as it was followed.
type Heard struct {
	// Leader is the address of the last leader that the log names, and LeaderID its process; empty where that isn't known.
	Leader, LeaderID string
	// Term and Level are the last ones; 0 where they aren't known.
	Term  uint64
	Level uint32
}

// Heard is kept current by Follow and by leading.
func (l *Log) Heard() Heard {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard
}

func (l *Log) hear(change func(*Heard)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.heard)
}

// Self is what the others are told of this coordinator.
func (l *Log) Self() state.Coordinator { return l.self }

// Grown has a token when Follow has read something since it was last taken.
func (l *Log) Grown() <-chan struct{} { return l.grown }

// Trouble is why this coordinator has no part in the election just now: no broker answers, for example. It is nil where nothing is known to be wrong.
func (l *Log) Trouble() error {
	for _, trouble := range []*atomic.Pointer[error]{&l.trouble, &l.twin, &l.held} {
		if err := trouble.Load(); err != nil {
			return *err
		}
	}
	return nil
}
