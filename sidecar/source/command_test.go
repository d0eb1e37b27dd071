package source

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func shell(text string) *Command {
	return &Command{Argv: []string{"/bin/sh", "-c", text}, Env: []string{"PATH=" + os.Getenv("PATH"), "X=y"}, Timeout: time.Minute}
}

func TestACommandLists(t *testing.T) {
	c := shell("pwd; env; cat; echo noise >&2")
	dir := t.TempDir()
	t.Chdir(dir)
	t.Setenv("BERTH_PASSWORD", "secret")
	out, err := c.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		name, _, _ := strings.Cut(strings.TrimSpace(line), "=")
		switch name {
		case "X", "PATH", "PWD", "OLDPWD", "SHLVL", "_", dir:
		default:
			t.Errorf("it sees %q", line)
		}
	}
	if !strings.HasPrefix(string(out), dir+"\n") || !strings.Contains(string(out), "\nX=y\n") {
		t.Errorf("it has written %q", out)
	}
}

func TestAListCommandIsStartedAsAShellStartsIt(t *testing.T) {
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"plain": "echo plain $1", "windows": "#!/bin/sh\r\necho\r\n", "binary": "\x00"} {
		if err := os.WriteFile(name, []byte(text), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, path, want, err string
	}{
		{"./plain", "", "plain a\n", ""},
		{"plain", ":/bin", "plain a\n", ""},
		{"plain", "/bin", "", `the list command cannot be run: exec: "plain": executable file not found in $PATH`},
		{"./windows", "", "", `the list command cannot be run: run ./windows: its interpreter "/bin/sh\r": no such file`},
		{"./binary", "", "", "the list command cannot be run: fork/exec ./binary: exec format error"},
	} {
		command := &Command{Argv: []string{c.name, "a"}, Env: []string{"PATH=" + c.path}, Timeout: time.Minute}
		out, err := command.List(t.Context())
		if string(out) != c.want || (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
			t.Errorf("%s with PATH=%s: %q, %v", c.name, c.path, out, err)
		}
	}
}

func TestCommandsThatFail(t *testing.T) {
	late := shell("sleep 1000")
	late.Timeout = time.Millisecond
	for want, c := range map[string]*Command{
		"the list command ended with exit status 3":                                    shell("echo a; exit 3"),
		"the list command ended with exit status 1: no such queue":                     shell("echo one >&2; echo ' no such queue ' >&2; exit 1"),
		"the list command ended with signal: killed":                                   shell("kill -9 $$"),
		"the list command cannot be run: exec: \"no-such\": executable file":           {Argv: []string{"no-such"}, Timeout: time.Minute},
		"the list command did not end within 1ms":                                      late,
		"the list command wrote more than 4 MiB":                                       shell("yes"),
		"the list command ended with exit status 2: " + strings.Repeat("x", 256) + "…": shell("head -c 10000 /dev/zero | tr '\\0' x >&2; exit 2"),
	} {
		out, err := c.List(t.Context())
		if err == nil || !strings.HasPrefix(err.Error(), want) || out != nil {
			t.Errorf("%q, %v, want %s", out, err, want)
		}
	}
}

// A stop ends the command, which gets SIGTERM first, and the processes that it has started,
// even if these ignore the signal.
func TestAStopEndsTheCommand(t *testing.T) {
	stopped := errors.New("stopped by the test")
	dir := t.TempDir()
	// Both processes hold the pipe; its end is seen when both are gone.
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c := shell(`exec 9>fifo
		trap 'echo notified > notified; exit 0' TERM
		(trap '' TERM; echo begun >&9; exec sleep 1000) >/dev/null 2>&1 &
		wait`)
	t.Chdir(dir)
	ctx, cancel := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		out, err := c.List(ctx)
		if len(out) > 0 {
			err = errors.New("it has listed something")
		}
		ended <- err
	}()
	held, err := os.Open(fifo)
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	begun := make([]byte, len("begun\n"))
	if _, err := held.Read(begun); err != nil {
		t.Fatal(err)
	}
	cancel(stopped)
	if err := <-ended; !errors.Is(err, stopped) {
		t.Errorf("it has ended with %v", err)
	}
	if n, _ := held.Read(begun); n != 0 {
		t.Error("a process still has the pipe open")
	}
	if _, err := os.Stat(filepath.Join(dir, "notified")); err != nil {
		t.Errorf("it was not notified: %v", err)
	}
}
