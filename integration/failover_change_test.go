package integration

import (
	"strconv"
	"testing"
	"time"

	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
)

// TestFailoverChangeOfConfiguration: every task makes records by the new configuration, and no record is lost or repeated by the change.
func TestFailoverChangeOfConfiguration(t *testing.T) {
	for _, tasks := range []int{1, 50} {
		t.Run(strconv.Itoa(tasks)+" tasks", func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "change-"+strconv.Itoa(tasks), 1)
			s.Runner("a", nil)
			s.Runner("b", nil)
			w := s.Numbers("numbers", tasks, 4)
			const size = 150
			w.Config["size"] = strconv.Itoa(size)
			since := time.Now()
			w.Apply()
			took := w.Await(since, w.Tasks(""), func(r reader.Record) bool { return r.Length == size })
			t.Logf("%d tasks work by the new configuration after %s", tasks, took)
			w.Exact()
			s.StopAll()
		})
	}
}

// partitionsOfCounts is how many source partitions there are, whatever the number of tasks.
const partitionsOfCounts = 6

// TestFailoverOfTaskCounts: the number of tasks changes, from and to nothing too, and each source partition goes on where it was, whoever has it.
func TestFailoverOfTaskCounts(t *testing.T) {
	for i, tc := range []struct {
		name   string
		counts []int
	}{
		{"0 to n", []int{0, 4}},
		{"n to 0 to m", []int{4, 0, 2}},
		{"1 to n", []int{1, 5}},
		{"n to 1", []int{5, 1}},
		{"deleted and created with fewer", []int{5, -1, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newScene(t, "counts-"+strconv.Itoa(i), 1)
			s.Runner("a", nil)
			s.Runner("b", nil)
			w := s.Prepare("numbers", max(1, tc.counts[0]), 50, "partitions", strconv.Itoa(partitionsOfCounts))
			s.Create(w.Name, w.Config)
			for _, n := range tc.counts {
				setTasks(s, w, n)
			}
			w.Exact()
			s.StopAll()
		})
	}
}

// setTasks gives a connector so many tasks and waits until all of its source partitions deliver; 0 is a stop, and less a deletion.
func setTasks(s *scene.Scene, w *scene.Watched, n int) {
	s.T.Helper()
	switch n {
	case 0:
		s.MustCLI("stop", w.Name)
		if w.Count() > 0 { // It may have been stopped before it wrote anything, its offsets topic included.
			w.Judge(w.State().GetOffsetsTopic())
		}
		return
	case -1:
		s.MustCLI("delete", w.Name)
		w.Judge(s.Cluster + ".offsets." + w.Name)
		return
	}
	w.Config["tasks.max"] = strconv.Itoa(n)
	w.Apply()
	s.MustCLI("resume", w.Name)
	since := time.Now()
	if c := s.AwaitState(scene.Patience, w.Name, "RUNNING"); len(c.GetTasks()) != n {
		s.T.Errorf("%d tasks, want %d", len(c.GetTasks()), n)
	}
	w.Await(since, scene.Partitions(partitionsOfCounts), reader.MadeAfter(since))
}
