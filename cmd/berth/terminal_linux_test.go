package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store/embed/embedtest"
	"github.com/berthhq/berth/sidecar/client"
)

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
	ctrlQ = "\x1c" // SIGQUIT
)

// desk is a terminal with a shell at it that runs one exec.
type desk struct {
	t        *testing.T
	dir      string
	keyboard *os.File
	env      []string
}

// file is a file that shell, exec and job share.
func (d *desk) file(name string) string { return filepath.Join(d.dir, name) }

// newDesk starts an etcd with a pool of one slot, and a lease of 10s.
func newDesk(t *testing.T) *desk {
	t.Helper()
	etcd := embedtest.Cluster(t, 1)
	d := &desk{t: t, dir: t.TempDir()}
	d.env = append(os.Environ(), "BERTH_ENDPOINTS="+strings.Join(etcd.Endpoints(), ","))
	d.berth("pools", "set", "demo", "1", "--lease-duration", "10s")
	return d
}

// self returns a command that runs this binary under another name.
func (d *desk) self(name string, args ...string) *exec.Cmd {
	d.t.Helper()
	path, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	cmd.Args[0], cmd.Env = name, d.env
	return cmd
}

// berth runs a command of berth outside of the terminal.
func (d *desk) berth(args ...string) {
	d.t.Helper()
	if out, err := d.self("berth", args...).CombinedOutput(); err != nil {
		d.t.Fatalf("berth %v: %v\n%s", args, err, out)
	}
}

// programs makes a folder with berth and job in it, the first in PATH, and returns it.
func (d *desk) programs() string {
	d.t.Helper()
	bin := d.file("bin")
	path, err := os.Executable()
	if err != nil {
		d.t.Fatal(err)
	}
	for _, name := range []string{"berth", "job"} {
		if err := os.MkdirAll(bin, 0o700); err != nil {
			d.t.Fatal(err)
		}
		if err := os.Symlink(path, filepath.Join(bin, name)); err != nil {
			d.t.Fatal(err)
		}
	}
	d.env = append(d.env, "PATH="+bin+":"+os.Getenv("PATH"))
	return bin
}

// exec starts the shell with berth exec and a job, and waits until that runs.
func (d *desk) exec(job ...string) {
	d.t.Helper()
	bin := d.programs()
	shell := d.self("job", append([]string{"shell", d.file("log"), d.file("fg"), filepath.Join(bin, "berth"), "exec", "--pool", "demo", "--", "job"}, job...)...)
	d.open(shell)
	d.until("the job runs", func() bool { return exists(d.file("started")) })
}

// open starts the shell at a terminal.
func (d *desk) open(shell *exec.Cmd) {
	d.t.Helper()
	keyboard, screen, err := openPTY()
	if err != nil {
		d.t.Fatal(err)
	}
	d.keyboard = keyboard
	shell.Stdin, shell.Stdout, shell.Stderr = screen, screen, screen
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	if err := shell.Start(); err != nil {
		d.t.Fatal(err)
	}
	screen.Close()
	var reading sync.WaitGroup
	reading.Go(func() { // what is shown has to be read
		b := make([]byte, 4096)
		for {
			n, err := keyboard.Read(b)
			if err != nil {
				return
			}
			d.t.Logf("terminal: %q", b[:n])
		}
	})
	d.t.Cleanup(func() {
		_ = shell.Process.Kill() // if it has not ended
		_ = shell.Wait()
		_ = keyboard.Close()
		reading.Wait()
	})
}

func openPTY() (keyboard, screen *os.File, err error) {
	// In raw mode of Go's poller, so that Close ends a Read.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	keyboard = os.NewFile(uintptr(fd), "ptmx")
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	screen, err = os.OpenFile(fmt.Sprint("/dev/pts/", n), os.O_RDWR|unix.O_NOCTTY, 0)
	return keyboard, screen, err
}

func (d *desk) press(keys string) {
	d.t.Helper()
	if _, err := d.keyboard.WriteString(keys); err != nil {
		d.t.Fatal(err)
	}
}

// says waits until a file has a text.
func (d *desk) says(name, want string) {
	d.t.Helper()
	var got []byte
	d.until(name+" says "+fmt.Sprintf("%q", want), func() bool {
		got, _ = os.ReadFile(d.file(name))
		return string(got) == want
	})
}

func (d *desk) until(what string, done func() bool) {
	d.t.Helper()
	deadline := time.After(scriptDeadline)
	tick := time.NewTicker(scriptPoll)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			got, _ := os.ReadFile(d.file("got"))
			log, _ := os.ReadFile(d.file("log"))
			d.t.Fatalf("not within %s: %s\nthe job got %q\nthe shell saw %q", scriptDeadline, what, got, log)
		}
	}
}

func (d *desk) make(name string) {
	d.t.Helper()
	if err := os.WriteFile(d.file(name), nil, 0o600); err != nil {
		d.t.Fatal(err)
	}
}

func (d *desk) jobPID() int {
	d.t.Helper()
	job, err := readPID(d.file("started"))
	if err != nil {
		d.t.Fatal(err)
	}
	return job.pid
}

