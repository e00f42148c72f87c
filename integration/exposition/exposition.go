// Package exposition reads, for tests, what a program shows Prometheus, and holds the names that it shows to a golden list and to their documentation.
package exposition

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

var update = flag.Bool("update", false, "write the golden list of metrics")

// Values are by name and labels, as in Prometheus' text.
type Values map[string]float64

// Parse reads Prometheus' text.
func Parse(text string) (Values, error) {
	values := Values{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		at := strings.LastIndexByte(line, ' ')
		if at < 0 {
			return nil, fmt.Errorf("line %q has no value", line)
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		values[line[:at]] = value
	}
	return values, nil
}

// Scrape asks a collector as Prometheus would.
func Scrape(t *testing.T, collector prometheus.Collector) (values Values, text string) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	answer := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}).ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/metrics", nil))
	body, err := io.ReadAll(answer.Body)
	if err != nil || answer.Code != http.StatusOK {
		t.Fatal(answer.Code, err, string(body))
	}
	if values, err = Parse(string(body)); err != nil {
		t.Fatal(err)
	}
	return values, string(body)
}

// Holds compares the metrics of a text, with their types and labels, with a golden file, and their names with the page that has to explain them. It returns how many there are. `go test -update` writes the file.
func Holds(t *testing.T, text, file, page string) int {
	t.Helper()
	names := list(text)
	got := strings.Join(names, "")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Error(diff)
	}
	docs, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range names {
		if name := "`" + strings.Fields(line)[0] + "`"; !strings.Contains(string(docs), name) {
			t.Errorf("%s says nothing of %s", page, name)
		}
	}
	return len(names)
}

// list has each metric with its type and labels, sorted.
func list(text string) []string {
	types, labels := map[string]string{}, map[string][]string{}
	for line := range strings.Lines(text) {
		if fields := strings.Fields(line); strings.HasPrefix(line, "# TYPE") {
			types[fields[2]] = fields[3]
		}
	}
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, rest, _ := strings.Cut(strings.TrimSpace(line), "{")
		name = strings.Fields(name)[0]
		for _, suffix := range []string{"_bucket", "_sum", "_count"} {
			if base, ok := strings.CutSuffix(name, suffix); ok && types[base] == "histogram" {
				name = base
			}
		}
		if _, seen := labels[name]; seen {
			continue
		}
		labels[name] = []string{}
		for pair := range strings.SplitSeq(rest, `",`) {
			if label, _, ok := strings.Cut(pair, "="); ok && label != "le" {
				labels[name] = append(labels[name], label)
			}
		}
	}
	var lines []string
	for name := range labels {
		lines = append(lines, strings.TrimSpace(name+" "+types[name]+" "+strings.Join(labels[name], ","))+"\n")
	}
	slices.Sort(lines)
	return lines
}
