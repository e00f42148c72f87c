package filesource

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// headBytes is how much of a file's beginning goes into its fingerprint.
const headBytes = 1024

// identity names a file whatever its path: rotation by rename keeps it, and two links to one file are one file.
type identity struct{ device, inode uint64 }

func (id identity) String() string { return fmt.Sprintf("device %d, inode %d", id.device, id.inode) }

// identityOf reads the identity of a file that was looked up.
func identityOf(info os.FileInfo) (identity, bool) {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return identity{}, false
	}
	return identity{device: uint64(st.Dev), inode: st.Ino}, true //nolint:unconvert // Dev has 32 bits on some systems
}

// fingerprint is the hash of a file's first bytes, as many as were consumed and at most headBytes: "37-9f86d081884c7d65". It tells a file from another
// one that got its inode, and from the same one cut off and written anew.
func fingerprint(r io.ReaderAt, consumed int64) (string, error) {
	head := make([]byte, min(consumed, headBytes))
	if n, err := r.ReadAt(head, 0); n < len(head) {
		return "", fmt.Errorf("read the first %d bytes: %w", len(head), err)
	}
	sum := sha256.Sum256(head)
	return strconv.Itoa(len(head)) + "-" + hex.EncodeToString(sum[:8]), nil
}

// sameHead checks a fingerprint against a file. A file that is too short for it is another one.
func sameHead(r io.ReaderAt, stored string) (bool, error) {
	text, _, ok := strings.Cut(stored, "-")
	n, err := strconv.ParseUint(text, 10, 16)
	if !ok || err != nil || n > headBytes {
		return false, fmt.Errorf("the stored fingerprint %q is not one", stored)
	}
	now, err := fingerprint(r, int64(n)) //nolint:gosec // at most headBytes
	if err != nil {
		return false, nil //nolint:nilerr // shorter than it was: cut off, or another file
	}
	return now == stored, nil
}
