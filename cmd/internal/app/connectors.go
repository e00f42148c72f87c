package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// pollEvery is how often a command that waits looks again.
const pollEvery = 100 * time.Millisecond

// steadyFor is how long a connector must be seen running before --wait believes it. Errors that come later are the connector's life, not its start.
const steadyFor = time.Second

func newCreate() *cobra.Command {
	return fileCommand("create", "Create connectors from files",
		"  fencepost create -f orders.yaml\n  fencepost create -f connectors/ --wait 30s",
		func(ctx context.Context, c *client, file *connectorFile) (string, *controlv1.Connector, []*pluginv1.Problem, error) {
			target, err := targetOf(file.Initial)
			if err != nil {
				return "", nil, nil, err
			}
			var resp *controlv1.CreateConnectorResponse
			var last error
			unsure, err := c.ask(ctx, func(ctx context.Context, control controlv1.ControlClient) error {
				resp, last = control.CreateConnector(ctx, &controlv1.CreateConnectorRequest{Name: file.Name, Config: file.Config, Target: target})
				return last
			})
			if unsure && status.Code(last) == codes.AlreadyExists {
				if ours := c.createdBefore(ctx, file); ours != nil {
					return "created", ours, nil, nil
				}
			}
			return "created", resp.GetConnector(), resp.GetWarnings(), err
		})
}

// createdBefore is the connector that an earlier try of the same create stored, before its leader was lost: a name that is taken is an answer to the user only where somebody else took it.
func (c *client) createdBefore(ctx context.Context, file *connectorFile) *controlv1.Connector {
	connector, err := getConnector(ctx, c, file.Name)
	if err != nil || !maps.Equal(connector.GetConfig(), file.Config) {
		return nil
	}
	c.say("%s: a leader that was lost before it answered had stored it", file.Name)
	return connector
}

func newApply() *cobra.Command {
	return fileCommand("apply", "Create connectors, or change their configuration to what the files say",
		"  fencepost apply -f orders.yaml\n  fencepost apply -f connectors/ --wait 30s",
		func(ctx context.Context, c *client, file *connectorFile) (string, *controlv1.Connector, []*pluginv1.Problem, error) {
			var resp *controlv1.ApplyConnectorResponse
			err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
				resp, err = control.ApplyConnector(ctx, &controlv1.ApplyConnectorRequest{Name: file.Name, Config: file.Config})
				return err
			})
			done := strings.ToLower(strings.TrimPrefix(resp.GetOutcome().String(), "OUTCOME_"))
			return done, resp.GetConnector(), resp.GetWarnings(), err
		})
}

// targetOf reads Kafka Connect's initial_state.
func targetOf(initial string) (controlv1.TargetState, error) {
	switch strings.ToUpper(initial) {
	case "", "RUNNING":
		return controlv1.TargetState_TARGET_STATE_RUNNING, nil
	case "PAUSED":
		return controlv1.TargetState_TARGET_STATE_PAUSED, nil
	case "STOPPED":
		return controlv1.TargetState_TARGET_STATE_STOPPED, nil
	default:
		return 0, fail(exitFailed, "initial_state: %q is not a state; use RUNNING, PAUSED or STOPPED", initial)
	}
}

type fileAction func(context.Context, *client, *connectorFile) (done string, c *controlv1.Connector, warnings []*pluginv1.Problem, err error)

// outcome is one line of a command over files.
type outcome struct {
	File       string   `json:"file"`
	Name       string   `json:"name"`
	Outcome    string   `json:"outcome"`
	Generation uint64   `json:"generation,omitempty"`
	Warnings   []string `json:"warnings,omitempty"`
	Error      string   `json:"error,omitempty"`
}

