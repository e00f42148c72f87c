package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// figure is one line of results.json.
type figure struct {
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Min   float64 `json:"min"`
	Max   float64 `json:"max"`
	Runs  int     `json:"runs"`
}

type results map[string]figure

// add puts a figure in, the median of its runs, and prints it.
func (r results) add(name, unit string, values ...float64) {
	f := figure{Value: round(median(values)), Unit: unit, Min: round(slices.Min(values)), Max: round(slices.Max(values)), Runs: len(values)}
	r[name] = f
	fmt.Printf("%s %v %s\n", name, f.Value, unit)
}

// write merges the figures into the file: what wasn't measured this time stays.
func (r results) write(path string) error {
	all := results{}
	switch text, err := os.ReadFile(path); {
	case err == nil:
		if err := json.Unmarshal(text, &all); err != nil {
			return fmt.Errorf("results %s: %w", path, err)
		}
	case !errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("results: %w", err)
	}
	maps.Copy(all, r)
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	middle := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[middle]
	}
	return (sorted[middle-1] + sorted[middle]) / 2
}

// percentile is the smallest value that p of all values don't exceed.
func percentile(values []float64, p float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	return sorted[max(0, int(math.Ceil(p*float64(len(sorted))))-1)]
}

// round keeps four figures. What is too small for any of the units is the difference of two equal ones.
func round(v float64) float64 {
	if math.Abs(v) < 1e-4 {
		return 0
	}
	scale := math.Pow(10, 3-math.Floor(math.Log10(math.Abs(v))))
	return math.Round(v*scale) / scale
}

// ratios divides pair by pair.
func ratios(a, b []float64) []float64 {
	out := make([]float64, len(a))
	for i := range a {
		out[i] = a[i] / b[i]
	}
	return out
}
