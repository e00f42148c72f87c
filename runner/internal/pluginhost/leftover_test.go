package pluginhost

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// runnerMain is a runner that starts one plugin, says which processes there are, and waits to be killed.
func runnerMain() int {
	h, err := New(Config{Name: "r1", SocketDir: os.Getenv("PLUGINHOST_TEST_RUNNER")})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	p, err := h.Start(context.Background(), Spec{Path: os.Getenv("PLUGINHOST_TEST_PLUGIN")})
	if err != nil {
		fmt.Println(err)
		return 1
	}
	d, err := p.Plugin().Describe(context.Background())
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("started", p.PID(), d.Types[0].Summary)
	select {}
}

// TestKilledRunnerLeavesNoPlugin: the plugin ends with the runner, and what it had started ends when the next runner of the name starts. One that starts while it lives, of another cluster perhaps, does it no harm; and where that one
// still lives, the next one finds what is left all the same.
func TestKilledRunnerLeavesNoPlugin(t *testing.T) {
	dir := shortDir(t)
	self, _ := os.Executable()
	first := exec.Command(self)
	first.Env = append(os.Environ(), "PLUGINHOST_TEST_RUNNER="+dir, "PLUGINHOST_TEST_PLUGIN="+plugin(t, "orphan")) // one that ignores the end of its stdin
	out, err := first.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	var pid, grandchild int
	if n, _ := fmt.Sscanf(line, "started %d %d", &pid, &grandchild); n != 2 {
		t.Fatalf("the runner said %q, %v", line, err)
	}
	neighbour := newHost(t, func(c *Config) { c.Name, c.SocketDir = "r1", dir })
	mustStart(t, neighbour, Spec{Path: plugin(t, "good")})
	if stat, err := readStat(grandchild); err != nil || stat.group != pid {
		t.Fatalf("the grandchild: %+v, %v", stat, err)
	}
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait() // killed
	awaitGone(t, pid, 5*time.Second)

	second := newHost(t, func(c *Config) { c.Name, c.SocketDir = "r1", dir })
	awaitGone(t, grandchild, 0)
	p := mustStart(t, second, Spec{Path: plugin(t, "good")})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// TestAbandonedFoldersOfTheNameGo: a runner takes the first folder that is free, and clears those behind it, whose runners are gone.
func TestAbandonedFoldersOfTheNameGo(t *testing.T) {
	dir := shortDir(t)
	var lost *folder
	for range 2 { // the second one stays behind
		f, err := openFolder(dir, "r6")
		if err != nil {
			t.Fatal(err)
		}
		defer f.release()
		lost = f
	}
	left := exec.Command("sleep", "1000")
	left.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := left.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = left.Process.Kill(); _ = left.Wait() })
	if err := newLedger(lost.ledgerPath()).add(left.Process.Pid, "/nowhere"); err != nil {
		t.Fatal(err)
	}
	lost.release()
	third := newHost(t, func(c *Config) { c.Name, c.SocketDir = "r6", dir })
	if third.folder.path != lost.path {
		t.Fatalf("it has %s, and %s is free", third.folder.path, lost.path)
	}
	awaitGone(t, left.Process.Pid, time.Second)
	fourth := newHost(t, func(c *Config) { c.Name, c.SocketDir = "r6", dir })
	behind := fourth.folder.path
	fourth.folder.release() // killed
	newHost(t, func(c *Config) { c.Name, c.SocketDir = "r7", dir })
	if _, err := os.Stat(behind); err != nil {
		t.Fatalf("a runner of another name cleared it: %v", err)
	}
	third.Close()
	newHost(t, func(c *Config) { c.Name, c.SocketDir = "r6", dir })
	if _, err := os.Stat(behind); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what is behind the folder that was taken is still there: %v", err)
	}
}

