package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// asJSON gives a message the names that its proto has, with zero values shown, so that scripts can rely on every key.
func asJSON(m proto.Message) json.RawMessage {
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitUnpopulated: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a message of ours can't be written as JSON: %v", err))
	}
	return text
}

func asJSONs[M proto.Message](list []M) []json.RawMessage {
	out := make([]json.RawMessage, 0, len(list))
	for _, m := range list {
		out = append(out, asJSON(m))
	}
	return out
}

func newGet() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "get [NAME]", Short: "List connectors, or show one with its tasks", ValidArgsFunction: c.completeNames,
		Example: "  fencepost get\n  fencepost get orders -o json",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				connector, err := getConnector(cmd.Context(), &c, args[0])
				if err != nil {
					return err
				}
				return out.print(cmd.OutOrStdout(), asJSON(connector), func(t *table) {
					connectorRows(t, []*controlv1.Connector{connector})
					t.row()
					taskRows(t, connector)
				})
			}
			connectors, err := listConnectors(cmd.Context(), &c)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSONs(connectors), func(t *table) {
				if len(connectors) == 0 {
					t.row("There is no connector yet. Create one with 'fencepost create -f FILE'.")
					return
				}
				connectorRows(t, connectors)
			})
		},
	}
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func connectorRows(t *table, connectors []*controlv1.Connector) {
	t.row("NAME", "CLASS", "STATE", "TASKS", "GENERATION", "RECORDS", "MESSAGE")
	for _, c := range connectors {
		var running int
		var records uint64
		for _, task := range c.GetTasks() {
			records += task.GetRecords()
			if task.GetState() == "RUNNING" {
				running++
			}
		}
		t.row(c.GetName(), c.GetConfig()["connector.class"], c.GetState(), fmt.Sprintf("%d/%d", running, len(c.GetTasks())),
			strconv.FormatUint(c.GetGeneration(), 10), strconv.FormatUint(records, 10), oneLine(reasonOf(c)))
	}
}

func taskRows(t *table, c *controlv1.Connector) {
	t.row("TASK", "STATE", "RUNNER", "RECORDS", "COMMITS", "REWINDS", "DETAIL")
	for _, task := range c.GetTasks() {
		var rewinds uint64
		for _, n := range task.GetRewinds() {
			rewinds += n
		}
		t.row(strconv.Itoa(int(task.GetTask())), task.GetState(), task.GetRunner(), strconv.FormatUint(task.GetRecords(), 10),
			strconv.FormatUint(task.GetCommits(), 10), strconv.FormatUint(rewinds, 10), oneLine(taskDetail(task)))
	}
}

// taskDetail is what to know about a task now. A task that runs has got over its last error, which describe still has.
func taskDetail(task *controlv1.TaskInfo) string {
	failing := task.GetError() != "" && task.GetState() != "RUNNING"
	switch {
	case failing && task.GetRetryAt() != nil:
		return fmt.Sprintf("%s (try %d, next in %s)", task.GetError(), task.GetAttempt(), untilRetry(task))
	case failing:
		return task.GetError()
	case len(task.GetNotices()) > 0:
		return strings.Join(task.GetNotices(), "; ")
	case task.GetCaughtUp():
		return "caught up"
	default:
		return task.GetPhase()
	}
}

// untilRetry is the time until a task's next try. The leader counts it: its clock and this host's may be hours apart.
func untilRetry(task *controlv1.TaskInfo) time.Duration {
	return (time.Duration(task.GetRetryInMs()) * time.Millisecond).Round(100 * time.Millisecond) //nolint:gosec // milliseconds of a back-off
}

// oneLine keeps a table's rows whole; describe shows the whole text.
func oneLine(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 160 {
		s = string(r[:159]) + "…"
	}
	return s
}

