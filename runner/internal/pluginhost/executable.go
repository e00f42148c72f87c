package pluginhost

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// executable is an opened plugin file: what was hashed is what is run.
type executable struct {
	path   string
	file   *os.File
	info   os.FileInfo
	sha256 string
	script bool
}

// errNotProgram marks a file that isn't meant to be run: no run bit, a folder, a device.
type errNotProgram struct{ text string }

func (e errNotProgram) Error() string { return e.text }

// checkProgram says why a file can't be a plugin before it is opened.
func checkProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return errNotProgram{fmt.Sprintf("plugin %q: not found", path)}
	case err != nil:
		return fmt.Errorf("plugin %q: %w", path, err)
	case info.IsDir():
		return errNotProgram{fmt.Sprintf("plugin %q: it is a folder, not a program", path)}
	case !info.Mode().IsRegular():
		return errNotProgram{fmt.Sprintf("plugin %q: it is no regular file", path)}
	case info.Mode().Perm()&0o111 == 0:
		return errNotProgram{fmt.Sprintf("plugin %q: has no run bit: chmod +x %s", path, path)}
	}
	return nil
}

// openExecutable opens a plugin and takes its SHA-256; where want isn't empty it must be that. The caller closes the file.
func openExecutable(path, want string) (*executable, error) {
	if err := checkProgram(path); err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("plugin %q: open it: %w", path, err)
	}
	x := &executable{path: path, file: file}
	if err := x.identify(want); err != nil {
		_ = file.Close()
		return nil, err
	}
	return x, nil
}

// Sum is the SHA-256, in hex, of a file that could be run; the error says why it can't.
func Sum(path string) (string, error) {
	x, err := openExecutable(path, "")
	if err != nil {
		return "", err
	}
	defer x.file.Close()
	return x.sha256, nil
}

// clockGrain is how far the time that a file system notes may be behind the clock.
const clockGrain = 100 * time.Millisecond

// ChangedSince says whether a file, or a folder, was written to, replaced, or given other rights since a moment. One that isn't there has not.
func ChangedSince(path string, moment time.Time) bool {
	info, err := os.Stat(path)
	if err != nil {
		return false
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	return ok && time.Unix(stat.Ctim.Unix()).After(moment.Add(-clockGrain))
}

func (x *executable) identify(want string) (err error) {
	if x.info, err = x.file.Stat(); err != nil {
		return fmt.Errorf("plugin %q: %w", x.path, err)
	}
	hash := sha256.New()
	if _, err := io.Copy(hash, x.file); err != nil {
		return fmt.Errorf("plugin %q: read it: %w", x.path, err)
	}
	x.sha256 = hex.EncodeToString(hash.Sum(nil))
	if want != "" && !strings.EqualFold(want, x.sha256) {
		return fmt.Errorf("plugin %q: checksum: its SHA-256 is %s and %s is required; it wasn't run", x.path, x.sha256, strings.ToLower(want))
	}
	x.script = string(x.head(2)) == "#!"
	return nil
}

// runPath is the path to run. A program is run through the descriptor that was hashed, so that a file that was renamed over it since doesn't matter. A script can't
// be: its interpreter opens the path again, and often looks for other files beside it. See replaced.
func (x *executable) runPath() string {
	if x.script {
		return x.path
	}
	return fmt.Sprintf("/proc/self/fd/%d", x.file.Fd())
}

// replaced says whether a script's path has led to another file, or another content, since it was hashed.
func (x *executable) replaced() bool {
	now, err := os.Stat(x.path)
	return err != nil || !os.SameFile(now, x.info) || now.Size() != x.info.Size() || !now.ModTime().Equal(x.info.ModTime())
}

func (x *executable) head(n int) []byte {
	head := make([]byte, n)
	got, _ := x.file.ReadAt(head, 0) // what can't be read is no header
	return head[:got]
}

// explain says why the system didn't run the file.
func (x *executable) explain(err error) error {
	why := err.Error()
	switch {
	case errors.Is(err, syscall.ENOEXEC):
		why = x.format()
	case errors.Is(err, syscall.ENOENT):
		why = fmt.Sprintf("it needs %s, which doesn't exist here", x.interpreter())
	case errors.Is(err, syscall.EACCES):
		why = "this user may not run it, or its interpreter, or its file system is mounted with noexec"
	case errors.Is(err, syscall.ETXTBSY):
		why = "another process is still writing to it (text file busy)"
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		why = "the system has no room for another process: " + err.Error()
	}
	return &startError{text: fmt.Sprintf("plugin %q can't be run: %s", x.path, why), err: err}
}

// startError has a text for users and a cause for errors.Is.
type startError struct {
	text string
	err  error
}

func (e *startError) Error() string { return e.text }
func (e *startError) Unwrap() error { return e.err }

// format says what a file is that the system can't run.
func (x *executable) format() string {
	switch head := string(x.head(4)); {
	case head == "":
		return "it is empty"
	case head == elf.ELFMAG:
		return fmt.Sprintf("it is built for another processor (%s, and this machine is %s), or damaged", x.machine(), runtime.GOARCH)
	case strings.HasPrefix(head, "MZ"):
		return "it is built for Windows"
	case head == "\xcf\xfa\xed\xfe", head == "\xca\xfe\xba\xbe":
		return "it is built for macOS"
	default:
		return "it is neither a program for this system nor a script that begins with #!"
	}
}

// machine names the processor in a program's header.
func (x *executable) machine() string {
	head := x.head(20)
	if len(head) < 20 {
		return "unknown"
	}
	machine := binary.LittleEndian.Uint16(head[18:])
	if elf.Data(head[elf.EI_DATA]) == elf.ELFDATA2MSB {
		machine = binary.BigEndian.Uint16(head[18:])
	}
	return strings.ToLower(strings.TrimPrefix(elf.Machine(machine).String(), "EM_"))
}

// interpreter names what a file needs to be run: a script's interpreter, or a program's loader.
func (x *executable) interpreter() string {
	if x.script {
		line, _, _ := strings.Cut(string(x.head(256)), "\n")
		return fmt.Sprintf("the interpreter %q of its first line", strings.TrimPrefix(line, "#!"))
	}
	if f, err := elf.NewFile(x.file); err == nil {
		for _, p := range f.Progs {
			if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
				name := make([]byte, p.Filesz)
				if _, err := p.ReadAt(name, 0); err == nil {
					return fmt.Sprintf("the loader %q", strings.TrimRight(string(name), "\x00"))
				}
			}
		}
	}
	return "an interpreter"
}
