// Package exposition reads, for tests, what a program shows Prometheus, and holds the names that it shows to a golden list and to their documentation.
package exposition

import (
	"flag"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
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

// Holds compares the metrics of a collector, with their types and labels, with a golden file, and their names with the page that has to explain them. It returns how many there are. `go test -update` writes the file.
func Holds(t *testing.T, collector prometheus.Collector, file, page string) int {
	t.Helper()
	names := list(t, collector)
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

// list has each metric with its type and labels, by name.
func list(t *testing.T, collector prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		var labels []string
		for _, label := range f.GetMetric()[0].GetLabel() {
			labels = append(labels, label.GetName())
		}
		lines = append(lines, strings.TrimSpace(f.GetName()+" "+strings.ToLower(f.GetType().String())+" "+strings.Join(labels, ","))+"\n")
	}
	return lines
}
