// Command generator is the plugin of the connector type "generator".
package main

import (
	"github.com/fencepost-io/fencepost/plugins/generator/internal/numbers"
	"github.com/fencepost-io/fencepost/sdk/go/serve"
	"github.com/fencepost-io/fencepost/sdk/go/source"
)

// version of the plugin; it moves when what the plugin does for its users changes.
const version = "0.2.0"

func main() {
	serve.Serve(source.New("generator", version, numbers.Connector{}))
}
