// Package history keeps what people want to know of the past across a change of leader: what happened lately to each connector, and what was last known of each task. It is kept in a compacted topic, <cluster>.status, one record a connector
// and one a task.
//
// A new leader's Keeper reads the topic once and hands it to the loop, while that leads already; from then on it writes what has changed, at most once a second for a connector.
//
// What holds here:
//   - Nothing is decided by it, and nothing waits for it: Note never blocks, the loop is looked at between two of its steps for a few connectors at a time, and the broker gets what fits into a bounded buffer. The rest is dropped and
//     counted. What the broker was away for, or too slow, is written again after a pause; what it refused, with the next change of the same connector (I10).
//   - It may be lost, and hold anything: what can't be understood is left out. Of two leaders' records of one key the higher term's counts.
//   - What it keeps is what users see anyway: no configuration, no secret (I9).
//
// Read next: keeper.go, then record.go.
package history

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// Core is the loop that leads.
type Core interface {
	Submit(ctx context.Context, event state.Event) error
	View(ctx context.Context, look func(*state.State)) error
}

// Config of a History.
type Config struct {
	// Cluster gives the name of the topic.
	Cluster string
	// Settings make the clients that read and write.
	Settings *kafkaclient.Settings
	// Logger. Default: none.
	Logger hclog.Logger
}

// History is the topic as seen by one coordinator. It outlives leaderships.
type History struct {
	config Config
	topic  string
	log    hclog.Logger

	written, dropped atomic.Uint64

	// What tests make shorter.
	pause, deliver time.Duration
}

// New makes a History; it asks nobody for anything.
func New(config Config) *History {
	if config.Logger == nil {
		config.Logger = hclog.NewNullLogger()
	}
	return &History{config: config, topic: names.StatusTopic(config.Cluster), log: config.Logger, pause: pauseAfter, deliver: deliverWithin}
}

// Counts are the records that the broker took, and those that were dropped because it didn't.
func (h *History) Counts() (written, dropped uint64) { return h.written.Load(), h.dropped.Load() }

// Lead makes the Keeper of a leadership; its Run does the work.
func (h *History) Lead(core Core) *Keeper {
	return &Keeper{
		history: h, core: core, wake: make(chan struct{}, 1), changed: map[string]struct{}{}, known: map[string]map[string]uint64{},
	}
}

// Limits.
const (
	// pauseAfter is how long at least passes between two records of one connector; bytesPerSecond may make it longer.
	pauseAfter     = time.Second
	bytesPerSecond = 256 << 10
	// mostAtOnce is how many connectors are written in one go, lookAtOnce how many the loop is looked at for in one step of its.
	mostAtOnce = 500
	lookAtOnce = 50
	// mostBuffered bounds what waits for a broker, in records and in bytes, and deliverWithin how long.
	mostBuffered      = 2000
	mostBufferedBytes = 16 << 20
	deliverWithin     = 10 * time.Second
	// lastWrites is how long the end of a leadership waits for what is on its way: a coordinator that goes must not keep the next one waiting.
	lastWrites = 200 * time.Millisecond
	// mostRead is how many records are read, the newest. After an unlucky time without compaction there may be more, which are older ones of the same.
	mostRead = 50_000
	// readWithin bounds one try to read the topic, and readAgain is the time between tries.
	readWithin = 10 * time.Second
	readAgain  = 10 * time.Second
)
