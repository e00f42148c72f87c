package scene

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

const topicPartitions = 3

// Watched is a connector of the generator with its readable records. It has a source partition for each task, unless its configuration says otherwise.
type Watched struct {
	*reader.Watch
	Name string
	// Config may be changed, and then applied.
	Config map[string]string

	scene *Scene
}

// Numbers creates a connector without an end and waits until it delivers. More are further keys and values.
func (s *Scene) Numbers(name string, tasks int, rate float64, more ...string) *Watched {
	s.T.Helper()
	w := s.Prepare(name, tasks, rate, more...)
	s.Create(name, w.Config)
	w.Flows(time.Now())
	return w
}

// Prepare is Numbers without the creation.
func (s *Scene) Prepare(name string, tasks int, rate float64, more ...string) *Watched {
	s.T.Helper()
	topic := s.Cluster + "." + name
	harness.CreateTopic(s.T, s.Admin, topic, topicPartitions)
	w := &Watched{scene: s, Name: name, Config: map[string]string{
		"connector.class": "generator", "topic": topic, "tasks.max": strconv.Itoa(tasks), "partitions": strconv.Itoa(tasks), "rate": strconv.FormatFloat(rate, 'f', -1, 64),
	}}
	for i := 0; i < len(more); i += 2 {
		w.Config[more[i]] = more[i+1]
	}
	w.Watch = reader.StartWatch(s.T.Context(), s.Admin, topic, reader.Generated{})
	s.T.Cleanup(func() {
		if err := w.Stop(); err != nil {
			s.T.Errorf("watch %s: %v", topic, err)
		}
	})
	return w
}

// Apply applies the configuration.
func (w *Watched) Apply() {
	w.scene.T.Helper()
	w.scene.MustCLI("apply", "-f", w.File())
}

// File writes the configuration as users hand it over.
func (w *Watched) File() string {
	w.scene.T.Helper()
	return w.scene.ConnectorFile(w.Name, w.Config)
}

// State is the connector as users see it.
func (w *Watched) State() *controlv1.Connector {
	w.scene.T.Helper()
	var c *controlv1.Connector
	harness.Wait(w.scene.T, Patience, "the coordinator answers", func(ctx context.Context) (err error) {
		c, err = w.scene.Connector(ctx, w.Name)
		return err
	})
	return c
}

// Tasks are the source partitions of the tasks that a runner holds; of every task, where the runner is "".
func (w *Watched) Tasks(runner string) []string {
	w.scene.T.Helper()
	var partitions []string
	for _, task := range w.State().GetTasks() {
		if runner == "" || task.GetRunner() == runner {
			partitions = append(partitions, strconv.Itoa(int(task.GetTask())))
		}
	}
	return partitions
}

// Await waits until every one of the source partitions has a record for which ok is true, and says how long after a moment the slowest had.
func (w *Watched) Await(since time.Time, partitions []string, ok func(reader.Record) bool) time.Duration {
	w.scene.T.Helper()
	if len(partitions) == 0 {
		w.scene.T.Fatalf("%s: nothing to wait for", w.Name)
	}
	var slowest time.Duration
	err := harness.Poll(w.scene.T.Context(), Patience, func(context.Context) (err error) {
		slowest, err = w.Back(since, partitions, ok)
		return err
	})
	if err != nil {
		w.scene.T.Fatalf("%s doesn't deliver: %v\n%s", w.Name, err, w.scene.CLI("describe", w.Name).Stdout)
	}
	return slowest
}

// Flows waits until the connector runs and every task delivers what it made after a moment.
func (w *Watched) Flows(since time.Time) {
	w.scene.T.Helper()
	w.scene.AwaitState(Patience, w.Name, "RUNNING")
	w.Await(since, w.Tasks(""), reader.MadeAfter(since))
}

// Holder is a runner with tasks: the one that holds the plan, or one that doesn't, where there is one.
func (w *Watched) Holder(planner bool) string {
	w.scene.T.Helper()
	c := w.State()
	found := ""
	for _, task := range c.GetTasks() {
		if found = task.GetRunner(); (found == c.GetPlanner()) == planner {
			break
		}
	}
	return found
}

