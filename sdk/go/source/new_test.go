package source

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
)

// full is a Connector with every optional interface.
type full struct {
	scripted
	plan func(ctx context.Context, p *Planning) error
}

func (*full) Type() Type {
	return Type{Name: "full", Config: []Key{{Name: "path", Type: String, Required: true}, {Name: "n", Type: Int, Default: ptr("3")}}}
}

func (f *full) Plan(ctx context.Context, p *Planning) error { return f.plan(ctx, p) }

func (*full) Abilities() []Ability { return []Ability{AbilityConnectorBoundaries} }

func (*full) Validate(_ context.Context, c Config) Validation {
	if c.String("path") == "missing" {
		return Validation{Problems: []Problem{{Key: "path", Message: "doesn't exist"}}, ExactlyOnce: No}
	}
	if c.String("path") == "panic" {
		panic("boom")
	}
	return Validation{}
}

func (*full) AlterOffsets(_ context.Context, c Config, offsets []PartitionOffset) (*AlterAnswer, error) {
	if c.Int("n") == 3 && offsets[0].Offset == nil {
		return &AlterAnswer{Veto: "no resets"}, nil
	}
	return nil, nil
}

func TestAbilitiesFollowFromTheInterfaces(t *testing.T) {
	for _, c := range []struct {
		connectors []Connector
		want       []Ability
	}{
		{[]Connector{&scripted{}}, []Ability{AbilityIdle}},
		{[]Connector{&scripted{}, &full{}}, []Ability{AbilityAlterOffsets, AbilityConnectorBoundaries, AbilityIdle}},
	} {
		p := New("test", "1.0.0", c.connectors...)
		d, err := p.Describe(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, d.Abilities); diff != "" {
			t.Error(diff)
		}
		if _, alters := p.(OffsetAlterer); alters != (len(c.connectors) == 2) {
			t.Errorf("alters: %v", alters)
		}
	}
}

// typed is a Connector of a given Type.
type typed struct {
	scripted
	t Type
}

func (c *typed) Type() Type { return c.t }