// fileCommand runs an action on each connector of some files. One that fails doesn't keep the others from being tried; the first failure decides the exit code.
func fileCommand(use, short, example string, act fileAction) *cobra.Command {
	var (
		c     client
		out   output
		files []string
		wait  time.Duration
	)
	cmd := &cobra.Command{
		Use: use + " -f FILE", Short: short, Example: example, Args: exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := readConnectorFiles(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			var results []outcome
			var first error
			for _, file := range all {
				result := outcome{File: file.Where, Name: file.Name, Outcome: "failed"}
				err := actOn(cmd, &c, file, act, wait, &result)
				if err != nil {
					result.Error = err.Error()
					fmt.Fprintf(cmd.ErrOrStderr(), "Error: %s: %s\n", file.Where, err)
					if first == nil {
						first = err
					}
				}
				results = append(results, result)
			}
			err = out.print(cmd.OutOrStdout(), results, func(t *table) {
				for _, r := range results {
					if r.Error == "" {
						t.row(r.Name, r.Outcome, "generation "+strconv.FormatUint(r.Generation, 10))
					}
				}
			})
			if first != nil {
				return quiet(first)
			}
			return err
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "YAML or JSON file, folder of them, or - for standard input; may repeat")
	cmd.Flags().DurationVar(&wait, "wait", 0, "wait this long until every task is running, and has been for "+steadyFor.String()+" without a break")
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func actOn(cmd *cobra.Command, c *client, file *connectorFile, act fileAction, wait time.Duration, result *outcome) error {
	if len(file.Problems) > 0 {
		return fail(exitFailed, "%s", describeProblems("it", file.Problems))
	}
	done, connector, warnings, err := act(cmd.Context(), c, file)
	if err != nil {
		return err
	}
	for _, w := range warnings {
		result.Warnings = append(result.Warnings, w.GetKey()+": "+w.GetMessage())
		fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s: %s\n", file.Where, keyOf(w), problemText(w))
	}
	result.Outcome, result.Generation = done, connector.GetGeneration()
	if wait > 0 {
		return waitRunning(cmd, c, file.Name, wait)
	}
	return nil
}

// quiet keeps an error's exit code and drops its text, which was printed already.
func quiet(err error) error {
	code := exitFailed
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	}
	return &exitError{code: code, err: errors.New("")}
}

// waitRunning asks until a connector has been seen running for a while, and shows each step on the way. FAILED ends it at once. A task can run for a moment and fail at its first record or first question.
func waitRunning(cmd *cobra.Command, c *client, name string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(cmd.Context(), limit)
	defer cancel()
	last, steady := "", min(steadyFor, limit/2)
	var since time.Time // when it was first seen running without a break; zero while it isn't
	for {
		connector, err := getConnector(ctx, c, name)
		switch {
		case ctx.Err() != nil:
			return fail(exitUnreachable, "%s has not been RUNNING for %s within %s; it is %s\nSee 'fencepost describe %s'.", name, steady, limit, last, name)
		case err != nil:
			return err
		case connector.GetState() == "FAILED":
			return fail(exitFailed, "%s failed: %s\nSee 'fencepost describe %s'.", name, reasonOf(connector), name)
		case connector.GetState() != "RUNNING":
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= steady:
			return nil
		}
		if now := strings.TrimSpace(connector.GetState() + " " + connector.GetMessage()); now != last {
			last = now
			fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s\n", name, now)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pollEvery):
		}
	}
}

// reasonOf is why a connector isn't doing what it should.
func reasonOf(c *controlv1.Connector) string {
	for _, t := range c.GetTasks() {
		if t.GetState() == "FAILED" {
			return fmt.Sprintf("task %d: %s", t.GetTask(), t.GetError())
		}
	}
	return c.GetMessage()
}

func getConnector(ctx context.Context, c *client, name string) (*controlv1.Connector, error) {
	var resp *controlv1.GetConnectorResponse
	err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.GetConnector(ctx, &controlv1.GetConnectorRequest{Name: name})
		return err
	})
	return resp.GetConnector(), err
}

func newDelete() *cobra.Command {
	return nameCommand("delete NAME", "Delete a connector; stored offsets stay",
		"  fencepost delete orders", "deleted, its stored offsets stay: a connector of the same name goes on from them",
		func(ctx context.Context, control controlv1.ControlClient, name string) (*controlv1.Connector, error) {
			_, err := control.DeleteConnector(ctx, &controlv1.DeleteConnectorRequest{Name: name})
			return nil, err
		}, codes.NotFound)
}

func newPause() *cobra.Command {
	return nameCommand("pause NAME", "Let a connector's tasks finish what they have, and wait",
		"  fencepost pause orders", "paused",
		func(ctx context.Context, control controlv1.ControlClient, name string) (*controlv1.Connector, error) {
			resp, err := control.PauseConnector(ctx, &controlv1.PauseConnectorRequest{Name: name})
			return resp.GetConnector(), err
		})
}