func newDescribe() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "Show everything about a connector: tasks, errors, next tries, what happened lately", ValidArgsFunction: c.completeNames,
		Example: "  fencepost describe orders",
		Args:    exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			connector, err := getConnector(cmd.Context(), &c, args[0])
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSON(connector), func(t *table) { describe(t, connector) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func describe(t *table, c *controlv1.Connector) {
	t.row("Name:", c.GetName())
	t.row("State:", c.GetState()+" (wanted: "+strings.TrimPrefix(c.GetTarget().String(), "TARGET_STATE_")+")")
	if c.GetMessage() != "" {
		t.row("Message:", c.GetMessage())
	}
	t.row("Generation:", strconv.FormatUint(c.GetGeneration(), 10))
	t.row("Incarnation:", c.GetIncarnation())
	t.row("Created:", c.GetCreated().AsTime().Format(time.RFC3339))
	t.row("Plugin:", c.GetPlugin())
	t.row("Planned by:", c.GetPlanner())
	t.row("Offsets topic:", c.GetOffsetsTopic())
	t.row("Topics written:", strings.Join(c.GetTopics(), ", "))
	t.row("Configuration:")
	for _, key := range slices.Sorted(maps.Keys(c.GetConfig())) {
		t.row("  "+key, c.GetConfig()[key])
	}
	for _, task := range c.GetTasks() {
		t.row()
		describeTask(t, task)
	}
	if len(c.GetEvents()) > 0 {
		t.row()
		t.row("Lately:")
		for _, e := range c.GetEvents() {
			t.row("  "+e.GetAt().AsTime().Format(time.RFC3339), happening(e))
		}
	}
}

// happening tells of one that came more than once since when.
func happening(e *controlv1.Happening) string {
	if e.GetCount() <= 1 {
		return e.GetText()
	}
	return fmt.Sprintf("%s (%d times since %s)", e.GetText(), e.GetCount(), e.GetFirst().AsTime().Format(time.RFC3339))
}

func describeTask(t *table, task *controlv1.TaskInfo) {
	t.row(fmt.Sprintf("Task %d:", task.GetTask()), task.GetState())
	t.row("  Runner:", fmt.Sprintf("%s (epoch %d)", task.GetRunner(), task.GetEpoch()))
	t.row("  Transactional id:", task.GetTransactionalId())
	t.row("  Claim:", task.GetClaim())
	t.row("  Doing:", task.GetPhase())
	switch {
	case task.GetError() != "":
		t.row("  Last error:", task.GetError())
		t.row("  Cause:", task.GetCause())
		t.row("  Attempt:", budgetOf(task))
	case task.GetLastErrorAt() != nil: // It has got over it, or nobody runs it.
		t.row("  Last error:", fmt.Sprintf("%s (%s, %s)", task.GetLastError(), task.GetLastErrorCause(), task.GetLastErrorAt().AsTime().Format(time.RFC3339)))
	}
	if task.GetRetryAt() != nil {
		t.row("  Next try:", "in "+untilRetry(task).String())
	}
	t.row("  Committed:", fmt.Sprintf("%d records, %d bytes, %d transactions (%d aborted)", task.GetRecords(), task.GetBytes(), task.GetCommits(), task.GetAborts()))
	if task.GetOpenRecords() > 0 {
		t.row("  Open transaction:", fmt.Sprintf("%d records, %d ms old", task.GetOpenRecords(), task.GetOpenAgeMs()))
	}
	if task.GetDropped() > 0 {
		t.row("  Dropped:", fmt.Sprintf("%d records (%s)", task.GetDropped(), task.GetDroppedReason()))
	}
	for _, notice := range task.GetNotices() {
		t.row("  Notice:", notice)
	}
	for _, cause := range slices.Sorted(maps.Keys(task.GetRewinds())) {
		t.row("  Rewinds:", fmt.Sprintf("%d by %s", task.GetRewinds()[cause], cause))
	}
}

// budgetOf says how often the cause of the last error was met, and how much more it may cost.
func budgetOf(task *controlv1.TaskInfo) string {
	if task.GetEndless() {
		return fmt.Sprintf("%d, tried for as long as it takes", task.GetAttempt())
	}
	return fmt.Sprintf("%d, %d left", task.GetAttempt(), task.GetBudgetLeft())
}

func newRunners() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "runners", Short: "List runners with their labels and leases", Args: exactArgs(),
		Example: "  fencepost runners\n  fencepost runners -o json\n  fencepost runners drain host-1",
		RunE: func(cmd *cobra.Command, _ []string) error {
			runners, err := listRunners(cmd.Context(), &c)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSONs(runners), func(t *table) { runnerRows(t, runners) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	cmd.AddCommand(newDrain())
	return cmd
}

func listRunners(ctx context.Context, c *client) ([]*controlv1.Runner, error) {
	var resp *controlv1.ListRunnersResponse
	err := c.call(ctx, func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.ListRunners(ctx, &controlv1.ListRunnersRequest{})
		return err
	})
	return resp.GetRunners(), err
}

func runnerRows(t *table, runners []*controlv1.Runner) {
	if len(runners) == 0 {
		t.row("No runner is connected. Start one with 'fencepost runner --coordinator HOST:PORT --bootstrap-servers HOST:PORT --plugin-path DIR'.")
		return
	}
	t.row("NAME", "HOST", "STATE", "TASKS", "LEASE LEFT", "VERSION", "LABELS", "PLUGINS")
	for _, r := range runners {
		var labels []string
		for _, key := range slices.Sorted(maps.Keys(r.GetLabels())) {
			labels = append(labels, key+"="+r.GetLabels()[key])
		}
		state := r.GetState()
		if n := len(r.GetStuck()); n > 0 {
			state += fmt.Sprintf(", %d stuck", n)
		}
		t.row(r.GetName(), r.GetHost(), state, strconv.Itoa(len(r.GetTasks())), (time.Duration(r.GetLeaseLeftMs()) * time.Millisecond).Round(100*time.Millisecond).String(), //nolint:gosec // milliseconds of a lease
			r.GetVersion(), strings.Join(labels, ","), strings.Join(r.GetPlugins(), ","))
	}
}
