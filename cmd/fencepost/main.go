// Command fencepost is everything of Fencepost in one binary: coordinator, runner, the quick start, and the tools of its users.
package main

import (
	"os"

	"github.com/fencepost-io/fencepost/cmd/internal/app"
)

func main() {
	os.Exit(app.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}
