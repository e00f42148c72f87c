package integration

import (
	"os"
	"testing"

	"github.com/fencepost-io/fencepost/integration/harness"
)

func TestMain(m *testing.M) { os.Exit(harness.Main(m)) }
