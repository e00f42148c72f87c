package app

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	pluginv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/plugin/v1"
)

// maxFileBytes bounds a connector file: the limit of a message, so that what can be read can be sent.
const maxFileBytes = 16 << 20

// maxNameBytes is the longest name of a connector.
const maxNameBytes = 200

// connectorFile is one connector as a user wrote it down.
type connectorFile struct {
	Where   string // file, and the document in it where there are several
	Name    string
	Config  map[string]string
	Initial string // Kafka Connect's initial_state; empty is RUNNING
	// Problems found while reading; the connector isn't used where there are any.
	Problems []*pluginv1.Problem
}

func (c *connectorFile) problem(key, message, hint string) {
	c.Problems = append(c.Problems, &pluginv1.Problem{Key: key, Message: message, Hint: hint})
}

// readConnectorFiles reads every file and folder. A folder stands for its *.yaml, *.yml and *.json files. It returns an error only for what can't be read at all; problems
// inside a file are its own.
func readConnectorFiles(paths []string, stdin io.Reader) ([]*connectorFile, error) {
	if len(paths) == 0 {
		return nil, fail(exitUsage, "no file given; name one with -f FILE, a folder with -f DIR, or standard input with -f -")
	}
	var all []*connectorFile
	for _, path := range paths {
		files, err := expandPath(path)
		if err != nil {
			return nil, err
		}
		for _, file := range files {
			text, err := readBounded(file, stdin)
			if err != nil {
				return nil, err
			}
			all = append(all, parseConnectors(file, text)...)
		}
	}
	seen := map[string]string{}
	for _, c := range all {
		if first, ok := seen[c.Name]; ok && c.Name != "" {
			c.problem("name", fmt.Sprintf("%q is used twice, first in %s", c.Name, first), "give each connector its own name")
		} else {
			seen[c.Name] = c.Where
		}
	}
	return all, nil
}

func expandPath(path string) ([]string, error) {
	if path == "-" {
		return []string{path}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fail(exitUsage, "-f %s: %w", path, errors.Unwrap(err))
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	var files []string
	for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
		found, err := filepath.Glob(filepath.Join(path, pattern))
		if err != nil {
			return nil, fail(exitUsage, "-f %s: %w", path, err)
		}
		files = append(files, found...)
	}
	if len(files) == 0 {
		return nil, fail(exitUsage, "-f %s: the folder has no *.yaml, *.yml or *.json file", path)
	}
	slices.Sort(files)
	return files, nil
}

func readBounded(path string, stdin io.Reader) ([]byte, error) {
	r := stdin
	if path != "-" {
		f, err := os.Open(path)
		if err != nil {
			return nil, fail(exitUsage, "-f %w", err)
		}
		defer f.Close()
		r = f
	}
	text, err := io.ReadAll(io.LimitReader(r, maxFileBytes+1))
	if err != nil {
		return nil, fail(exitUsage, "-f %s: %w", path, err)
	}
	if len(text) > maxFileBytes {
		return nil, fail(exitUsage, "-f %s: larger than %d MiB", path, maxFileBytes>>20)
	}
	return text, nil
}

// parseConnectors reads YAML or JSON (which YAML contains), one or several documents.
func parseConnectors(path string, text []byte) []*connectorFile {
	if trimmed := bytes.TrimSpace(text); len(trimmed) > 0 && trimmed[0] == '{' {
		// Tabs are white space in JSON and forbidden as indentation in YAML; outside of texts they mean the same as a space.
		text = bytes.ReplaceAll(text, []byte("\t"), []byte(" "))
	}
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var all []*connectorFile
	for i := 1; ; i++ {
		c := &connectorFile{Where: path}
		if i > 1 {
			c.Where = fmt.Sprintf("%s (document %d)", path, i)
		}
		var doc yaml.Node
		err := dec.Decode(&doc)
		if errors.Is(err, io.EOF) && i > 1 {
			return all
		}
		all = append(all, c)
		switch {
		case errors.Is(err, io.EOF):
			c.problem("", "the file is empty", "write {name: …, config: {connector.class: …}}")
			return all
		case err != nil:
			c.problem("", "not YAML or JSON: "+strings.TrimPrefix(err.Error(), "yaml: "), "")
			return all
		}
		c.fill(&doc)
	}
}

