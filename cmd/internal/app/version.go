package app

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// Version, Commit and BuildDate are set by the build with -ldflags.
var (
	Version   = "0.0.0-dev"
	Commit    = "unknown"
	BuildDate = "unknown"
)

type versionInfo struct {
	Version   string `json:"version"`
	Commit    string `json:"commit"`
	BuildDate string `json:"build_date"`
	Go        string `json:"go"`
	Platform  string `json:"platform"`
}

func newVersion() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show version, commit and build date",
		Example: "  fencepost version\n  fencepost version -o json",
		Args:    exactArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			info := versionInfo{Version, Commit, BuildDate, runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
			return out.print(cmd.OutOrStdout(), info, func(t *table) {
				t.row(fmt.Sprintf("fencepost %s (commit %s, built %s, %s %s)", info.Version, info.Commit, info.BuildDate, info.Go, info.Platform))
			})
		},
	}
	out.register(cmd)
	return cmd
}
