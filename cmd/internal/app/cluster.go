package app

import (
	"cmp"
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

func newCluster() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "cluster", Short: "Show the coordinators, who of them leads, and the cluster's level", Args: exactArgs(),
		Example: "  fencepost cluster\n  fencepost cluster -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			cluster, err := getCluster(cmd.Context(), &c)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSON(cluster), func(t *table) { clusterRows(t, cluster) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	cmd.AddCommand(newClusterLevel())
	return cmd
}

func clusterRows(t *table, cluster *controlv1.GetClusterResponse) {
	t.row("Cluster:", cluster.GetCluster())
	t.row("Leader:", cmp.Or(cluster.GetLeader(), "nobody leads, as far as is known"))
	t.row("Term:", strconv.FormatUint(cluster.GetTerm(), 10))
	t.row("Level:", levelText(cluster.GetLevel()))
	if cluster.GetTrouble() != "" {
		t.row("Trouble:", cluster.GetTrouble())
	}
	t.row()
	t.row("COORDINATOR", "ROLE", "VERSION", "LEVELS", "HOST")
	for _, c := range cluster.GetCoordinators() {
		role := "waits"
		if c.GetLeading() {
			role = "leads"
		}
		t.row(cmp.Or(c.GetAddress(), "unknown"), role, cmp.Or(c.GetVersion(), "unknown"), levelRange(c.GetLevelMin(), c.GetLevelMax()), c.GetHost())
	}
}

func levelText(level uint32) string {
	if level == 0 {
		return "unknown"
	}
	return strconv.FormatUint(uint64(level), 10)
}

func levelRange(low, high uint32) string {
	if high == 0 {
		return "unknown"
	}
	return fmt.Sprintf("%d to %d", low, high)
}

// getCluster asks the leader or, where none answers, any coordinator that does: who asks about an outage wants to hear what is known.
func getCluster(ctx context.Context, c *client) (*controlv1.GetClusterResponse, error) {
	var leading, waiting *controlv1.GetClusterResponse
	now := *c
	now.impatient = true
	err := now.call(ctx, func(ctx context.Context, control controlv1.ControlClient) error {
		resp, err := control.GetCluster(ctx, &controlv1.GetClusterRequest{})
		if err != nil {
			return err
		}
		if resp.GetLeading() {
			leading = resp
			return nil
		}
		waiting = resp
		return redirectTo(resp)
	})
	switch {
	case leading != nil:
		return leading, nil
	case waiting != nil:
		return waiting, nil
	}
	return nil, err
}

// redirectTo is how a coordinator that doesn't lead answers every other call.
func redirectTo(cluster *controlv1.GetClusterResponse) error {
	st, err := status.New(codes.Unavailable, "this coordinator doesn't lead").WithDetails(&controlv1.ErrorDetail{Leader: cluster.GetLeader()})
	if err != nil {
		return status.Error(codes.Unavailable, "this coordinator doesn't lead")
	}
	return st.Err()
}

func newClusterLevel() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "level [N]", Short: "Show the cluster's level and who can work at which, or raise it to N",
		Long: `The cluster's level says what all coordinators and runners of the cluster understand. Versions next to each other work together at the older one's highest level, in any order of restart.
When all have been upgraded, raising the level switches on what the new version brings. It can't be lowered: an older version can't join the cluster from then on.`,
		Example: "  fencepost cluster level\n  fencepost cluster level 2",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				return setLevel(cmd, &c, &out, args[0])
			}
			cluster, err := getCluster(cmd.Context(), &c)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSON(cluster), func(t *table) { levelRows(t, cluster) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func levelRows(t *table, cluster *controlv1.GetClusterResponse) {
	t.row("Level:", levelText(cluster.GetLevel()))
	for _, level := range cluster.GetLevels() {
		if level.GetLevel() == cluster.GetLevel()+1 {
			t.row("Next level:", fmt.Sprintf("%d: %s", level.GetLevel(), level.GetBrings()))
		}
	}
	t.row()
	t.row("WHO", "VERSION", "LEVELS")
	for _, c := range cluster.GetCoordinators() {
		t.row("coordinator "+cmp.Or(c.GetAddress(), "unknown"), cmp.Or(c.GetVersion(), "unknown"), levelRange(c.GetLevelMin(), c.GetLevelMax()))
	}
	for _, r := range cluster.GetRunners() {
		t.row("runner "+r.GetName(), r.GetVersion(), levelRange(r.GetLevelMin(), r.GetLevelMax()))
	}
	if !cluster.GetLeading() {
		t.row("(only the leader knows the runners)")
	}
}

func setLevel(cmd *cobra.Command, c *client, out *output, text string) error {
	level, err := strconv.ParseUint(text, 10, 32)
	if err != nil || level == 0 {
		return fail(exitUsage, "%q is not a level: a whole number from 1 on\nSee '%s --help'.", text, cmd.CommandPath())
	}
	var resp *controlv1.SetClusterLevelResponse
	unsure, err := c.ask(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) (err error) {
		resp, err = control.SetClusterLevel(ctx, &controlv1.SetClusterLevelRequest{Level: uint32(level)})
		return err
	})
	if err != nil {
		return err
	}
	return out.print(cmd.OutOrStdout(), asJSON(resp), func(t *table) {
		if resp.GetChanged() || unsure {
			t.row(fmt.Sprintf("The cluster works at level %d.", resp.GetLevel()))
			return
		}
		t.row(fmt.Sprintf("The cluster works at level %d already.", resp.GetLevel()))
	})
}
