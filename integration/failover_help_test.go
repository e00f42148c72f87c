package integration

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/fencepost-io/fencepost/integration/harness"
	"github.com/fencepost-io/fencepost/integration/reader"
	"github.com/fencepost-io/fencepost/integration/scene"
	controlv1 "github.com/fencepost-io/fencepost/proto/gen/go/fencepost/control/v1"
)

// full says whether the counts that are in the hundreds are tried in full, and not to a tenth.
func full() bool { return os.Getenv("FENCEPOST_FULL") != "" }

// tenth is n in full, and a tenth of it otherwise.
func tenth(n int) int {
	if full() {
		return n
	}
	return n / 10
}

func mustBe(got, want string) error {
	if got != want {
		return fmt.Errorf("it is %q, want %q", got, want)
	}
	return nil
}

// reconnected waits until the leader knows the runners.
func reconnected(t *testing.T, s *scene.Scene, names ...string) {
	t.Helper()
	harness.Wait(t, scene.Patience, "the runners are connected to the leader", func(ctx context.Context) error {
		list, err := s.Control().ListRunners(ctx, &controlv1.ListRunnersRequest{})
		if err != nil {
			return err
		}
		connected := map[string]bool{}
		for _, r := range list.GetRunners() {
			connected[r.GetName()] = r.GetState() == "CONNECTED"
		}
		for _, name := range names {
			if !connected[name] {
				return fmt.Errorf("%s isn't: %v", name, list.GetRunners())
			}
		}
		return nil
	})
}

// lines is how many lines a file has; one that isn't there has none.
func lines(path string) int {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return strings.Count(string(text), "\n")
}

// awaitLines waits until a file has so many lines.
func awaitLines(t *testing.T, path string, n int) {
	t.Helper()
	harness.Wait(t, scene.Patience, fmt.Sprintf("%d tasks wait at their points", n), func(context.Context) error {
		if got := lines(path); got < n {
			return fmt.Errorf("%d do", got)
		}
		return nil
	})
}

// readableOf counts the readable records of a topic.
func readableOf(t *testing.T, bootstrap, topic string) int {
	t.Helper()
	n := 0
	err := reader.Topic(t.Context(), bootstrap, topic, func(*kgo.Record) error {
		n++
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}
