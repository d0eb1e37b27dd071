package child

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/problem"
)

func TestACommandRunsToItsEnd(t *testing.T) {
	t.Parallel()
	before := time.Now()
	c := shell("cat; pwd; echo err >&2; echo out; exit 3")
	c.Stdin = []byte("in\n")
	r := begin(t, c)
	res := r.end()
	if res.ExitCode != 3 || res.Signal != "" || res.Stopped != NotStopped || res.Error != "" || res.OutputCut != 0 {
		t.Errorf("its result is %+v", res)
	}
	if res.Took <= 0 || res.StartedAt.Before(before.Add(-time.Second)) || res.EndedAt.Before(res.StartedAt) {
		t.Errorf("its times are %+v", res)
	}
	at, err := filepath.EvalSymlinks(r.at)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.output(), "in\n"+at+"\nerr\nout\n"; got != want {
		t.Errorf("its output is %q, want %q", got, want)
	}
}

func TestACommandThatIsGivenNothingToReadReadsNothing(t *testing.T) {
	t.Parallel()
	r := begin(t, shell("cat; echo done"))
	if res := r.end(); res.ExitCode != 0 || r.output() != "done\n" {
		t.Errorf("%+v, %q", res, r.output())
	}
}

func TestTheEndOfACommandIsReportedAsAShellDoes(t *testing.T) {
	t.Parallel()
	at := t.TempDir()
	write := func(name, text string, mode os.FileMode) string {
		path := filepath.Join(at, name)
		if err := os.WriteFile(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return path
	}
	for name, c := range map[string]struct {
		command Command
		code    int
		signal  string
		err     string
	}{
		"success":           {command: shell("true")},
		"a code":            {command: shell("exit 255"), code: 255},
		"killed":            {command: shell("kill -9 $$"), code: 137, signal: "SIGKILL"},
		"a realtime signal": {command: shell("kill -40 $$"), code: 168, signal: "SIG40"},
		"no such name":      {command: Command{Argv: []string{"no-such-command"}}, code: 127, err: "not found"},
		"no such path":      {command: Command{Argv: []string{"./no-such-command"}}, code: 127, err: "no such file"},
		"no PATH":           {command: Command{Argv: []string{"sh", "-c", "exit 4"}, Env: []string{"A=b"}}, code: 4},
		"nothing in PATH":   {command: Command{Argv: []string{"sh"}, Env: []string{"PATH=" + at}}, code: 127, err: "not found"},
		"plain in PATH":     {command: Command{Argv: []string{filepath.Base(write("unmarked", "", 0o600))}, Env: []string{"PATH=" + at}}, code: 126, err: "permission denied"},
		"not executable":    {command: Command{Argv: []string{write("plain", "", 0o600)}}, code: 126, err: "permission denied"},
		"a folder":          {command: Command{Argv: []string{at}}, code: 126, err: "directory"},
		"no program":        {command: Command{Argv: []string{write("data", "x\x00", 0o700)}}, code: 126, err: "exec format"},
		"a script for sh":   {command: Command{Argv: []string{write("text", "exit $1", 0o700), "6"}}, code: 6},
		"no interpreter":    {command: Command{Argv: []string{write("script", "#!/no/such/shell\n", 0o700)}}, code: 127, err: "no such file"},
		"no directory":      {command: Command{Argv: []string{"true"}, Dir: filepath.Join(at, "none")}, code: 126, err: "dir: "},
		"too long": {
			command: Command{Argv: []string{"true", strings.Repeat("x", 200<<10)}},
			code:    126, err: "argument list too long",
		},
		"a path in Dir": {
			command: Command{Argv: []string{"./here"}, Dir: filepath.Dir(write("here", "#!/bin/sh\nexit 5\n", 0o700))},
			code:    5,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, c.command)
			res := r.end()
			if res.ExitCode != c.code || res.Signal != c.signal || (c.err == "") != (res.Error == "") || !strings.Contains(res.Error, c.err) {
				t.Errorf("its result is %+v", res)
			}
		})
	}
}

func TestACommandGetsTheEnvironmentThatItIsGivenAndNoOther(t *testing.T) {
	t.Setenv("BERTH_TOKEN", "a-secret-of-the-worker")
	path := "PATH=" + os.Getenv("PATH")
	raw := "RAW=\xff\xfe" // not UTF-8, and allowed
	r := begin(t, Command{Argv: []string{"env"}, Env: []string{"A=1", path, "EMPTY=", "A=2=3", raw}})
	if res := r.end(); res.ExitCode != 0 {
		t.Fatalf("its result is %+v", res)
	}
	if got, want := r.output(), "A=2=3\n"+path+"\nEMPTY=\n"+raw+"\n"; got != want {
		t.Errorf("its environment is %q, want %q", got, want)
	}
	// It can't look for the secret in its supervisor either.
	r = begin(t, shell("tr '\\0' '\\n' < /proc/$PPID/environ"))
	if res := r.end(); res.ExitCode != 0 || r.output() != "GOMAXPROCS=2\n" {
		t.Errorf("%+v; the supervisor's environment is %q", res, r.output())
	}
}

