package proc

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// begin starts a process that ends only if it is killed.
func begin(t *testing.T) *exec.Cmd {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = Attributes()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	})
	return cmd
}

func TestAProcessIsKilledOnlyIfItIsTheOneThatWasRead(t *testing.T) {
	cmd := begin(t)
	s, err := Read(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	other := s
	if other.Start++; other.Kill() {
		t.Error("another process was killed")
	}
	if !s.Kill() {
		t.Error("the process was not killed")
	}
	_ = cmd.Wait() // its status is read below
	if status := cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGKILL {
		t.Errorf("it has ended with %s", cmd.ProcessState)
	}
	if _, err := Read(s.PID); !errors.Is(err, ErrNoProcess) {
		t.Errorf("after its end: %v", err)
	}
}

func TestAProcessIsFoundAgain(t *testing.T) {
	w, err := NewWatcher()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	cmd := begin(t)
	p, err := w.Open(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	id := p.ID()
	with := func(change func(*ID)) ID {
		other := id
		change(&other)
		return other
	}
	for want, other := range map[error]ID{
		nil:               with(func(o *ID) { o.Start++ }), // read in another time namespace
		ErrNoProcess:      with(func(o *ID) { o.Start += 2 }),
		ErrOtherNamespace: with(func(o *ID) { o.Namespace++; o.Init = false }),
	} {
		found, err := w.Find(other)
		if !errors.Is(err, want) {
			t.Errorf("%+v: %v, want %v", other, err, want)
		}
		found.Close()
	}
	if _, err := w.Find(with(func(o *ID) { o.Namespace++; o.Init = true })); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of a namespace whose first process has ended: %v", err)
	}
	if _, err := w.Find(ID{PID: id.PID, Boot: "earlier"}); !errors.Is(err, ErrNoProcess) {
		t.Errorf("of an earlier boot: %v", err)
	}
	ended := make(chan struct{})
	p.Notify(func() { close(ended) })
	me := uint32(os.Geteuid())
	if err := p.Signal(unix.SIGKILL, me+1); me == 0 && !errors.Is(err, ErrOtherUser) {
		t.Errorf("another user has signaled it: %v", err)
	}
	if err := p.Signal(unix.SIGKILL, me); err != nil {
		t.Fatal(err)
	}
	<-ended
	if err := p.Signal(unix.SIGKILL, me+1); err != nil {
		t.Errorf("a signal to a process that has ended: %v", err)
	}
}

func TestAGroupStopsContinuesAndEnds(t *testing.T) {
	sh, err := LookPath("sh", nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := Start(sh, []string{"sh", "-c", "kill -STOP $$; exit 7"}, nil, nil, Attributes())
	if err != nil {
		t.Fatal(err)
	}
	if by := g.Wait(); by != unix.SIGSTOP || g.Ended() {
		t.Errorf("stopped by %s, ended: %t", by, g.Ended())
	}
	g.Signal(unix.SIGCONT)
	if by := g.Wait(); by != 0 || !g.Ended() || g.Reaped() {
		t.Errorf("stopped by %s, ended: %t, reaped: %t", by, g.Ended(), g.Reaped())
	}
	if status := g.Reap(); ExitCode(status) != 7 || !g.Reaped() {
		t.Errorf("status %v", status)
	}
	for name, code := range map[string]int{"/no/such": ExitNotFound, "no-such-command": ExitNotFound, "/proc": ExitNotExecutable} {
		path, err := LookPath(name, nil)
		if err == nil {
			_, err = Start(path, []string{name}, nil, nil, Attributes())
		}
		var start *StartError
		if !errors.As(err, &start) || start.Code != code {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSharesPIDs(t *testing.T) {
	if !SharesPIDs(os.Getpid()) || !SharesPIDs(os.Getppid()) || SharesPIDs(0) {
		t.Error("a process shares the numbers of processes with its parent, and not with those that it can't see")
	}
}
