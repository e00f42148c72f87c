//go:build !faults

package task

// breakRule breaks a rule on purpose, in tests of tests. Without the build tag it is nothing at all.
func breakRule(*Config) {}
