//go:build linux

package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/lease"
)

// aDayAhead is a program that starts another in a time namespace in which the machine
// has been up for a day longer, as containers that were moved may be.
func aDayAhead(t *testing.T) []string {
	t.Helper()
	by := []string{"unshare", "--time", "--boottime", "86400"}
	out, err := exec.Command(by[0], append(by[1:], "readlink", "/proc/self/ns/time")...).Output()
	here, _ := os.Readlink("/proc/self/ns/time")
	if err != nil || string(out) == here+"\n" {
		t.Skipf("no process can be started in a time namespace of its own: %v, %s", err, out)
	}
	return by
}

// leaves ends a process such that the next one takes over what it has.
func (c *command) leaves() {
	c.t.Helper()
	c.signal(syscall.SIGHUP)
	if code := c.code(); code != 0 {
		c.t.Fatalf("%s: exit code %d: %s", c.name, code, c.err.String())
	}
}

func TestASidecarInAnotherTimeNamespaceFindsItsProcesses(t *testing.T) {
	t.Parallel()
	ahead := aDayAhead(t)
	q := newQuay(t, 1)
	dir := shortDir(t)
	stop := filepath.Join(t.TempDir(), "stop")
	s := startSidecar(t, q.etcd, "one", dir)
	job := q.run(s.Socket, "job", jobPart{Stop: stop})
	q.journal.wait(t, "job", "start")
	was := q.hold("job")
	next := q.run("", "next", jobPart{For: time.Millisecond})
	q.w.until("another waits", func(h *History) bool { return len(h.Waiting()) == 1 })
	for _, by := range [][]string{ahead, nil} {
		s.leaves()
		s = startSidecarIn(t, by, q.etcd, "one", dir)
		var got struct {
			ValidFor string `json:"valid_for"`
		}
		eventuallyValid(q, s.HTTP+"/v1/claims/job", &got.ValidFor, &got)
	}
	if x := q.hold("job"); x.To != 0 || x.From != was.From {
		t.Errorf("it is another claim, or has ended: %+v", x)
	}
	if err := os.WriteFile(stop, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	job.succeeds()
	next.succeeds()
	if n := together(q.journal.stays(t)); n != 1 {
		t.Errorf("%d jobs were there at one time", n)
	}
}

func TestAWorkerInAnotherTimeNamespaceLetsItsCommandsRunOn(t *testing.T) {
	t.Parallel()
	ahead := aDayAhead(t)
	s := newShop(t, embedtest.New(t).Endpoint())
	s.coordinators("lead")
	worker := func(by []string) *command {
		return berthCommandIn(t, by, s.etcd, nil, "worker", "--host", "a", "--name", "worker",
			"--state-dir", filepath.Join(s.dir, "a"), "--work-dir", s.dir, "--concurrency", "1")
	}
	w := worker(ahead)
	s.submit("r", `steps: [{name: m, shell: "echo $$ >> began; until [ -e go ]; do sleep 0.02; done"}]`)
	s.awaitLines("began", 1)
	for _, by := range [][]string{nil, ahead} {
		w.leaves()
		left := time.Now()
		w = worker(by)
		eventually(t, "the worker has written until when the command may run", func(context.Context) bool {
			files, err := filepath.Glob(filepath.Join(s.dir, "a", "worker", "steps", "*", "*", "valid_until"))
			if err != nil || len(files) != 1 {
				t.Fatalf("files %q, %v", files, err)
			}
			info, err := os.Stat(files[0])
			if err != nil || !info.ModTime().After(left) {
				return false
			}
			text, err := os.ReadFile(files[0])
			if err != nil {
				t.Fatal(err)
			}
			var until time.Duration
			if n, err := fmt.Sscanf(string(text), "v1 %d", &until); n != 1 {
				t.Fatalf("%q: %v", text, err)
			}
			if left := until - lease.BootClock().Now(); left < 0 || left > time.Minute {
				t.Fatalf("it may run for %s more", left)
			}
			return true
		})
	}
	s.write("go")
	s.ends("r", "succeeded")
	s.startedOnce("r")
	if n := len(s.lines("began")); n != 1 {
		t.Errorf("the command was started %d times", n)
	}
	w.signal(syscall.SIGINT)
	w.code()
}

// contained is a program that starts another in a pid namespace of its own, as in a container.
func contained(t *testing.T) []string {
	by := []string{"unshare", "--pid", "--fork", "--mount-proc", "--kill-child"}
	if out, err := exec.Command(by[0], append(by[1:], "true")...).CombinedOutput(); err != nil {
		t.Skipf("no process can be started in a pid namespace of its own: %v, %s", err, out)
	}
	return by
}

// In a container, the numbers of processes are others than those of a sidecar on the host.
func TestExecInAnotherPIDNamespaceHoldsItsClaimByRenewals(t *testing.T) {
	t.Parallel()
	by := contained(t)
	q := newQuay(t, 1)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	first := berthCommandIn(t, by, q.etcd, nil, "exec", "--sidecar", s.Socket, "--pool", "db", "--",
		"sleep", fmt.Sprint((sidecarLease + time.Second).Seconds())) // without renewals, it would be lost
	q.w.until("it is held", func(h *History) bool { return len(h.Holds()) == 1 })
	next := berthCommandIn(t, by, q.etcd, nil, "exec", "--sidecar", s.Socket, "--pool", "db", "--", "true")
	first.succeeds()
	next.succeeds()
}

func TestASidecarRefusesNumbersOfAnotherPIDNamespace(t *testing.T) {
	t.Parallel()
	by := contained(t)
	q := newQuay(t, 1)
	s := startSidecar(t, q.etcd, "one", shortDir(t))
	// Number 2 there is a process of the caller, and here another one or none.
	call := `sleep 60 & curl -sS --unix-socket "$1" http://berth/v1/claims -H 'Content-Type: application/json' \
		-d '{"pools": {"db": 1}, "wait": "0s", "pid": '$!'}'`
	cmd := exec.Command(by[0], append(by[1:], "sh", "-c", call, "sh", strings.TrimPrefix(s.Socket, "unix://"))...)
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"status":422`) || !strings.Contains(string(out), "pid namespace") {
		t.Errorf("%v: it answers %s", err, out)
	}
}
