//go:build !faults

package task

// fault marks a point where tests kill or hold a process. Without the build tag it is nothing at all.
func fault(string) {}

// faultDuring marks such a point while a call is on its way.
func faultDuring(_ string, call func() error) error { return call() }
