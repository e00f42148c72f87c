//go:build !faults

package task

// fault marks a crash point of the tests. Without the build tag it is nothing at all.
func fault(string) {}

// faultDuring marks a crash point while a call is on its way.
func faultDuring(_ string, call func() error) error { return call() }
