package reader_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/reader"
)

// numbers is a source of one partition "a": the value is the number.
type numbers struct{}

func (numbers) Place(r *kgo.Record) (reader.Place, error) {
	n, err := strconv.ParseUint(string(r.Value), 10, 64)
	return reader.Place{Partition: "a", Number: n}, err
}

func (numbers) Covered(_, offset json.RawMessage) (reader.Place, error) {
	var o struct{ N uint64 }
	err := json.Unmarshal(offset, &o)
	return reader.Place{Partition: "a", Number: o.N}, err
}

// step is one transaction: numbers to produce, an offset to store (−1 is none), and how it ends.
type step struct {
	numbers []int
	offset  int
	end     kgo.TransactionEndTry
}

func TestVerdict(t *testing.T) {
	commit, abort := kgo.TryCommit, kgo.TryAbort
	for name, tc := range map[string]struct {
		steps []step
		want  string
	}{
		"exact":          {[]step{{[]int{0, 1}, 1, commit}, {[]int{2}, 2, commit}}, ""},
		"aborts between": {[]step{{[]int{0}, 0, commit}, {[]int{1, 2}, 2, abort}, {[]int{1, 2}, 2, commit}}, ""},
		"one too many":   {[]step{{[]int{0, 1}, 1, commit}, {[]int{1, 2}, 2, commit}}, "number 1 twice"},
		"one too few":    {[]step{{[]int{0}, 0, commit}, {[]int{2}, 2, commit}}, "number 1 is missing"},
		"out of order":   {[]step{{[]int{1, 0, 2}, 2, commit}}, "number 0 at 0/1 comes after 1"},
		"offset behind":  {[]step{{[]int{0, 1, 2}, 1, commit}}, "the stored offset is that of 1"},
		"offset ahead":   {[]step{{[]int{0, 1}, 2, commit}}, "number 2 is missing"},
		"no offset":      {[]step{{[]int{0, 1, 2}, -1, commit}}, "no offset is stored"},
		"never there":    {[]step{{[]int{0, 1, 2, 3}, 2, commit}}, "number 3 was never there"},
	} {
		t.Run(name, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t", "o"))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			produce(t, cluster.ListenAddrs()[0], tc.steps)
			err = reader.Exact(t.Context(), cluster.ListenAddrs()[0], numbers{}, reader.Expect{
				Topic: "t", OffsetsTopic: "o", Connector: "c", Last: map[string]uint64{"a": 2},
			})
			if (tc.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("verdict: %v, want %q", err, tc.want)
			}
		})
	}
}

func TestNothingArrivedIsNotExact(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "t", "o"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	err = reader.Exact(t.Context(), cluster.ListenAddrs()[0], numbers{}, reader.Expect{Topic: "t", OffsetsTopic: "o", Connector: "c", Last: map[string]uint64{"a": 2}})
	if err == nil || errors.Is(err, reader.ErrOpen) {
		t.Errorf("verdict of empty topics: %v", err)
	}
}

func produce(t *testing.T, bootstrap string, steps []step) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(bootstrap), kgo.TransactionalID("x"))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	for _, s := range steps {
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		var records []*kgo.Record
		for _, n := range s.numbers {
			records = append(records, &kgo.Record{Topic: "t", Value: []byte(strconv.Itoa(n))})
		}
		if s.offset >= 0 {
			records = append(records, &kgo.Record{Topic: "o", Key: []byte(`["c",{"src":"a"}]`), Value: fmt.Appendf(nil, `{"n":%d}`, s.offset)})
		}
		if err := client.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := client.EndTransaction(t.Context(), s.end); err != nil {
			t.Fatal(err)
		}
	}
}
