//go:build !faults

package coordinator

import "github.com/fencepost-io/fencepost/coordinator/internal/state"

// levels are the cluster levels that this coordinator can lead at.
func levels() (low, high uint32) { return state.LevelMin, state.LevelMax }
