package fence

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/errgroup"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

const (
	// watchEvery is the time between two looks at everything; each waits a quarter less or more.
	watchEvery = 30 * time.Second
	// brokersEvery is how often it is asked which brokers are there. A broker that comes back is when a hang begins.
	brokersEvery = 2 * time.Second
	// returned is how long a broker that came back is given: its partitions get their leaders, and transactions their markers.
	returned = time.Second
	// watchTopics is how many topics are asked for in one request, and watchParallel how many names are looked at more closely at once.
	watchTopics, watchParallel = 200, 4
)

// WatchConfig of a Watcher.
type WatchConfig struct {
	Fencer *Fencer
	// Targets has what to look at.
	Targets func(context.Context) ([]state.Watch, error)
	// Submit takes what was found.
	Submit func(context.Context, state.Event) error
	// Every is the time between two looks. Default 30 s.
	Every time.Duration
}

// Watcher looks at everything that ids of the cluster have written, every so often, and soon after a broker came back: also at what no task runs for any more. Where nothing lags it costs two small requests a broker. It heals
// nothing and takes nothing back: the State decides that.
type Watcher struct {
	config WatchConfig
	admin  *kadm.Client
}

// NewWatcher makes a Watcher; Run starts it.
func NewWatcher(config WatchConfig) *Watcher {
	config.Every = cmp.Or(config.Every, watchEvery)
	return &Watcher{config: config, admin: kadm.NewClient(config.Fencer.direct.Client())}
}

// Run looks until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	brokers := time.NewTicker(min(brokersEvery, w.config.Every))
	defer brokers.Stop()
	due := time.NewTimer(w.next())
	defer due.Stop()
	seen := presence{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-brokers.C:
			if seen.cameBack(w.present(ctx)) {
				due.Reset(returned)
			}
		case <-due.C:
			w.look(ctx)
			due.Reset(w.next())
		}
	}
}

// next is when to look next: not at one moment in all clusters.
func (w *Watcher) next() time.Duration {
	return w.config.Every*3/4 + rand.N(w.config.Every/2) //nolint:gosec // no secret
}

// present has the brokers that are there; none where nobody answers.
func (w *Watcher) present(ctx context.Context) []int32 {
	ctx, cancel := context.WithTimeout(ctx, brokersEvery)
	defer cancel()
	brokers, err := w.admin.ListBrokers(ctx)
	if err != nil {
		return nil
	}
	return brokers.NodeIDs()
}

// presence tells which brokers were there last.
type presence struct {
	known []int32
	away  bool // somebody was missing
}

// cameBack says that a broker is there that wasn't, with the first answer left out.
func (p *presence) cameBack(now []int32) bool {
	back := false
	for _, node := range now {
		if p.known != nil && !slices.Contains(p.known, node) {
			back = true
		}
	}
	if now == nil {
		p.away = true
		return false
	}
	back = back || p.away
	p.known, p.away = now, false
	return back
}

// look looks once. What can't be asked now is asked the next time.
func (w *Watcher) look(ctx context.Context) {
	targets, err := w.config.Targets(ctx)
	if err != nil {
		return // the leadership is over
	}
	behind := w.behind(ctx, targets)
	var group errgroup.Group
	group.SetLimit(watchParallel)
	for _, target := range targets {
		var topics []string
		for _, topic := range target.Topics {
			if behind[topic] {
				topics = append(topics, topic)
			}
		}
		if len(topics) == 0 {
			continue
		}
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(ctx, lookBudget)
			defer cancel()
			hanging, err := w.config.Fencer.Look(ctx, topics, target.IDs, target.Producers)
			if err != nil && !ended(ctx) {
				w.config.Fencer.log.Debug("not looked everywhere", "connector", target.Connector, "error", err)
			}
			if len(hanging) > 0 {
				_ = w.config.Submit(ctx, state.Found{Connector: target.Connector, Hanging: hanging}) // an error is the end of the leadership
			}
			return nil
		})
	}
	_ = group.Wait() // none fails
}

// behind has the topics with a partition whose last stable offset is behind, of all targets together.
func (w *Watcher) behind(ctx context.Context, targets []state.Watch) map[string]bool {
	var topics []string
	for _, target := range targets {
		topics = append(topics, target.Topics...)
	}
	slices.Sort(topics)
	behind := map[string]bool{}
	for chunk := range slices.Chunk(slices.Compact(topics), watchTopics) {
		ctx, cancel := context.WithTimeout(ctx, lookBudget)
		lagging, err := w.config.Fencer.lagging(ctx, chunk)
		cancel()
		if err != nil && !ended(ctx) {
			w.config.Fencer.log.Debug("not looked everywhere", "topics", len(chunk), "error", err)
		}
		for topic := range lagging {
			behind[topic] = true
		}
	}
	return behind
}
