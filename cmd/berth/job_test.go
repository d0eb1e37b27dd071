//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// jobDeadline is when a job gives up waiting: far more than it can ever take.
const jobDeadline = 2 * time.Minute

// jobLook is the interval at which a job polls files.
const jobLook = 5 * time.Millisecond

// jobMain is a program that scripts run under exec: it polls and creates
// files, so that scripts can determine what runs when without a clock.
func jobMain() {
	verbs := map[string]func([]string) error{
		"share": jobShare, "hold": jobHold, "stubborn": jobStubborn, "alone": jobAlone, "runs": jobRuns,
		"status": jobStatus, "signals": jobSignals, "orphan": jobOrphan,
		"crowd": jobCrowd, "pid": jobPID, "shell": jobShell, "strip": jobStrip,
		"executor": jobExecutor, "get": jobGet, "starts": jobStarts, "background": jobBackground, "fails": jobFails,
		"adopts": jobAdopts, "interrupts": jobInterrupts, "orphans": jobOrphans, "clog": jobClog,
	}
	verb := verbs[os.Args[1]]
	if verb == nil {
		fmt.Fprintln(os.Stderr, "job: no such verb:", os.Args[1])
		os.Exit(99)
	}
	if err := verb(os.Args[2:]); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "job:", err)
		os.Exit(98)
	}
}

// jobShare DIR N takes one of N tokens, each a file that only one can make, and
// fails if there is none. Jobs wait for each other until N have a token at the
// same time, once: so a test in which they never overlap does not pass either.
func jobShare(a []string) error {
	dir := a[0]
	n, err := strconv.Atoi(a[1])
	if err != nil {
		return err
	}
	token, err := takeToken(dir, n)
	if err != nil {
		return err
	}
	defer os.Remove(token)
	full := filepath.Join(dir, "full")
	return waitUntil("never so many at once", func() bool {
		if tokens, _ := filepath.Glob(filepath.Join(dir, "token-*")); len(tokens) == n {
			_ = os.WriteFile(full, nil, 0o600)
		}
		return exists(full)
	})
}

func takeToken(dir string, n int) (string, error) {
	for i := range n {
		name := filepath.Join(dir, fmt.Sprint("token-", i))
		f, err := os.OpenFile(name, os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			return name, f.Close()
		}
	}
	return "", fmt.Errorf("more than %d run at once", n)
}

// jobHold STARTED UNTIL writes its pid to the file STARTED and runs until there
// is a file UNTIL.
func jobHold(a []string) error {
	if err := writePID(a[0]); err != nil {
		return err
	}
	return waitUntil("no "+a[1], func() bool { return exists(a[1]) })
}

// jobClog STARTED FILE is like hold, and first fills the pipe that is its stderr.
func jobClog(a []string) error {
	if err := syscall.SetNonblock(2, true); err != nil {
		return err
	}
	line := []byte("x\n")
	for {
		if _, err := syscall.Write(2, line); errors.Is(err, syscall.EAGAIN) {
			break
		} else if err != nil {
			return err
		}
	}
	if err := syscall.SetNonblock(2, false); err != nil { // others have the same pipe
		return err
	}
	return jobHold(a)
}

// jobStubborn STARTED SIGNALED is like hold, but does not stop on SIGTERM: it
// creates the file SIGNALED then.
func jobStubborn(a []string) error {
	signaled := make(chan os.Signal, 1)
	signal.Notify(signaled, syscall.SIGTERM)
	if err := writePID(a[0]); err != nil {
		return err
	}
	<-signaled
	if err := os.WriteFile(a[1], nil, 0o600); err != nil {
		return err
	}
	<-time.After(jobDeadline) // it is to be killed
	return errors.New("it was not killed")
}

// jobAlone STARTED... fails if a job still runs that has written its pid there.
func jobAlone(a []string) error {
	return jobsOf(a, func(p aJob, file string) error {
		if p.alive() {
			return fmt.Errorf("process %d (%s) still runs", p.pid, file)
		}
		return nil
	})
}

// jobRuns STARTED... fails if a job no longer runs that has written its pid there.
func jobRuns(a []string) error {
	return jobsOf(a, func(p aJob, file string) error {
		if !p.alive() {
			return fmt.Errorf("process %d (%s) has ended", p.pid, file)
		}
		return nil
	})
}

func jobsOf(files []string, check func(p aJob, file string) error) error {
	for _, file := range files {
		p, err := readPID(file)
		if err == nil && p.start == "" {
			err = fmt.Errorf("%s was not written by a job", file)
		}
		if err != nil {
			return err
		}
		if err := check(p, file); err != nil {
			return err
		}
	}
	return nil
}

