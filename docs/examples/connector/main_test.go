package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/fencepost-io/fencepost/sdk/go/source"
	"github.com/fencepost-io/fencepost/sdk/go/sourcetest"
)

func TestEachFileOnceThroughCrashes(t *testing.T) {
	folder := t.TempDir()
	want := []string{"first", "second", "", "fourth", "fifth"}
	for i, content := range want {
		if err := os.WriteFile(filepath.Join(folder, string(rune('a'+i))), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	sourcetest.Exact(t, sourcetest.Config{
		Plugin: source.New("spool", "1.0.0", spool{}),
		Config: map[string]string{"folder": folder, "topic": "t"},
		Limits: source.Limits{MaxBatchRecords: 2},
	}, want)
}

func TestFilesThatComeLaterAreFound(t *testing.T) {
	folder := t.TempDir()
	r := sourcetest.New(t, sourcetest.Config{Plugin: source.New("spool", "1.0.0", spool{}), Config: map[string]string{"folder": folder, "topic": "t"}})
	task := r.Start(r.Plan(1)[0])
	task.WaitIdle()
	if err := os.WriteFile(filepath.Join(folder, "a.new"), []byte("later"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(folder, "a.new"), filepath.Join(folder, "a")); err != nil {
		t.Fatal(err)
	}
	task.Wait(1)
	task.Stop()
}

// TestTutorialShowsThisConnector keeps docs/write-a-connector.md and this program the same, and the promise of its length.
func TestTutorialShowsThisConnector(t *testing.T) {
	program, err := os.ReadFile("main.go")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(program), "\n"); n >= 60 {
		t.Errorf("the connector has %d lines", n)
	}
	tutorial, err := os.ReadFile(filepath.Join("..", "..", "write-a-connector.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(tutorial), "```go\n"+string(program)+"```\n") {
		t.Error("docs/write-a-connector.md shows another main.go")
	}
}
