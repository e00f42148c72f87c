package lease_test

import (
	"testing"

	"github.com/fencepost-io/fencepost/runner/internal/lease"
)

func TestEpochDecidesWhichLeaseIsNewer(t *testing.T) {
	old := lease.Lease{Connector: "orders", Incarnation: "a", Generation: 7, Task: 1, Epoch: 3}
	again := lease.Lease{Connector: "orders", Incarnation: "b", Generation: 1, Task: 1, Epoch: 4}
	if again.Newer(old) <= 0 || old.Newer(again) >= 0 || old.Newer(old) != 0 {
		t.Fatalf("the later grant must be the newer lease: %v, %v", old, again)
	}
	if old.ID() != again.ID() {
		t.Fatalf("one task under two names: %v, %v", old.ID(), again.ID())
	}
}

func TestLeaseNamesConnectorTaskGenerationAndEpoch(t *testing.T) {
	l := lease.Lease{Connector: "orders", Generation: 2, Task: 3, Epoch: 4}
	if got, want := l.String(), "orders-3 (generation 2, epoch 4)"; got != want {
		t.Fatalf("got %q, want %q", got, want)
	}
}
