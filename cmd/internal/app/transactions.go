package app

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

func newTransactions() *cobra.Command {
	var (
		c   client
		out output
	)
	cmd := &cobra.Command{
		Use: "transactions", Short: "List open and hanging transactions of the cluster, or end one", Args: exactArgs(),
		Long: `List the open transactions of the cluster's ids, and those that hang: finished for Kafka's transaction coordinator, and still holding a partition, so that
readers with read_committed stand still there. Hanging ones are found and ended by themselves where it is proven how they were decided.`,
		Example: "  fencepost transactions\n  fencepost transactions -o json\n  fencepost transactions end fencepost.fencepost.orders.0",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var resp *controlv1.ListTransactionsResponse
			err := c.call(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) (err error) {
				resp, err = control.ListTransactions(ctx, &controlv1.ListTransactionsRequest{})
				return err
			})
			if err != nil {
				return err
			}
			if resp.GetTrouble() != "" {
				writeLine(cmd.ErrOrStderr(), "Not everything could be looked at for hanging transactions: "+printable(resp.GetTrouble()))
			}
			return out.print(cmd.OutOrStdout(), asJSONs(resp.GetTransactions()), func(t *table) { transactionRows(t, resp.GetTransactions()) })
		},
	}
	c.register(cmd)
	out.register(cmd)
	cmd.AddCommand(newTransactionsEnd())
	return cmd
}

func transactionRows(t *table, transactions []*controlv1.Transaction) {
	if len(transactions) == 0 {
		t.row("No transaction is open, and none hangs.")
		return
	}
	t.row("ID", "CONNECTOR", "TASK", "STATE", "AGE", "RECORDS", "PARTITIONS", "PRODUCER", "RUNNER", "DECIDED")
	for _, x := range transactions {
		age, records, decided := "", "", ""
		if x.GetState() == "Hanging" {
			decided = decidedText(x)
		} else {
			age = (time.Duration(x.GetAgeMs()) * time.Millisecond).Round(100 * time.Millisecond).String() //nolint:gosec // milliseconds of a transaction
			records = strconv.FormatUint(x.GetOpenRecords(), 10)
		}
		t.row(x.GetTransactionalId(), connectorText(x), strconv.Itoa(int(x.GetTask())), x.GetState(), age, records, partitionsText(x.GetPartitions()),
			fmt.Sprintf("%d/%d", x.GetProducerId(), x.GetProducerEpoch()), x.GetRunner(), oneLine(decided))
	}
}

func connectorText(x *controlv1.Transaction) string {
	switch {
	case x.GetConnector() == "":
		return "(unknown)"
	case !x.GetConnectorExists():
		return x.GetConnector() + " (deleted)"
	case x.GetTaskState() != "" && x.GetTaskState() != "RUNNING":
		return x.GetConnector() + " (" + x.GetTaskState() + ")"
	}
	return x.GetConnector()
}

func decidedText(x *controlv1.Transaction) string {
	switch x.GetDirection() {
	case controlv1.Direction_DIRECTION_COMMIT:
		return "committed, by " + x.GetProof()
	case controlv1.Direction_DIRECTION_ABORT:
		return "aborted, by " + x.GetProof()
	}
	return "unproven: " + x.GetProof()
}

// partitionsText names partitions, and the range of offsets that a hang concerns.
func partitionsText(partitions []*controlv1.TransactionPartition) string {
	var all []string
	for i, p := range partitions {
		if i == 5 {
			all = append(all, fmt.Sprintf("and %d more", len(partitions)-i))
			break
		}
		text := fmt.Sprintf("%s-%d", p.GetTopic(), p.GetPartition())
		if p.GetFirstOffset() >= 0 {
			text += fmt.Sprintf(" from offset %d, before %d", p.GetFirstOffset(), p.GetEndOffset())
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func newTransactionsEnd() *cobra.Command {
	var (
		c             client
		out           output
		partition     string
		commit, abort bool
		iKnow         bool
	)
	cmd := &cobra.Command{
		Use: "end ID", Short: "End a hanging transaction as it was decided, or abort an open one of a task that is gone", Args: exactArgs("ID"),
		Long: `End a transaction of one transactional id.

A hanging one is ended in the direction that was decided. Where that isn't proven it is left as it is, unless you say how: with --commit or --abort, and --i-know. The broker
doesn't object to the wrong one: it deletes records that were committed, or publishes records that were aborted. 'fencepost transactions' shows which offsets it concerns.

An open one is aborted by fencing the id. That is refused while a task that runs holds the id.`,
		Example: "  fencepost transactions end fencepost.fencepost.orders.0\n  fencepost transactions end fencepost.fencepost.orders.0 --partition out-3\n  fencepost transactions end fencepost.fencepost.orders.0 --partition out-3 --commit --i-know",
		RunE: func(cmd *cobra.Command, args []string) error {
			req := &controlv1.EndTransactionRequest{TransactionalId: args[0], IKnow: iKnow}
			switch {
			case commit && abort:
				return fail(exitUsage, "--commit and --abort: it is one or the other")
			case (commit || abort) && !iKnow:
				return fail(exitUsage, "--commit and --abort: the wrong one deletes records that were committed, or publishes records that were aborted. Where you know how the transaction ended, add --i-know")
			case commit:
				req.Force = controlv1.Direction_DIRECTION_COMMIT
			case abort:
				req.Force = controlv1.Direction_DIRECTION_ABORT
			}
			if partition != "" {
				at := strings.LastIndexByte(partition, '-')
				n, err := strconv.ParseInt(partition[at+1:], 10, 32)
				if at < 1 || err != nil || n < 0 {
					return fail(exitUsage, "--partition: %q is not TOPIC-PARTITION, for example out-3", partition)
				}
				req.Topic, req.Partition = partition[:at], int32(n)
			}
			var resp *controlv1.EndTransactionResponse
			err := c.call(cmd.Context(), func(ctx context.Context, control controlv1.ControlClient) (err error) {
				resp, err = control.EndTransaction(ctx, req)
				return err
			})
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), asJSON(resp), func(t *table) { endedRows(t, args[0], resp) })
		},
	}
	cmd.Flags().StringVar(&partition, "partition", "", "end only what hangs on this `TOPIC-PARTITION`")
	cmd.Flags().BoolVar(&commit, "commit", false, "end what isn't proven as a commit: publish its records")
	cmd.Flags().BoolVar(&abort, "abort", false, "end what isn't proven as an abort: drop its records")
	cmd.Flags().BoolVar(&iKnow, "i-know", false, "I know how the transaction ended")
	c.register(cmd)
	out.register(cmd)
	return cmd
}

func endedRows(t *table, id string, resp *controlv1.EndTransactionResponse) {
	if resp.GetAborted() {
		t.row(id, "its open transaction is aborted")
	}
	for _, e := range resp.GetEnded() {
		how := "aborted"
		if e.GetDirection() == controlv1.Direction_DIRECTION_COMMIT {
			how = "committed"
		}
		t.row(id, fmt.Sprintf("%s-%d from offset %d: ended as %s, known from %s, by %s", e.GetTopic(), e.GetPartition(), e.GetFirstOffset(), how, e.GetProof(), e.GetWay()))
	}
}
