// Package app is the command line of fencepost: flags, files, tables and wiring. It owns what users type and see, and nothing else: decisions are
// the coordinator's, records are the runner's.
//
// Where to read next: connectors.go for the commands that ask a coordinator, dev.go for the quick start.
package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes of the binary. Scripts rely on them.
const (
	exitDone        = 0
	exitFailed      = 1
	exitUsage       = 2
	exitNotFound    = 3
	exitConflict    = 4
	exitUnreachable = 5
)

// exitError is an error with the exit code that it stands for.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func fail(code int, format string, args ...any) error {
	return &exitError{code: code, err: fmt.Errorf(format, args...)}
}

// Main runs the command line and returns the exit code.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitDone
	}
	if msg := err.Error(); msg != "" {
		fmt.Fprintln(stderr, "Error: "+printable(msg))
	}
	var coded *exitError
	if errors.As(err, &coded) {
		return coded.code
	}
	return exitUsage // what cobra itself returns: unknown commands and flags
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "fencepost",
		Short: "Move data from any system into Apache Kafka exactly once",
		Long: `Fencepost moves data from any system into Apache Kafka exactly once.

Start with "fencepost dev": coordinator, runner and an embedded broker in one process.
With a Kafka cluster, run "fencepost coordinator" and "fencepost runner", as many of each as you like.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(
		newDev(), newCoordinator(), newRunner(),
		newCreate(), newApply(), newValidate(), newGet(), newDescribe(), newDelete(),
		newPause(), newResume(), newStop(), newRestart(),
		newOffsets(), newPlugins(), newRunners(), newTransactions(), newCluster(), newVersion(),
	)
	root.InitDefaultCompletionCmd()
	for _, cmd := range root.Commands() {
		refuseUnknown(cmd)
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fail(exitUsage, "%w\nSee '%s --help'.", err, cmd.CommandPath())
	})
	return root
}

// refuseUnknown makes a word that is no subcommand wrong usage; cobra shows the help of a group and calls it a success.
func refuseUnknown(group *cobra.Command) {
	var names []string
	for _, sub := range group.Commands() {
		refuseUnknown(sub)
		names = append(names, sub.Name())
	}
	if len(names) == 0 {
		return
	}
	unknown := func(cmd *cobra.Command, word string) error {
		return fail(exitUsage, "%q is not a command of %s%s; it has: %s\nSee '%s --help'.", word, cmd.CommandPath(), nearest(word, names), strings.Join(names, ", "), cmd.CommandPath())
	}
	if takes := group.Args; group.Runnable() { // it does something by itself, too
		group.Args = func(cmd *cobra.Command, args []string) error {
			err := takes(cmd, args)
			if err != nil && len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return err
		}
		return
	}
	group.Args = cobra.ArbitraryArgs
	group.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return cmd.Help()
		}
		return unknown(cmd, args[0])
	}
}

// exactArgs is cobra.ExactArgs with an error that names what is missing.
func exactArgs(names ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == len(names) {
			return nil
		}
		return fail(exitUsage, "%s takes %s, not %d arguments\nSee '%s --help'.", cmd.CommandPath(), describeArgs(names), len(args), cmd.CommandPath())
	}
}

func describeArgs(names []string) string {
	if len(names) == 0 {
		return "no arguments"
	}
	return strings.Join(names, " and ")
}