func newResume() *cobra.Command {
	return nameCommand("resume NAME", "Let a paused or stopped connector run again",
		"  fencepost resume orders", "resumed",
		func(ctx context.Context, control controlv1.ControlClient, name string) (*controlv1.Connector, error) {
			resp, err := control.ResumeConnector(ctx, &controlv1.ResumeConnectorRequest{Name: name})
			return resp.GetConnector(), err
		})
}

func newStop() *cobra.Command {
	return nameCommand("stop NAME", "End a connector's tasks; done when none of them can write any more",
		"  fencepost stop orders", "stopped: none of its tasks can write any more",
		func(ctx context.Context, control controlv1.ControlClient, name string) (*controlv1.Connector, error) {
			resp, err := control.StopConnector(ctx, &controlv1.StopConnectorRequest{Name: name})
			return resp.GetConnector(), err
		})
}

type nameAction func(context.Context, controlv1.ControlClient, string) (*controlv1.Connector, error)

// nameCommand does one thing to one connector. doneAlready are the codes that a request is answered with that was carried out before; they are success only where an earlier try of this very command may have done it.
func nameCommand(use, short, example, done string, act nameAction, doneAlready ...codes.Code) *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: use, Short: short, Example: example, Args: exactArgs("NAME"), ValidArgsFunction: c.completeNames,
		RunE: func(cmd *cobra.Command, args []string) error {
			var connector *controlv1.Connector
			var last error
			unsure, err := c.ask(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) error {
				connector, last = act(ctx, control, args[0])
				return last
			})
			ok := err == nil || unsure && slices.Contains(doneAlready, status.Code(last))
			if !ok {
				return err
			}
			result := outcome{Name: args[0], Outcome: done, Generation: connector.GetGeneration()}
			return out.print(cmd.OutOrStdout(), result, func(t *table) { t.row(args[0], done) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func newRestart() *cobra.Command {
	var (
		c          client
		out        output
		task       int
		onlyFailed bool
	)
	cmd := &cobra.Command{
		Use: "restart NAME", Short: "Restart a connector's tasks; failed ones get a new budget", Args: exactArgs("NAME"), ValidArgsFunction: c.completeNames,
		Example: "  fencepost restart orders\n  fencepost restart orders --task 2\n  fencepost restart orders --only-failed",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &controlv1.RestartConnectorRequest{Name: args[0], OnlyFailed: onlyFailed}
			if cmd.Flags().Changed("task") {
				if task < 0 {
					return fail(exitUsage, "--task: %d is not a task; tasks are numbered from 0", task)
				}
				n := uint32(task) //nolint:gosec // checked above; a larger number names no task and is answered so
				req.Task = &n
			}
			var resp *controlv1.RestartConnectorResponse
			err := c.call(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) (err error) {
				resp, err = control.RestartConnector(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			result := struct {
				Name      string `json:"name"`
				Restarted uint32 `json:"restarted"`
			}{args[0], resp.GetRestarted()}
			return out.print(cmd.OutOrStdout(), result, func(t *table) {
				t.row(args[0], "restarting "+count(int(resp.GetRestarted()), "task", "tasks"))
			})
		},
	}
	cmd.Flags().IntVar(&task, "task", 0, "restart this task only")
	cmd.Flags().BoolVar(&onlyFailed, "only-failed", false, "restart failed tasks only")
	c.register(cmd)
	out.register(cmd)
	return cmd
}

// completeNames completes connector names.
func (c *client) completeNames(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	return completeFrom(cmd, args, c, listConnectors)
}

// completeFrom completes one name from the coordinator.
func completeFrom[T interface{ GetName() string }](cmd *cobra.Command, args []string, c *client, list func(context.Context, *client) ([]T, error)) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(commandContext(cmd)), 2*time.Second)
	defer cancel()
	all, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, one := range all {
		names = append(names, one.GetName())
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func commandContext(cmd *cobra.Command) context.Context {
	if ctx := cmd.Context(); ctx != nil {
		return ctx
	}
	return context.Background()
}

func listConnectors(ctx context.Context, c *client) ([]*controlv1.Connector, error) {
	var resp *controlv1.ListConnectorsResponse
	err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.ListConnectors(ctx, &controlv1.ListConnectorsRequest{})
		return err
	})
	return resp.GetConnectors(), err
}

// writeLine is fmt.Fprintln whose error nobody can act on.
func writeLine(w io.Writer, args ...any) { _, _ = fmt.Fprintln(w, args...) }
