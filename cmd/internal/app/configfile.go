package app

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/agnivade/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
)

// daemonFile is the configuration file of a coordinator or runner: YAML with the flags' names as keys, plus `kafka:`, a map with librdkafka's key names.
// What is given on the command line wins.
type daemonFile struct {
	path  string
	kafka map[string]string
	pairs []string // --kafka KEY=VALUE
}

func (d *daemonFile) register(cmd *cobra.Command) {
	cmd.Flags().StringVar(&d.path, "config", "", "YAML file with the flags' names as keys, and kafka: with librdkafka's keys for SASL, TLS and the like")
	cmd.Flags().StringArrayVar(&d.pairs, "kafka", nil, "one librdkafka key as KEY=VALUE, as under kafka: in the file; may repeat (secrets belong into the file)")
}

// load reads the file into the flags that weren't given. Every problem of the file comes at once.
func (d *daemonFile) load(cmd *cobra.Command) error {
	d.kafka = map[string]string{}
	if d.path != "" {
		if err := d.read(cmd.Flags()); err != nil {
			return err
		}
	}
	for _, pair := range d.pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return fail(exitUsage, "--kafka: %q is not KEY=VALUE", key)
		}
		d.kafka[key] = value
	}
	return nil
}

func (d *daemonFile) read(flags *pflag.FlagSet) error {
	text, err := os.ReadFile(d.path)
	if err != nil {
		return fail(exitUsage, "--config: %w", err)
	}
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return fail(exitUsage, "--config: %s is not YAML: %s", d.path, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 {
		return nil
	}
	if doc.Content[0].Kind != yaml.MappingNode {
		return fail(exitUsage, "--config: %s is not a map of keys", d.path)
	}
	var problems []string
	top := doc.Content[0]
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i], top.Content[i+1]
		if err := d.take(flags, key.Value, value); err != nil {
			problems = append(problems, fmt.Sprintf("  line %d: %s: %v", key.Line, key.Value, err))
		}
	}
	if len(problems) > 0 {
		return fail(exitUsage, "--config: %s has %s:\n%s", d.path, count(len(problems), "problem", "problems"), strings.Join(problems, "\n"))
	}
	return nil
}

func (d *daemonFile) take(flags *pflag.FlagSet, key string, value *yaml.Node) error {
	if key == "kafka" {
		return d.takeKafka(value)
	}
	flag := flags.Lookup(key)
	if flag == nil || key == "config" || key == "help" {
		return fmt.Errorf("unknown key%s", nearest(key, flagNames(flags)))
	}
	if flag.Changed {
		return nil
	}
	texts, err := textsOf(value)
	if err != nil {
		return err
	}
	for _, text := range texts {
		if err := flags.Set(key, text); err != nil {
			return err
		}
	}
	return nil
}

func (d *daemonFile) takeKafka(node *yaml.Node) error {
	if node.Kind != yaml.MappingNode {
		return fmt.Errorf("not a map; write librdkafka's keys under it, for example security.protocol: SASL_SSL")
	}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i].Value, node.Content[i+1]
		if value.Kind != yaml.ScalarNode || value.Tag == "!!null" {
			return fmt.Errorf("%s must be a text, a number or true/false", key)
		}
		d.kafka[key] = value.Value
	}
	return nil
}

// textsOf reads a scalar, a list of scalars, or a map of scalars as KEY=VALUE.
func textsOf(node *yaml.Node) ([]string, error) {
	switch node.Kind {
	case yaml.ScalarNode:
		return []string{node.Value}, nil
	case yaml.SequenceNode:
		var out []string
		for _, item := range node.Content {
			if item.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("must be a list of texts")
			}
			out = append(out, item.Value)
		}
		return out, nil
	case yaml.MappingNode:
		pairs := map[string]string{}
		for i := 0; i+1 < len(node.Content); i += 2 {
			if node.Content[i+1].Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("%s must be a text", node.Content[i].Value)
			}
			pairs[node.Content[i].Value] = node.Content[i+1].Value
		}
		var out []string
		for _, key := range slices.Sorted(maps.Keys(pairs)) {
			out = append(out, key+"="+pairs[key])
		}
		return out, nil
	default:
		return nil, fmt.Errorf("must be a text or a list")
	}
}

func flagNames(flags *pflag.FlagSet) []string {
	names := []string{"kafka"}
	flags.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	return names
}

// nearest names the known key that an unknown one was probably meant to be.
func nearest(key string, known []string) string {
	best, distance := "", 4
	for _, k := range known {
		if d := levenshtein.ComputeDistance(key, k); d < distance {
			best, distance = k, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}
