package state

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// ReadCluster reads what a record says of the cluster; false where it is another record, or of a form that isn't known.
func ReadCluster(r Record) (ClusterView, bool) {
	var cluster clusterRecord
	if r.Key != keyCluster || r.Value == nil || decode(r, &cluster) != nil {
		return ClusterView{}, false
	}
	return ClusterView{Cluster: cluster.Cluster, Term: cluster.Term, Level: cluster.Level}, true
}

// kinds begin the keys that this version knows.
var kinds = []string{keyCluster, keyBeacon, keyName, keyConnector, keyTask, keyLease, keyID, keyHeal, keyTopics, keyClaim}

// Known says that a key may be one of a coordinator's.
func Known(key string) bool {
	return slices.ContainsFunc(kinds, func(kind string) bool { return strings.HasPrefix(key, kind) })
}

// Check says what is missing in a log that was loaded to its end, before TookOver; nil where it is whole as far as that can be told. Begin is its first offset: records before it were deleted. Accept says that an operator knows that
// they are lost, and is remembered.
func (s *State) Check(begin int64, accept bool) error {
	empty := s.level == 0 && len(s.connectors) == 0
	switch {
	case begin > s.accepted && accept:
		s.accepted = begin
	case begin > s.accepted:
		return fmt.Errorf("the config log begins at offset %d: somebody deleted its records up to there, and connectors, generations and leases with them; restore the topic, or start a coordinator once with --accept-lost-records and create what is missing again", begin)
	case s.level == 0 && !empty && !accept:
		return fmt.Errorf("the config log has no record %q: its end is lost, or it isn't a config log; restore the topic, or start a coordinator once with --accept-lost-records", keyCluster)
	}
	if accept {
		return nil
	}
	for _, name := range sorted(s.connectors) {
		if missing := s.connectors[name].missing(); missing != "" {
			return fmt.Errorf("the config log has no record %q of connector %q, though it must: records were deleted; restore the topic, or start a coordinator once with --accept-lost-records and create the connector again", missing, name)
		}
	}
	return nil
}

// missing is the key of a record that the log must have for what else it has of the connector; empty where none is missing.
func (c *connector) missing() string {
	if !c.exists() && len(c.leases) == 0 {
		return ""
	}
	if c.Generation == 0 {
		return keyName + c.name
	}
	if c.Filled {
		for task := range c.Tasks {
			if int(task) >= len(c.tasks) {
				return taskKey(keyTask, c.name, task)
			}
		}
	}
	return ""
}

// mostLost is how far generations and epochs leap over those that were lost with a part of the log.
const mostLost = 1 << 20

// mend begins a new generation of a connector of which the log has lost a part, above all that may have been (I6), and with every id that is known to have been used to fence (I2).
func (s *State) mend(c *connector) {
	c.IDs = max(c.IDs, c.Tasks, uint32(len(c.tasks)))
	for _, task := range sorted(c.leases) {
		l := c.leases[task]
		c.Generation, c.Epoch, c.IDs = max(c.Generation, l.Generation), max(c.Epoch, l.Epoch), max(c.IDs, task+1)
	}
	for _, task := range sorted(c.decisions) {
		c.IDs = max(c.IDs, task+1)
	}
	c.Generation, c.Epoch, c.PlanEpoch = c.Generation+mostLost, c.Epoch+mostLost, c.PlanEpoch+mostLost
	if !c.exists() {
		s.putName(c)
		return
	}
	s.raise(c)
	s.happen(c, "records of it were lost with a part of the config log: generation %d begins anew", c.Generation)
}

