package harness

import (
	"os"

	"github.com/fencepost-io/fencepost/integration/process"
)

// StartOnSmallDisk starts the binary with a small file system of its own at a folder: "4m" is its size, "full" one in which nothing can be made. It is gone with the process.
func (b *Bed) StartOnSmallDisk(name, folder, size string, args ...string) *process.Process {
	b.T.Helper()
	options := "size=" + size
	if size == "full" {
		options = "size=4k,nr_inodes=1"
	}
	namespace := "-m"
	if os.Geteuid() != 0 {
		namespace = "-rm" // root of a namespace of one's own may mount
	}
	script := `mount -t tmpfs -o "$1" tmpfs "$2" || exit 99; shift 2; exec "$@"`
	all := append([]string{namespace, "sh", "-c", script, "sh", options, folder, b.Fencepost}, args...)
	return b.start(name, "unshare", nil, all...)
}
