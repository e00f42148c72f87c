package host

import (
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/sdk/go/internal/wire"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// The runner protocol carries some messages of the plugin protocol. These make and read them, for whoever speaks it.

// EncodeDescription makes the wire form of a description.
func EncodeDescription(d *source.Description) *pluginv1.DescribeResponse {
	return wire.EncodeDescription(d)
}

// EncodeTasks makes the wire form of a task set.
func EncodeTasks(version uint64, tasks []source.TaskSpec) *pluginv1.TaskSet {
	return wire.EncodeTasks(version, tasks)
}

// DecodeClaim reads a claim.
func DecodeClaim(c *pluginv1.Claim) source.Claim { return wire.DecodeClaim(c) }

// EncodeProblems makes the wire form of problems.
func EncodeProblems(problems []source.Problem) []*pluginv1.Problem {
	return wire.EncodeValidation(&source.Validation{Problems: problems}).GetProblems()
}

// EncodeOffsets makes the wire form of offsets.
func EncodeOffsets(offsets []source.PartitionOffset) []*pluginv1.PartitionOffset {
	return wire.EncodeOffsets(offsets)
}

// DecodeOffsets reads offsets; one that isn't there is nil.
func DecodeOffsets(offsets []*pluginv1.PartitionOffset) []source.PartitionOffset {
	return wire.DecodeOffsets(offsets)
}
