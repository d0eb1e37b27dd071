//go:build linux

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/testlog"
)

// buildDir holds the real berth, once it is built.
var buildDir string

// binary is the path of the real berth.
var binary = sync.OnceValues(func() (path string, err error) {
	if buildDir, err = os.MkdirTemp("", "berth"); err != nil {
		return "", err
	}
	path = filepath.Join(buildDir, "berth")
	out, err := exec.Command("go", "build", "-o", path, "../cmd/berth").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

// removeBinary tidies up after the tests.
func removeBinary() {
	if buildDir != "" {
		_ = os.RemoveAll(buildDir)
	}
}

// command is a berth in a process of its own.
type command struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	out  testlog.Buffer // what it has written so far
	err  testlog.Buffer
	done chan struct{} // closed when it has ended
}

// berthCommand starts berth on an etcd. It is killed with the test at last.
func berthCommand(t testing.TB, etcd string, env []string, args ...string) *command {
	t.Helper()
	return berthCommandIn(t, nil, etcd, env, args...)
}

// berthCommandIn is berthCommand with a program and its arguments that start berth.
func berthCommandIn(t testing.TB, by []string, etcd string, env []string, args ...string) *command {
	t.Helper()
	c := &command{t: t, name: strings.Join(args, " ")}
	c.start(by, etcd, env, &c.out, args...)
	return c
}

// start starts berth, by a program and its arguments if there are any. It is killed with the test at
// last.
func (c *command) start(by []string, etcd string, env []string, stdout io.Writer, args ...string) {
	c.t.Helper()
	path, err := binary()
	if err != nil {
		c.t.Fatal(err)
	}
	line := append(append(slices.Clone(by), path), args...)
	c.cmd, c.done = exec.Command(line[0], line[1:]...), make(chan struct{})
	c.cmd.Env = append(append(os.Environ(), env...), "BERTH_ENDPOINTS="+etcd)
	c.cmd.Stdout, c.cmd.Stderr = stdout, &c.err
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	go func() {
		defer close(c.done)
		_ = c.cmd.Wait() // the exit code tells
	}()
	c.t.Cleanup(func() {
		c.kill()
		if c.t.Failed() {
			c.t.Logf("%s: %s%s", c.name, &c.out, &c.err)
		}
	})
}

// code waits for the end, and returns the exit code; -1 after a signal.
func (c *command) code() int {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(deadline):
		c.t.Fatalf("%s has not ended after %s", c.name, deadline)
	}
	return c.cmd.ProcessState.ExitCode()
}

// succeeds waits for the end, which must be a good one.
func (c *command) succeeds() {
	c.t.Helper()
	if code := c.code(); code != 0 {
		c.t.Errorf("%s: exit code %d: %s", c.name, code, c.err.String())
	}
}

func (c *command) signal(s syscall.Signal) {
	c.t.Helper()
	if err := c.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		c.t.Fatalf("%s: %v: %v", c.name, s, err)
	}
}

// kill ends it with SIGKILL.
func (c *command) kill() {
	c.signal(syscall.SIGKILL)
	<-c.done
}

// freeze stops it with SIGSTOP, and returns when it stands still.
func (c *command) freeze() {
	c.t.Helper()
	c.signal(syscall.SIGSTOP)
	standsStill(c.t, c.cmd.Process.Pid)
}

func (c *command) thaw() { c.signal(syscall.SIGCONT) }

// server is a sidecar in a process of its own.
type server struct {
	*command
	HTTP, Socket string
}

// startSidecar starts a sidecar that keeps its state in dir, and returns when it
// can claim.
func startSidecar(t testing.TB, etcd, host, dir string) *server {
	t.Helper()
	return startSidecarIn(t, nil, etcd, host, dir)
}

// startSidecarIn is startSidecar with a program and its arguments that start it.
func startSidecarIn(t testing.TB, by []string, etcd, host, dir string) *server {
	t.Helper()
	s := launchSidecar(t, by, etcd, host, dir)
	for begin := time.Now(); ; pause(t.Context(), 10*time.Millisecond) {
		text, err := os.ReadFile(filepath.Join(dir, addressFile))
		if err == nil && json.Unmarshal(text, s) == nil && isReady(s.HTTP) {
			return s
		}
		select {
		case <-s.done:
			t.Fatalf("%s has ended: %s", s.name, s.err.String())
		default:
		}
		if time.Since(begin) > deadline {
			t.Fatalf("%s does not serve after %s", s.name, deadline)
		}
	}
}

// addressFile is where a sidecar writes its addresses.
const addressFile = "address.json"

// launchSidecar starts a sidecar and does not wait until it can claim.
func launchSidecar(t testing.TB, by []string, etcd, host, dir string) *server {
	t.Helper()
	out, err := os.Create(filepath.Join(dir, addressFile))
	if err != nil {
		t.Fatal(err)
	}
	c := &command{t: t, name: "sidecar " + host}
	c.start(by, etcd, nil, out, "sidecar", "--host", host, "--listen", "127.0.0.1:0",
		"--socket", filepath.Join(dir, "berth.sock"), "--state-dir", filepath.Join(dir, "state"), "-o", "json")
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	return &server{command: c}
}

// isReady asks a sidecar whether it can claim.
func isReady(base string) bool {
	resp, err := web.Get(base + "/readyz")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// shortDir is a folder with a path short enough for a socket.
func shortDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
