package supervisor

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/fencepost-io/fencepost/runner/internal/session"
	"github.com/fencepost-io/fencepost/runner/internal/settings"
	"github.com/fencepost-io/fencepost/runner/internal/task"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// validateTimeout is the protocol's.
const validateTimeout = 30 * time.Second

// Validator knows the plugins and shares their processes, and finds what is wrong with a configuration. It needs no coordinator and no broker.
type Validator struct {
	catalogue      catalogue
	processes      *processes
	checkOverrides func(overrides map[string]string) []source.Problem
}

// NewValidator makes a Validator. start starts a plugin's process; checkOverrides checks librdkafka keys, given without a prefix.
func NewValidator(start func(ctx context.Context, p Plugin, label string) (Process, error), checkOverrides func(map[string]string) []source.Problem, log hclog.Logger) *Validator {
	return &Validator{processes: newProcesses(start, log), checkOverrides: checkOverrides}
}

// SetPlugins replaces the plugins that new tasks, plans and validations may use. What runs goes on with what it has.
func (v *Validator) SetPlugins(plugins []Plugin) { v.catalogue.set(plugins) }

// Close stops every plugin process and waits for its end. Nothing may be started after it.
func (v *Validator) Close() { v.processes.close() }

// Validate finds every problem of a configuration: with the runtime's keys, with the client's, and, by asking the plugin, with the connector's. host says that the
// plugin can't be asked on this host, and may well be on another: the problems say why. An error says that there is no answer.
func (v *Validator) Validate(ctx context.Context, connector string, config map[string]string) (problems []source.Problem, host bool, err error) {
	st, rest, found := settings.Parse(config)
	problems = found
	if st.Name != "" && st.Name != connector {
		problems = append(problems, source.Problem{Key: settings.KeyName, Message: fmt.Sprintf("is %q, and the connector is called %q", st.Name, connector), Hint: "leave it out"})
	}
	for _, p := range v.checkOverrides(st.ProducerOverrides) {
		p.Key = settings.OverridePrefix + p.Key
		problems = append(problems, p)
	}
	if st.Type == "" {
		return append(problems, settings.Misspelt(rest)...), false, nil
	}
	plugin, typ, missing := v.catalogue.choose(st)
	if missing != nil {
		return append(append(problems, *missing), settings.Misspelt(rest)...), true, nil
	}
	own, more := settings.Split(rest, typ)
	problems = append(problems, more...)
	said, err := v.ask(ctx, connector, plugin, typ, own)
	if err != nil {
		if ctx.Err() != nil {
			return nil, false, err
		}
		// That the plugin can't answer is what is wrong with the configuration, as far as the user can see.
		return merge(problems, problemOf(err)), causeOfStart(err) == task.CauseHost, nil
	}
	problems = merge(problems, said.Problems...)
	return merge(problems, guarantees(st, plugin, said)...), false, nil
}

// ask asks the plugin itself. Its process is kept for a moment: a connector is often created right after it was validated.
func (v *Validator) ask(ctx context.Context, connector string, plugin Plugin, typ source.Type, own map[string]string) (*source.Validation, error) {
	proc, err := v.processes.acquire(ctx, connector, plugin)
	if err != nil {
		return nil, err
	}
	defer proc.release(keepWarm)
	within, cancel := context.WithTimeout(ctx, validateTimeout)
	defer cancel()
	said, err := proc.proc.Plugin().Validate(within, &source.ValidateRequest{Connector: connector, Type: typ.Name, Config: own})
	switch {
	case err != nil && within.Err() != nil && ctx.Err() == nil:
		return nil, fmt.Errorf("plugin %s didn't validate the configuration within %s", plugin.Description.Name, validateTimeout)
	case err != nil:
		return nil, err
	}
	return said, nil
}

// warmUp has a connector's plugin running for a grant that may come.
func (v *Validator) warmUp(ctx context.Context, e *session.WarmUp) error {
	plugin, _, err := v.catalogue.find(e.Plugin)
	if err != nil {
		return err
	}
	proc, err := v.processes.acquire(ctx, e.Connector, plugin)
	if err != nil {
		return err
	}
	proc.release(keepForGrant)
	return nil
}

// problemOf is a plugin's error as a problem.
func problemOf(err error) source.Problem {
	var said *source.Error
	if errors.As(err, &said) && said.Key != "" {
		return source.Problem{Key: said.Key, Message: said.Message, Hint: said.Hint}
	}
	return source.Problem{Key: settings.KeyConnectorClass, Message: "the plugin can't be asked: " + err.Error()}
}

// guarantees checks what a configuration asks for against what the plugin can do with it.
func guarantees(st *settings.Settings, p Plugin, v *source.Validation) []source.Problem {
	var problems []source.Problem
	if st.RequireExactlyOnce && v.ExactlyOnce != source.Yes {
		message := "the connector can't be exactly-once with this configuration"
		if v.ExactlyOnce != source.No {
			message = "the connector doesn't say whether it can be exactly-once with this configuration"
		}
		problems = append(problems, source.Problem{Key: settings.KeyExactlyOnce, Message: message, Hint: "use `requested` where its documentation says that it can"})
	}
	switch st.Boundary.Rule {
	case source.PerSource:
		if !has(p, source.AbilitySourceBoundaries) {
			problems = append(problems, source.Problem{Key: settings.KeyBoundary, Message: "the connector doesn't mark transactions of its source", Hint: "use adaptive"})
		}
	case source.ByConnector:
		switch {
		case !has(p, source.AbilityConnectorBoundaries) || v.ConnectorBoundaries == source.No:
			problems = append(problems, source.Problem{Key: settings.KeyBoundary, Message: "the connector can't define its own boundaries with this configuration", Hint: "use adaptive"})
		case v.ConnectorBoundaries != source.Yes:
			problems = append(problems, source.Problem{Key: settings.KeyBoundary, Warning: true, Message: "the connector doesn't say whether it can define its own boundaries with this configuration"})
		}
	}
	return problems
}

func has(p Plugin, a source.Ability) bool {
	for _, have := range p.Description.Abilities {
		if have == a {
			return true
		}
	}
	return false
}

// merge adds problems that say something new: a plugin made with an SDK finds the mistakes again that were found here.
func merge(problems []source.Problem, more ...source.Problem) []source.Problem {
	for _, p := range more {
		known := false
		for _, have := range problems {
			known = known || have.Key == p.Key && have.Warning == p.Warning && (p.Key != settings.KeyConnectorClass || have.Message == p.Message)
		}
		if !known {
			problems = append(problems, p)
		}
	}
	return problems
}

// firstProblem is an error where a configuration has problems, with all of them in its text. Warnings are none.
func firstProblem(problems []source.Problem) error {
	var texts []string
	for _, p := range problems {
		if p.Warning {
			continue
		}
		text := p.Key + ": " + p.Message
		if p.Hint != "" {
			text += " (" + p.Hint + ")"
		}
		texts = append(texts, text)
	}
	if texts == nil {
		return nil
	}
	return errors.New(strings.Join(texts, "; "))
}
