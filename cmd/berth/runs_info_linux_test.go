package main

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/store/embed/embedtest"
)

// On a terminal a run is shown in its place, until it has ended.
func TestRunsInfo_IsWatchedOnATerminal(t *testing.T) {
	etcd := embedtest.Cluster(t, 1)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	berth := func(args ...string) *exec.Cmd {
		cmd := exec.Command(self, args...)
		cmd.Args[0] = "berth"
		cmd.Env = append(os.Environ(), "TERM=xterm", "BERTH_ENDPOINTS="+strings.Join(etcd.Endpoints(), ","))
		return cmd
	}
	if out, err := berth("submit", "--id", "r", "--name", "a-long-name", "--", "true").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	keyboard, screen, err := openPTY()
	if err != nil {
		t.Fatal(err)
	}
	defer keyboard.Close()
	if err := unix.IoctlSetWinsize(int(screen.Fd()), unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 30}); err != nil {
		t.Fatal(err)
	}
	watch := berth("runs", "info", "r", "--watch")
	watch.Stdout = screen
	if err := watch.Start(); err != nil {
		t.Fatal(err)
	}
	_ = screen.Close()
	defer func() { _ = watch.Process.Kill() }() // if it has not ended
	late := time.AfterFunc(scriptDeadline, func() { _ = watch.Process.Kill() })
	defer late.Stop()

	shown, canceled := "", false
	for b := make([]byte, 4096); ; {
		n, err := keyboard.Read(b)
		if err != nil {
			break // it has ended, and so has the terminal
		}
		shown += string(b[:n])
		if !canceled && strings.Contains(shown, "a-long-name") {
			canceled = true
			if out, err := berth("runs", "cancel", "r", "--reason", "seen").CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
	if err := watch.Wait(); err != nil {
		t.Errorf("%v", err)
	}
	first, last, redrawn := strings.Cut(shown, "A\x1b[J")
	switch {
	case !redrawn:
		t.Errorf("it was not redrawn: %q", shown)
	case !strings.Contains(first, "a-long-name  [..............…"):
		t.Errorf("a line was not cut that would wrap: %q", first)
	case !strings.Contains(last, "canceled") || !strings.Contains(last, "a-long-name  [xxxxxxxxxxxxxxxxxxxx]  1/1   canceled"):
		t.Errorf("the end was not shown whole: %q", last)
	}
}
