// Command kafka is behind `make kafka`: it fetches Apache Kafka, or runs one broker in the foreground.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/fencepost-io/fencepost/integration/kafka"
)

func main() {
	fetch := flag.String("fetch", "", "put Kafka's jars into this `folder`, and end")
	port := flag.Int("port", 9092, "the listener's port")
	data := flag.String("data", "bin/kafka-data", "the `folder` of data, configuration and log")
	topics := flag.String("topics", "", "topics to create, `a,b`, each with six partitions")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *fetch != "" {
		err = kafka.Fetch(ctx, *fetch)
	} else {
		err = serve(ctx, *port, *data, *topics)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, port int, data, topics string) error {
	dir, err := filepath.Abs(data)
	if err != nil {
		return err
	}
	broker, err := kafka.Start(ctx, kafka.Options{Dir: dir, Port: port, Heap: "1g"})
	if err != nil {
		return err
	}
	if err := create(ctx, broker, topics); err != nil {
		return errors.Join(err, broker.Stop(context.WithoutCancel(ctx)))
	}
	fmt.Printf("Apache Kafka answers on %s\ndata and log: %s\nCtrl-C stops it\n", broker.Addr, dir)
	select {
	case <-ctx.Done():
	case <-broker.Process().Exited():
		return fmt.Errorf("the broker ended; its log ends with:\n%s", broker.Process().Tail(20))
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
	defer cancel()
	return broker.Stop(ctx)
}

// create makes the topics that aren't there yet.
func create(ctx context.Context, broker *kafka.Broker, topics string) error {
	names := strings.FieldsFunc(topics, func(r rune) bool { return r == ',' || r == ' ' })
	if len(names) == 0 {
		return nil
	}
	admin, err := broker.Admin()
	if err != nil {
		return err
	}
	defer admin.Close()
	results, err := admin.CreateTopics(ctx, 6, 1, nil, names...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Err != nil && !errors.Is(r.Err, kerr.TopicAlreadyExists) {
			return fmt.Errorf("create topic %s: %w", r.Topic, r.Err)
		}
	}
	return nil
}
