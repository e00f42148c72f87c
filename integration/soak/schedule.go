package soak

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"time"
)

// Schedule is what is done to a world, and when: the whole of it follows from the seed, and it can be written down, read and repeated.
type Schedule struct {
	Seed         uint64        `json:"seed"`
	Brokers      int           `json:"brokers"`
	Coordinators int           `json:"coordinators"`
	Runners      int           `json:"runners"`
	Length       time.Duration `json:"length_ns"`
	Steps        []Step        `json:"steps"`
}

// Step is one fault.
type Step struct {
	// At is when, since the world began to deliver.
	At time.Duration `json:"at_ns"`
	// Kind is a name of the table of faults.
	Kind string `json:"kind"`
	// Target is a runner, a connector or a broker; "leader" is the coordinator that leads then, and "all brokers" everything.
	Target string `json:"target,omitempty"`
	// For is how long it lasts.
	For time.Duration `json:"for_ns,omitempty"`
	// Choice tells variants of a kind apart.
	Choice int `json:"choice,omitempty"`
}

// String is for people.
func (s Step) String() string {
	return fmt.Sprintf("%s %s for %s", s.Kind, s.Target, s.For.Round(10*time.Millisecond))
}

const (
	// leastGap and mostGap are between the beginnings of two faults: less than most faults last, so that they overlap.
	leastGap, mostGap = 3 * time.Second, 8 * time.Second
	// After each breath of faults comes one without new ones.
	breath, calm = 45 * time.Second, 8 * time.Second
	// lastWords is how long before the end no fault begins any more.
	lastWords = 12 * time.Second
)

// newSchedule draws a schedule. Kinds come in turn, each turn in another order, so that even a short run has most of them.
func newSchedule(cfg *Config) *Schedule {
	s := &Schedule{Seed: cfg.Seed, Brokers: cfg.Brokers, Coordinators: cfg.Coordinators, Runners: cfg.Runners, Length: cfg.Length}
	draw := &drawing{rand: rand.New(rand.NewPCG(cfg.Seed, 0)), cfg: cfg, busy: map[string]time.Duration{}} //nolint:gosec // it has to be repeatable
	for at := draw.between(time.Second, leastGap); at < cfg.Length-lastWords; at += draw.gap(at) {
		if step, ok := draw.step(at); ok {
			s.Steps = append(s.Steps, step)
		}
	}
	return s
}

// drawing is what a schedule is drawn with.
type drawing struct {
	rand *rand.Rand
	cfg  *Config
	turn []*kind
	// busy says until when a target is in a fault; "any" is the last of all.
	busy map[string]time.Duration
}

func (d *drawing) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.rand.Int64N(int64(most-least)+1))
}

func (d *drawing) gap(at time.Duration) time.Duration {
	gap := d.between(leastGap, mostGap)
	if (at+gap)/breath != at/breath {
		gap += calm
	}
	return gap
}

// step draws the next kind whose target is free; a kind that finds none waits for its turn.
func (d *drawing) step(at time.Duration) (Step, bool) {
	for range 2 * len(kinds) {
		if len(d.turn) == 0 {
			d.shuffle()
		}
		k := d.turn[0]
		d.turn = d.turn[1:]
		target, ok := d.target(k, at)
		if !ok {
			continue
		}
		step := Step{At: at, Kind: k.name, Target: target, For: d.between(k.least, k.most), Choice: d.rand.IntN(6)}
		until := at + step.For + recovery
		d.busy[target], d.busy["any"] = until, max(until, d.busy["any"])
		return step, true
	}
	return Step{}, false
}

// recovery is how long a target is left alone after a fault.
const recovery = 3 * time.Second

func (d *drawing) shuffle() {
	for i := range kinds {
		if kinds[i].fits(d.cfg) {
			d.turn = append(d.turn, &kinds[i])
		}
	}
	d.rand.Shuffle(len(d.turn), func(i, j int) { d.turn[i], d.turn[j] = d.turn[j], d.turn[i] })
}

// target draws one that is free. What strikes everything waits until nothing else goes on.
func (d *drawing) target(k *kind, at time.Duration) (string, bool) {
	if at < d.busy[everything] || k.scope == all && at < d.busy["any"] {
		return "", false
	}
	targets := slices.DeleteFunc(k.targets(d.cfg), func(t string) bool { return at < d.busy[t] })
	if len(targets) == 0 {
		return "", false
	}
	return targets[d.rand.IntN(len(targets))], true
}

// Save writes a schedule.
func (s *Schedule) Save(path string) error {
	text, err := json.MarshalIndent(s, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644) //nolint:gosec // it is for others
}

// LoadSchedule reads one.
func LoadSchedule(path string) (*Schedule, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	s := &Schedule{}
	if err := json.Unmarshal(text, s); err != nil {
		return nil, fmt.Errorf("schedule %s: %w", path, err)
	}
	for _, step := range s.Steps {
		if kindOf(step.Kind) == nil {
			return nil, fmt.Errorf("schedule %s: there is no kind of fault %q", path, step.Kind)
		}
	}
	return s, nil
}
