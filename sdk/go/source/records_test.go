package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestDeclarationsComeOnceAndBeforeTheBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		schema := &Schema{Type: TypeString}
		r := startRun(t, &scripted{read: once(
			func(task *Task, out *Records) error { return add(t, task, out, "a", "x@1", "y@2") },
			func(task *Task, out *Records) error { return add(t, task, out, "a", "z@3") },
			func(task *Task, out *Records) error {
				n, err := task.Schema(schema)
				if err != nil || n != SchemaFirstDeclared {
					t.Errorf("schema %d, %v", n, err)
				}
				return out.Add(Record{Partition: part1(t, task, "b"), Topic: "u", Value: []byte("w"), ValueSchema: n, Offset: Fields{"n": 1}})
			},
		)}, RunOpen{})
		r.credit(1<<20, 0)
		r.expect("opened", `declare p1={"f":"a"} t1=t`, `batch 1 x y 1@{"n":"2"}`, `batch 2 z 1@{"n":"3"}`,
			`declare p2={"f":"b"} t2=u s16`, `batch 3 w 2@{"n":1}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNothingIsSentWithoutCredit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(
			func(task *Task, out *Records) error { return add(t, task, out, "a", strings.Repeat("x", 100)+"@1") },
			func(task *Task, out *Records) error { return add(t, task, out, "a", "y@2") },
			func(task *Task, out *Records) error { return add(t, task, out, "a", "z@3") },
		)}, RunOpen{})
		r.expect("opened", `declare p1={"f":"a"} t1=t`)
		// One batch may take the credit below zero.
		r.credit(1, 0)
		first := r.quiet()
		if len(first) != 1 {
			t.Fatalf("%d messages after the first credit", len(first))
		}
		debt := first[0].(*Batch).Size() - 1
		r.credit(uint64(debt), 0)
		r.expect()
		r.credit(1, 0)
		r.expect(`batch 2 y 1@{"n":"2"}`)
		r.credit(1<<20, 0)
		r.expect(`batch 3 z 1@{"n":"3"}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestUncommittedRecordsAreCapped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		r := startRun(t, &scripted{read: func(ctx context.Context, task *Task, out *Records) error {
			n += 2
			return add(t, task, out, "a", fmt.Sprintf("x@%d", n-1), fmt.Sprintf("x@%d", n))
		}}, RunOpen{})
		r.credit(1<<20, 3)
		if got := r.quiet(); len(got) != 4 { // opened, declare, and batches at 0 and 2 records
			t.Fatalf("%d messages", len(got))
		}
		r.signals <- Signal{Kind: SignalCommitted, Seq: 1}
		r.expect(`batch 3 x x 1@{"n":"6"}`)
		r.credit(0, 7)
		r.expect(`batch 4 x x 1@{"n":"8"}`, `batch 5 x x 1@{"n":"10"}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBatchesAreSplitAtTheLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(
			func(task *Task, out *Records) error {
				return add(t, task, out, "a", "1@1", "2@2", "3@3", "4@4", "5@5")
			},
			func(task *Task, out *Records) error {
				return add(t, task, out, "a", strings.Repeat("x", 3000)+"@6", strings.Repeat("y", 3000)+"@7")
			},
		)}, RunOpen{Limits: Limits{MaxBatchRecords: 2, MaxBatchBytes: 5000}})
		r.credit(1<<20, 0)
		r.expect("opened", `declare p1={"f":"a"} t1=t`, `batch 1 1 2 1@{"n":"2"}`, `batch 2 3 4 1@{"n":"4"}`, `batch 3 5 1@{"n":"5"}`,
			"batch 4 "+strings.Repeat("x", 3000)+` 1@{"n":"6"}`, "batch 5 "+strings.Repeat("y", 3000)+` 1@{"n":"7"}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestEqualOffsetsStayTogether: a commit between a delete and its tombstone, and a crash, would lose the tombstone.
func TestEqualOffsetsStayTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(
			func(task *Task, out *Records) error {
				return add(t, task, out, "a", "1@1", "delete@2", "tombstone@2", "3@3")
			},
		)}, RunOpen{Limits: Limits{MaxBatchRecords: 2}})
		r.credit(1<<20, 0)
		r.expect("opened", `declare p1={"f":"a"} t1=t`, `batch 1 1 delete 1@{"n":"2"} continues`, `batch 2 tombstone 3 1@{"n":"3"}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRecordsWithoutAnOffsetWaitForReach: what the runner gets always says how far it reaches, so the records of an event wait until that is known.
func TestRecordsWithoutAnOffsetWaitForReach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := make(chan struct{})
		r := startRun(t, &scripted{read: once(
			func(task *Task, out *Records) error { return add(t, task, out, "a", "1", "2", "3") },
			func(task *Task, out *Records) error { return add(t, task, out, "b", "x@1") },
			func(task *Task, out *Records) error { <-next; return out.Reach(part1(t, task, "a"), Fields{"n": 3}) },
			func(task *Task, out *Records) error {
				if err := add(t, task, out, "a", "4"); err != nil {
					return err
				}
				return out.Reach(part1(t, task, "a"), Fields{"n": 4})
			},
		)}, RunOpen{Limits: Limits{MaxBatchRecords: 2}})
		r.credit(1<<20, 0)
		r.expect("opened")
		close(next)
		r.expect(`declare p1={"f":"a"} p2={"f":"b"} t1=t`, `batch 1 1 2 1@{"n":3} continues`, `batch 2 3 x 2@{"n":"1"} 1@{"n":3}`, `batch 3 4 1@{"n":4}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestWhatWaitsForReachIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		value := strings.Repeat("x", MaxRecordBytes)
		r := startRun(t, &scripted{read: func(_ context.Context, task *Task, out *Records) error { return add(t, task, out, "a", value) }}, RunOpen{})
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "call Reach earlier") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestWhatNeedsAWholeEventSaysSo(t *testing.T) {
	for method, call := range map[string]func(task *Task, out *Records) error{
		"Idle":      func(_ *Task, out *Records) error { return out.Idle() },
		"EndSource": func(_ *Task, out *Records) error { return out.EndSource() },
		"Drop":      func(task *Task, out *Records) error { return out.Drop(part1(t, task, "a"), Fields{"n": 1}, 1, "rule") },
	} {
		synctest.Test(t, func(t *testing.T) {
			r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error {
				if err := add(t, task, out, "a", "1"); err != nil {
					return err
				}
				return call(task, out)
			})}, RunOpen{})
			if err := <-r.done; err == nil || !strings.Contains(err.Error(), method+" was called") || !strings.Contains(err.Error(), "call Reach first") {
				t.Fatalf("%s: got %v", method, err)
			}
		})
	}
}

func TestReachOfTheSameOffsetSendsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reach := func(n int) func(*Task, *Records) error {
			return func(task *Task, out *Records) error { return out.Reach(part1(t, task, "a"), Fields{"n": n}) }
		}
		r := startRun(t, &scripted{read: once(reach(1), reach(1), reach(2), reach(2))}, RunOpen{Stored: []PartitionOffset{{JSON(`{"f":"a"}`), JSON(`{"n":1}`)}}})
		r.credit(1<<20, 0)
		<-time.After(time.Second) // a Read that gave nothing is followed by a pause, in the bubble's time
		r.expect("opened", `declare p1={"f":"a"}`, `batch 1 1@{"n":2}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestIdleFollowsItsRecordsOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		idle := func(task *Task, out *Records) error { return out.Idle() }
		r := startRun(t, &scripted{read: once(idle, idle,
			func(task *Task, out *Records) error {
				if err := add(t, task, out, "a", "1@1"); err != nil {
					return err
				}
				return errors.Join(out.Idle(), out.Idle())
			}, idle)}, RunOpen{})
		r.credit(1<<20, 0)
		<-time.After(time.Second)
		r.expect("opened", "idle 1", `declare p1={"f":"a"} t1=t`, `batch 2 1 1@{"n":"1"}`, "idle 3")
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestMarksEndBatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error {
			return errors.Join(
				out.Commit(), // nothing to commit
				add(t, task, out, "a", "1@1"), out.EndSource(), out.EndSource(),
				add(t, task, out, "a", "2@2"), out.Commit(),
				add(t, task, out, "a", "3@3"))
		}, func(task *Task, out *Records) error { return out.Abort() })}, RunOpen{Boundary: ByConnector})
		r.credit(1<<20, 0)
		r.expect("opened", `declare p1={"f":"a"} t1=t`, `batch 1 1 1@{"n":"1"} mark 1`, `batch 2 2 1@{"n":"2"} mark 2`, `batch 3 3 1@{"n":"3"}`, `batch 4 mark 3`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestDropsAreCountedAndKeepTheirPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error {
			a, b := part1(t, task, "a"), part1(t, task, "b")
			return errors.Join(
				add(t, task, out, "a", "1@1"),
				out.Drop(a, Fields{"n": 2}, 1, "too long"), out.Drop(a, Fields{"n": 3}, 2, "too long"), out.Drop(b, Fields{"n": 1}, 1, "too long"),
				out.Drop(b, Fields{"n": 2}, 1, "not UTF-8"),
				add(t, task, out, "a", "4@4"))
		})}, RunOpen{})
		r.credit(1<<20, 0)
		r.expect("opened", `declare p1={"f":"a"} t1=t`, `batch 1 1 1@{"n":"1"}`, `declare p2={"f":"b"}`, `dropped 2 count 4 too long 1@{"n":3} 2@{"n":1}`,
			`dropped 3 count 1 not UTF-8 2@{"n":2}`, `batch 4 4 1@{"n":"4"}`)
		if err := r.stop(); err != nil {
			t.Fatal(err)
		}
	})
}

func TestNoticeIsSentWhenItChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error {
			return errors.Join(out.Notice(), out.Notice("a.log can't be read"), out.Notice("a.log can't be read"), out.Notice())
		}, func(task *Task, out *Records) error { return out.Notice("two\nlines") })}, RunOpen{})
		<-time.After(time.Second)
		r.expect("opened", `notice ["a.log can't be read"]`, "notice []")
		if err := <-r.done; err == nil || !strings.Contains(err.Error(), "one line") {
			t.Fatalf("got %v", err)
		}
	})
}

func TestRecordsThatBreakARuleAreNamed(t *testing.T) {
	other := &Partition{}
	for want, rec := range map[string]Record{
		"needs a source partition": {Topic: "t", Offset: Fields{"n": 1}},
		"of its own task":          {Partition: other, Topic: "t", Offset: Fields{"n": 1}},
		"has no topic":             {Offset: Fields{"n": 1}},
		"is not a topic":           {Topic: "a b", Offset: Fields{"n": 1}},
		"an offset is an empty":    {Topic: "t", Offset: Fields{}},
		"must be a string":         {Topic: "t", Offset: Fields{"n": []int{1}}},
		`a record for topic "t" has 101 bytes of key, value and headers, the limit is 100`: {Topic: "t", Offset: Fields{"n": 1}, Value: make([]byte, 90), Headers: []Header{{"0123456789", []byte("x")}}},
		"allowed is 1 to":         {Topic: "t", Offset: Fields{"n": 1}, Timestamp: time.UnixMilli(0)},
		"timestamp 9200000000001": {Topic: "t", Offset: Fields{"n": 1}, Timestamp: time.UnixMilli(MaxTimestampMS + 1)},
		"the Kafka partition -1":  {Topic: "t", Offset: Fields{"n": 1}, ToPartition: true, KafkaPartition: -1},
		"comes from Task.Schema":  {Topic: "t", Offset: Fields{"n": 1}, ValueSchema: 16},
	} {
		synctest.Test(t, func(t *testing.T) {
			r := startRun(t, &scripted{read: once(func(task *Task, out *Records) error {
				if rec.Partition == nil && !strings.Contains(want, "source partition") {
					rec.Partition = part1(t, task, "a")
				}
				err := out.Add(rec)
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%s: got %v", want, err)
				}
				if named := strings.Count(err.Error(), "source partition {"); named > 1 {
					t.Errorf("%s: the partition is named %d times: %v", want, named, err)
				}
				// The record wasn't taken, and nothing is spoilt.
				return add(t, task, out, "a", "good@1")
			})}, RunOpen{Limits: Limits{MaxRecordBytes: 100}})
			r.credit(1<<20, 0)
			var last string
			for _, m := range r.quiet() {
				last = summary(m)
			}
			if !strings.HasSuffix(last, `good 1@{"n":"1"}`) || !strings.HasPrefix(last, "batch 1 good") {
				t.Errorf("%s: then %s", want, last)
			}
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
