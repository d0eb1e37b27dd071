package child

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

func TestANewWorkerFindsACommandThatRuns(t *testing.T) {
	t.Parallel()
	r := begin(t, shell(tell("$$", "pid")+"until [ -e go ]; do sleep 0.01; done; exit 3"))
	r.appears("pid")
	for range 3 {
		r.again()
		if _, err := r.Result(); !errors.Is(err, ErrRunning) {
			t.Fatalf("its result is %v", err)
		}
	}
	r.make("go")
	if res := r.end(); res.ExitCode != 3 || res.Stopped != NotStopped {
		t.Errorf("its result is %+v", res)
	}
}

func TestANewWorkerFindsTheResultOfOneThatHasEnded(t *testing.T) {
	t.Parallel()
	r := begin(t, shell("echo out; exit 3"))
	want := r.end()
	for range 2 {
		r.again()
		if res := r.end(); res.ExitCode != 3 || !res.EndedAt.Equal(want.EndedAt) || r.output() != "out\n" {
			t.Errorf("%+v, %q", res, r.output())
		}
	}
}

// worker starts another process that starts n commands. It is killed at the end, if
// it was not before.
func worker(t *testing.T, n int) (at string, killIt func()) {
	t.Helper()
	at = t.TempDir()
	cmd := exec.Command(executable(t), "job", "worker", at, fmt.Sprint(n))
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	killed := false
	killIt = func() {
		if killed {
			return
		}
		killed = true
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // it was killed
	}
	t.Cleanup(killIt)
	return at, killIt
}

func TestACommandOutlivesAWorkerThatIsKilled(t *testing.T) {
	t.Parallel()
	at, killIt := worker(t, 1)
	r := &rig{t: t, at: at, dir: filepath.Join(at, "0")}
	pid := r.pid("0.pid")
	killIt()
	var err error
	if r.Child, err = Open(r.dir); err != nil {
		t.Fatal(err)
	}
	defer r.clear()
	if s, err := proc.Read(pid); err != nil || s.Ended() {
		t.Fatalf("%+v, %v: it runs no more", s, err)
	}
	if _, err := r.Result(); !errors.Is(err, ErrRunning) {
		t.Fatalf("its result is %v", err)
	}
	if err := r.Stop("found"); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.Signal != "SIGTERM" && res.Signal != "SIGKILL" || res.Reason != "found" {
		t.Errorf("its result is %+v", res)
	}
	r.gone("the command", pid)
}

// However far a worker has come when it is killed: what is opened afterwards runs,
// or never will.
func TestAWorkerCanBeKilledAtAnyMoment(t *testing.T) {
	t.Parallel()
	for after := range 6 {
		const n = 6
		at, killIt := worker(t, n)
		last := filepath.Join(at, fmt.Sprint(after))
		if err := waitFor("no "+last, func() bool { return exists(last) }); err != nil {
			t.Fatal(err)
		}
		killIt()
		for i := range n {
			r := &rig{t: t, at: at, dir: filepath.Join(at, fmt.Sprint(i))}
			child, err := Open(r.dir)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			r.Child = child
			if _, err := r.Result(); errors.Is(err, ErrRunning) {
				r.runsOrNeverWill(fmt.Sprint(i, ".pid"))
			}
			r.clear()
			if _, err := r.Result(); errors.Is(err, ErrVanished) && exists(r.path(fmt.Sprint(i, ".pid"))) {
				t.Errorf("child %d has vanished, and was started", i)
			}
		}
	}
}