func TestMistakesInTheTypesAreFoundByDescribe(t *testing.T) {
	for want, p := range map[string]Plugin{
		"no connector type":    New("test", "1.0.0"),
		"[a-z0-9-]":            New("Test", "1.0.0", &scripted{}),
		"is there twice":       New("test", "1.0.0", &scripted{}, &scripted{}),
		"is not 1 to 200":      New("test", "1.0.0", &typed{t: Type{Name: "a b"}}),
		"has no type":          New("test", "1.0.0", &typed{t: Type{Name: "a", Config: []Key{{Name: "k"}}}}),
		"the key k is there":   New("test", "1.0.0", &typed{t: Type{Name: "a", Config: []Key{{Name: "k", Type: Int}, {Name: "k", Type: Int}}}}),
		"the default of k":     New("test", "1.0.0", &typed{t: Type{Name: "a", Config: []Key{{Name: "k", Type: Int, Default: ptr("x")}}}}),
		"the example: unknown": New("test", "1.0.0", &typed{t: Type{Name: "a", Example: map[string]string{"unknown": ""}}}),
	} {
		if _, err := p.Describe(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
}

func TestValidateFindsEverythingAtOnce(t *testing.T) {
	p := New("test", "1.0.0", &full{})
	for config, want := range map[string]string{
		"full path=x":       "[] 1 1",
		"full path=missing": "[{path doesn't exist  false}] 2 1",
		"full pth=missing":  `[{path is required  false} {pth unknown key of connector type "full" did you mean path? false}] 1 1`,
		"full n=x":          `[{n "x" is not a whole number of 32 bits  false} {path is required  false}] 1 1`,
		// Everything at once: what the types say, and what the connector finds in the other keys.
		"full path=missing n=x": `[{n "x" is not a whole number of 32 bits  false} {path doesn't exist  false}] 2 1`,
		"nothing":               `[{connector.class plugin test has no connector type "nothing" it has: full false}] 3 3`,
	} {
		fields := strings.Fields(config)
		req := &ValidateRequest{Type: fields[0], Config: map[string]string{}}
		for _, kv := range fields[1:] {
			k, v, _ := strings.Cut(kv, "=")
			req.Config[k] = v
		}
		v, err := p.Validate(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(v.Problems, v.ExactlyOnce, v.ConnectorBoundaries); got != want {
			t.Errorf("%s:\n got %s\nwant %s", config, got, want)
		}
	}
	if _, err := p.Validate(t.Context(), &ValidateRequest{Type: "full", Config: map[string]string{"path": "panic"}}); err == nil || !strings.Contains(err.Error(), "method Validate panicked") {
		t.Errorf("got %v", err)
	}
}

type planHost struct {
	sets   [][]TaskSpec
	stored JSON
	err    error
}

func (h *planHost) SetTasks(_ context.Context, tasks []TaskSpec) error {
	h.sets = append(h.sets, tasks)
	return h.err
}

func (h *planHost) Lookup(_ context.Context, partitions []JSON) ([]PartitionOffset, error) {
	out := make([]PartitionOffset, len(partitions))
	out[0] = PartitionOffset{partitions[0], h.stored}
	return out, nil
}

func TestPlanStandsUntilItsContextIsDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &planHost{stored: JSON(`{"n":1}`)}
		p := New("test", "1.0.0", &full{plan: func(ctx context.Context, p *Planning) error {
			offsets, err := p.Lookup(ctx, Fields{"f": "a"}, Fields{"f": "b"})
			if n, _ := offsets[0].Int("n"); err != nil || n != 1 || offsets[1] != nil {
				t.Errorf("stored %v, %v", offsets, err)
			}
			claim, err := Set(Fields{"f": "a"})
			return errors.Join(err, p.SetTasks(ctx, TaskSpec{Claim: claim}), p.SetTasks(ctx, Slots(p.TasksMax())...))
		}})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- p.Plan(ctx, &PlanOpen{Connector: "c", Type: "full", Config: map[string]string{"path": "x"}, TasksMax: 2}, h)
		}()
		synctest.Wait()
		if len(done) > 0 {
			t.Fatalf("the plan ended: %v", <-done)
		}
		want := [][]TaskSpec{{{Claim: Claim{Set: []JSON{JSON(`{"f":"a"}`)}}}}, {{Claim: Claim{Slot: &Slot{0, 2}}}, {Claim: Claim{Slot: &Slot{1, 2}}}}}
		if diff := cmp.Diff(want, h.sets); diff != "" {
			t.Error(diff)
		}
		cancel()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	})
}

func TestPlanThatCannotStandIsAnError(t *testing.T) {
	refused := errors.New("claims overlap")
	for want, plan := range map[string]func(ctx context.Context, p *Planning) error{
		"without a call of SetTasks": func(context.Context, *Planning) error { return nil },
		"tasks.max is 1":             func(ctx context.Context, p *Planning) error { return p.SetTasks(ctx, Slots(2)...) },
		"claims overlap":             func(ctx context.Context, p *Planning) error { return p.SetTasks(ctx, One()) },
		"method Plan panicked":       func(context.Context, *Planning) error { panic("boom") },
	} {
		err := New("test", "1.0.0", &full{plan: plan}).Plan(t.Context(), &PlanOpen{Type: "full", Config: map[string]string{"path": "x"}}, &planHost{err: refused})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", want, err)
		}
	}
	err := New("test", "1.0.0", &full{}).Plan(t.Context(), &PlanOpen{Type: "full"}, &planHost{})
	var e *Error
	if !errors.As(err, &e) || e.Kind != Configuration || e.Key != "path" {
		t.Errorf("got %v", err)
	}
}

func TestOperatorsOffsetsReachTheConnector(t *testing.T) {
	p := New("test", "1.0.0", &full{}, &scripted{}).(OffsetAlterer)
	for _, c := range []struct {
		typ    string
		config map[string]string
		want   AlterAnswer
	}{
		{"full", map[string]string{"path": "x"}, AlterAnswer{Veto: "no resets"}},
		{"full", map[string]string{"path": "x", "n": "4"}, AlterAnswer{}},
		{"scripted", nil, AlterAnswer{}},
	} {
		got, err := p.AlterOffsets(t.Context(), &AlterRequest{Type: c.typ, Config: c.config, Offsets: []PartitionOffset{{Partition: JSON(`{"f":"a"}`)}}})
		if err != nil || *got != c.want {
			t.Errorf("%s: got %v, %v", c.typ, got, err)
		}
	}
}
