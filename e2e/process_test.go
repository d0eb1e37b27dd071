//go:build linux

package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/store"
)

// roleVar names, in the environment of a process that a test has started, the
// part that it plays; partVar has what it needs to know, as JSON.
const (
	roleVar = "BERTH_E2E_ROLE"
	partVar = "BERTH_E2E_PART"
)

// roles are the parts. Each ends when its input does, so that none outlives the
// tests.
var roles = map[string]func(part []byte, in io.Reader, say func(report)) error{
	"etcd": playEtcd,
	"host": playHost,
	"job":  playJob,
	"idle": playIdle,
}

// play is main in a process that a test has started.
func play(role string) int {
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(r report) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(r)
	}
	if err := roles[role]([]byte(os.Getenv(partVar)), os.Stdin, say); err != nil {
		say(report{Event: "failed", Error: err.Error()})
		return 1
	}
	return 0
}

// report is what a process tells the test.
type report struct {
	Event string
	ID    string      `json:",omitempty"`
	Fence store.Fence `json:",omitempty"`
	Lease int64       `json:",omitempty"`
	Code  string      `json:",omitempty"`
	Error string      `json:",omitempty"`
}

// process is one that a test has started, and can stop as no process wants to be
// stopped.
type process struct {
	t    testing.TB
	name string
	cmd  *exec.Cmd
	in   io.WriteCloser
	dead chan struct{} // closed when it has ended and all that it said was read

	mu      sync.Mutex // guards what follows
	reports []report
	changed chan struct{}
}

// begins starts a process that plays a role. It is the caller's to kill.
func begins(t testing.TB, name, role string, part any) *process {
	t.Helper()
	text, err := json.Marshal(part)
	if err != nil {
		t.Fatal(err)
	}
	p := &process{t: t, name: name, dead: make(chan struct{}), changed: make(chan struct{})}
	p.cmd = exec.Command(os.Args[0])
	p.cmd.Env = append(os.Environ(), roleVar+"="+role, partVar+"="+string(text))
	p.cmd.Stderr = os.Stderr
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go p.listen(out)
	return p
}

func (p *process) listen(out io.Reader) {
	defer close(p.dead)
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		var r report
		if err := json.Unmarshal(lines.Bytes(), &r); err != nil {
			r = report{Event: "failed", Error: lines.Text()}
		}
		p.mu.Lock()
		p.reports = append(p.reports, r)
		close(p.changed)
		p.changed = make(chan struct{})
		p.mu.Unlock()
	}
	_ = p.cmd.Wait() // it was killed, or has said why it failed
}

// tell gives it an order.
func (p *process) tell(order any) {
	p.t.Helper()
	if err := json.NewEncoder(p.in).Encode(order); err != nil {
		p.t.Fatalf("%s can't be signaled: %v", p.name, err)
	}
}

// hear waits for a report and takes it out of the list.
func (p *process) hear(event, id string) report {
	p.t.Helper()
	return p.hearOne(id, event)
}

// hearOne waits for the first of several reports.
func (p *process) hearOne(id string, events ...string) report {
	p.t.Helper()
	late := time.NewTimer(deadline)
	defer late.Stop()
	for {
		r, ok, changed := p.find(id, events)
		switch {
		case !ok:
		case r.Event == "failed":
			p.t.Fatalf("%s: %s", p.name, r.Error)
		default:
			return r
		}
		select {
		case <-changed:
		case <-p.dead:
			if r, ok, _ := p.find(id, events); ok {
				return r
			}
			p.t.Fatalf("%s ended before it said %v of %q", p.name, events, id)
		case <-late.C:
			p.t.Fatalf("%s has not said %v of %q within %s", p.name, events, id, deadline)
		}
	}
}

// find takes a report out of the list, if it is there, and tells when to look
// again.
func (p *process) find(id string, events []string) (r report, ok bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.reports, func(r report) bool {
		return r.ID == id && slices.Contains(events, r.Event) || r.Event == "failed"
	})
	if i >= 0 {
		r = p.reports[i]
		p.reports = slices.Delete(p.reports, i, i+1)
	}
	return r, i >= 0, p.changed
}

// kill ends it with SIGKILL and returns when it has gone.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // it may be gone already
	<-p.dead
}

// freeze stops it with SIGSTOP and returns when it stands still.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	standsStill(p.t, p.cmd.Process.Pid)
}

// thaw lets it go on.
func (p *process) thaw() { p.signal(syscall.SIGCONT) }

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("%s: %v: %v", p.name, s, err)
	}
}

// standsStill waits until a process has been stopped.
func standsStill(t testing.TB, pid int) {
	t.Helper()
	for begin := time.Now(); stateOf(pid) != "T"; pause(t.Context(), time.Millisecond) {
		if time.Since(begin) > deadline {
			t.Fatalf("process %d does not stop", pid)
		}
	}
}

// stateOf is the letter that the kernel gives for what a process does.
func stateOf(pid int) string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return ""
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return rest[:1]
}
