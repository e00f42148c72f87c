package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/fencepost-io/fencepost/integration/process"
)

// NothingRuns waits until no plugin of the bed runs and no socket file of one is left.
func (b *Bed) NothingRuns() {
	b.T.Helper()
	Wait(b.T, 10*time.Second, "no plugin process and no socket file", func(context.Context) error {
		return errors.Join(b.pluginProcesses(0), b.sockets())
	})
}

// PluginProcesses waits until exactly n plugin processes of the bed run.
func (b *Bed) PluginProcesses(timeout time.Duration, n int) {
	b.T.Helper()
	Wait(b.T, timeout, fmt.Sprintf("%d plugin processes", n), func(context.Context) error { return b.pluginProcesses(n) })
}

func (b *Bed) pluginProcesses(n int) error {
	pids, err := process.Below(b.Plugins)
	if err == nil && len(pids) != n {
		err = fmt.Errorf("plugin processes %v, want %d", pids, n)
	}
	return err
}

func (b *Bed) sockets() error {
	var left []string
	err := filepath.WalkDir(b.tmp, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&fs.ModeSocket != 0 {
			left = append(left, path)
		}
		return err
	})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("socket files are left: %s", strings.Join(left, ", "))
	}
	return err
}

// NoTransactionOpen waits until no transactional id of the bed's cluster has an open transaction.
func (b *Bed) NoTransactionOpen() {
	b.T.Helper()
	admin := Admin(b.T, cmp.Or(b.Admin, b.Bootstrap)) // a `dev` says where its broker is
	Wait(b.T, 10*time.Second, "no open transaction", func(ctx context.Context) error {
		open, err := admin.ListTransactions(ctx, nil, []string{"Ongoing", "PrepareCommit", "PrepareAbort"})
		if err != nil {
			return err
		}
		for _, txn := range open.Sorted() {
			if strings.HasPrefix(txn.TxnID, "fencepost."+b.Cluster+".") {
				return fmt.Errorf("%s is %s", txn.TxnID, txn.State)
			}
		}
		return nil
	})
}

// StopAll stops the processes in an orderly way, runners before coordinators, and checks that nothing of them is left.
func (b *Bed) StopAll() {
	b.T.Helper()
	ctx, cancel := context.WithTimeout(b.T.Context(), 2*stopTimeout)
	defer cancel()
	for i := len(b.processes) - 1; i >= 0; i-- {
		p := b.processes[i]
		if !p.Running() {
			continue
		}
		if err := p.Stop(ctx); err != nil {
			b.T.Errorf("stop: %v", err)
			continue
		}
		if code := p.State().ExitCode(); code != 0 {
			b.T.Errorf("%s ended with %v after %s", p.Name, p.State(), syscall.SIGTERM)
		}
	}
	b.NothingRuns()
	b.NoTransactionOpen()
}

// StopDev stops a `dev` that is the bed's broker, too.
func (b *Bed) StopDev() {
	b.T.Helper()
	b.NoTransactionOpen()
	ctx, cancel := context.WithTimeout(b.T.Context(), stopTimeout)
	defer cancel()
	dev := b.processes[len(b.processes)-1]
	if err := dev.Stop(ctx); err != nil || dev.State().ExitCode() != 0 {
		b.T.Errorf("%s: %v; it ended with %v", dev.Name, err, dev.State())
	}
	b.NothingRuns()
}
