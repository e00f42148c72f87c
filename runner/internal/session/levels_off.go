//go:build !faults

package session

// levels are the cluster levels that this runner can work at.
func levels() (low, high uint32) { return LevelMin, LevelMax }
