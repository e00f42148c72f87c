package model

import (
	"fmt"
	"testing"
)

// TestCopiedCoreDecidesTheSame says that a copy of a core decides as its original does, and leaves it alone.
func TestCopiedCoreDecidesTheSame(t *testing.T) {
	s := &search{machine: machine{bounds: Bounds{Records: [partitions]uint8{1, 1}}, cores: newCores()}}
	s.first()
	for key, edge := range s.cores.edges {
		node := s.cores.nodes[key.from]
		before := form(node.state, node.now)
		made := s.cores.take(clone(clone(node.state)), node.now, key.event.real())
		if made.to != edge.to || fmt.Sprint(made.effects) != fmt.Sprint(edge.effects) {
			t.Errorf("event %+v: the copy of a copy decides otherwise", key.event)
		}
		if form(node.state, node.now) != before {
			t.Errorf("event %+v: a step of a copy has changed the original", key.event)
		}
	}
}