// Exact stops the connector, and judges everything that it wrote: nobody writes any more when stop has answered.
func (w *Watched) Exact() {
	w.scene.T.Helper()
	w.scene.MustCLI("stop", w.Name)
	w.Judge(w.State().GetOffsetsTopic())
}

// Judge is the verdict over what nobody writes to any more: of each source partition every number once and in order up to the stored offset, and at least as many as were seen before.
func (w *Watched) Judge(offsetsTopic string) {
	w.scene.T.Helper()
	ctx := w.scene.T.Context()
	want := reader.Expect{Topic: w.Config["topic"], OffsetsTopic: offsetsTopic, Connector: w.Name, First: 1, Last: w.Last()}
	stored, err := reader.Stored(ctx, w.scene.Admin, offsetsTopic, w.Name)
	if err != nil {
		w.scene.T.Fatal(err)
	}
	for _, o := range stored {
		place, err := reader.Generated{}.Covered(o.Partition, o.Offset)
		if err != nil {
			w.scene.T.Fatal(err)
		}
		want.Last[place.Partition] = max(place.Number, want.Last[place.Partition])
	}
	if err := reader.Exact(ctx, w.scene.Admin, reader.Generated{}, want); err != nil {
		w.scene.T.Errorf("%s is not exact:\n%v", w.Name, err)
	}
}

// Epochs are the epochs of the tasks that a runner holds, by task; of every task, where the runner is "".
func (w *Watched) Epochs(runner string) map[uint32]uint64 {
	w.scene.T.Helper()
	epochs := map[uint32]uint64{}
	for _, task := range w.State().GetTasks() {
		if runner == "" || task.GetRunner() == runner {
			epochs[task.GetTask()] = task.GetEpoch()
		}
	}
	return epochs
}

// Undisturbed fails the test where a task has another epoch than it had, has aborted a transaction or was rewound, or where the records of one didn't go on.
func (w *Watched) Undisturbed(before map[uint32]uint64, since time.Time) {
	w.scene.T.Helper()
	w.UndisturbedButHeld(before, since, 0)
}

// UndisturbedButHeld is Undisturbed where a reader saw nothing for a while: the transaction that a dead task leaves open holds back what others have committed behind it in its Kafka partitions, until it is fenced.
func (w *Watched) UndisturbedButHeld(before map[uint32]uint64, since time.Time, held time.Duration) {
	w.scene.T.Helper()
	now := w.State()
	for _, task := range now.GetTasks() {
		epoch, ok := before[task.GetTask()]
		if !ok {
			continue
		}
		if task.GetEpoch() != epoch || task.GetAborts() > 0 || len(task.GetRewinds()) > 0 {
			w.scene.T.Errorf("%s: task %d was disturbed: epoch %d became %d, %d aborts, rewinds %v", w.Name, task.GetTask(), epoch, task.GetEpoch(), task.GetAborts(), task.GetRewinds())
		}
		partition := strconv.Itoa(int(task.GetTask()))
		if pause := w.Pause(partition, since, time.Now()); pause > held+longestPause {
			w.scene.T.Errorf("%s: nothing of task %d became readable for %s", w.Name, task.GetTask(), pause)
		}
	}
	if len(before) == 0 {
		w.scene.T.Errorf("%s: there was no task that could be disturbed", w.Name)
	}
}

// longestPause is what a busy machine may hold up a task that nothing happens to.
const longestPause = 5 * time.Second

// OnEach waits until every task is held by the runner and has committed.
func (w *Watched) OnEach(timeout time.Duration, runner string) {
	w.scene.T.Helper()
	harness.Wait(w.scene.T, timeout, fmt.Sprintf("every task of %s commits on %s", w.Name, runner), func(ctx context.Context) error {
		c, err := w.scene.Connector(ctx, w.Name)
		if err != nil {
			return err
		}
		if len(c.GetTasks()) == 0 {
			return fmt.Errorf("no tasks: %s %s", c.GetState(), c.GetMessage())
		}
		for _, task := range c.GetTasks() {
			if task.GetRunner() != runner || task.GetCommits() == 0 {
				return fmt.Errorf("task %d: %v", task.GetTask(), task)
			}
		}
		return nil
	})
}

// Partitions are the source partitions 0 to n-1.
func Partitions(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = strconv.Itoa(i)
	}
	return all
}
