package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/lease"
)

// validHeld is a claim that stays valid.
type validHeld struct{}

func (validHeld) fence() int64                       { return 1 }
func (validHeld) validity() (left, of time.Duration) { return time.Hour, time.Second }
func (validHeld) refresh(context.Context)            {}
func (validHeld) ended() <-chan struct{}             { return nil }
func (validHeld) err() error                         { return nil }
func (validHeld) whyKilled() error                   { return nil }
func (validHeld) bind(context.Context, int) error    { return nil }
func (validHeld) release(context.Context) error      { return nil }

// jobStarts N COMMAND… does N times what exec does when it has its slots: it runs the command. It
// fails with the first command that fails.
func jobStarts(a []string) error {
	n, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	cmd, err := findCommand(a[1:])
	if err != nil {
		return err
	}
	for range n {
		result, err := startOnce(cmd)
		if err != nil {
			return err
		}
		if code := result.code(); code != 0 {
			return fmt.Errorf("the command has ended with %d", code)
		}
	}
	return nil
}

func startOnce(cmd command) (jobResult, error) {
	// An exec begins with the signal as a shell leaves it. Go does not reset what was ignored, but a
	// handled signal has its default action in a command.
	signal.Notify(make(chan os.Signal, 1), unix.SIGTTOU)
	signals := make(chan os.Signal, 32)
	defer signal.Stop(signals)
	return (&job{held: validHeld{}, clock: lease.BootClock(), signals: signals, say: func(string, ...any) {}}).run(cmd, os.Environ())
}

// jobFails does what exec does with a command that cannot be started, and fails if it does not have
// the terminal again.
func jobFails([]string) error {
	_, err := startOnce(command{"/bin/sh", []string{"sh", strings.Repeat("x", 200<<10)}})
	if err == nil || !openTerminal().has() {
		return fmt.Errorf("the start has failed with %v, and has the terminal: %t", err, openTerminal().has())
	}
	return nil
}

// newShell makes the folder of a terminal, with a job to run.
func newShell(t *testing.T) *desk {
	t.Helper()
	d := &desk{t: t, dir: t.TempDir(), env: os.Environ()}
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(path, d.file("job")); err != nil {
		t.Fatal(err)
	}
	return d
}

// shellAt opens a terminal whose shell runs a job as its only command.
func shellAt(t *testing.T, verb string, job ...string) *desk {
	t.Helper()
	d := newShell(t)
	d.open(d.self("job", append([]string{verb, d.file("log"), d.file("fg"), d.file("job")}, job...)...))
	return d
}

// saw waits until the shell has seen something, and requires that it is this.
func (d *desk) saw(want string) {
	d.t.Helper()
	var got []byte
	d.until("the shell sees something", func() bool {
		got, _ = os.ReadFile(d.file("log"))
		return len(got) > 0
	})
	if string(got) != want {
		d.t.Errorf("the shell saw %q, want %q", got, want)
	}
}

func TestTerminal_NoStartOfAnInteractiveCommandIsStopped(t *testing.T) {
	t.Parallel()
	const starts = 200
	d := shellAt(t, "shell", "starts", fmt.Sprint(starts), "sh", "-c", "read line")
	d.press(strings.Repeat("x\n", starts))
	d.saw("exited 0\n")
}

// notInFront fails unless the foreground of its terminal is another process group's.
const notInFront = `set -- $(cat /proc/$$/stat); test "$5" != "$8"`

func TestTerminal_ACommandInTheBackgroundStaysThere(t *testing.T) {
	t.Parallel()
	shellAt(t, "background", "starts", "1", "sh", "-c", notInFront).saw("exited 0\n")
	shellAt(t, "shell", "starts", "1", "sh", "-c", "! ("+notInFront+")").saw("exited 0\n")
}

func TestTerminal_ACommandInTheBackgroundThatReadsWaitsForTheForeground(t *testing.T) {
	t.Parallel()
	d := shellAt(t, "background", "starts", "1", "sh", "-c", "read line")
	d.saw("stopped\n")
	d.make("fg1")
	d.press("x\n")
	d.says("log", "stopped\nexited 0\n")
}

// In a pipeline, another command may need the terminal first. A command that asks for it gets it.
func TestTerminal_ACommandInAPipelineGetsTheTerminalWhenItAsks(t *testing.T) {
	t.Parallel()
	const starts = 20
	d := newShell(t)
	d.open(d.self("job", "shell", d.file("log"), d.file("fg"), "sh", "-c", `: | "$0" starts `+fmt.Sprint(starts)+` sh -c '`+notInFront+` && read line </dev/tty'`, d.file("job")))
	d.press(strings.Repeat("x\n", starts))
	d.saw("exited 0\n")
}

// A program that could not be started has had the terminal.
func TestTerminal_AFailedStartGivesTheTerminalBack(t *testing.T) {
	t.Parallel()
	shellAt(t, "shell", "fails").saw("exited 0\n")
}

// No shell could continue a stopped command of an exec that is the first process of its session:
// the system stops no process of such a group by the keyboard.
func TestTerminal_CtrlZDoesNotStopACommandThatNoShellCouldContinue(t *testing.T) {
	t.Parallel()
	d := newShell(t)
	d.open(d.self("job", "starts", "1", d.file("job"), "signals", d.file("started"), d.file("got")))
	d.until("the job runs", func() bool { return exists(d.file("started")) })
	d.press(ctrlZ)
	d.says("got", "continued\n")
	d.press(ctrlC)
	d.says("got", "continued\ninterrupt\n")
	if err := unix.Kill(d.jobPID(), unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	d.says("got", "continued\ninterrupt\nterminated\n")
}
