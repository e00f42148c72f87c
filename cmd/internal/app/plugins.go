package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
	"github.com/fencepost-io/fencepost/runner"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// pluginRow is a plugin as `plugins` shows it.
type pluginRow struct {
	Name    string   `json:"name"`
	Version string   `json:"version"`
	Types   []string `json:"types"`
	Path    string   `json:"path"`
	SHA256  string   `json:"sha256,omitempty"`
	Runners []string `json:"runners,omitempty"`
	Error   string   `json:"error,omitempty"`
}

func newPlugins() *cobra.Command {
	var (
		c     client
		out   output
		flags runnerFlags
	)
	cmd := &cobra.Command{
		Use: "plugins", Short: "List plugins: what the runners offer, or what a folder holds", Args: exactArgs(),
		Example: "  fencepost plugins\n  fencepost plugins --plugin-path bin/plugins -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var rows []pluginRow
			var err error
			if len(flags.pluginPath)+len(flags.addresses) > 0 {
				rows, err = localPlugins(cmd.Context(), &flags)
			} else {
				rows, err = offeredPlugins(cmd.Context(), &c)
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), rows, func(t *table) { pluginRows(t, rows) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	flags.register(cmd)
	return cmd
}

func pluginRows(t *table, rows []pluginRow) {
	if len(rows) == 0 {
		t.row("There is no plugin. A runner looks for them under --plugin-path.")
		return
	}
	t.row("NAME", "VERSION", "TYPES", "PATH", "RUNNERS", "ERROR")
	for _, r := range rows {
		t.row(r.Name, r.Version, strings.Join(r.Types, ","), r.Path, strings.Join(r.Runners, ","), oneLine(r.Error))
	}
}

func localPlugins(ctx context.Context, flags *runnerFlags) ([]pluginRow, error) {
	config, err := localConfig(flags)
	if err != nil {
		return nil, err
	}
	found, broken, err := runner.Plugins(ctx, config)
	if err != nil {
		return nil, fail(exitFailed, "%w", err)
	}
	rows := []pluginRow{}
	for _, p := range found {
		row := pluginRow{Name: p.Description.Name, Version: p.Description.Version, Path: p.Path, SHA256: p.SHA256}
		for _, t := range p.Description.Types {
			row.Types = append(row.Types, t.Name)
		}
		rows = append(rows, row)
	}
	for _, b := range broken {
		rows = append(rows, pluginRow{Path: b.Path, Types: []string{}, Error: b.Reason})
	}
	return rows, nil
}

// localConfig is a runner's configuration for work without a coordinator.
func localConfig(flags *runnerFlags) (runner.Config, error) {
	config := runner.Config{Name: "local", Logger: hclog.NewNullLogger(), Version: Version}
	return config, flags.fill(&config)
}

func offeredPlugins(ctx context.Context, c *client) ([]pluginRow, error) {
	var resp *controlv1.ListPluginsResponse
	err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.ListPlugins(ctx, &controlv1.ListPluginsRequest{})
		return err
	})
	rows := []pluginRow{}
	for _, p := range resp.GetPlugins() {
		rows = append(rows, pluginRow{
			Name: p.GetName(), Version: p.GetVersion(), Types: append([]string{}, p.GetTypes()...), Path: p.GetPath(), SHA256: p.GetSha256(), Runners: p.GetRunners(), Error: p.GetError(),
		})
	}
	return rows, err
}

// verdict is one file's line of `validate`.
type verdict struct {
	File     string           `json:"file"`
	Name     string           `json:"name"`
	Valid    bool             `json:"valid"`
	Problems []verdictProblem `json:"problems"`
}

type verdictProblem struct {
	Key     string `json:"key"`
	Message string `json:"message"`
	Hint    string `json:"hint,omitempty"`
	Warning bool   `json:"warning,omitempty"`
}

