// Package fence makes transactional ids unable to commit for whoever holds them, and finds and ends transactions that Kafka left hanging.
//
// Taking an id (Fencer.Take) is: note its last decision by DescribeTransactions, send a bare InitProducerId (producer id and epoch -1), and begin again with the note unless the broker answered `ok`. Only `ok`
// means that nobody else can commit under the id: CONCURRENT_TRANSACTIONS may have fenced nobody. Each attempt is one request on the wire, never repeated by the client, and each is preceded by a note of
// its own (I3): a decision seen before an earlier attempt may be older than the transaction which that attempt ended.
//
// Desk does this for the coordinator's loop: rounds over many ids in parallel (I2), single ids before a start (I3), looks at partitions, and heals. What can be retried is retried until it is done or not
// wanted any more, so a round is never failed by a busy broker; a missing right is an answer for people. It keeps nothing across leaders.
//
// A hanging transaction is ended only in the direction that is proven (prove.go), by a marker or, where the right for that is missing, by an empty transaction of the id whose note is in the config log before it begins (heal.go,
// healing.go). The broker never objects to the wrong direction, which deletes what was committed or publishes what was aborted: what isn't proven is left, and named.
//
// Read next: take.go, then classify.go, which says what each error means, then look.go, prove.go and healing.go. watch.go looks every so often.
package fence

import (
	"cmp"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/sync/semaphore"

	"github.com/fencepost-io/fencepost/coordinator/internal/kafkaclient"
)

// Config of a Fencer.
type Config struct {
	// Direct sends the requests.
	Direct *kafkaclient.Direct
	// Parallel is how many attempts are under way at once. Default 64: more only wait in the broker, which takes one request of a connection at a time.
	Parallel int
	// TransactionTimeout is what each initialisation tells the broker; it must not be above the broker's transaction.max.timeout.ms. It is in force until the runner initialises the id with its own.
	// Default 60 s.
	TransactionTimeout time.Duration
	// Warn is how long an id is tried before a log line says why it takes so long, and between such lines. Default 5 s.
	Warn time.Duration
	// Logger gets those lines. Default: none.
	Logger hclog.Logger
}

// Fencer takes transactional ids. It is safe for concurrent use.
type Fencer struct {
	direct  *kafkaclient.Direct
	slots   *semaphore.Weighted
	timeout time.Duration
	warn    time.Duration
	log     hclog.Logger
}

// New makes a Fencer.
func New(config Config) *Fencer {
	log := config.Logger
	if log == nil {
		log = hclog.NewNullLogger()
	}
	return &Fencer{
		direct: config.Direct, slots: semaphore.NewWeighted(int64(cmp.Or(config.Parallel, 64))),
		timeout: cmp.Or(config.TransactionTimeout, time.Minute), warn: cmp.Or(config.Warn, 5*time.Second), log: log,
	}
}
