package state

import (
	"fmt"
	"slices"

	runnerv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/runner/v1"
)

const (
	// mostTopicBytes bounds the names of all topics that a connector has written: they are one record of the log.
	mostTopicBytes = 512 << 10
	// mostClaimed bounds the partitions that a connector's tasks have claimed while running.
	mostClaimed = 100_000
	// mostIDBytes is the longest id of a topic: 16 bytes in hex, and some room.
	mostIDBytes = 64
	// mostPartitionBytes is the longest canonical form of a partition.
	mostPartitionBytes = 64 << 10
)

// knownOffsetsTopicID is the id of the offsets topic as it was when the connector first used it; empty before.
func (c *connector) knownOffsetsTopicID(cluster string) string {
	if c.topics.OffsetsTopic != c.offsetsTopic(cluster) {
		return "" // the configuration names another one since
	}
	return c.topics.OffsetsTopicID
}

// recordTopics notes where a task is about to write, so that hanging transactions can be looked for there whatever happens to the task. Answered when it is in the log.
func (s *State) recordTopics(r *runner, m *runnerv1.RecordTopics) {
	lease := LeaseOf(m.GetLease())
	answer := &runnerv1.RecordTopicsAnswer{RequestId: m.GetRequestId()}
	if _, refused := s.holds(r, lease); refused != "" {
		answer.Refused = refused
	} else {
		answer.Error = s.addTopics(s.connectors[lease.Connector], m)
	}
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_RecordTopicsAnswer{RecordTopicsAnswer: answer}})
}

func (s *State) addTopics(c *connector, m *runnerv1.RecordTopics) (wrong string) {
	next := c.topics
	next.Topics = slices.Clone(next.Topics)
	for _, topic := range m.GetTopics() {
		if at, there := slices.BinarySearch(next.Topics, topic); !there {
			next.Topics = slices.Insert(next.Topics, at, topic)
		}
	}
	size := 0
	for _, topic := range next.Topics {
		size += len(topic) + 3
	}
	if size > mostTopicBytes {
		return fmt.Sprintf("the connector has written %d topics; their names take more than %d bytes together, which is the limit", len(c.topics.Topics), mostTopicBytes)
	}
	if topic, id := m.GetOffsetsTopic(), m.GetOffsetsTopicId(); topic != "" {
		if len(id) > mostIDBytes {
			return fmt.Sprintf("the id of the offsets topic has %d bytes, at most %d are right", len(id), mostIDBytes)
		}
		if own := c.offsetsTopic(s.options.Cluster); topic != own {
			return fmt.Sprintf("the offsets topic of connector %q is %s, not %s", c.name, own, topic)
		}
		if known := c.knownOffsetsTopicID(s.options.Cluster); known != "" && id != known {
			return fmt.Sprintf("the offsets topic %s was replaced: its id was %s and is %s now, so the offsets stored in it are gone. To go on without them, delete the connector and create it again", topic, known, id)
		}
		next.OffsetsTopic, next.OffsetsTopicID = topic, id
	}
	if next.OffsetsTopic == c.topics.OffsetsTopic && next.OffsetsTopicID == c.topics.OffsetsTopicID && len(next.Topics) == len(c.topics.Topics) {
		return ""
	}
	c.topics = next
	s.putTopics(c)
	return ""
}

// claimPartitions gives partitions to a task whose plan left its claim unknown. I8: a second claim of a partition fails both tasks, before the second one commits anything of it.
func (s *State) claimPartitions(r *runner, m *runnerv1.ClaimPartitions) {
	lease := LeaseOf(m.GetLease())
	answer := &runnerv1.ClaimPartitionsAnswer{RequestId: m.GetRequestId()}
	if _, refused := s.holdsOn(r, lease); refused != "" {
		answer.Refused = refused
	} else {
		answer.Conflict = s.claim(s.connectors[lease.Connector], lease.Task, m.GetPartitions())
	}
	s.send(r.session, &runnerv1.SessionResponse{Message: &runnerv1.SessionResponse_ClaimPartitionsAnswer{ClaimPartitionsAnswer: answer}})
}

// claim claims all of the partitions or none.
func (s *State) claim(c *connector, task uint32, partitions [][]byte) (conflict string) {
	for _, p := range partitions {
		if len(p) == 0 || len(p) > mostPartitionBytes {
			return fmt.Sprintf("a partition has 1 to %d bytes in canonical form, this one has %d", mostPartitionBytes, len(p))
		}
		if other, taken := c.ownerOf(p); taken && other != task {
			conflict = fmt.Sprintf("tasks %d and %d both claim partition %s", min(task, other), max(task, other), clip(string(p), 500))
			s.fail(c, task, conflict)
			s.fail(c, other, conflict)
			s.happen(c, "%s: both have failed", conflict)
			return conflict
		}
	}
	if len(c.claimed)+len(partitions) > mostClaimed {
		return fmt.Sprintf("the connector's tasks have claimed %d partitions; %d more are over the limit of %d", len(c.claimed), len(partitions), mostClaimed)
	}
	for _, p := range partitions {
		if _, taken := c.ownerOf(p); taken {
			continue
		}
		hash := claimHash(p)
		c.claimed[hash] = &claimRecord{Task: task, Partition: p}
		s.put(keyClaim+c.name+"/"+hash, c.claimed[hash])
	}
	return ""
}

// freeClaims gives up what a task has claimed while running. Only for a task that can't write any more: another one reads the partition on from where it was left.
func (s *State) freeClaims(c *connector, task uint32) {
	for _, hash := range sorted(c.claimed) {
		if c.claimed[hash].Task == task {
			delete(c.claimed, hash)
			s.put(keyClaim+c.name+"/"+hash, nil)
		}
	}
}

// ownerOf says which task a partition belongs to, by the plan or by what was claimed since.
func (c *connector) ownerOf(partition []byte) (uint32, bool) {
	if task, ok := c.claims.owner(partition); ok {
		return task, true
	}
	if claimed := c.claimed[claimHash(partition)]; claimed != nil {
		return claimed.Task, true
	}
	return 0, false
}

// fail keeps a task from being granted again until a user restarts it, or a new task set comes, and takes it from its runner at once. Another leader finds the conflict anew.
func (s *State) fail(c *connector, task uint32, reason string) {
	c.failed[task] = reason
	if l := c.leases[task]; l != nil {
		s.revokeNow(l, reason)
	}
}
