package publish

import (
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m,
		// The thread that starts brokers lives as long as the process, since Linux would stop the brokers with it.
		goleak.IgnoreAnyFunction("github.com/fencepost-io/fencepost/integration/process.init.func1.1"),
	)
}
