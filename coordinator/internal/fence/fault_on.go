//go:build faults

package fence

import (
	"os"
	"syscall"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// For tests of the whole: FENCEPOST_FAULT=heal:POINT ends the coordinator at a point of a heal by an empty transaction (noted, added, ended), once: FENCEPOST_FAULT_MARK names a file that is made just before, and where it exists
// nothing happens. FENCEPOST_FAULT=heal:wrong-way plants a mistake: every hang is ended in the direction that wasn't decided.

func crash(point string) {
	if os.Getenv("FENCEPOST_FAULT") != "heal:"+point {
		return
	}
	mark, err := os.OpenFile(os.Getenv("FENCEPOST_FAULT_MARK"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	_ = mark.Close()
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {} // it arrives before anything else is done here
}

func wrongWay(o state.Outcome) state.Outcome {
	if os.Getenv("FENCEPOST_FAULT") != "heal:wrong-way" {
		return o
	}
	switch o {
	case state.OutcomeCommitted:
		return state.OutcomeAborted
	case state.OutcomeAborted:
		return state.OutcomeCommitted
	}
	return o
}
