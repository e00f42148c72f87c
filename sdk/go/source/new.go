package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Abler is a Connector with abilities beyond AbilityIdle and AbilityAlterOffsets, which New knows by itself. A plugin has the abilities of all its connectors.
type Abler interface {
	Abilities() []Ability
}

// Alterer is a Connector that wants to know when an operator changes the stored offsets of a stopped connector: it checks them, refuses them with a reason, or moves something in
// the source. An offset of nil is a reset. A nil answer is "nothing to say".
type Alterer interface {
	AlterOffsets(ctx context.Context, config Config, offsets []PartitionOffset) (*AlterAnswer, error)
}

// New makes a plugin of connectors. It checks configurations, numbers and splits what Readers add, keeps to the runner's credit, brings committed positions back, drains, and turns
// panics of connectors into errors. Mistakes in the connectors' types are the error of Describe.
//
// Name is 1 to 64 of [a-z0-9-], version a semantic version.
func New(name, version string, connectors ...Connector) Plugin {
	p := &plugin{description: &Description{Name: name, Version: version}}
	abilities := map[Ability]bool{AbilityIdle: true}
	alters := false
	p.broken = guard("Type", func() error {
		for _, c := range connectors {
			t := c.Type()
			p.description.Types = append(p.description.Types, t)
			p.connectors = append(p.connectors, c)
			if a, ok := c.(Abler); ok {
				for _, ability := range a.Abilities() {
					abilities[ability] = true
				}
			}
			if _, ok := c.(Alterer); ok {
				alters = true
			}
		}
		return checkDescription(p.description)
	})
	abilities[AbilityAlterOffsets] = alters
	for a := AbilityAlterOffsets; a <= AbilityIdle; a++ {
		if abilities[a] {
			p.description.Abilities = append(p.description.Abilities, a)
		}
	}
	if alters {
		return alteringPlugin{p}
	}
	return p
}

// plugin implements Plugin for connectors.
type plugin struct {
	description *Description
	connectors  []Connector // in the order of description.Types
	broken      error
}

// Describe implements Plugin.
func (p *plugin) Describe(context.Context) (*Description, error) {
	if p.broken != nil {
		return nil, p.broken
	}
	return p.description, nil
}

// find returns a connector and its type.
func (p *plugin) find(name string) (Connector, Type, error) {
	if p.broken != nil {
		return nil, Type{}, p.broken
	}
	known := make([]string, len(p.connectors))
	for i, t := range p.description.Types {
		if t.Name == name {
			return p.connectors[i], t, nil
		}
		known[i] = t.Name
	}
	e := Configf("connector.class", "plugin %s has no connector type %q", p.description.Name, name)
	e.Hint = "it has: " + strings.Join(known, ", ")
	return nil, Type{}, e
}

// prepare finds the connector, and its configuration in which no mistake is left.
func (p *plugin) prepare(name string, config map[string]string) (Connector, Config, error) {
	c, t, err := p.find(name)
	if err != nil {
		return nil, nil, err
	}
	for _, problem := range CheckConfig(t, config) {
		if !problem.Warning {
			return nil, nil, &Error{Kind: Configuration, Key: problem.Key, Message: problem.Message, Hint: problem.Hint}
		}
	}
	return c, WithDefaults(t, config), nil
}

// Validate implements Plugin.
func (p *plugin) Validate(ctx context.Context, req *ValidateRequest) (*Validation, error) {
	c, t, err := p.find(req.Type)
	if err != nil {
		var e *Error
		if errors.As(err, &e) && e.Kind == Configuration {
			return &Validation{Problems: []Problem{{Key: e.Key, Message: e.Message, Hint: e.Hint}}, ExactlyOnce: Unknown, ConnectorBoundaries: Unknown}, nil
		}
		return nil, err
	}
	v := Validation{Problems: CheckConfig(t, req.Config)}
	if validator, ok := c.(Validator); ok {
		if err := askValidator(ctx, validator, t, req.Config, &v); err != nil {
			return nil, err
		}
	}
	// A Reader goes on from what Stored gives: that is exactly-once unless the connector says otherwise.
	if v.ExactlyOnce == 0 {
		v.ExactlyOnce = Yes
	}
	if v.ConnectorBoundaries == 0 {
		v.ConnectorBoundaries = No
		if a, ok := c.(Abler); ok && slices.Contains(a.Abilities(), AbilityConnectorBoundaries) {
			v.ConnectorBoundaries = Yes
		}
	}
	return &v, nil
}