func newValidate() *cobra.Command {
	var (
		c     client
		out   output
		flags runnerFlags
		files []string
	)
	cmd := &cobra.Command{
		Use: "validate -f FILE", Short: "Check connector files, and store nothing: every problem with its key", Args: exactArgs(),
		Long: `Check connector files and store nothing. Every problem is shown with its key.

A coordinator is asked unless --plugin-path names the plugins: then no server is needed.`,
		Example: "  fencepost validate -f orders.yaml\n  fencepost validate --plugin-path bin/plugins -f connectors/",
		RunE: func(cmd *cobra.Command, _ []string) error {
			all, err := readConnectorFiles(files, cmd.InOrStdin())
			if err != nil {
				return err
			}
			verdicts, bad := make([]verdict, 0, len(all)), 0
			for _, file := range all {
				problems, err := validateFile(cmd.Context(), &c, &flags, file)
				if err != nil {
					return err
				}
				v := verdictOf(file, withoutKeys(problems, file.Problems))
				if !v.Valid {
					bad++
				}
				verdicts = append(verdicts, v)
			}
			if err := out.print(cmd.OutOrStdout(), verdicts, func(t *table) { verdictRows(t, verdicts) }); err != nil {
				return err
			}
			if bad > 0 {
				return fail(exitFailed, "%d of %s can't run as written", bad, count(len(all), "connector", "connectors"))
			}
			return nil
		},
	}
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "YAML or JSON file, folder of them, or - for standard input; may repeat")
	c.register(cmd)
	out.register(cmd)
	flags.register(cmd)
	return cmd
}

// withoutKeys drops what is said of keys that couldn't even be read: they seem to be missing.
func withoutKeys(problems, read []*pluginv1.Problem) []*pluginv1.Problem {
	return slices.DeleteFunc(problems, func(p *pluginv1.Problem) bool {
		return slices.ContainsFunc(read, func(r *pluginv1.Problem) bool { return r.GetKey() == p.GetKey() })
	})
}

func verdictOf(file *connectorFile, problems []*pluginv1.Problem) verdict {
	v := verdict{File: file.Where, Name: file.Name, Valid: true, Problems: []verdictProblem{}}
	for _, p := range append(slices.Clone(file.Problems), problems...) {
		v.Problems = append(v.Problems, verdictProblem{p.GetKey(), p.GetMessage(), p.GetHint(), p.GetWarning()})
		v.Valid = v.Valid && p.GetWarning()
	}
	return v
}

func verdictRows(t *table, verdicts []verdict) {
	for i, v := range verdicts {
		if i > 0 {
			t.row()
		}
		if v.Valid {
			t.row(v.File + ": " + v.Name + " is valid")
		} else {
			t.row(v.File + ": " + v.Name + " is not valid")
		}
		for _, p := range v.Problems {
			problem := &pluginv1.Problem{Key: p.Key, Message: p.Message, Hint: p.Hint, Warning: p.Warning}
			t.row("  "+keyOf(problem), problemText(problem))
		}
	}
}

// validateFile asks a runner, here or behind the coordinator, as far as the file could be read.
func validateFile(ctx context.Context, c *client, flags *runnerFlags, file *connectorFile) ([]*pluginv1.Problem, error) {
	if file.Config == nil {
		return nil, nil
	}
	if len(flags.pluginPath)+len(flags.addresses) > 0 {
		config, err := localConfig(flags)
		if err != nil {
			return nil, err
		}
		problems, err := runner.Validate(ctx, config, file.Name, file.Config)
		if err != nil {
			return nil, fail(exitFailed, "%s: %w", file.Where, err)
		}
		return toWire(problems), nil
	}
	var resp *controlv1.ValidateConnectorResponse
	err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.ValidateConnector(ctx, &controlv1.ValidateConnectorRequest{Name: file.Name, Config: file.Config})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file.Where, err)
	}
	return resp.GetProblems(), nil
}

func toWire(problems []source.Problem) []*pluginv1.Problem {
	out := make([]*pluginv1.Problem, 0, len(problems))
	for _, p := range problems {
		out = append(out, &pluginv1.Problem{Key: p.Key, Message: p.Message, Hint: p.Hint, Warning: p.Warning})
	}
	return out
}
