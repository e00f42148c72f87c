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

// sameName is how many Hosts of one name may live on a machine at once: runners of different clusters are often called like their host.
const sameName = 16

// openFolder makes the folder, or takes over that of an earlier run of the same name: the first one that no living Host of the name holds.
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
	for _, path := range namedPaths(base, name) {
		if f, err := take(path); err != nil || f != nil {
			return f, err
		}
	}
	return nil, fmt.Errorf("%d runners named %q run on this machine, with socket folders in %q: no more than that can be told apart; give this one another name or another --socket-dir", sameName, name, base)
}

// abandoned are the folders of Hosts of this name that are gone, each with its lock.
func (f *folder) abandoned(name string) ([]*folder, error) {
	var gone []*folder
	for _, path := range namedPaths(filepath.Dir(f.path), name) {
		if _, err := os.Lstat(path); path == f.path || err != nil {
			continue
		}
		other, err := take(path)
		if err != nil {
			return gone, err
		}
		if other != nil {
			gone = append(gone, other)
		}
	}
	return gone, nil
}

// namedPaths are the folders that Hosts of a name may have.
func namedPaths(base, name string) []string {
	sum := sha256.Sum256([]byte(name))
	paths := make([]string, sameName)
	for i := range paths {
		paths[i] = filepath.Join(base, fmt.Sprintf("fencepost-%x%x", sum[:5], i))
	}
	return paths
}

// take makes a folder, or takes it over. Nil is that of a Host that lives.
func take(path string) (*folder, error) {
	f := &folder{path: path, named: true}
	for range 10 {
		if err := makePrivate(f.path); err != nil {
			return nil, err
		}
		if free, err := f.acquire(); err != nil || !free {
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

// folderNameBytes is the longest name that openFolder gives: "fencepost-" and eleven digits.
const folderNameBytes = len("/fencepost-") + 11

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
func (f *folder) acquire() (free bool, err error) {
	lock, err := os.OpenFile(filepath.Join(f.path, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrNotExist) {
		return true, nil // removed with its folder, this moment
	}
	if err != nil {
		return false, fmt.Errorf("open the lock of the socket folder: %w", err)
	}
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		_ = lock.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return false, nil
		}
		return false, fmt.Errorf("lock the socket folder %q: %w", f.path, err)
	}
	f.lock = lock
	return true, nil
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
		f.lock = nil
	}
}

// remove removes the folder and then lets the lock go.
func (f *folder) remove() {
	_ = os.RemoveAll(f.path)
	f.release()
}