// Load takes in one record of the log, in the log's order, before TookOver. ErrNewer and a log of another cluster are errors: such a log must not be led. A key that this version doesn't know is one, too.
func (s *State) Load(r Record) error {
	kind, rest, _ := strings.Cut(r.Key, "/")
	switch kind + "/" {
	case "meta/":
		return s.loadMeta(r)
	case keyName:
		return load(r, &s.named(rest).nameRecord)
	case keyConnector:
		return load(r, &s.named(rest).connectorRecord)
	case keyTopics:
		return load(r, &s.named(rest).topics)
	case keyClaim:
		name, hash, err := lastPart(r.Key, rest)
		if err != nil {
			return err
		}
		return loadInto(r, s.named(name).claimed, hash)
	}
	name, number, err := lastPart(r.Key, rest)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return fmt.Errorf("key %q of the config log ends in no task: %w", r.Key, ErrNewer)
	}
	c, task := s.named(name), uint32(n)
	switch kind + "/" {
	case keyTask:
		return c.loadTask(r, task)
	case keyLease:
		return c.loadLease(r, task)
	case keyID:
		return loadInto(r, c.decisions, task)
	case keyHeal:
		return loadInto(r, c.notes, task)
	}
	return fmt.Errorf("key %q of the config log isn't known here: %w", r.Key, ErrNewer)
}

// lastPart parts a key behind its kind into a connector's name, which may hold slashes, and what follows the last one.
func lastPart(key, rest string) (name, last string, err error) {
	at := strings.LastIndexByte(rest, '/')
	if at < 0 {
		return "", "", fmt.Errorf("key %q of the config log isn't known here: %w", key, ErrNewer)
	}
	return rest[:at], rest[at+1:], nil
}

func (s *State) loadMeta(r Record) error {
	switch r.Key {
	case keyBeacon:
		return nil // it proved something when it was written, and says nothing now
	case keyCluster:
		var cluster clusterRecord
		if err := load(r, &cluster); err != nil {
			return err
		}
		if cluster.Cluster != s.options.Cluster {
			return fmt.Errorf("the config log belongs to cluster %q, not to %q", cluster.Cluster, s.options.Cluster)
		}
		if err := s.options.fits(cluster.Level); err != nil {
			return err
		}
		s.term, s.level, s.accepted = cluster.Term, cluster.Level, cluster.Begin
		return nil
	}
	return fmt.Errorf("key %q of the config log isn't known here: %w", r.Key, ErrNewer)
}

// load reads a value in place; a tombstone makes it zero.
func load[T any](r Record, into *T) error {
	var value T
	if r.Value != nil {
		if err := decode(r, &value); err != nil {
			return err
		}
	}
	*into = value
	return nil
}

// loadInto reads a value into a map; a tombstone deletes it.
func loadInto[K comparable, V any](r Record, into map[K]*V, key K) error {
	if r.Value == nil {
		delete(into, key)
		return nil
	}
	value := new(V)
	if err := decode(r, value); err != nil {
		return err
	}
	into[key] = value
	return nil
}

// loadTask keeps tasks by their number; numbers come in no order.
func (c *connector) loadTask(r Record, task uint32) error {
	var t taskRecord
	if err := load(r, &t); err != nil {
		return err
	}
	if task >= mostTasks {
		return fmt.Errorf("key %q of the config log: task %d is more than there can be", r.Key, task)
	}
	for int(task) >= len(c.tasks) {
		c.tasks = append(c.tasks, TaskSpec{})
	}
	c.tasks[task] = TaskSpec(t)
	return nil
}

func (c *connector) loadLease(r Record, task uint32) error {
	if r.Value == nil {
		delete(c.leases, task)
		return nil
	}
	l := &lease{}
	if err := decode(r, &l.leaseRecord); err != nil {
		return err
	}
	if l.Connector != c.name || l.Task != task {
		return fmt.Errorf("record %q of the config log is a lease of %s", r.Key, l.Lease)
	}
	c.leases[task] = l
	return nil
}

// loaded makes what is derived from the records.
func (c *connector) loaded() {
	if len(c.tasks) > int(c.Tasks) {
		c.tasks = c.tasks[:c.Tasks]
	}
	c.settings, _ = parse(c.Config)
	c.claims, _ = newClaims(c.tasks)
}
