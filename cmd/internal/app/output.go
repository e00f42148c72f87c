package app

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"
)

// output is the -o flag: a table for people, JSON or YAML for programs.
type output struct{ format string }

func (o *output) register(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "table", "output format: table, json or yaml")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"table", "json", "yaml"}, cobra.ShellCompDirectiveNoFileComp))
}

// print writes value in the chosen format; human fills the table.
func (o *output) print(w io.Writer, value any, human func(*table)) error {
	switch o.format {
	case "table", "":
		t := newTable(w)
		human(t)
		return t.flush()
	case "json":
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(value)
	case "yaml":
		return printYAML(w, value)
	default:
		return fail(exitUsage, "--output: %q is not a format; use table, json or yaml", o.format)
	}
}

// printYAML goes through JSON, so that both have the same names.
func printYAML(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	var plain any
	if err := json.Unmarshal(text, &plain); err != nil {
		return err
	}
	enc := yaml.NewEncoder(w)
	enc.SetIndent(2)
	if err := enc.Encode(plain); err != nil {
		return err
	}
	return enc.Close()
}

// table aligns columns.
type table struct{ w *tabwriter.Writer }

func newTable(w io.Writer) *table { return &table{tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)} }

// row adds a line. What users and other systems named must not move the cursor, colour the terminal or turn the text around.
func (t *table) row(cells ...string) {
	shown := make([]string, len(cells))
	for i, cell := range cells {
		shown[i] = printable(cell)
	}
	fmt.Fprintln(t.w, strings.Join(shown, "\t"))
}

// printable writes characters that a terminal acts upon as Go escapes. A line's end stays: describe shows texts of several lines.
func printable(s string) string {
	acts := func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' || r >= '\u202a' && r <= '\u202e' || r >= '\u2066' && r <= '\u2069'
	}
	if !strings.ContainsFunc(s, acts) {
		return s
	}
	var b strings.Builder
	for _, r := range s {
		if acts(r) {
			b.WriteString(strings.Trim(strconv.QuoteToASCII(string(r)), `"`))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

func (t *table) flush() error { return t.w.Flush() }
