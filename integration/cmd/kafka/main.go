// Command kafka is behind `make kafka`: it fetches Apache Kafka, or runs one broker in the foreground.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/kafka"
)

func main() {
	fetch := flag.String("fetch", "", "put Kafka's jars into this `folder`, and end")
	port := flag.Int("port", 9092, "the listener's port")
	data := flag.String("data", "bin/kafka-data", "the `folder` of data, configuration and log")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if *fetch != "" {
		err = kafka.Fetch(ctx, *fetch)
	} else {
		err = serve(ctx, *port, *data)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func serve(ctx context.Context, port int, data string) error {
	dir, err := filepath.Abs(data)
	if err != nil {
		return err
	}
	broker, err := kafka.Start(ctx, kafka.Options{Dir: dir, Port: port, Heap: "1g"})
	if err != nil {
		return err
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
