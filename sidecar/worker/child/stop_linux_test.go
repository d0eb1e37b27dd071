package child

import (
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/proc"
)

// sleeper writes its pid and runs until it is stopped.
const sleeper = "trap - TERM; echo $$ > pid.new; mv pid.new pid; exec sleep 1000"

func TestACommandIsStopped(t *testing.T) {
	t.Parallel()
	c := shell(sleeper)
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.appears("pid")
	for _, reason := range []string{"the run was\ncanceled", "again"} {
		if err := r.Stop(reason); err != nil {
			t.Fatal(err)
		}
	}
	if res := r.end(); res.ExitCode != 143 || res.Signal != "SIGTERM" || res.Stopped != ByWorker || res.Reason != "the run was canceled" {
		t.Errorf("its result is %+v", res)
	}
}

func TestACommandIsStoppedByAnyProcessThatHasIt(t *testing.T) {
	t.Parallel()
	r := begin(t, shell(sleeper))
	r.appears("pid")
	r.again()
	if err := r.Stop("drain"); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.Stopped != ByWorker || res.Reason != "drain" {
		t.Errorf("its result is %+v", res)
	}
}

func TestACommandMayEndWellWhenItIsStopped(t *testing.T) {
	t.Parallel()
	c := shell("trap 'echo bye; exit 0' TERM; : > ready; while :; do sleep 0.01; done")
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.appears("ready")
	if err := r.Stop(""); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.ExitCode != 0 || res.Stopped != ByWorker || !strings.HasSuffix(r.output(), "bye\n") {
		t.Errorf("%+v, %q", res, r.output())
	}
}

func TestACommandThatDoesNotStopIsKilledAfterTheGrace(t *testing.T) {
	t.Parallel()
	r := begin(t, Command{Argv: []string{executable(t), "job", "stubborn", "pid"}, StopGrace: 300 * time.Millisecond})
	pid := r.pid("pid")
	stopped := now()
	if err := r.Stop("now"); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.ExitCode != 137 || res.Signal != "SIGKILL" || res.Stopped != ByWorker {
		t.Errorf("its result is %+v", res)
	}
	if took := now() - stopped; took < 300*time.Millisecond {
		t.Errorf("it was killed after %s", took)
	}
	r.gone("the command", pid)
}

func TestACommandThatHasBeenStoppedByASignalCanBeStopped(t *testing.T) {
	t.Parallel()
	c := shell(sleeper)
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.signal(r.pid("pid"), unix.SIGSTOP)
	if err := r.Stop("now"); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.Signal != "SIGTERM" {
		t.Errorf("its result is %+v", res)
	}
}

// slow is a shell that takes until there is a file go to stop.
const slow = `sh -c 'trap ": > stopped; until [ -e go ]; do sleep 0.01; done; echo bye; exit 0" TERM; : > ready; while :; do sleep 0.01; done' & `

func TestEveryoneInTheGroupHasTheGrace(t *testing.T) {
	t.Parallel()
	c := shell(slow + "wait") // ends of the signal at once
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.appears("ready")
	if err := r.Stop("now"); err != nil {
		t.Fatal(err)
	}
	r.appears("stopped")
	r.make("go")
	if res := r.end(); res.Signal != "SIGTERM" || res.Stopped != ByWorker || !strings.HasSuffix(r.output(), "bye\n") {
		t.Errorf("%+v, %q", res, r.output())
	}
}

func TestWhatACommandLeavesBehindHasTheGrace(t *testing.T) {
	t.Parallel()
	c := shell(slow + "until [ -e ready ]; do sleep 0.01; done; exit 7")
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.appears("stopped")
	r.make("go")
	if res := r.end(); res.ExitCode != 7 || res.Stopped != NotStopped || !strings.HasSuffix(r.output(), "bye\n") {
		t.Errorf("%+v, %q", res, r.output())
	}
}

func TestNothingThatACommandLeavesBehindOutlivesIt(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]Command{
		"in its group":         shell(tell("$$", "leader") + `sleep 1000 & ` + tell("$!", "pid") + "exit 7"),
		"of a child of its":    shell(`(sleep 1000 & ` + tell("$!", "pid") + "); exit 7"),
		"in another session":   {Argv: []string{"sh", "-c", executable(t) + " job daemon pid; exit 7"}},
		"that does not listen": {Argv: []string{"sh", "-c", executable(t) + " job stubborn pid & until [ -e pid ]; do sleep 0.01; done; exit 7"}, StopGrace: 10 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := begin(t, c)
			if res := r.end(); res.ExitCode != 7 || res.Stopped != NotStopped || res.Reason != "" {
				t.Errorf("its result is %+v; its output is %q", res, r.output())
			}
			r.gone("what it has left", r.pid("pid"))
		})
	}
}

