package state

import (
	"fmt"
	"strconv"
	"strings"
)

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
		if cluster.Level > level {
			return fmt.Errorf("the cluster works at level %d, this version knows %d: %w", cluster.Level, level, ErrNewer)
		}
		s.term, s.level = cluster.Term, cluster.Level
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
