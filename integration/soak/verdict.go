package soak

import (
	"bytes"
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/fencepost-io/fencepost/integration/kafka"
)

// verdictTimeout bounds the reading of everything.
const verdictTimeout = 5 * time.Minute

//go:embed Verdict.java
var verdictProgram []byte

// finding is what Kafka's consumer found of one source partition.
type finding struct {
	topic, source                             string
	count, last, missing, doubled, disordered uint64
	// stored is the number that the stored offset covers; 0 is none.
	stored uint64
}

// findings are all of them, and partitions whose end couldn't be reached.
type findings struct {
	sources     []finding
	unreachable []string
	// lines is everything that the program printed.
	lines []string
}

// askKafkasConsumer has Apache Kafka's own consumer read everything. Java runs the program from its source.
func askKafkasConsumer(ctx context.Context, dir, bootstrap string) (*findings, error) {
	ctx, cancel := context.WithTimeout(ctx, verdictTimeout)
	defer cancel()
	libs, err := kafka.Libs(ctx)
	if err != nil {
		return nil, err
	}
	program := filepath.Join(dir, "Verdict.java")
	if err := os.WriteFile(program, verdictProgram, 0o600); err != nil {
		return nil, err
	}
	args := []string{"-Xmx512m", "-XX:TieredStopAtLevel=1", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", filepath.Join(libs, "*"), program, bootstrap}
	for i := range loads {
		args = append(args, loads[i].name+"="+offsetsTopic(loads[i].name))
	}
	cmd := exec.CommandContext(ctx, "java", args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("verdict of Kafka's consumer: %w\n%s", err, stderr.Bytes())
	}
	return parseFindings(string(out))
}

func offsetsTopic(connector string) string { return "soak.offsets." + connector }

func parseFindings(out string) (*findings, error) {
	f := &findings{lines: strings.Split(strings.TrimSpace(out), "\n")}
	for _, text := range f.lines {
		switch {
		case strings.HasPrefix(text, "source "):
			var s finding
			if _, err := fmt.Sscanf(text, "source %s %s count=%d last=%d missing=%d doubled=%d disordered=%d stored=%d",
				&s.topic, &s.source, &s.count, &s.last, &s.missing, &s.doubled, &s.disordered, &s.stored); err != nil {
				return nil, fmt.Errorf("verdict of Kafka's consumer: %q: %w", text, err)
			}
			f.sources = append(f.sources, s)
		case strings.HasPrefix(text, "unreachable "):
			f.unreachable = append(f.unreachable, text)
		}
	}
	if f.lines[len(f.lines)-1] != "read to the end" {
		return nil, errors.New("verdict of Kafka's consumer: it stopped in the middle")
	}
	return f, nil
}

// violations are everything that isn't exact in what Kafka's consumer found, and everything in which the watch disagrees with it.
func (f *findings) violations(watched map[string]tally) []string {
	var wrong []string
	for _, text := range f.unreachable {
		wrong = append(wrong, "a transaction hangs: "+text)
	}
	rest := maps.Clone(watched)
	for _, s := range f.sources {
		name := s.topic + "/" + s.source
		for _, count := range []struct {
			n    uint64
			what string
		}{{s.missing, "missing"}, {s.doubled, "doubled"}, {s.disordered, "out of order"}} {
			if count.n > 0 {
				wrong = append(wrong, fmt.Sprintf("%s: %d of %d records %s", name, count.n, s.last, count.what))
			}
		}
		if s.stored != s.last {
			wrong = append(wrong, fmt.Sprintf("%s: the stored offset is that of %d, the last record's is that of %d", name, s.stored, s.last))
		}
		if got := (tally{s.count, s.last}); rest[name] != got {
			wrong = append(wrong, fmt.Sprintf("%s: the readers disagree: Kafka's consumer has %+v, the other %+v", name, got, rest[name]))
		}
		delete(rest, name)
	}
	for _, name := range slices.Sorted(maps.Keys(rest)) {
		wrong = append(wrong, fmt.Sprintf("%s: only one of the readers has it", name))
	}
	return wrong
}
