package kafka

import "os"

// tester is what Need asks of a test.
type tester interface {
	Helper()
	Skip(args ...any)
	Fatal(args ...any)
}

// Need ends a test that can't run without a real broker where FENCEPOST_KAFKA_LIBS doesn't name Kafka's jars: `go test` on a single package then works without them. `make test` sets it, and in CI its
// absence is a failure, so that no check is left out unseen.
func Need(t tester) {
	t.Helper()
	switch {
	case os.Getenv("FENCEPOST_KAFKA_LIBS") != "":
	case os.Getenv("CI") != "":
		t.Fatal("FENCEPOST_KAFKA_LIBS is not set: in CI the tests on a real broker must run")
	default:
		t.Skip("needs a real broker: set FENCEPOST_KAFKA_LIBS to a folder with Kafka's jars, as make test does")
	}
}