// fill takes {name, config} or Kafka Connect's flat map of keys.
func (c *connectorFile) fill(doc *yaml.Node) {
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		c.problem("", "a connector is a map", "write {name: …, config: {connector.class: …}}")
		return
	}
	top := c.pairs(doc.Content[0], "")
	config, nested := top["config"]
	if !nested {
		c.Config = c.scalars(top, "")
		c.Name = c.Config["name"]
	} else {
		c.nested(top, config)
	}
	c.checkName()
}

// checkName says at once, without a server, what every coordinator would.
func (c *connectorFile) checkName() {
	const hint = "1 to 200 bytes of UTF-8 without control characters"
	switch {
	case c.Name == "":
		if !slices.ContainsFunc(c.Problems, func(p *pluginv1.Problem) bool { return p.GetKey() == "name" }) {
			c.problem("name", "missing", "give the connector a name")
		}
	case len(c.Name) > maxNameBytes:
		c.problem("name", fmt.Sprintf("is %d bytes long", len(c.Name)), hint)
	case !utf8.ValidString(c.Name):
		c.problem("name", "is not UTF-8", hint)
	default:
		if i := strings.IndexFunc(c.Name, unicode.IsControl); i >= 0 {
			r, _ := utf8.DecodeRuneInString(c.Name[i:])
			c.problem("name", fmt.Sprintf("has the control character %q", r), hint)
		}
	}
}

func (c *connectorFile) nested(top map[string]*yaml.Node, config *yaml.Node) {
	for key, node := range top {
		switch key {
		case "config":
		case "name":
			c.Name, _ = c.scalar("name", node)
		case "initial_state":
			c.Initial, _ = c.scalar("initial_state", node)
		default:
			c.problem(key, fmt.Sprintf("line %d: unknown key beside config", node.Line), "the keys here are name, config and initial_state; a connector's own keys go under config")
		}
	}
	if config.Kind != yaml.MappingNode {
		c.problem("config", fmt.Sprintf("line %d: not a map", config.Line), "write key: value lines under it")
		return
	}
	c.Config = c.scalars(c.pairs(config, "config"), "config")
	if name, ok := c.Config["name"]; ok && c.Name != "" && name != c.Name {
		c.problem("name", fmt.Sprintf("%q under config and %q beside it", name, c.Name), "leave one of them out")
	} else if ok && c.Name == "" {
		c.Name = name
	}
}

// pairs reads a map and reports keys that appear twice.
func (c *connectorFile) pairs(node *yaml.Node, where string) map[string]*yaml.Node {
	out := map[string]*yaml.Node{}
	for i := 0; i+1 < len(node.Content); i += 2 {
		key, value := node.Content[i], node.Content[i+1]
		if value.Kind == yaml.AliasNode {
			value = value.Alias
		}
		if key.Kind != yaml.ScalarNode {
			c.problem(where, fmt.Sprintf("line %d: a key must be text", key.Line), "")
			continue
		}
		if _, twice := out[key.Value]; twice {
			c.problem(key.Value, fmt.Sprintf("line %d: the key appears twice", key.Line), "leave one of them out")
			continue
		}
		out[key.Value] = value
	}
	return out
}

func (c *connectorFile) scalars(nodes map[string]*yaml.Node, _ string) map[string]string {
	out := make(map[string]string, len(nodes))
	for key, node := range nodes {
		if text, ok := c.scalar(key, node); ok {
			out[key] = text
		}
	}
	return out
}

// scalar returns a value as it was written: numbers and booleans are text to a connector, exactly.
func (c *connectorFile) scalar(key string, node *yaml.Node) (string, bool) {
	switch {
	case node.Kind != yaml.ScalarNode:
		c.problem(key, fmt.Sprintf("line %d: the value must be a text, a number or true/false", node.Line), "write a list as texts separated by commas")
		return "", false
	case node.Tag == "!!null":
		c.problem(key, fmt.Sprintf("line %d: the value is null", node.Line), "give it a value, or leave the key out")
		return "", false
	}
	return node.Value, true
}