// A process that has left the session, and holds the output open, does not have the grace of
// the command, which has ended.
func TestABackgroundProcessOutsideTheSessionDoesNotDelayTheEnd(t *testing.T) {
	t.Parallel()
	for name, line := range map[string]string{
		"that listens":         `setsid sh -c '` + tell("$$", "pid") + `exec sleep 1000' & until [ -e pid ]; do sleep 0.01; done; echo done`,
		"that does not listen": executable(t) + " job daemon pid; echo done",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := shell(line)
			c.StopGrace = time.Hour
			r := begin(t, c)
			if res := r.end(); res.ExitCode != 0 || res.Stopped != NotStopped || r.output() != "done\n" {
				t.Errorf("its result is %+v; its output is %q", res, r.output())
			}
			r.gone("what it has left", r.pid("pid"))
		})
	}
}

func TestOrphansOfALongCommandAreReaped(t *testing.T) {
	t.Parallel()
	c := shell("for i in 1 2 3; do (true & echo $! >> pids); done; : > ready; until [ -e go ]; do sleep 0.01; done")
	r := begin(t, c)
	r.appears("ready")
	supervisor := r.supervisor()
	err := waitFor("its orphans are never reaped", func() bool {
		all, err := proc.All()
		if err != nil {
			t.Fatal(err)
		}
		zombies := 0
		for _, p := range all {
			if p.Parent == supervisor && p.Ended() {
				zombies++
			}
		}
		return zombies == 0
	})
	if err != nil {
		t.Error(err)
	}
	r.make("go")
	if res := r.end(); res.ExitCode != 0 {
		t.Errorf("its result is %+v", res)
	}
}

func TestACommandHasATimeout(t *testing.T) {
	t.Parallel()
	c := shell("trap '' TERM; : > ready; while :; do sleep 0.01; done")
	c.StopGrace = 50 * time.Millisecond
	for c.Timeout = 50 * time.Millisecond; ; c.Timeout *= 2 {
		r := begin(t, c)
		res := r.end()
		if !exists(r.path("ready")) {
			continue // it was stopped before it had set the trap
		}
		if res.Signal != "SIGKILL" || res.Stopped != ByTimeout || res.Took < c.Timeout+c.StopGrace {
			t.Errorf("its result is %+v", res)
		}
		return
	}
}

func TestACommandIsStoppedBeforeItsValidityEnds(t *testing.T) {
	t.Parallel()
	c := shell(sleeper)
	c.StopGrace = time.Hour
	r := beginUntil(t, c, now()+3*time.Hour)
	pid := r.pid("pid")
	// There is an hour left, so the command is terminated and not killed.
	if err := r.Extend(now() + time.Hour); err != nil {
		t.Fatal(err)
	}
	if res := r.end(); res.Signal != "SIGTERM" || res.Stopped != ByExpiry {
		t.Errorf("its result is %+v", res)
	}
	r.gone("the command", pid)
}

func TestACommandOfADeadWorkerIsKilledWhenItsValidityEnds(t *testing.T) {
	t.Parallel()
	r := beginUntil(t, Command{Argv: []string{executable(t), "job", "stubborn", "pid"}, StopGrace: 50 * time.Millisecond}, now()+time.Hour)
	pid := r.pid("pid")
	if err := r.Extend(now() + 500*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	r.again() // it is not postponed any more
	if res := r.end(); res.Signal != "SIGKILL" || res.Stopped != ByExpiry {
		t.Errorf("its result is %+v", res)
	}
	r.gone("the command", pid)
}

func TestACommandIsNotStartedWithTooLittleValidity(t *testing.T) {
	t.Parallel()
	c := shell(": > started")
	c.StopGrace = time.Hour
	r := beginUntil(t, c, now()+time.Hour)
	if res := r.end(); res.ExitCode != 126 || res.Stopped != ByExpiry || !strings.HasPrefix(res.Error, "it was not started") {
		t.Errorf("its result is %+v", res)
	}
	if exists(r.path("started")) {
		t.Error("it was started")
	}
}

func TestAValidityThatIsHalfWrittenCountsForNothing(t *testing.T) {
	dir := t.TempDir()
	if err := createValidity(dir, 5*time.Hour); err != nil {
		t.Fatal(err)
	}
	s := &supervisor{dir: dir}
	s.readValidity()
	if s.guard.Until != 5*time.Hour {
		t.Fatalf("it is valid until %s", s.guard.Until)
	}
	torn := append(encodeValidity(900 * time.Hour)[:12], encodeValidity(5 * time.Hour)[12:]...)
	if err := writeWhole(dir, validityName, torn); err != nil {
		t.Fatal(err)
	}
	if s.readValidity(); s.guard.Until != 5*time.Hour {
		t.Errorf("it is valid until %s after a torn write", s.guard.Until)
	}
	if err := putValidity(dir, 6*time.Hour); err != nil {
		t.Fatal(err)
	}
	if s.readValidity(); s.guard.Until != 6*time.Hour {
		t.Errorf("it is valid until %s after the next write", s.guard.Until)
	}
}

func TestASupervisorThatIsStoppedStopsItsCommand(t *testing.T) {
	t.Parallel()
	c := shell(sleeper)
	c.StopGrace = time.Hour
	r := begin(t, c)
	r.appears("pid")
	r.signal(r.supervisor(), unix.SIGTERM)
	if res := r.end(); res.Signal != "SIGTERM" || res.Stopped != BySignal || res.Reason != "SIGTERM" {
		t.Errorf("its result is %+v", res)
	}
}
