package fence

import (
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/fencepost-io/fencepost/coordinator/internal/state"
)

// step is a step of an id as the transaction coordinator writes it: "PrepareCommit 7/3 out/0" is by producer 7 under epoch 3, with one partition.
func step(t *testing.T, text string) []byte {
	t.Helper()
	if text == "expired" {
		return nil
	}
	v := kmsg.NewTxnMetadataValue()
	fields := strings.Fields(text)
	for s := kmsg.TransactionState(0); s < 8; s++ {
		if s.String() == strings.TrimSuffix(fields[0], "+") {
			v.State = s
		}
	}
	v.Version = 1
	if strings.HasSuffix(fields[0], "+") {
		v.ClientTransactionVersion = newerProtocol
	}
	v.ProducerID, v.ProducerEpoch = 7, int16(fields[1][0]-'0')
	for _, name := range fields[2:] {
		topic := kmsg.NewTxnMetadataValueTopic()
		topic.Topic, topic.Partitions = name, []int32{0}
		v.Topics = append(v.Topics, topic)
	}
	return v.AppendTo(nil)
}

// TestADirectionIsProvenOrTheHangIsLeft: the hang is of producer 7 under epoch 3 on partition 0 of topic a.
func TestADirectionIsProvenOrTheHangIsLeft(t *testing.T) {
	hang := state.Hang{Topic: "a", ProducerID: 7, ProducerEpoch: 3}
	committed := state.Decision{Outcome: state.OutcomeCommitted, ProducerID: 7, ProducerEpoch: 3}
	nothing := state.Decision{Outcome: state.OutcomeUnknown, ProducerID: -1, ProducerEpoch: -1}
	for name, tc := range map[string]struct {
		steps []string
		none  string
		noted state.Decision
		want  state.Outcome
		why   string
		torn  bool
	}{
		"committed":                             {steps: []string{"Ongoing 3 a", "PrepareCommit 3 a", "CompleteCommit 3"}, noted: nothing, want: state.OutcomeCommitted},
		"aborted":                               {steps: []string{"Ongoing 3 a", "PrepareAbort 3 a", "CompleteAbort 3"}, noted: nothing, want: state.OutcomeAborted},
		"aborted by a fence":                    {steps: []string{"Ongoing 3 a", "PrepareAbort 4 a", "CompleteAbort 4", "Empty 5"}, noted: nothing, want: state.OutcomeAborted},
		"committed by a newer client":           {steps: []string{"Ongoing 3 a", "PrepareCommit+ 4 a", "CompleteCommit+ 4"}, noted: nothing, want: state.OutcomeCommitted},
		"the last one counts":                   {steps: []string{"Ongoing 3 a", "PrepareCommit 3 a", "CompleteCommit 3", "Ongoing 3 a", "PrepareAbort 4 a", "CompleteAbort 4"}, noted: nothing, want: state.OutcomeAborted},
		"an abort elsewhere is another one":     {steps: []string{"Ongoing 3 a b", "PrepareCommit 3 a b", "CompleteCommit 3", "Ongoing 3 c", "PrepareAbort 3 c", "CompleteAbort 3"}, noted: nothing, want: state.OutcomeCommitted},
		"an abort of another part may tear it":  {steps: []string{"Ongoing 3 a b", "PrepareCommit 3 a b", "CompleteCommit 3", "Ongoing 3 b", "PrepareAbort 4 b", "CompleteAbort 4"}, noted: nothing, torn: true},
		"a commit of another part, too":         {steps: []string{"Ongoing 3 a b", "PrepareAbort 3 a b", "CompleteAbort 3", "Ongoing 3 b", "PrepareCommit 3 b", "CompleteCommit 3"}, noted: nothing, torn: true},
		"what was before it tears nothing":      {steps: []string{"Ongoing 3 b", "PrepareAbort 3 b", "CompleteAbort 3", "Ongoing 3 a b", "PrepareCommit 3 a b", "CompleteCommit 3"}, noted: nothing, want: state.OutcomeCommitted},
		"a successor that wrote nothing there":  {steps: []string{"Ongoing 3 a", "PrepareCommit 3 a", "CompleteCommit 3", "Empty 4", "Ongoing 4 a", "PrepareAbort 5 a", "CompleteAbort 5"}, noted: nothing, want: state.OutcomeCommitted},
		"a successor's decision alone":          {steps: []string{"Empty 4", "Ongoing 4 a", "PrepareCommit 4 a", "CompleteCommit 4"}, noted: nothing, why: "no decision"},
		"only an earlier epoch's":               {steps: []string{"Ongoing 2 a", "PrepareCommit 2 a", "CompleteCommit 2"}, noted: nothing, why: "no decision"},
		"another partition's":                   {steps: []string{"Ongoing 3 b", "PrepareCommit 3 b", "CompleteCommit 3"}, noted: nothing, why: "no decision"},
		"it is open":                            {steps: []string{"Ongoing 3 a"}, noted: nothing, why: "no decision"},
		"the step before a commit is compacted": {steps: []string{"PrepareCommit 3 a", "CompleteCommit 3"}, noted: nothing, want: state.OutcomeCommitted},
		"the step before an abort is compacted": {steps: []string{"PrepareAbort 3 a", "CompleteAbort 3"}, noted: nothing, why: "no decision"},
		"a doubtful one hides what was before":  {steps: []string{"Ongoing 3 a", "PrepareCommit 3 a", "CompleteCommit 3", "expired", "PrepareAbort 4 a"}, noted: nothing, why: "no decision"},
		"noted":                                 {none: "mustn't be read", noted: committed, want: state.OutcomeCommitted},
		"compacted, and noted":                  {steps: []string{"Empty 5"}, noted: committed, want: state.OutcomeCommitted},
		"noted under another epoch":             {none: "mustn't be read", noted: state.Decision{Outcome: state.OutcomeCommitted, ProducerID: 7, ProducerEpoch: 4}, why: "mustn't be read"},
		"noted of another producer":             {none: "mustn't be read", noted: state.Decision{Outcome: state.OutcomeCommitted, ProducerID: 8, ProducerEpoch: 3}, why: "mustn't be read"},
		"a noted abort proves nothing":          {none: "mustn't be read", noted: state.Decision{Outcome: state.OutcomeAborted, ProducerID: 7, ProducerEpoch: 3}, why: "mustn't be read"},
		"two proofs contradict":                 {steps: []string{"Ongoing 3 a", "PrepareAbort 4 a", "CompleteAbort 4"}, noted: committed, why: "noted committed"},
		"nothing":                               {noted: nothing, why: "no decision"},
	} {
		t.Run(name, func(t *testing.T) {
			var r replay
			for _, s := range tc.steps {
				r.take(step(t, s), time.Time{})
			}
			got := prove(hang, history{decided: r.decided, none: tc.none}, tc.noted)
			if (got.torn != nil) != tc.torn {
				t.Fatalf("torn: %+v", got.torn)
			}
			if tc.torn {
				return
			}
			if got.outcome != tc.want || (got.outcome != "") == (got.by == "") || !strings.Contains(got.why, tc.why) || (tc.want == "") != (got.why != "") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// TestTheStateOfAnIDIsWhereKafkaPutsIt has Java's own answers.
func TestTheStateOfAnIDIsWhereKafkaPutsIt(t *testing.T) {
	for id, want := range map[string]int32{"": 0, "hello": 99162322 % 50, "polygenelubricants": 0, "fencepost.it.numbers.0": 16, "fencepost.c.a.12": 18} {
		if got := partitionOf(id, 50); got != want {
			t.Errorf("%q is in partition %d, not %d", id, got, want)
		}
	}
	if got := partitionOf("the quick brown fox", 50); got < 0 || got >= 50 {
		t.Errorf("partition %d", got)
	}
}
