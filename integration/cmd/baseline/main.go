// Command baseline is what a runner's processor time is compared with: a Go program with the runner's client settings, delivery reports off, an 8-byte key, one Produce a record and nothing
// else. It prints one JSON object with what it used.
package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/confluentinc/confluent-kafka-go/v2/kafka"
)

// Result is what the program prints.
type Result struct {
	Records    int     `json:"records"`
	Seconds    float64 `json:"seconds"`
	CPUSeconds float64 `json:"cpu_seconds"`
}

type options struct {
	bootstrap, topic     string
	records, size, inTxn int
	warmUp               int
	rate                 float64
	timestampsAndHeaders bool
	settings             settings
}

// settings collects -set KEY=VALUE.
type settings map[string]string

func (s settings) String() string { return fmt.Sprint(map[string]string(s)) }

// Set takes one KEY=VALUE.
func (s settings) Set(pair string) error {
	key, value, ok := strings.Cut(pair, "=")
	if !ok {
		return fmt.Errorf("%q is not KEY=VALUE", pair)
	}
	s[key] = value
	return nil
}

func main() {
	o := options{settings: settings{}}
	flag.StringVar(&o.bootstrap, "bootstrap-servers", "127.0.0.1:9092", "the broker")
	flag.StringVar(&o.topic, "topic", "baseline", "the topic")
	flag.IntVar(&o.records, "records", 1_000_000, "how many records")
	flag.IntVar(&o.size, "size", 100, "bytes of a record's value")
	flag.IntVar(&o.inTxn, "transaction-records", 50_000, "how many records a transaction has")
	flag.IntVar(&o.warmUp, "warm-up", 0, "how many records are written first, in one transaction, and not measured")
	flag.Float64Var(&o.rate, "rate", 0, "records a second, with the time at which a record is due as its timestamp, also where the commit before it was late; 0 is as fast as possible")
	flag.BoolVar(&o.timestampsAndHeaders, "full", false, "a timestamp and two headers on each record")
	flag.Var(o.settings, "set", "a `KEY=VALUE` of librdkafka; may repeat")
	flag.Parse()

	result, err := run(context.Background(), o)
	if err == nil {
		err = json.NewEncoder(os.Stdout).Encode(result)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "baseline:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) (*Result, error) {
	config := kafka.ConfigMap{
		"bootstrap.servers":       o.bootstrap,
		"transactional.id":        "baseline." + o.topic,
		"go.delivery.reports":     false,
		"go.events.channel.size":  16,
		"go.produce.channel.size": 16,
	}
	for key, value := range o.settings {
		config[key] = value
	}
	producer, err := kafka.NewProducer(&config)
	if err != nil {
		return nil, err
	}
	defer producer.Close()
	if err := producer.InitTransactions(ctx); err != nil {
		return nil, fmt.Errorf("initialise: %w", err)
	}
	if o.warmUp > 0 {
		first := o
		first.records, first.inTxn = o.warmUp, o.warmUp
		if err := produce(ctx, producer, first); err != nil {
			return nil, err
		}
	}
	before, start := used(), time.Now()
	if err := produce(ctx, producer, o); err != nil {
		return nil, err
	}
	return &Result{Records: o.records, Seconds: time.Since(start).Seconds(), CPUSeconds: (used() - before).Seconds()}, nil
}

func produce(ctx context.Context, producer *kafka.Producer, o options) error {
	value := make([]byte, o.size)
	to := kafka.TopicPartition{Topic: &o.topic, Partition: kafka.PartitionAny}
	start := time.Now()
	for n := 0; n < o.records; {
		var due time.Time
		if o.rate > 0 {
			due = start.Add(time.Duration(float64(n) / o.rate * float64(time.Second)))
			<-time.After(time.Until(due))
		}
		if err := producer.BeginTransaction(); err != nil {
			return fmt.Errorf("begin: %w", err)
		}
		for end := min(n+o.inTxn, o.records); n < end; n++ {
			m := kafka.Message{TopicPartition: to, Key: binary.BigEndian.AppendUint64(nil, uint64(n)), Value: value}
			if o.rate > 0 {
				m.Timestamp = due
			}
			if o.timestampsAndHeaders {
				m.Timestamp = time.UnixMilli(1_700_000_000_000 + int64(n))
				m.Headers = []kafka.Header{{Key: "source", Value: []byte("generator")}, {Key: "format", Value: []byte("bytes")}}
			}
			if err := send(producer, &m); err != nil {
				return err
			}
		}
		if err := commit(ctx, producer); err != nil {
			return err
		}
	}
	return nil
}

// send produces a record; while the queue is full it waits.
func send(producer *kafka.Producer, m *kafka.Message) error {
	for {
		err := producer.Produce(m, nil)
		var failed kafka.Error
		if errors.As(err, &failed) && failed.Code() == kafka.ErrQueueFull {
			producer.Flush(20)
			continue
		}
		if err != nil {
			return fmt.Errorf("produce: %w", err)
		}
		return nil
	}
}

func commit(ctx context.Context, producer *kafka.Producer) error {
	for {
		err := producer.CommitTransaction(ctx)
		var failed kafka.Error
		if errors.As(err, &failed) && failed.IsRetriable() {
			continue
		}
		if err != nil {
			return fmt.Errorf("commit: %w", err)
		}
		return nil
	}
}

// used is the processor time of this process so far.
func used() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
