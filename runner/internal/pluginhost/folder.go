package pluginhost

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Lengths of socket paths. The system's limit for the path of a Unix socket is 108 bytes with the zero at its end; below a Host's folder come a folder for each
// process, which go-plugin names "plugin-dir" and up to ten digits, and in it the plugin's socket, for whose name we leave room.
const (
	maxSocketPath   = 107
	maxFolderPath   = maxSocketPath - len("/plugin-dir4294967295") - socketNameBytes
	socketNameBytes = len("/") + 24
)

// folder is a Host's private folder, mode 0700, with the sockets of its plugins. A named one stays where it is from run to run, so that the record of processes is
// found, and holds a lock while its Host lives.
type folder struct {
	path  string
	named bool
	lock  *os.File
}

// openFolder makes the folder, or takes over that of an earlier run of the same name.
func openFolder(base, name string) (*folder, error) {
	base, err := socketBase(base)
	if err != nil {
		return nil, err
	}
	if name == "" {
		path, err := os.MkdirTemp(base, "fencepost-")
		if err != nil {
			return nil, fmt.Errorf("make a socket folder in %q: %w", base, err)
		}
		return &folder{path: path}, nil
	}
	sum := sha256.Sum256([]byte(name))
	f := &folder{path: filepath.Join(base, fmt.Sprintf("fencepost-%x", sum[:5])), named: true}
	for range 10 {
		if err := makePrivate(f.path); err != nil {
			return nil, err
		}
		if err := f.acquire(name); err != nil {
			return nil, err
		}
		// Whoever held the lock before may have removed the folder with it, between our opening of the lock and our getting it.
		if held, err := f.lock.Stat(); err == nil {
			if there, err := os.Stat(f.lock.Name()); err == nil && os.SameFile(held, there) {
				return f, nil
			}
		}
		f.release()
	}
	return nil, fmt.Errorf("the socket folder %q is removed again and again", f.path)
}

// folderNameBytes is the longest name that openFolder gives: "fencepost-" and ten digits.
const folderNameBytes = len("/fencepost-") + 10

// socketBase chooses the folder to make the private one in, and refuses one whose path is too long before any plugin meets the limit.
func socketBase(base string) (string, error) {
	if base == "" {
		base = os.TempDir()
		if len(base)+folderNameBytes > maxFolderPath {
			base = "/tmp"
		}
	}
	base, err := filepath.Abs(base)
	if err != nil {
		return "", err
	}
	if longest := len(base) + folderNameBytes; longest > maxFolderPath {
		return "", fmt.Errorf("the socket folder %q is too long: its path has %d bytes and may have %d, since the path of a socket in it may have %d",
			base, len(base), maxFolderPath-folderNameBytes, maxSocketPath)
	}
	return base, nil
}

// makePrivate makes a folder that only this user can look into. One that exists must be just that already: its name can be guessed, and in a shared folder anybody
// could have made it.
func makePrivate(path string) error {
	err := os.Mkdir(path, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the socket folder %q: %w", path, err)
	}
	info, err := os.Lstat(path)
	if err != nil {
		return fmt.Errorf("look at the socket folder %q: %w", path, err)
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Getuid() || info.Mode().Perm() != 0o700 {
		return fmt.Errorf("the socket folder %q exists and isn't a folder of this user with mode 0700: remove it", path)
	}
	return nil
}

// acquire takes the folder's lock, so that two runners of one name never take each other's plugins for leftovers. The kernel lets it go when the runner ends.
func (f *folder) acquire(name string) error {
	path := filepath.Join(f.path, "lock")
	lock, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return fmt.Errorf("open the lock of the socket folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		return fmt.Errorf("another runner named %q runs on this machine (it holds %q): %w", name, path, err)
	}
	f.lock = lock
	return nil
}

// ledgerPath is where the record of processes is kept; empty is nowhere.
func (f *folder) ledgerPath() string {
	if !f.named {
		return ""
	}
	return filepath.Join(f.path, "plugins.json")
}

// sweep removes the socket folders of an earlier run.
func (f *folder) sweep() {
	entries, err := os.ReadDir(f.path)
	if err != nil {
		return // there is nothing to lose: what is left lies in a folder of ours
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "plugin-dir") {
			_ = os.RemoveAll(filepath.Join(f.path, e.Name()))
		}
	}
}

// release lets the lock go and leaves the folder.
func (f *folder) release() {
	if f.lock != nil {
		_ = f.lock.Close()
	}
}

// remove removes the folder and then lets the lock go.
func (f *folder) remove() {
	_ = os.RemoveAll(f.path)
	f.release()
}
