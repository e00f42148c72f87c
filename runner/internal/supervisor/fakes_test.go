package supervisor_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/fencepost-io/fencepost/runner/internal/supervisor"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// process is a plugin's process that a test may crash.
type process struct {
	w         *world
	connector string
	done      chan struct{}
	once      sync.Once
	err       error
}

func (w *world) start(_ context.Context, p supervisor.Plugin, label string) (supervisor.Process, error) {
	w.mu.Lock()
	err := w.fail[label]
	w.mu.Unlock()
	if err != nil {
		return nil, err
	}
	w.say("%s process of %s %s starts", label, p.Description.Name, p.Description.Version)
	proc := &process{w: w, connector: label, done: make(chan struct{})}
	w.mu.Lock()
	w.procs[label] = proc
	w.mu.Unlock()
	return proc, nil
}

// hostFault is an error that the host is to blame for.
type hostFault struct{ error }

func (hostFault) HostFault() {}

func (w *world) proc(connector string) *process {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.procs[connector]
}

func (p *process) Plugin() source.Plugin { return p }
func (p *process) Done() <-chan struct{} { return p.done }
func (p *process) Err() error            { return p.err }
func (p *process) SHA256() string        { return "" }
func (p *process) Kill()                 { p.end("is killed", errors.New("killed")) }
func (p *process) crash(err error)       { p.end("crashes", err) }
func (p *process) Stop(context.Context) error {
	p.end("stops", nil)
	return nil
}

func (p *process) end(how string, err error) {
	p.once.Do(func() {
		p.err = err
		close(p.done)
		p.w.say("%s process %s", p.connector, how)
	})
}

func (p *process) Describe(context.Context) (*source.Description, error) {
	return description("1.0.0"), nil
}

func (p *process) Validate(_ context.Context, req *source.ValidateRequest) (*source.Validation, error) {
	switch req.Config["count"] {
	case "13":
		return &source.Validation{Problems: []source.Problem{{Key: "count", Message: "brings bad luck", Hint: "12"}}, ExactlyOnce: source.Yes}, nil
	case "0":
		return nil, source.Configf("count", "there is nothing to count")
	case "1":
		return nil, errors.New("out of beads")
	}
	return &source.Validation{ExactlyOnce: source.Unknown}, nil
}

func (p *process) Run(context.Context, *source.RunOpen, source.RunHost) error { return nil }

// planCall is a plan that a test ends.
type planCall struct {
	host source.PlanHost
	done chan error
}

func (p *process) Plan(ctx context.Context, open *source.PlanOpen, host source.PlanHost) error {
	p.w.say("%s plan opens, tasks max %d", open.Connector, open.TasksMax)
	call := &planCall{host: host, done: make(chan error)}
	p.w.mu.Lock()
	p.w.plans[open.Connector] = call
	p.w.mu.Unlock()
	select {
	case <-ctx.Done():
		p.w.say("%s plan closes", open.Connector)
		return nil
	case err := <-call.done:
		return err
	case <-p.done:
		return source.Retryf("%w", p.err)
	}
}

func (w *world) plan(connector string) *planCall {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.plans[connector]
}

// tasks has the plugin set tasks: one a line, each the partitions of its claim.
func (w *world) tasks(t *testing.T, connector string, d *datadriven.TestData) string {
	t.Helper()
	var specs []source.TaskSpec
	for line := range strings.Lines(d.Input) {
		spec := source.TaskSpec{}
		for _, p := range strings.Split(strings.TrimSpace(line), " | ") {
			spec.Claim.Set = append(spec.Claim.Set, source.JSON(p))
		}
		specs = append(specs, spec)
	}
	if err := w.plan(connector).host.SetTasks(t.Context(), specs); err != nil {
		return fmt.Sprintf("refused: %v\n", err)
	}
	return ""
}

// lookup has the plugin look a partition up.
func (w *world) lookup(t *testing.T, connector, partition string) string {
	t.Helper()
	got, err := w.plan(connector).host.Lookup(t.Context(), []source.JSON{source.JSON(strings.TrimSpace(partition))})
	if err != nil {
		return fmt.Sprintf("error: %v\n", err)
	}
	return fmt.Sprintf("%s\n", got)
}