// askValidator adds what the connector finds to what its keys' types say, so that a user sees everything at once. Keys with a mistake are left out of what it is shown, and it isn't heard on them.
func askValidator(ctx context.Context, validator Validator, t Type, config map[string]string, v *Validation) error {
	typed := v.Problems
	wrong := make(map[string]bool, len(typed))
	good := maps.Clone(config)
	for _, p := range typed {
		wrong[p.Key] = true
		delete(good, p.Key)
	}
	err := guard("Validate", func() error {
		*v = validator.Validate(ctx, WithDefaults(t, good))
		return nil
	})
	own := slices.DeleteFunc(v.Problems, func(p Problem) bool { return wrong[p.Key] })
	v.Problems = append(typed, own...)
	return err
}

// Plan implements Plugin.
func (p *plugin) Plan(ctx context.Context, open *PlanOpen, host PlanHost) error {
	c, config, err := p.prepare(open.Type, open.Config)
	if err != nil {
		return err
	}
	planning := &Planning{host: host, config: config, name: open.Connector, tasksMax: max(1, open.TasksMax)}
	err = guard("Plan", func() error { return c.Plan(ctx, planning) })
	if ctx.Err() != nil {
		return nil
	}
	if err != nil {
		return err
	}
	if !planning.set {
		return Fatalf("Plan returned without a call of SetTasks")
	}
	// The plan stands for as long as the connector runs.
	<-ctx.Done()
	return nil
}

// Run implements Plugin.
func (p *plugin) Run(ctx context.Context, open *RunOpen, host RunHost) error {
	c, config, err := p.prepare(open.Type, open.Config)
	if err != nil {
		return err
	}
	t, err := newTask(open, host, config)
	if err != nil {
		return err
	}
	return runTask(ctx, c, t, host)
}

// alteringPlugin is a plugin with a connector that is an Alterer.
type alteringPlugin struct{ *plugin }

// AlterOffsets implements OffsetAlterer.
func (p alteringPlugin) AlterOffsets(ctx context.Context, req *AlterRequest) (*AlterAnswer, error) {
	c, config, err := p.prepare(req.Type, req.Config)
	if err != nil {
		return nil, err
	}
	a, ok := c.(Alterer)
	if !ok {
		return &AlterAnswer{}, nil
	}
	var answer *AlterAnswer
	err = guard("AlterOffsets", func() error {
		answer, err = a.AlterOffsets(ctx, config, req.Offsets)
		return err
	})
	if err != nil {
		return nil, err
	}
	if answer == nil {
		answer = &AlterAnswer{}
	}
	return answer, nil
}

// checkDescription finds an author's mistakes before a user does.
func checkDescription(d *Description) error {
	if !isName(d.Name, "abcdefghijklmnopqrstuvwxyz0123456789-", 64) {
		return Fatalf("the plugin's name %q is not 1 to 64 of [a-z0-9-]", d.Name)
	}
	if len(d.Types) == 0 {
		return Fatalf("the plugin %s has no connector type", d.Name)
	}
	seen := make(map[string]bool)
	for _, t := range d.Types {
		if !isName(t.Name, nameBytes+"$", 200) {
			return Fatalf("the connector type %q is not 1 to 200 of [A-Za-z0-9._$-]", t.Name)
		}
		if seen[t.Name] {
			return Fatalf("the connector type %q is there twice", t.Name)
		}
		seen[t.Name] = true
		if err := t.check(); err != nil {
			return err
		}
	}
	return nil
}

const nameBytes = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

func isName(s, allowed string, most int) bool {
	return s != "" && len(s) <= most && strings.Trim(s, allowed) == "" && !strings.ContainsFunc(s, func(r rune) bool { return !strings.ContainsRune(allowed, r) })
}

// check looks at the keys, their defaults and the example.
func (t Type) check() error {
	seen := make(map[string]bool)
	for _, k := range t.Config {
		if !isName(k.Name, nameBytes, 200) {
			return Fatalf("connector type %s: the key %q is not 1 to 200 of [A-Za-z0-9._-]", t.Name, k.Name)
		}
		if seen[k.Name] {
			return Fatalf("connector type %s: the key %s is there twice", t.Name, k.Name)
		}
		seen[k.Name] = true
		if k.Type < String || k.Type > Size {
			return Fatalf("connector type %s: the key %s has no type", t.Name, k.Name)
		}
		if k.Default == nil {
			continue
		}
		if p, bad := k.check(*k.Default); bad {
			return Fatalf("connector type %s: the default of %s: %s", t.Name, k.Name, p.Message)
		}
	}
	if t.Example == nil {
		return nil
	}
	for _, p := range CheckConfig(t, t.Example) {
		return Fatalf("connector type %s: the example: %s", t.Name, fmt.Sprintf("%s: %s", p.Key, p.Message))
	}
	return nil
}