func TestNoDescriptorsLeakIntoACommand(t *testing.T) {
	leak, err := unix.Open(os.DevNull, unix.O_RDONLY, 0) // not to be closed on exec, as by mistake
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := unix.Close(leak); err != nil {
			t.Error(err)
		}
	}()
	// The supervisor lets go of the command's own stdin a moment after it has begun it; a
	// descriptor that has leaked stays, and the command never ends.
	r := begin(t, shell("until [ \"$(ls -l /proc/$PPID/fd | grep -c ' /dev/null$')\" = 1 ]; do sleep 0.01; done; exec ls /proc/self/fd"))
	if res := r.end(); res.ExitCode != 0 {
		t.Fatalf("%+v", res)
	}
	// ls has the folder open; the supervisor has its own stdin.
	if got, want := r.output(), "0\n1\n2\n3\n"; got != want {
		t.Errorf("open are %q, want %q", got, want)
	}
}

func TestWhatCanNotBeACommandIsRefused(t *testing.T) {
	good := func(change func(*Command)) Command {
		c := shell("true")
		change(&c)
		return c
	}
	for field, c := range map[string]Command{
		"argv":         good(func(c *Command) { c.Argv = nil }),
		"argv:":        good(func(c *Command) { c.Argv[0] = "" }),
		"argv: an":     good(func(c *Command) { c.Argv[2] = "a\x00b" }),
		"env":          good(func(c *Command) { c.Env = []string{"A=b", "NAME"} }),
		"env: ":        good(func(c *Command) { c.Env = []string{"=b"} }),
		"env: \"A\"":   good(func(c *Command) { c.Env = []string{"A=b\x00"} }),
		"dir":          good(func(c *Command) { c.Dir = "\x00" }),
		"stop_grace":   good(func(c *Command) { c.StopGrace = -1 }),
		"stop_grace:":  good(func(c *Command) { c.StopGrace = longest + 1 }),
		"timeout":      good(func(c *Command) { c.Timeout = -1 }),
		"timeout:":     good(func(c *Command) { c.Timeout = longest + 1 }),
		"output_limit": good(func(c *Command) { c.OutputLimit = -1 }),
	} {
		dir := filepath.Join(t.TempDir(), "child")
		_, err := Start(executable(t), dir, c, now()+time.Hour)
		if problem.CodeOf(err) != problem.Invalid || !strings.HasPrefix(err.Error(), field) {
			t.Errorf("%+v: %v, not a word of %s", c, err, field)
		}
		if exists(dir) {
			t.Errorf("%+v: its folder was made", c)
		}
	}
}

func TestAStartThatFailsLeavesNothing(t *testing.T) {
	at := t.TempDir()
	dir := filepath.Join(at, "child")
	if _, err := Start(filepath.Join(at, "no-berth"), dir, shell("true"), now()+time.Hour); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a berth: %v", err)
	}
	if exists(dir) {
		t.Error("the folder is still there")
	}
	if _, err := Start(executable(t), filepath.Join(dir, "below"), shell("true"), now()+time.Hour); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("in no folder: %v", err)
	}
}

func TestAFolderIsOfOneChild(t *testing.T) {
	t.Parallel()
	r := begin(t, shell("echo first"))
	if _, err := Start(executable(t), r.dir, shell("echo second"), now()+time.Hour); !errors.Is(err, fs.ErrExist) {
		t.Errorf("a second start: %v", err)
	}
	if res := r.end(); res.ExitCode != 0 || r.output() != "first\n" {
		t.Errorf("%+v, %q", res, r.output())
	}
}

func TestOutputIsBoundedAndNeverHoldsUpTheCommand(t *testing.T) {
	t.Parallel()
	c := shell("echo begin; head -c 1000000 /dev/zero | tr '\\0' x; echo err >&2; exit 4")
	c.OutputLimit = 4000
	r := begin(t, c)
	res := r.end()
	const written = 6 + 1000000 + 4
	begin, end, ok := strings.Cut(r.output(), gapLine(res.OutputCut))
	if res.ExitCode != 4 || !ok || int64(len(begin)+len(end))+res.OutputCut != written {
		t.Errorf("its result is %+v", res)
	}
	if !strings.HasPrefix(begin, "begin\nxxx") || !strings.HasSuffix(end, "err\n") {
		t.Errorf("its output is %q", r.output())
	}
	if at := int64(len(r.output())) + r.Shift(); at != written {
		t.Errorf("the end of its output is at %d, not %d", at, written)
	}
}

func TestAChildIsRemovedOnceItHasEnded(t *testing.T) {
	t.Parallel()
	r := begin(t, shell("until [ -e go ]; do sleep 0.01; done"))
	if err := r.Remove(); !errors.Is(err, ErrRunning) || !exists(r.dir) {
		t.Fatalf("while it runs: %v", err)
	}
	r.make("go")
	r.end()
	if err := r.Remove(); err != nil || exists(r.dir) {
		t.Errorf("%v, and the folder is there: %t", err, exists(r.dir))
	}
	// What comes too late does no harm.
	if err := errors.Join(r.Stop("late"), r.Extend(now()), r.Close(), r.Remove()); err != nil {
		t.Error(err)
	}
}
