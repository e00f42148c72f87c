package app

import (
	"context"
	"encoding/json"

	"github.com/spf13/cobra"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// storedOffset is one stored offset, as in Kafka Connect's REST API.
type storedOffset struct {
	Partition json.RawMessage `json:"partition"`
	Offset    json.RawMessage `json:"offset"`
}

func newOffsets() *cobra.Command {
	cmd := &cobra.Command{
		Use: "offsets", Short: "Look at stored source offsets",
		Example: "  fencepost offsets get orders",
	}
	cmd.AddCommand(newOffsetsGet())
	return cmd
}

func newOffsetsGet() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "get NAME", Short: "Show how far a connector has come: the committed offset of each source partition", ValidArgsFunction: c.completeNames,
		Example: "  fencepost offsets get orders\n  fencepost offsets get orders -o json",
		Args:    exactArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var resp *controlv1.GetOffsetsResponse
			err := c.call(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) (err error) {
				resp, err = control.GetOffsets(ctx, &controlv1.GetOffsetsRequest{Name: args[0]})
				return err
			})
			if err != nil {
				return err
			}
			offsets := make([]storedOffset, 0, len(resp.GetOffsets()))
			for _, o := range resp.GetOffsets() {
				offsets = append(offsets, storedOffset{Partition: o.GetPartition(), Offset: o.GetOffset()})
			}
			result := struct {
				Offsets []storedOffset `json:"offsets"`
			}{offsets}
			return out.print(cmd.OutOrStdout(), result, func(t *table) {
				if len(offsets) == 0 {
					t.row("Nothing is stored yet.")
					return
				}
				t.row("PARTITION", "OFFSET")
				for _, o := range offsets {
					t.row(string(o.Partition), string(o.Offset))
				}
			})
		},
	}
	c.register(cmd)
	out.register(cmd)
	return cmd
}
