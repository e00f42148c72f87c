package soak

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// canary tells a world that is stuck from a Kafka that is away, as it is while its brokers die, or starve on a busy machine: it commits a small transaction over and over, by another client, past the
// runners' networks. Nobody can deliver while it can't.
type canary struct {
	sang atomic.Int64 // when it last could, in Unix milliseconds
}

const (
	canaryTopic      = "canary"
	canaryPartitions = 6
	// singEvery is between two of its transactions, singWithin how long one may take.
	singEvery, singWithin = 500 * time.Millisecond, 3 * time.Second
)

// sings says whether Kafka took a transaction a moment ago.
func (c *canary) sings() bool {
	return time.Since(time.UnixMilli(c.sang.Load())) < singEvery+singWithin
}

// run sings until the context ends.
func (c *canary) run(ctx context.Context, brokers []string) {
	tick := time.NewTicker(singEvery)
	defer tick.Stop()
	var client *kgo.Client
	defer func() {
		if client != nil {
			client.Close()
		}
	}()
	for {
		if client == nil {
			client, _ = kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.TransactionalID(canaryTopic), kgo.RecordPartitioner(kgo.ManualPartitioner())) // its options are right
		}
		singing, cancel := context.WithTimeout(ctx, singWithin)
		if sing(singing, client) == nil {
			c.sang.Store(time.Now().UnixMilli())
		} else {
			client.CloseAllowingRebalance()
			client = nil // a new one has no transaction that went wrong
		}
		cancel()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// sing is one transaction, with a record for each partition, and so for each broker.
func sing(ctx context.Context, client *kgo.Client) error {
	if err := client.BeginTransaction(); err != nil {
		return err
	}
	var records []*kgo.Record
	for i := range int32(canaryPartitions) {
		records = append(records, &kgo.Record{Topic: canaryTopic, Partition: i, Value: []byte("tweet")})
	}
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		return err
	}
	return client.EndTransaction(ctx, kgo.TryCommit)
}

// patience polls until the answer is nil. Only time in which the canary sings counts; there is an end to everything, though.
func (c *canary) patience(ctx context.Context, within time.Duration, ask func(context.Context) error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	end := time.Now().Add(10 * within)
	for spent := time.Duration(0); ; {
		err := ask(ctx)
		if err == nil || spent >= within || time.Now().After(end) {
			return err
		}
		select {
		case <-tick.C:
			if c.sings() {
				spent += pollEvery
			}
		case <-ctx.Done():
			return err
		}
	}
}

const pollEvery = 50 * time.Millisecond