// runsOrNeverWill waits until the command has written its pid, or the child has
// vanished.
func (r *rig) runsOrNeverWill(pid string) {
	r.t.Helper()
	err := waitFor("it neither runs nor has vanished", func() bool {
		_, err := r.Result()
		return exists(r.path(pid)) || errors.Is(err, ErrVanished)
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// family is a command with a child and a grandchild, and one that does not listen.
func family(t *testing.T) Command {
	t.Helper()
	return shell(strings.Join([]string{
		"sleep 1000 & " + tell("$!", "direct"),
		"(sleep 1000 & " + tell("$!", "grandchild") + ")",
		executable(t) + " job stubborn stubborn &",
		tell("$$", "pid"), "wait; sleep 1000",
	}, "\n"))
}

// members are what a family writes its pids to.
var members = []string{"pid", "direct", "grandchild", "stubborn"}

func TestASupervisorThatIsKilledTakesEverybodyWithIt(t *testing.T) {
	t.Parallel()
	kill := func(r *rig) { r.signal(r.supervisor(), unix.SIGKILL) }
	for name, how := range map[string]func(*rig){
		"seen by who has started it": kill,
		"seen by a later worker":     func(r *rig) { r.again(); kill(r) },
		"found by a later worker": func(r *rig) {
			if err := r.Close(); err != nil {
				r.t.Fatal(err)
			}
			kill(r)
			r.again()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, family(t))
			pids := map[string]int{}
			for _, name := range members {
				pids[name] = r.pid(name)
			}
			how(r)
			r.vanish()
			for name, pid := range pids {
				r.gone(name, pid)
			}
			r.again() // it does not come back
			r.vanish()
			if err := r.Remove(); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestACommandDiesWithItsSupervisorWhileNoWorkerIsThere(t *testing.T) {
	t.Parallel()
	r := begin(t, shell(sleeper))
	pid := r.pid("pid")
	supervisor := r.supervisor()
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	r.signal(supervisor, unix.SIGKILL)
	err := waitFor("the command lives on", func() bool {
		s, err := proc.Read(pid)
		return err != nil || s.Ended()
	})
	if err != nil {
		t.Error(err)
	}
	r.again()
	r.vanish()
}

func TestACommandThatIsKilledHasAResult(t *testing.T) {
	t.Parallel()
	r := begin(t, shell(sleeper))
	r.signal(r.pid("pid"), unix.SIGKILL)
	if res := r.end(); res.ExitCode != 137 || res.Signal != "SIGKILL" || res.Stopped != NotStopped {
		t.Errorf("its result is %+v", res)
	}
}

func TestFoldersThatAreNotWhole(t *testing.T) {
	at := t.TempDir()
	if _, err := Open(filepath.Join(at, "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a folder that is not there: %v", err)
	}
	folder := func(change func(dir string) error) string {
		dir := t.TempDir()
		if err := change(dir); err != nil {
			t.Fatal(err)
		}
		return dir
	}
	pipe := func(dir string) error { return unix.Mkfifo(filepath.Join(dir, controlName), 0o600) }
	var wrong *FileError
	if _, err := Open(folder(func(dir string) error { return writeWhole(dir, controlName, nil) })); !errors.As(err, &wrong) || wrong.Name != controlName {
		t.Errorf("without a pipe: %v", err)
	}
	for name, dir := range map[string]string{
		"an empty folder":         folder(func(string) error { return nil }),
		"a pipe without readers":  folder(pipe),
		"a garbled running.json":  folder(func(dir string) error { return errors.Join(pipe(dir), writeWhole(dir, runningName, []byte("{"))) }),
		"a garbled result.json":   folder(func(dir string) error { return errors.Join(pipe(dir), writeWhole(dir, resultName, []byte("{"))) }),
		"a result half written":   folder(func(dir string) error { return writeWhole(dir, resultName+".new", []byte("{")) }),
		"a result without a pipe": folder(func(dir string) error { return writeWhole(dir, resultName, []byte(`{"v":2}`)) }),
	} {
		c, err := Open(dir)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := &rig{t: t, dir: dir, Child: c}
		r.vanish()
		_, err = r.Result()
		if reported := errors.As(err, &wrong) && wrong.Name == resultName; reported != exists(filepath.Join(dir, resultName)) {
			t.Errorf("%s: %v", name, err)
		}
		never := !exists(filepath.Join(dir, runningName)) && !exists(filepath.Join(dir, resultName))
		if errors.Is(err, ErrNotBegun) != never {
			t.Errorf("%s: %v, was it begun: %v", name, err, !never)
		}
		r.clear()
	}
}

func TestASupervisorThatCanNotReadItsFolderSaysSo(t *testing.T) {
	t.Parallel()
	for _, name := range []string{commandName, validityName} {
		at := t.TempDir()
		r := &rig{t: t, at: at, dir: filepath.Join(at, "child")}
		if err := errors.Join(os.Mkdir(r.dir, 0o700), prepare(r.dir, shell(": > started"), now()+time.Hour), writeWhole(r.dir, name, []byte("{}"))); err != nil {
			t.Fatal(err)
		}
		pipe, err := os.OpenFile(filepath.Join(r.dir, controlName), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		process, err := startSupervisor(executable(t), r.dir, pipe)
		if err := errors.Join(err, pipe.Close()); err != nil {
			t.Fatal(err)
		}
		if _, err := process.Wait(); err != nil {
			t.Fatal(err)
		}
		if r.Child, err = Open(r.dir); err != nil {
			t.Fatal(err)
		}
		if res := r.end(); res.ExitCode != 126 || !strings.HasPrefix(res.Error, "file "+name+" cannot be read") {
			t.Errorf("%s: its result is %+v", name, res)
		}
		r.clear()
	}
}

func TestNobodySupervisesByHand(t *testing.T) {
	t.Parallel()
	r := begin(t, shell(sleeper))
	r.appears("pid")
	for dir, want := range map[string]string{
		r.dir: "only a worker can start this", r.path("none"): "is not the folder of a command",
	} {
		cmd := exec.Command(executable(t), Verb, dir)
		cmd.Args[0] = "berth"
		var exit *exec.ExitError
		if out, err := cmd.CombinedOutput(); !errors.As(err, &exit) || !strings.Contains(string(out), want) {
			t.Errorf("%v, %q", err, out)
		}
	}
	if _, err := r.Result(); !errors.Is(err, ErrRunning) {
		t.Errorf("its result is %v", err)
	}
}
