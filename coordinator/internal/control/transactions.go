package control

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"

	"github.com/fencepost-io/fencepost/coordinator/internal/fence"
	"github.com/fencepost-io/fencepost/coordinator/internal/names"
	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// lookParallel is how many names are looked at at once for hanging transactions.
const lookParallel = 8

// Transactions asks the brokers about transactions, and changes nothing.
type Transactions interface {
	Open(ctx context.Context, prefix string) ([]fence.OpenTransaction, error)
	Look(ctx context.Context, topics []string, ids map[uint32]string, producers map[uint32]int64) ([]state.Hang, error)
	Prove(ctx context.Context, id string, hangs []state.Hang, noted state.Decision) ([]fence.Proven, error)
	Ends(ctx context.Context, topics ...string) (map[state.TopicPartition]int64, error)
}

// owner is what the State knows of an id.
type owner struct {
	connector string
	exists    bool
	task      uint32
	// view is the task, where the connector has it now.
	view *state.TaskView
}

// ListTransactions lists the open transactions of the cluster's ids, and those that hang.
func (s *Server) ListTransactions(ctx context.Context, _ *controlv1.ListTransactionsRequest) (*controlv1.ListTransactionsResponse, error) {
	l, err := s.leader()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	var watches []state.Watch
	owners := map[string]owner{}
	err = s.view(ctx, func(st *state.State) {
		watches = st.Names()
		for _, w := range watches {
			view, exists := st.Connector(w.Connector)
			for task, id := range w.IDs {
				owners[id] = owner{connector: w.Connector, exists: exists, task: task}
			}
			for i := range view.Tasks {
				t := &view.Tasks[i]
				owners[t.TransactionalID] = owner{connector: w.Connector, exists: exists, task: t.Task, view: t}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	open, err := l.Transactions.Open(ctx, names.LogTransactionalID(s.config.Cluster)+".")
	if err != nil {
		return nil, notListed(err)
	}
	resp := &controlv1.ListTransactionsResponse{}
	for _, t := range open {
		resp.Transactions = append(resp.Transactions, openOf(t, owners[t.ID], time.Now()))
	}
	hanging, trouble := s.hanging(ctx, l.Transactions, watches)
	resp.Trouble = trouble
	for _, p := range hanging {
		resp.Transactions = append(resp.Transactions, hangingOf(p.Proven, owners[p.ID], p.end))
	}
	return resp, nil
}

// found is a hang with where it ends.
type found struct {
	fence.Proven
	end int64
}

// hanging looks at everything, and says what it could not look at.
func (s *Server) hanging(ctx context.Context, transactions Transactions, watches []state.Watch) ([]found, string) {
	results, errs := make([][]found, len(watches)), make([]error, len(watches))
	var group errgroup.Group
	group.SetLimit(lookParallel)
	for i, w := range watches {
		group.Go(func() error {
			results[i], errs[i] = lookAt(ctx, transactions, w)
			return nil
		})
	}
	_ = group.Wait() // none fails
	trouble := ""
	if err := errors.Join(errs...); err != nil {
		trouble = err.Error()
	}
	all := slices.Concat(results...)
	slices.SortFunc(all, func(a, b found) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	return all, trouble
}

func lookAt(ctx context.Context, transactions Transactions, w state.Watch) ([]found, error) {
	hangs, trouble := transactions.Look(ctx, w.Topics, w.IDs, w.Producers)
	if len(hangs) == 0 {
		return nil, trouble
	}
	var topics []string
	byID := map[string][]state.Hang{}
	for _, h := range hangs {
		topics = append(topics, h.Topic)
		byID[h.ID] = append(byID[h.ID], h)
	}
	ends, err := transactions.Ends(ctx, topics...)
	trouble = errors.Join(trouble, err)
	var all []found
	for task, id := range w.IDs {
		if len(byID[id]) == 0 {
			continue
		}
		proven, err := transactions.Prove(ctx, id, byID[id], w.Noted[task])
		if err != nil {
			for _, h := range byID[id] {
				proven = append(proven, fence.Proven{Hang: h, Outcome: state.OutcomeUnknown, Proof: err.Error()})
			}
		}
		for _, p := range proven {
			all = append(all, found{p, ends[state.TopicPartition{Topic: p.Topic, Partition: p.Partition}]})
		}
	}
	return all, trouble
}

func openOf(t fence.OpenTransaction, of owner, now time.Time) *controlv1.Transaction {
	m := transactionOf(t.ID, of)
	m.State, m.ProducerId, m.ProducerEpoch = t.State, t.ProducerID, int32(t.ProducerEpoch)
	if !t.Since.IsZero() {
		m.AgeMs = uint64(max(now.Sub(t.Since), 0).Milliseconds()) //nolint:gosec // not negative
	}
	for _, p := range t.Partitions {
		m.Partitions = append(m.Partitions, &controlv1.TransactionPartition{Topic: p.Topic, Partition: p.Partition, FirstOffset: -1, EndOffset: -1})
	}
	if of.view != nil {
		m.OpenRecords = of.view.OpenRecords
	}
	return m
}

func hangingOf(p fence.Proven, of owner, end int64) *controlv1.Transaction {
	m := transactionOf(p.ID, of)
	m.State, m.ProducerId, m.ProducerEpoch, m.Proof = "Hanging", p.ProducerID, int32(p.ProducerEpoch), p.Proof
	m.Partitions = []*controlv1.TransactionPartition{{Topic: p.Topic, Partition: p.Partition, FirstOffset: p.Start, EndOffset: end}}
	m.Direction = directionFrom(p.Outcome)
	return m
}

func transactionOf(id string, of owner) *controlv1.Transaction {
	m := &controlv1.Transaction{TransactionalId: id, Connector: of.connector, ConnectorExists: of.exists, Task: of.task}
	if of.view != nil {
		m.Runner, m.TaskState = of.view.Runner, of.view.State
	}
	return m
}

func directionFrom(o state.Outcome) controlv1.Direction {
	switch o {
	case state.OutcomeCommitted:
		return controlv1.Direction_DIRECTION_COMMIT
	case state.OutcomeAborted:
		return controlv1.Direction_DIRECTION_ABORT
	}
	return controlv1.Direction_DIRECTION_UNSPECIFIED
}

// EndTransaction ends an id's transaction.
func (s *Server) EndTransaction(ctx context.Context, req *controlv1.EndTransactionRequest) (*controlv1.EndTransactionResponse, error) {
	op := state.EndTransaction{ID: req.GetTransactionalId()}
	switch req.GetForce() {
	case controlv1.Direction_DIRECTION_COMMIT:
		op.Force = state.OutcomeCommitted
	case controlv1.Direction_DIRECTION_ABORT:
		op.Force = state.OutcomeAborted
	}
	if op.Force != "" && !req.GetIKnow() {
		return nil, notKnown()
	}
	if req.GetTopic() != "" {
		op.Only = &state.TopicPartition{Topic: req.GetTopic(), Partition: req.GetPartition()}
	}
	err := s.view(ctx, func(st *state.State) {
		for _, w := range st.Names() {
			for _, id := range w.IDs {
				if id == op.ID {
					op.Connector = w.Connector
				}
			}
		}
	})
	if err != nil {
		return nil, err
	}
	result, err := s.do(ctx, op)
	if err != nil {
		return nil, err
	}
	resp := &controlv1.EndTransactionResponse{Aborted: result.Aborted}
	for _, m := range result.Mended {
		resp.Ended = append(resp.Ended, &controlv1.EndedPartition{
			Topic: m.Topic, Partition: m.Partition, FirstOffset: m.Start, Direction: directionFrom(m.Outcome), Proof: m.Proof, Way: m.Way,
		})
	}
	return resp, nil
}
