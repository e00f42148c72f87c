package app

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/coordinator"
)

// maxShownBytes is how much of a key or value a line shows.
const maxShownBytes = 200

// viewer shows records as a read_committed reader sees them.
type viewer struct {
	client *kgo.Client
	out    io.Writer
	ends   chan chan map[string]int64

	mu    sync.Mutex // guards count and known
	count int
	known map[string]bool
}

func newViewer(out io.Writer, bootstrap string, kafka map[string]string) (*viewer, error) {
	client, err := coordinator.KafkaClient(bootstrap, kafka,
		kgo.ClientID("fencepost-dev-viewer"),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.KeepControlRecords(), // they are not shown; they tell how far the reader is
	)
	if err != nil {
		return nil, fail(exitUsage, "%w", err)
	}
	return &viewer{client: client, out: out, known: map[string]bool{}, ends: make(chan chan map[string]int64)}, nil
}

func (v *viewer) close() { v.client.Close() }

// show adds a topic, from its beginning.
func (v *viewer) show(topic string) { v.showAll([]string{topic}) }

func (v *viewer) showAll(topics []string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, topic := range topics {
		if !v.known[topic] {
			v.known[topic] = true
			v.client.AddConsumeTopics(topic)
		}
	}
}

func (v *viewer) total() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.count
}

// run prints until ctx is done.
func (v *viewer) run(ctx context.Context) error {
	read := map[string]int64{} // topic/partition → next offset
	fetched := make(chan kgo.Fetches)
	go func() {
		defer close(fetched)
		for ctx.Err() == nil {
			select {
			case fetched <- v.client.PollFetches(ctx):
			case <-ctx.Done():
			}
		}
	}()
	defer func() {
		for range fetched { // wait for the goroutine above
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case answer := <-v.ends:
			copied := make(map[string]int64, len(read))
			for key, offset := range read {
				copied[key] = offset
			}
			answer <- copied
		case fetches := <-fetched:
			v.print(fetches, read)
		}
	}
}

func (v *viewer) print(fetches kgo.Fetches, read map[string]int64) {
	fetches.EachRecord(func(r *kgo.Record) {
		read[partitionKey(r.Topic, r.Partition)] = r.Offset + 1
		if r.Attrs.IsControl() {
			return
		}
		v.mu.Lock()
		v.count++
		v.mu.Unlock()
		writeLine(v.out, fmt.Sprintf("%s[%d]@%d  %s → %s", r.Topic, r.Partition, r.Offset, shown(r.Key), shown(r.Value)))
	})
}

func partitionKey(topic string, partition int32) string {
	return fmt.Sprintf("%s/%d", topic, partition)
}

// shown makes one line of any bytes.
func shown(b []byte) string {
	if b == nil {
		return "null"
	}
	text, more := string(b), ""
	if len(b) > maxShownBytes {
		cut := maxShownBytes
		for cut > 0 && !utf8.RuneStart(b[cut]) {
			cut--
		}
		text, more = string(b[:cut]), fmt.Sprintf("… (%d bytes)", len(b))
	}
	if !utf8.ValidString(text) || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' && r != '\t' }) {
		return fmt.Sprintf("%q%s", text, more)
	}
	return text + more
}

// waitEnd waits until everything committed up to now is shown.
func (v *viewer) waitEnd(ctx context.Context) error {
	v.mu.Lock()
	var topics []string
	for topic := range v.known {
		topics = append(topics, topic)
	}
	v.mu.Unlock()
	if len(topics) == 0 {
		return nil
	}
	ends, err := kadm.NewClient(v.client).ListCommittedOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return fmt.Errorf("ask how far the topics go: %w", err)
	}
	return poll(ctx, func() (bool, error) {
		answer := make(chan map[string]int64, 1)
		select {
		case v.ends <- answer:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		read, missing := <-answer, false
		ends.Each(func(o kadm.ListedOffset) {
			missing = missing || read[partitionKey(o.Topic, o.Partition)] < o.Offset
		})
		return !missing, nil
	})
}
