package state

import (
	"fmt"
	"slices"
	"strings"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

// A cluster level says what every coordinator and runner of a cluster understands: records of the log, and messages between them. A version can work at a range of levels, at least its own and the one before, so that
// versions N and N−1 work together in any order of restart; what only N knows is switched on by raising the level, once everybody can. It is never lowered: what was written since may mean nothing to an older version.

// LevelMin and LevelMax are the levels that this version can lead at.
const (
	LevelMin uint32 = 1
	LevelMax uint32 = 1
)

// levelBrings says what each level switches on, for people.
var levelBrings = map[uint32]string{
	1: "the first level: everything that this version can do",
}

// Level is a level and what it switches on.
type Level struct {
	Number uint32
	Brings string
}

// Levels has the levels from one up to another.
func Levels(from, to uint32) []Level {
	var levels []Level
	for n := from; n <= to; n++ {
		brings, known := levelBrings[n]
		if !known {
			brings = "not known to this version"
		}
		levels = append(levels, Level{n, brings})
	}
	return levels
}

// Coordinator is a coordinator that takes part in the election.
type Coordinator struct {
	// Address is what it advertises, and ID tells its process from every other; both are empty where it is of a version that doesn't say.
	Address, ID string
	// Version and Host are for people.
	Version, Host string
	// LevelMin and LevelMax are the levels that it can lead at; 0 where it doesn't say.
	LevelMin, LevelMax uint32
}

func (c Coordinator) can(level uint32) bool { return c.LevelMin <= level && level <= c.LevelMax }

func (c Coordinator) String() string {
	if c.LevelMax == 0 {
		return fmt.Sprintf("the coordinator on host %s (of a version that doesn't say what it can)", c.Host)
	}
	return fmt.Sprintf("the coordinator at %s (version %s, levels %d to %d)", c.Address, c.Version, c.LevelMin, c.LevelMax)
}

// RunnerLevels is what a connected runner can work at.
type RunnerLevels struct {
	Name, Version      string
	LevelMin, LevelMax uint32
}

// RunnerLevels has the connected runners by name.
func (s *State) RunnerLevels() []RunnerLevels {
	var all []RunnerLevels
	for _, name := range sorted(s.runners) {
		if r := s.runners[name]; r.session != 0 {
			all = append(all, RunnerLevels{r.name, r.version, r.levelMin, r.levelMax})
		}
	}
	return all
}

// raiseLevel raises the level where all can work at it.
func (s *State) raiseLevel(id uint64, op RaiseLevel) {
	switch {
	case op.Level == s.level:
		s.reply(id, nil, Result{})
		return
	case op.Level < s.level:
		s.refuse(id, &Error{
			Code: CodeRefused, Text: fmt.Sprintf("the cluster works at level %d and can't go back to %d: what was written since may mean nothing to an older version", s.level, op.Level),
			Hint: "run versions that can work at the cluster's level",
		})
		return
	case op.Level > s.options.LevelMax:
		s.refuse(id, &Error{
			Code: CodeRefused, Text: fmt.Sprintf("the leader (version %s) can lead at levels %d to %d, not at %d", s.options.Version, s.options.LevelMin, s.options.LevelMax, op.Level),
			Hint: "upgrade the coordinators and the runners first, then ask again",
		})
		return
	}
	if cant := s.unable(op); len(cant) > 0 {
		s.refuse(id, &Error{
			Code: CodeRefused, Text: fmt.Sprintf("the cluster stays at level %d, since level %d isn't for all: %s", s.level, op.Level, strings.Join(cant, "; ")),
			Hint: "upgrade them or end them, then ask again",
		})
		return
	}
	s.level = op.Level
	s.putCluster() // I6: persisted before it is announced
	s.tellCluster()
	s.reply(id, nil, Result{Change: Changed})
}

// unable names all that can't work at a level, or of whom that isn't known.
func (s *State) unable(op RaiseLevel) []string {
	var cant []string
	for _, c := range op.Coordinators {
		if !c.can(op.Level) {
			cant = append(cant, c.String())
		}
	}
	connected := map[string]bool{}
	for _, r := range s.RunnerLevels() {
		connected[r.Name] = true
		if op.Level < r.LevelMin || op.Level > r.LevelMax {
			cant = append(cant, fmt.Sprintf("runner %q (version %s, levels %d to %d)", r.Name, r.Version, r.LevelMin, r.LevelMax))
		}
	}
	for _, name := range sorted(s.held) {
		if !connected[name] {
			cant = append(cant, fmt.Sprintf("runner %q, which isn't connected and still holds tasks", name))
		}
	}
	return cant
}

// coordinatorsChanged notes which coordinators there are, and tells runners where one came or went.
func (s *State) coordinatorsChanged(e CoordinatorsChanged) {
	before := s.addresses()
	s.coordinators = e.Coordinators
	if !slices.Equal(before, s.addresses()) {
		s.tellCluster()
	}
}

// addresses are those of the coordinators, sorted.
func (s *State) addresses() []string {
	var all []string
	for _, c := range s.coordinators {
		if c.Address != "" {
			all = append(all, c.Address)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// tellCluster tells every runner what Welcome told it, as it is now.
func (s *State) tellCluster() {
	for _, name := range sorted(s.runners) {
		if r := s.runners[name]; r.session != 0 {
			s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ClusterChanged{ClusterChanged: &runnerv1.ClusterChanged{
				Level: s.level, Coordinators: s.addresses(),
			}}})
		}
	}
}

func (s *State) putCluster() {
	s.put(keyCluster, &clusterRecord{Cluster: s.options.Cluster, Term: s.term, Level: s.level, Begin: s.accepted})
}

// fits says why a log at a level can't be led by this version; nil where it can.
func (o Options) fits(level uint32) error {
	switch {
	case level > o.LevelMax:
		return fmt.Errorf("the cluster works at level %d, this version knows %d to %d: %w", level, o.LevelMin, o.LevelMax, ErrNewer)
	case level < o.LevelMin:
		return fmt.Errorf("the cluster works at level %d, this version needs at least %d: raise the level with the version before this one, by `fencepost cluster level %d`, or run that one", level, o.LevelMin, o.LevelMin)
	}
	return nil
}