// jobStatus FILE COMMAND… runs a command and writes its exit code to a file.
func jobStatus(a []string) error {
	cmd := exec.Command(a[1], a[2:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	dieTogether(cmd)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		return err
	}
	return os.WriteFile(a[0], fmt.Appendln(nil, cmd.ProcessState.ExitCode()), 0o600)
}

// dieTogether has a command end with this process: a script that has failed kills
// what it started, and would wait for ever for what that has left behind.
func dieTogether(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// jobCrowd N FILE COMMAND… runs a command N times at once, and writes the exit
// codes to a file, one a line. JOB in their environment is their number.
func jobCrowd(a []string) error {
	n, err := strconv.Atoi(a[0])
	if err != nil {
		return err
	}
	codes := make([]int, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			cmd := exec.Command(a[2], a[3:]...)
			cmd.Env = append(os.Environ(), fmt.Sprint("JOB=", i))
			cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
			dieTogether(cmd)
			_ = cmd.Run() // the code says it
			codes[i] = cmd.ProcessState.ExitCode()
		})
	}
	wg.Wait()
	var text []byte
	for _, code := range codes {
		text = fmt.Appendln(text, code)
	}
	return os.WriteFile(a[1], text, 0o600)
}

// jobStrip TEXT COMMAND… becomes a command, without the text in its arguments.
func jobStrip(a []string) error {
	path, err := exec.LookPath(a[1])
	if err != nil {
		return err
	}
	for i := range a[1:] {
		a[i+1] = strings.ReplaceAll(a[i+1], a[0], "")
	}
	return syscall.Exec(path, a[1:], os.Environ())
}

// jobPID FILE COMMAND… becomes a command, whose pid it writes to a file before.
func jobPID(a []string) error {
	path, err := exec.LookPath(a[1])
	if err != nil {
		return err
	}
	if err := writePID(a[0]); err != nil {
		return err
	}
	return syscall.Exec(path, a[1:], os.Environ())
}

// jobSignals STARTED GOT writes its pid to STARTED, and the names of the signals
// that it gets to GOT, one a line, until it gets SIGTERM.
func jobSignals(a []string) error {
	got := make(chan os.Signal, 16)
	signal.Notify(got, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2, syscall.SIGWINCH, syscall.SIGCONT, syscall.SIGTERM)
	if err := writePID(a[0]); err != nil {
		return err
	}
	var names []string
	for s := range got {
		names = append(names, s.String())
		if err := writeWhole(a[1], strings.Join(names, "\n")+"\n"); err != nil || s == syscall.SIGTERM {
			return err
		}
	}
	return nil
}

// jobOrphan STARTED UNTIL leaves a process behind in its group that holds on.
func jobOrphan(a []string) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self, append([]string{"hold"}, a...)...)
	cmd.Args[0] = "job"
	return cmd.Start()
}

// aJob is a process that has written its pid to a file, as "PID START". A shell writes its
// pid alone.
type aJob struct {
	pid   int
	start string // its start time, so that a later process with its pid is not taken for it
}

func writePID(file string) error {
	start, _ := startOf(os.Getpid())
	return writeWhole(file, fmt.Sprintln(os.Getpid(), start))
}

// writeWhole writes a file atomically.
func writeWhole(file, text string) error {
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

func readPID(file string) (aJob, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return aJob{}, err
	}
	pid, start, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	n, err := strconv.Atoi(pid)
	return aJob{n, start}, err
}

// startOf returns the start time of a process, in clock ticks since boot: field 22 of
// /proc/PID/stat. It is false of a process that has ended, and of a zombie.
func startOf(pid int) (start string, ok bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", false
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest) // from the third field on
	if len(fields) < 20 || strings.ContainsAny(fields[0], "ZX") {
		return "", false
	}
	return fields[19], true
}

// alive reports whether the process exists and is more than a zombie.
func (p aJob) alive() bool {
	start, ok := startOf(p.pid)
	return ok && (p.start == "" || p.start == start)
}

func exists(file string) bool {
	_, err := os.Stat(file)
	return err == nil
}

func waitUntil(otherwise string, done func() bool) error {
	deadline := time.After(jobDeadline)
	tick := time.NewTicker(jobLook)
	defer tick.Stop()
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			return fmt.Errorf("%s within %s", otherwise, jobDeadline)
		}
	}
	return nil
}
