package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
)

const (
	// scrapeTimeout bounds the answer to one scrape, and mostScrapes how many there are at once: a scrape costs a look at the coordinator's loop.
	scrapeTimeout = 10 * time.Second
	mostScrapes   = 4
	// headerTimeout and mostHeaderBytes bound what a client may take of an endpoint that asks nobody who it is.
	headerTimeout   = 5 * time.Second
	mostHeaderBytes = 16 << 10
	// scrapeGrace is how long a scrape may go on when the program stops.
	scrapeGrace = time.Second
)

// metricsFlag is --metrics-listen.
type metricsFlag struct{ listen string }

func (f *metricsFlag) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.listen, "metrics-listen", "", "address HOST:PORT for Prometheus: /metrics, and /healthz (default: none)")
}

// open listens, so that an address that can't be had is known before anything runs. Without the flag it gives nil, which stands for no metrics.
func (f *metricsFlag) open() (*endpoint, error) {
	if f.listen == "" {
		return nil, nil //nolint:nilnil // a nil *endpoint is one that serves nothing
	}
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return nil, fail(exitUsage, "--metrics-listen: %w", err)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return &endpoint{listener: listener, registry: registry}, nil
}

// endpoint serves a process's metrics. Its methods may be called on nil.
type endpoint struct {
	listener net.Listener
	registry *prometheus.Registry
}

// registerer is where the parts of the process register their metrics; nil where there is no endpoint.
func (e *endpoint) registerer() prometheus.Registerer {
	if e == nil {
		return nil
	}
	return e.registry
}

// close gives the address up where the process never came to run.
func (e *endpoint) close() {
	if e != nil {
		_ = e.listener.Close()
	}
}

// beside serves for as long as run runs, and gives run's error.
func (e *endpoint) beside(ctx context.Context, logger hclog.Logger, run func(context.Context) error) error {
	if e == nil {
		return run(ctx)
	}
	logger.Info("metrics are served", "address", e.listener.Addr().String())
	serving, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return e.serve(serving) })
	group.Go(func() error {
		defer stop() // Last: how the parts end can still be seen.
		return run(ctx)
	})
	return group.Wait()
}

// serve serves until ctx ends.
func (e *endpoint) serve(ctx context.Context) error {
	server := &http.Server{Handler: e.handler(), ReadHeaderTimeout: headerTimeout, ReadTimeout: headerTimeout, WriteTimeout: 2 * scrapeTimeout, MaxHeaderBytes: mostHeaderBytes}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		if err := server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve metrics at %s: %w", e.listener.Addr(), err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		leave, cancel := context.WithTimeout(context.WithoutCancel(ctx), scrapeGrace)
		defer cancel()
		if server.Shutdown(leave) != nil {
			_ = server.Close() // What is left are connections that nobody reads.
		}
		return nil
	})
	return group.Wait()
}

func (e *endpoint) handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{
		// One broken metric must not hide the others; it is counted in promhttp_metric_handler_errors_total.
		ErrorHandling: promhttp.ContinueOnError, MaxRequestsInFlight: mostScrapes, Timeout: scrapeTimeout, Registry: e.registry,
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = io.WriteString(w, "ok\n")
	})
	return mux
}
