package soak

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/fencepost-io/fencepost/integration/process"
)

// usage samples the memory and the threads of coordinators and runners.
type usage struct {
	mu    sync.Mutex
	lives []*life
}

// life is one process's.
type life struct {
	name    string
	pid     int
	samples []sample
}

type sample struct {
	at      time.Time
	bytes   int64 // proportional set size
	threads int
}

const (
	sampleEvery = 2 * time.Second
	// settled is how long a process is left alone before its growth is measured, and lasting the least time to measure it in.
	settled, lasting = 30 * time.Second, 90 * time.Second
	// Gross growth is a fault: that much in a life beside the half of what it was. So are that many threads.
	mostGrowth  = 150 << 20
	mostThreads = 500
)

// watch samples until the context ends.
func (u *usage) watch(ctx context.Context, members []*member) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	current := map[string]*life{}
	for {
		for _, m := range members {
			u.sample(m, current)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (u *usage) sample(m *member, current map[string]*life) {
	p := m.now()
	if p == nil || !p.Running() {
		return
	}
	bytes, err := proportional(p.PID())
	if err != nil {
		return // it has just ended
	}
	threads, err := process.Threads(p.PID())
	if err != nil {
		return
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	l := current[m.name]
	if l == nil || l.pid != p.PID() {
		l = &life{name: m.name, pid: p.PID()}
		current[m.name] = l
		u.lives = append(u.lives, l)
	}
	l.samples = append(l.samples, sample{time.Now(), bytes, threads})
}

// proportional is a process's PSS: its own memory, and its share of what it has in common with others.
func proportional(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, "Pss:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("smaps_rollup of %d has no Pss", pid)
}

// growth is what became of a life: sizes at its beginning and end (means of a third each), and how fast it grew between.
type growth struct {
	name               string
	length             time.Duration
	first, last, peak  int64
	threads, mostAtOne int
}

// perMinute is how much it grew a minute.
func (g *growth) perMinute() float64 {
	// From the middle of the first third to the middle of the last one.
	return float64(g.last-g.first) / (g.length.Minutes() * 2 / 3)
}

func (g *growth) String() string {
	return fmt.Sprintf("%s for %s: PSS %.0f MiB to %.0f MiB (%+.1f MiB a minute, at most %.0f MiB), threads %d, at most %d", g.name, g.length.Round(time.Second),
		mib(g.first), mib(g.last), g.perMinute()/(1<<20), mib(g.peak), g.threads, g.mostAtOne)
}

func mib(n int64) float64 { return float64(n) / (1 << 20) }

// growths are those of the lives that lasted.
func (u *usage) growths() []*growth {
	u.mu.Lock()
	defer u.mu.Unlock()
	var all []*growth
	for _, l := range u.lives {
		if g := l.growth(); g != nil {
			all = append(all, g)
		}
	}
	return all
}

func (l *life) growth() *growth {
	var s []sample
	for _, one := range l.samples {
		if one.at.Sub(l.samples[0].at) >= settled {
			s = append(s, one)
		}
	}
	if len(s) < 3 || s[len(s)-1].at.Sub(s[0].at) < lasting {
		return nil
	}
	g := &growth{name: l.name, length: s[len(s)-1].at.Sub(s[0].at), threads: s[len(s)-1].threads}
	third := len(s) / 3
	for i, one := range s {
		if i < third {
			g.first += one.bytes / int64(third)
		}
		if i >= len(s)-third {
			g.last += one.bytes / int64(third)
		}
		g.peak, g.mostAtOne = max(g.peak, one.bytes), max(g.mostAtOne, one.threads)
	}
	return g
}

// gross says whether that is a leak, and not the noise of a run.
func (g *growth) gross() bool {
	return g.last-g.first > mostGrowth+g.first/2 || g.mostAtOne > mostThreads
}
