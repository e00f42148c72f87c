package kafka

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"
)

// clockSource is compiled into a library that a broker is started with. Linux can't set the wall clock of one process: its time namespaces have the other clocks only. libfaketime can, but has to be installed first, and by itself it makes
// waits of a given length end at once in Java.
//
//go:embed clock/clock.c
var clockSource []byte

// Clock is a wall clock of a broker's own, which can be set while the broker runs. Time that passes is the machine's, as when somebody sets a machine's clock.
type Clock struct{ file, library string }

// NewClock makes a clock that shows the machine's time, in a folder of the caller's. It needs the C compiler that cgo needs.
func NewClock(ctx context.Context, dir string) (*Clock, error) {
	c := &Clock{file: filepath.Join(dir, "ahead"), library: filepath.Join(dir, "clock.so")}
	source := filepath.Join(dir, "clock.c")
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		return nil, fmt.Errorf("clock: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "gcc", "-O1", "-Wall", "-shared", "-fPIC", "-o", c.library, source, "-ldl").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("compile the clock: %w\n%s", err, out)
	}
	return c, c.Set(0)
}

// Set sets the clock: from now on it shows the machine's time and this much more.
func (c *Clock) Set(ahead time.Duration) error {
	file, err := os.OpenFile(c.file, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("set the clock: %w", err)
	}
	defer file.Close()
	// In place: the broker has it mapped.
	if _, err := file.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(int64(ahead/time.Second))), 0); err != nil { //nolint:gosec // two's complement is meant
		return fmt.Errorf("set the clock: %w", err)
	}
	return nil
}

// env is what a process needs to see the clock.
func (c *Clock) env() []string {
	if c == nil {
		return nil
	}
	return []string{"LD_PRELOAD=" + c.library, "FENCEPOST_CLOCK=" + c.file}
}
