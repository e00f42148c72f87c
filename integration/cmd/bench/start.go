package main

import (
	"bytes"
	"os"
	"path/filepath"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/process"
)

// start is how long a user waits: until `dev` is ready, and until the quick start has shown everything and ended.
func (b *bench) start() {
	b.once(func() { b.timeDev() }) // reads the binaries once
	var ready, once []float64
	for range b.runs {
		b.once(func() { ready = append(ready, b.timeDev()) })
		b.once(func() { once = append(once, b.timeDev("--once")) })
	}
	b.results.add("dev_ready_s", "s", ready...)
	b.results.add("quickstart_once_s", "s", once...)
}

// timeDev starts the quick start, and waits until it has printed its addresses, or, with --once, until it has ended.
func (b *bench) timeDev(flags ...string) float64 {
	root, err := harness.Root()
	b.check(err)
	args := append([]string{"dev", "-f", "docs/examples/quickstart.yaml", "--plugin-path", b.binaries.Plugins}, flags...)
	log := filepath.Join(b.TempDir(), "dev.log")
	start := time.Now()
	p, err := process.Start(process.Spec{Name: "dev", Path: b.binaries.Fencepost, Args: args, Dir: root, Log: log})
	b.check(err)
	defer p.Kill()
	if len(flags) > 0 {
		code, err := p.Wait(b.Context())
		b.check(err)
		took := time.Since(start)
		if code != 0 {
			b.Fatalf("dev --once: exit code %d\n%s", code, p.Tail(20))
		}
		return took.Seconds()
	}
	for ready := false; !ready; {
		b.sleep(5 * time.Millisecond)
		text, err := os.ReadFile(log)
		b.check(err)
		ready = bytes.Contains(text, []byte("\ncoordinator"))
		if took := time.Since(start); took > time.Minute || !ready && !p.Running() {
			b.Fatalf("dev is not ready after %s:\n%s", took, p.Tail(20))
		}
	}
	took := time.Since(start)
	b.check(p.Stop(b.Context()))
	return took.Seconds()
}
