package child

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/lease"
)

// rig is a folder with one child in it, whose command runs in the folder too.
type rig struct {
	t   *testing.T
	at  string
	dir string
	*Child
}

func executable(t *testing.T) string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func now() time.Duration { return lease.BootClock().Now() }

// begin starts a command whose validity ends in a day.
func begin(t *testing.T, c Command) *rig {
	t.Helper()
	return beginUntil(t, c, now()+24*time.Hour)
}

func beginUntil(t *testing.T, c Command, until time.Duration) *rig {
	t.Helper()
	at := t.TempDir()
	r := &rig{t: t, at: at, dir: filepath.Join(at, "child")}
	if c.Dir == "" {
		c.Dir = at
	}
	if c.Env == nil {
		c.Env = []string{"PATH=" + os.Getenv("PATH")}
	}
	var err error
	if r.Child, err = Start(executable(t), r.dir, c, until); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.clear)
	return r
}

// clear leaves nothing running.
func (r *rig) clear() {
	select {
	case <-r.Done():
	default:
		_ = r.Extend(0)
		r.wait()
	}
	if err := r.Close(); err != nil {
		r.t.Error(err)
	}
}

// shell is a command of the shell.
func shell(line string) Command { return Command{Argv: []string{"sh", "-c", line}} }

// wait waits for the end.
func (r *rig) wait() {
	r.t.Helper()
	select {
	case <-r.Done():
	case <-time.After(deadline):
		r.t.Fatal("it never ended")
	}
}

// end waits for the end and returns the result.
func (r *rig) end() Result {
	r.t.Helper()
	r.wait()
	res, err := r.Result()
	if err != nil {
		text, _ := os.ReadFile(r.Output())
		r.t.Fatalf("%v; its output is %q", err, text)
	}
	return res
}

// vanish waits for the end of a child that must have vanished.
func (r *rig) vanish() {
	r.t.Helper()
	r.wait()
	if res, err := r.Result(); !errors.Is(err, ErrVanished) {
		r.t.Fatalf("its result is %+v, %v", res, err)
	}
}

// again drops the child and opens it as the next worker does.
func (r *rig) again() {
	r.t.Helper()
	err := r.Close()
	if err == nil {
		r.Child, err = Open(r.dir)
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

// path of a file where the command runs.
func (r *rig) path(name string) string { return filepath.Join(r.at, name) }

// appears waits for a file of the command's.
func (r *rig) appears(name string) {
	r.t.Helper()
	if err := waitFor("no "+name, func() bool { return exists(r.path(name)) }); err != nil {
		text, _ := os.ReadFile(r.Output())
		r.t.Fatalf("%v; its output is %q", err, text)
	}
}

func (r *rig) make(name string) {
	r.t.Helper()
	if err := os.WriteFile(r.path(name), nil, 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// pid reads a file with a pid, once it is there with a whole line or a whole text.
func (r *rig) pid(name string) int {
	r.t.Helper()
	r.appears(name)
	text, err := os.ReadFile(r.path(name))
	var pid int
	if err == nil {
		_, err = fmt.Sscan(string(text), &pid)
	}
	if err != nil {
		r.t.Fatal(err)
	}
	return pid
}

// supervisor is the pid of the supervisor.
func (r *rig) supervisor() int {
	r.t.Helper()
	r.appears(filepath.Join("child", runningName))
	data, err := os.ReadFile(filepath.Join(r.dir, runningName))
	if err != nil {
		r.t.Fatal(err)
	}
	run, err := decodeRunning(data)
	if err != nil {
		r.t.Fatal(err)
	}
	return run.PID
}

func (r *rig) output() string {
	r.t.Helper()
	text, err := os.ReadFile(r.Output())
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func (r *rig) signal(pid int, s unix.Signal) {
	r.t.Helper()
	if err := unix.Kill(pid, s); err != nil {
		r.t.Fatal(err)
	}
}

// gone fails unless the process has ended.
func (r *rig) gone(what string, pid int) {
	r.t.Helper()
	if s, err := proc.Read(pid); err == nil && !s.Ended() {
		r.t.Errorf("%s, process %d, still runs", what, pid)
	}
}

// tell has a shell write a pid such that the file is whole when it is there.
func tell(pid, file string) string {
	return strings.NewReplacer("PID", pid, "FILE", file).Replace("echo PID > FILE.new; mv FILE.new FILE; ")
}
