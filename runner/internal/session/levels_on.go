//go:build faults

package session

import (
	"fmt"
	"os"
)

// levels are the cluster levels that this runner can work at. Tests of upgrades let one build pretend to be several versions: FENCEPOST_PRETEND_LEVELS is MIN-MAX, for example 1-2.
func levels() (low, high uint32) {
	if n, err := fmt.Sscanf(os.Getenv("FENCEPOST_PRETEND_LEVELS"), "%d-%d", &low, &high); err == nil && n == 2 {
		return low, high
	}
	return LevelMin, LevelMax
}