// TestRunnersOfOneNameAreBounded, with an error that says what to do.
func TestRunnersOfOneNameAreBounded(t *testing.T) {
	dir := shortDir(t)
	for range sameName {
		f, err := openFolder(dir, "r8")
		if err != nil {
			t.Fatal(err)
		}
		defer f.remove()
	}
	if _, err := openFolder(dir, "r8"); err == nil || !strings.Contains(err.Error(), "another name") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyRecordedProcessesAreKilled(t *testing.T) {
	dir := shortDir(t)
	start := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	ours, stranger, reboot := start(), start(), start()
	record := func(cmd *exec.Cmd, change func(*entry)) entry {
		began, err := startTime(cmd.Process.Pid)
		if err != nil {
			t.Fatal(err)
		}
		e := entry{PID: cmd.Process.Pid, Start: began, Boot: bootID(), SocketDir: "/nowhere"}
		change(&e)
		return e
	}
	list := []entry{
		record(ours, func(*entry) {}),
		record(stranger, func(e *entry) { e.Start-- }),
		record(reboot, func(e *entry) { e.Boot = "another" }),
		{PID: 1, Boot: bootID(), SocketDir: "/nowhere"},
	}
	text, _ := json.Marshal(list)
	folder, err := openFolder(dir, "r2")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder.ledgerPath(), text, 0o600); err != nil {
		t.Fatal(err)
	}
	folder.release()
	newHost(t, func(c *Config) { c.Name, c.SocketDir = "r2", dir })
	awaitGone(t, ours.Process.Pid, time.Second)
	for _, cmd := range []*exec.Cmd{stranger, reboot} {
		if stat, err := readStat(cmd.Process.Pid); err != nil || stat.state == 'Z' {
			t.Errorf("a stranger was killed: %+v, %v", stat, err)
		}
	}
}

func TestDamagedRecordIsDropped(t *testing.T) {
	dir := shortDir(t)
	folder, err := openFolder(dir, "r3")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(folder.ledgerPath(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	folder.release()
	newHost(t, func(c *Config) { c.Name, c.SocketDir = "r3", dir })
}

func TestSocketFolderTooLongIsRefusedWithItsLength(t *testing.T) {
	long := filepath.Join(shortDir(t), strings.Repeat("x", 120))
	_, err := New(Config{SocketDir: long})
	if err == nil {
		t.Fatal("it was taken")
	}
	for _, want := range []string{long, fmt.Sprint(len(long)), fmt.Sprint(maxFolderPath - folderNameBytes), "107"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q lacks %q", err, want)
		}
	}
}

func TestLongTMPDIRWorks(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 120))
	if err := os.Mkdir(long, 0o700); err != nil {
		t.Fatal(err)
	}
	path := plugin(t, "good")
	t.Setenv("TMPDIR", long)
	h := newHost(t, func(c *Config) { c.SocketDir = "" })
	p := mustStart(t, h, Spec{Path: path})
	if err := p.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestFolderOfSomebodyElseIsRefused(t *testing.T) {
	dir := shortDir(t)
	folder, err := openFolder(dir, "r4")
	if err != nil {
		t.Fatal(err)
	}
	folder.release()
	if err := os.Chmod(folder.path, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := New(Config{Name: "r4", SocketDir: dir}); err == nil || !strings.Contains(err.Error(), "mode 0700") {
		t.Errorf("got %v", err)
	}
}

func TestFullDiskIsAClearError(t *testing.T) {
	dir := shortDir(t)
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k,nr_inodes=4"); err != nil {
		t.Skipf("a small file system can't be mounted: %v", err)
	}
	defer func() { _ = syscall.Unmount(dir, syscall.MNT_DETACH) }()
	h, err := New(Config{Name: "r5", SocketDir: dir, Ladder: shortLadder})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	// Root, the folder, its lock, and one more: the socket folder takes the last inode, so the record of the process has none.
	_, err = h.Start(t.Context(), Spec{Path: plugin(t, "good")})
	if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), dir) {
		t.Fatalf("got %v", err)
	}
	blamesHost(t, err, true)
}

// blamesHost checks whether an error of a start says that another host may do better.
func blamesHost(t *testing.T, err error, want bool) {
	t.Helper()
	if _, got := errors.AsType[*HostError](err); got != want {
		t.Errorf("the host is to blame: %v, want %v, for %v", got, want, err)
	}
}
