package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
	"github.com/fencepost-io/fencepost/integration/puppet"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

const (
	// fencedIDs is the size of a round, listed how many connectors a coordinator has, created how many are created.
	fencedIDs = 1000
	listed    = 1000
	created   = 200
)

// waitLines waits until a file has so many lines.
func waitLines(b *bench, path string, n int) {
	harness.Wait(b, scene.Patience, fmt.Sprintf("%d lines in %s", n, path), func(context.Context) error {
		text, err := os.ReadFile(path)
		if err == nil && strings.Count(string(text), "\n") < n {
			err = fmt.Errorf("%d", strings.Count(string(text), "\n"))
		}
		return err
	})
}

// fence is a fencing round over 1,000 ids that exist: from when the last task of the old generation was given back until the first of the new one is granted, and what the coordinator needs of a processor for it.
// The tasks are those of a runner that runs nothing, so that nothing else costs.
func (b *bench) fence() {
	bed := harness.NewWith(b, "bench-fence", b.broker.Addr, b.binaries)
	r := &roundWatch{pid: bed.StartCoordinator().PID(), over: make(chan roundCost, 1)}
	p, err := puppet.Start(b.Context(), puppet.Config{Name: "puppet", Coordinator: bed.Coordinator, Ended: r.begin, Granted: r.end})
	b.check(err)
	b.Cleanup(p.Stop)
	config := map[string]string{"connector.class": puppet.Class, "tasks.max": strconv.Itoa(fencedIDs)}
	bed.Create("many", config)
	var took, cpu []float64
	for n := range 1 + b.runs {
		harness.Wait(b, scene.Patience, "all tasks are granted", func(context.Context) error {
			held, err := p.Held()
			if err == nil && held < fencedIDs {
				err = fmt.Errorf("%d are", held)
			}
			return err
		})
		config["n"] = strconv.Itoa(n)
		bed.MustCLI("apply", "-f", bed.ConnectorFile("many", config))
		cost := r.wait(b)
		if n > 0 { // The first round made the ids.
			took, cpu = append(took, cost.took.Seconds()), append(cpu, cost.cpu.Seconds())
		}
	}
	b.results.add("fence_1000_s", "s", took...)
	b.results.add("fence_1000_cpu_s", "s", cpu...)
}

// roundWatch measures fencing rounds from outside, in the puppet's one goroutine.
type roundWatch struct {
	pid    int
	begun  time.Time
	before time.Duration
	over   chan roundCost
}

type roundCost struct {
	took, cpu time.Duration
	err       error
}

func (r *roundWatch) wait(b *bench) roundCost {
	select {
	case cost := <-r.over:
		b.check(cost.err)
		return cost
	case <-time.After(scene.Patience):
		b.Fatalf("the fencing round isn't over after %s", scene.Patience)
	}
	return roundCost{}
}

// begin notes that nobody holds a task any more.
func (r *roundWatch) begin() {
	var err error
	if r.before, err = process.CPU(r.pid); err == nil {
		r.begun = time.Now()
	}
}

// end notes that a task was granted. The first of all comes without a beginning.
func (r *roundWatch) end() {
	if r.begun.IsZero() {
		return
	}
	took := time.Since(r.begun)
	used, err := process.CPU(r.pid)
	r.begun = time.Time{}
	r.over <- roundCost{took: took, cpu: used - r.before, err: err}
}

// control is what the control plane costs: 1,000 connectors of a runner that runs nothing.
func (b *bench) control() {
	bed := harness.NewWith(b, "bench-control", b.broker.Addr, b.binaries)
	pid := bed.StartCoordinator().PID()
	p, err := puppet.Start(b.Context(), puppet.Config{Name: "puppet", Coordinator: bed.Coordinator})
	b.check(err)
	b.Cleanup(p.Stop)
	client := bed.Control()
	create := func(from, to int) {
		for n := from; n < to; n++ {
			_, err := client.CreateConnector(b.Context(), &controlv1.CreateConnectorRequest{Name: fmt.Sprintf("c%04d", n), Config: map[string]string{"connector.class": puppet.Class}})
			b.check(err)
		}
		harness.Wait(b, scene.Patience, "all connectors run", func(context.Context) error {
			n, err := p.Held()
			if err == nil && n < to {
				err = fmt.Errorf("%d do", n)
			}
			return err
		})
	}
	begun := time.Now()
	create(0, created)
	b.results.add("create_200_s", "s", time.Since(begun).Seconds())
	create(created, listed)
	var took []float64
	for range 10 {
		begun := time.Now()
		list, err := client.ListConnectors(b.Context(), &controlv1.ListConnectorsRequest{})
		b.check(err)
		took = append(took, float64(time.Since(begun).Microseconds())/1000)
		if n := len(list.GetConnectors()); n != listed {
			b.Fatalf("%d connectors are listed, want %d", n, listed)
		}
	}
	b.results.add("list_1000_ms", "ms", took...)
	b.sleep(settle)
	rss, err := process.RSS(pid)
	b.check(err)
	b.results.add("coordinator_rss_mb_1000", "MB", float64(rss)/1e6)
}
