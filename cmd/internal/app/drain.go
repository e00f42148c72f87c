package app

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// stuckFor is how long a drain must have nothing left but tasks that fit on no other runner before it is given up on: the moment after the first answer, they have not all been looked at.
const stuckFor = 2 * time.Second

func newDrain() *cobra.Command {
	var (
		c       client
		out     output
		undo    bool
		waiting bool
	)
	cmd := &cobra.Command{
		Use: "drain NAME", Short: "Move a runner's tasks to others, one by one, and give it none until --undo or until it is started again", Args: exactArgs("NAME"), ValidArgsFunction: c.completeRunners,
		Long: `Moves a runner's tasks to others, one by one: each goes on until another runner is ready for it. The runner then stays, without tasks, until --undo or until it is started again.

Waits until all have moved, for as long as --timeout says. Tasks that fit on no other runner stay where they are and are named; then the exit code is 4. What was begun goes on when this command ends.`,
		Example: "  fencepost runners drain host-1 --timeout 10m\n  fencepost runners drain host-1 --wait=false\n  fencepost runners drain host-1 --undo",
		RunE: func(cmd *cobra.Command, args []string) error {
			var runner *controlv1.Runner
			err := c.call(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) error {
				resp, err := control.DrainRunner(ctx, &controlv1.DrainRunnerRequest{Name: args[0], Undo: undo})
				runner = resp.GetRunner()
				return err
			})
			if err == nil && waiting && !undo {
				runner, err = awaitDrained(cmd, &c, runner)
			}
			if runner != nil {
				if err := out.print(cmd.OutOrStdout(), asJSON(runner), func(t *table) { t.row(runner.GetName(), drainText(runner)) }); err != nil {
					return err
				}
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&undo, "undo", false, "let the runner have tasks again")
	cmd.Flags().BoolVar(&waiting, "wait", true, "wait until the runner has no task left")
	c.register(cmd)
	out.register(cmd)
	return cmd
}

// awaitDrained waits until a runner is drained, and says on standard error how far it is.
func awaitDrained(cmd *cobra.Command, c *client, runner *controlv1.Runner) (*controlv1.Runner, error) {
	name, last := runner.GetName(), ""
	ctx, cancel := context.WithTimeout(cmd.Context(), c.timeout)
	defer cancel()
	var stuck time.Time // since when nothing else is left
	for {
		if text := drainText(runner); text != last {
			last = text
			c.say("%s: %s", name, text)
		}
		switch {
		case runner.GetState() == "DRAINED":
			return runner, nil
		case runner.GetState() == "CONNECTED":
			return runner, fail(exitConflict, "%s isn't being drained any more: somebody ended that, or it was started again", name)
		case len(runner.GetStuck()) == 0 || len(runner.GetStuck()) < len(runner.GetTasks()):
			stuck = time.Time{}
		case stuck.IsZero():
			stuck = time.Now()
		case time.Since(stuck) >= stuckFor:
			return runner, fail(exitConflict, "%s\nStart a runner that can have what is left, stop those connectors, or end the drain with --undo.", drainText(runner))
		}
		select {
		case <-ctx.Done():
			return runner, fail(exitUnreachable, "not drained within %s: %s\nIt goes on; see 'fencepost runners'.", c.timeout, drainText(runner))
		case <-time.After(pollEvery):
		}
		runners, err := listRunners(ctx, c)
		if err != nil {
			if ctx.Err() != nil {
				continue
			}
			return runner, err
		}
		at := slices.IndexFunc(runners, func(r *controlv1.Runner) bool { return r.GetName() == name })
		if at < 0 {
			return &controlv1.Runner{Name: name, State: "DRAINED"}, nil // it has stopped, and holds nothing
		}
		runner = runners[at]
	}
}

// drainText says how a runner that is drained, or was, stands.
func drainText(r *controlv1.Runner) string {
	switch r.GetState() {
	case "DRAINED":
		return "drained"
	case "DRAINING":
		text := count(len(r.GetTasks()), "task", "tasks") + " left"
		var stuck []string
		for _, t := range r.GetStuck() {
			stuck = append(stuck, fmt.Sprintf("%s/%d: %s", t.GetConnector(), t.GetTask(), t.GetReason()))
		}
		if len(stuck) > 0 {
			text += "; " + count(len(stuck), "fits", "fit") + " on no other runner: " + strings.Join(stuck[:min(len(stuck), 10)], "; ")
		}
		return text
	}
	return strings.ToLower(r.GetState()) + ", with " + count(len(r.GetTasks()), "task", "tasks")
}

// completeRunners completes runner names.
func (c *client) completeRunners(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(cmd, args, c, listRunners)
}
