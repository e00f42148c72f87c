package task

import (
	"context"
	"errors"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/time/rate"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
	"github.com/fencepost-io/fencepost/runner/internal/publish"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// Config is what one attempt needs. Fields are required unless they say otherwise.
type Config struct {
	// Lease is the right to run the task.
	Lease lease.Lease
	// Cluster is the cluster's name: topics that are Fencepost's own are no target for records.
	Cluster string
	// Settings are the connector's, checked.
	Settings *settings.Settings
	// Open is what the plugin is opened with. Run fills in Limits, Boundary and Stored.
	Open source.RunOpen
	// Plugin reads the source.
	Plugin source.Plugin
	// Coordinator is asked during the start, and before a new topic or partition is written.
	Coordinator Coordinator
	// NewPublisher makes the attempt's one producer; Run closes it.
	NewPublisher func() (Publisher, error)
	// OffsetsTopic is the name of the topic that OpenOffsets reads.
	OffsetsTopic string
	// OpenOffsets makes sure that the offsets topic exists and reads what is stored, up to the high watermark. It also gives the topic's id.
	OpenOffsets func(ctx context.Context) (Offsets, string, error)
	// Status is called from one goroutine: soon after a change of Phase, Waiting, Notices or CaughtUp, and at most once a second for the rest. It must not block. Optional.
	Status func(Status)
	// Drain asks for the end when it is closed: what was received is committed first.
	Drain <-chan struct{}
	// DrainTimeout is how long the plugin may take to answer a drain; 0 is 30 s.
	DrainTimeout time.Duration
	// Shrink halves the limits of a transaction so many times. (After one that expired, the next attempt has one more.)
	Shrink int
	// CommitBudget is shared by the tasks of a runner: quiet ones wait for it, 50 ms at most. nil is no budget.
	CommitBudget *rate.Limiter
	// Logger gets the attempt's log; nil discards it.
	Logger hclog.Logger
}

// Coordinator is what an attempt asks the leader. Each call waits for an answer, or for ctx. Errors: one that wraps lease.ErrRefused stops the task, a *lease.PermanentError fails it, any other
// may go away.
type Coordinator interface {
	// PrepareStart fences the task's id, before each initialisation.
	PrepareStart(ctx context.Context, l lease.Lease) error
	// Valid says from memory whether the lease is still held. It proves nothing; it saves a useless start.
	Valid(l lease.Lease) bool
	// Trust says until when the lease may be trusted, and how long a renewal lasts. The zero time is a lease that isn't held.
	Trust(l lease.Lease) (until time.Time, ttl time.Duration)
	// Confirm asks whether the lease still holds, after the initialisation returned.
	Confirm(ctx context.Context, l lease.Lease) error
	// Look looks for hanging transactions of the connector's own ids.
	Look(ctx context.Context, l lease.Lease) error
	// RecordTopics notes topics before the first record goes there.
	RecordTopics(ctx context.Context, l lease.Lease, topics []string, offsetsTopic, offsetsTopicID string) error
	// ClaimPartitions claims partitions, in canonical form, for a task whose claim is unknown.
	ClaimPartitions(ctx context.Context, l lease.Lease, partitions [][]byte) error
}

// Publisher is what an attempt needs of a producer; *publish.Producer is one. One goroutine calls it at a time.
type Publisher interface {
	Init(ctx context.Context) error
	Begin() error
	Produce(ctx context.Context, b *source.Batch, topics []string) error
	Commit(ctx context.Context) error
	Abort(ctx context.Context) error
	Close(ctx context.Context) error
	Topics(ctx context.Context, names []string) (map[string]publish.TopicInfo, error)
	// BrokerLost says whether a connection to a broker was lost since it was last asked.
	BrokerLost() bool
	// Reaches says whether any broker answers. It may be called beside the others, but for Close.
	Reaches(within time.Duration) bool
}

// Offsets is what an attempt needs of stored offsets. Run never calls two methods at once.
type Offsets interface {
	// Stored returns the committed offset of a partition in canonical form.
	Stored(canonical []byte) (source.PartitionOffset, bool)
	// All returns every committed offset.
	All() []source.PartitionOffset
	// Stage makes the records that store these offsets. Stored still answers the committed ones.
	Stage(offsets []source.PartitionOffset) (*source.Batch, []string, error)
	// Applied says that what was staged is committed.
	Applied()
	// Proof makes records that change nothing, whoever reads them. To commit them asks the broker whether the producer still owns its id.
	Proof(task uint32) (*source.Batch, []string)
}

// Limits of an attempt (I10).
const (
	// windowBytes is how many bytes of batches may have been sent and not yet been produced.
	windowBytes = 16 << 20
	// maxUncommittedRecords is how many records may have been sent and not yet been committed, unless a transaction that can't be cut needs more.
	maxUncommittedRecords = 200_000
	// maxWaiting is how many messages may wait between the plugin and the producer: those that cost no credit have to be bounded as well.
	maxWaiting = 1 << 18
	// maxOpenBytes is how large a transaction may grow that the plugin doesn't end: librdkafka holds it in memory.
	maxOpenBytes = 512 << 20
	// maxMetrics, maxNotices and maxNoticeBytes bound what the plugin has to say to people.
	maxMetrics     = 1_000
	maxNotices     = 20
	maxNoticeBytes = 500
	// maxLookup is how many partitions one look-up may name.
	maxLookup = 10_000

	// initTimeout bounds one try to initialise the producer; the next one begins with the coordinator again.
	initTimeout = 30 * time.Second
	// startTimeout bounds all of them together, and each other step of the start.
	startTimeout = 2 * time.Minute
	// retryPause is the time between two tries of one call.
	retryPause = 250 * time.Millisecond
	// topicsTimeout bounds a question for topics.
	topicsTimeout = 30 * time.Second
	// drainTimeout is what Config.DrainTimeout is where it is 0.
	drainTimeout = 30 * time.Second
	// stopTimeout is how long a plugin may take to end its stream after Stop, as the protocol says, and cancelTimeout after its context is done.
	stopTimeout   = 10 * time.Second
	cancelTimeout = 5 * time.Second
	// abortTimeout and closeTimeout bound the end of the producer.
	abortTimeout = 5 * time.Second
	closeTimeout = 10 * time.Second
)

// check fills in defaults.
func (c *Config) check() error {
	if c.Settings == nil || c.Plugin == nil || c.Coordinator == nil || c.NewPublisher == nil || c.OpenOffsets == nil || c.Drain == nil {
		return errors.New("task: Config is incomplete")
	}
	if c.DrainTimeout <= 0 {
		c.DrainTimeout = drainTimeout
	}
	if c.Logger == nil {
		c.Logger = hclog.NewNullLogger()
	}
	if c.Status == nil {
		c.Status = func(Status) {}
	}
	return nil
}