func TestTerminal_KeysReachTheCommandOnce(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec("signals", d.file("started"), d.file("got"))
	d.press(ctrlC)
	d.says("got", "interrupt\n")
	d.press(ctrlQ)
	d.says("got", "interrupt\nquit\n")
	if err := syscall.Kill(d.jobPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.says("log", "exited 0\n")
}

func TestTerminal_CtrlCEndsExecAsItEndsTheCommand(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec("hold", d.file("started"), d.file("never"))
	d.press(ctrlC)
	d.says("log", "interrupt\n")
	d.berth("exec", "--pool", "demo", "--wait", "0", "--", "true") // the slot was given back
}

func TestTerminal_CtrlZStopsTheJobAndFgGoesOn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec("signals", d.file("started"), d.file("got"))
	d.press(ctrlZ)
	d.says("log", "stopped\n")
	if state := processState(t, d.jobPID()); state != "T" {
		t.Errorf("the command is in state %s, not stopped", state)
	}
	d.make("fg1")
	d.says("got", "continued\n")
	d.press(ctrlC) // it has the terminal again
	d.says("got", "continued\ninterrupt\n")
	d.press(ctrlZ)
	d.says("log", "stopped\nstopped\n")
	d.make("fg2")
	d.says("got", "continued\ninterrupt\ncontinued\n")
	if err := syscall.Kill(d.jobPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.says("log", "stopped\nstopped\nexited 0\n")
}

// A signal that exec only disregards can be handled late, and then stops the job
// that was just continued. Which of them a process ignores, the system knows.
// timeout(1) puts its command into the background, and ignores the signal that stops what reads there.
func TestTerminal_ACommandThatReadsInTheBackgroundDoesNotStopTheProgramThatEndsIt(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.programs()
	shell := exec.Command("sh", "-c", "timeout 1 berth exec --pool demo -- sh -c 'read line'; echo $? >$0", d.file("log"))
	shell.Env = d.env
	d.open(shell)
	d.says("log", "124\n")
}

func TestTerminal_AStoppedExecIgnoresTheSignalItSendsAndPassesItOnAgainAfterFg(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec("signals", d.file("started"), d.file("got"))
	job, err := proc.Read(d.jobPID())
	if err != nil {
		t.Fatal(err)
	}
	pid := job.Parent
	d.press(ctrlZ)
	d.says("log", "stopped\n")
	if !ignoresSignal(t, pid, unix.SIGTSTP) {
		t.Error("exec handles the signal that it sends its own group, perhaps when it goes on")
	}
	d.make("fg1")
	d.says("got", "continued\n")
	if err := unix.Kill(pid, unix.SIGTSTP); err != nil {
		t.Fatal(err)
	}
	d.says("log", "stopped\nstopped\n")
	if state := processState(t, d.jobPID()); state != "T" {
		t.Errorf("the command is in state %s, not stopped", state)
	}
	d.make("fg2")
	d.says("got", "continued\ncontinued\n")
	if err := syscall.Kill(d.jobPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.says("log", "stopped\nstopped\nexited 0\n")
}

func TestTerminal_AJobStoppedForLongerThanItsLeaseNeverRunsAgain(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.exec("signals", d.file("started"), d.file("got"))
	d.press(ctrlZ)
	d.says("log", "stopped\n")
	d.berth("exec", "--pool", "demo", "--wait", "100s", "--", "true") // when the lease has ended
	d.make("fg1")
	d.says("log", "stopped\nexited 76\n")
	if exists(d.file("got")) {
		t.Error("the command ran on after its claim was lost")
	}
}

func TestTerminal_AStoppedJobWhoseClaimTheSidecarHasKeptRunsOn(t *testing.T) {
	t.Parallel()
	d := newDesk(t)
	d.sidecar()
	d.exec("signals", d.file("started"), d.file("got"))
	d.press(ctrlZ)
	d.says("log", "stopped\n")
	d.waitOutALease()
	d.make("fg1")
	d.says("got", "continued\n")
	if err := syscall.Kill(d.jobPID(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.says("log", "stopped\nexited 0\n")
}

// sidecar has what follows go through a sidecar.
func (d *desk) sidecar() {
	d.t.Helper()
	socket := d.file("sock")
	s := d.self("berth", "sidecar", "--listen", "", "--socket", socket, "--state-dir", d.file("state"), "--drain-timeout", "0", "--log-level", "error")
	if err := s.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() {
		_ = s.Process.Signal(syscall.SIGTERM)
		if err := s.Wait(); err != nil {
			d.t.Errorf("the sidecar ended with %v", err)
		}
	})
	client, err := client.Dial("unix://"+socket, "")
	if err != nil {
		d.t.Fatal(err)
	}
	defer client.Close()
	d.until("the sidecar is ready", func() bool { return client.Ready(d.t.Context()) == nil })
	d.env = append(d.env, "BERTH_SIDECAR=unix://"+socket)
}

// waitOutALease returns when a lease has ended that was granted only now, by
// etcd's clock.
func (d *desk) waitOutALease() {
	d.t.Helper()
	d.berth("pools", "set", "clock", "1", "--lease-duration", "10s")
	holder := d.self("berth", "exec", "--sidecar", "", "--pool", "clock", "--", filepath.Join(d.file("bin"), "job"), "hold", d.file("ticking"), d.file("never"))
	if err := holder.Start(); err != nil {
		d.t.Fatal(err)
	}
	d.until("the clock ticks", func() bool { return exists(d.file("ticking")) })
	_ = holder.Process.Kill()
	_ = holder.Wait() // it was killed
	d.berth("exec", "--sidecar", "", "--pool", "clock", "--wait", "100s", "--", "true")
}

func processState(t *testing.T, pid int) string {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	return rest[:1]
}

// ignoresSignal reports whether a process ignores a signal.
func ignoresSignal(t *testing.T, pid int, s unix.Signal) bool {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(status), "\nSigIgn:\t")
	line, _, _ := strings.Cut(rest, "\n")
	mask, err := strconv.ParseUint(line, 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return mask&(1<<(s-1)) != 0
}
