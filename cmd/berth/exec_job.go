//go:build unix

package main

import (
	"context"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

// job is a command that runs while a claim is held. One goroutine does it all.
type job struct {
	held    held
	clock   lease.Clock
	signals chan os.Signal
	say     func(string, ...any)

	guard guard
	child *child
	term  *terminal
	// suspended is set while the child has been stopped by the terminal's keys,
	// and exec with it: it does no harm, however long the claim is not renewed.
	suspended bool
}

// passedOn are the signals that a child gets from exec, in addition to [endings]. Those
// of a terminal's keys come to exec only if the child is not in the foreground.
var passedOn = []os.Signal{unix.SIGWINCH, unix.SIGTSTP, unix.SIGCONT}

// run runs the command until it ends, or has to because of the claim.
func (j *job) run(cmd command, env []string) (jobResult, error) {
	if j.check(); j.guard.why != nil { // the machine was suspended, perhaps
		return jobResult{lost: j.guard.why}, nil
	}
	j.term = openTerminal()
	defer j.term.close()
	catch(j.signals, passedOn...)
	var err error
	if j.child, err = startChild(cmd, env, j.term); err != nil {
		return jobResult{}, err
	}
	unbound, end := j.bind()
	defer end()

	tick := time.NewTicker(proc.CheckEvery)
	defer tick.Stop()
	ended := j.held.ended()
	for {
		select {
		case e := <-j.child.events:
			if e == 0 {
				return j.finish(), nil
			}
			j.stopped(e)
		case s := <-j.signals:
			j.pass(s.(unix.Signal))
		case <-ended:
			ended = nil
			j.check()
		case err := <-unbound:
			if !j.child.Ended() { // otherwise there was nothing to bind the claim to
				j.say("the claim could not be bound to the command: %v", err)
			}
		case <-tick.C:
			j.check()
		}
	}
}

// bind binds the claim to the child, in the background: the claim is valid either way.
// Its error is sent to the channel that it returns; the function ends it.
func (j *job) bind() (failed <-chan error, end func()) {
	ctx, cancel := context.WithCancel(context.Background())
	pid, done := j.child.PID, make(chan struct{})
	errs := make(chan error, 1)
	go func() {
		defer close(done)
		if err := j.held.bind(ctx, pid); err != nil && ctx.Err() == nil {
			errs <- err
		}
	}()
	return errs, func() { cancel(); <-done }
}

// check acts on what the guard says.
func (j *job) check() {
	ended := j.held.err()
	if j.suspended && ended == nil {
		return
	}
	if ended != nil && j.child != nil && j.child.Ended() {
		return // that is why, perhaps
	}
	now := j.clock.Now() // before the validity, which counts from it
	left, grace := j.held.validity()
	reported := j.guard.why != nil
	order := j.guard.check(now, left, grace, ended)
	if order != proc.CarryOn && !reported {
		j.say("%v; stopping the command (exit code %d)", lost(j.guard.why), problem.ExitLost)
	}
	if j.child == nil {
		return
	}
	switch order {
	case proc.Terminate:
		j.child.Terminate()
	case proc.Kill:
		j.child.Signal(unix.SIGKILL)
	}
}

// pass hands a signal on.
func (j *job) pass(s unix.Signal) {
	if s == unix.SIGCONT {
		j.resume()
		return
	}
	j.child.Signal(s)
}

// stopped deals with a child that has been stopped: because it needs the
// terminal, or because the user suspends the job. Then exec
// stops as well, with its own group, so that the shell sees it.
func (j *job) stopped(by unix.Signal) {
	if j.guard.why != nil || j.term == nil {
		return
	}
	if (by == unix.SIGTTIN || by == unix.SIGTTOU) && j.term.lend(j.child.PID) {
		j.child.Signal(unix.SIGCONT)
		return
	}
	if groupIsOrphaned() {
		// No process could put it into the foreground again. Without exec, its keys would not have
		// stopped the command either.
		if by == unix.SIGTSTP {
			j.child.Signal(unix.SIGCONT)
		}
		return
	}
	j.term.takeBack(j.child.PID)
	// The others of the group get the signal that the terminal would have sent them: timeout(1)
	// ignores that of a program that reads in the background. Go can't put back what the signal
	// does by default, so exec stops by force, and ignores the signal: a handler, even of a signal
	// that is reset, may run as late as when exec goes on and listens again, and exec would stop
	// the child once more.
	j.suspended = true
	if by != unix.SIGTTIN && by != unix.SIGTTOU {
		by = unix.SIGTSTP
	}
	signal.Ignore(by)
	_ = unix.Kill(0, by)
	_ = unix.Kill(unix.Getpid(), unix.SIGSTOP)
	// What comes next, also if it comes here first, is the signal to go on.
}

// resume lets a child go on, unless its claim is gone by now: what was stopped
// meanwhile has not run, and must not any more.
func (j *job) resume() {
	if j.suspended {
		signal.Notify(j.signals, unix.SIGTSTP) // not catch: exec ignores it by itself
		j.held.refresh(context.Background())
		j.suspended = false
	}
	if j.check(); j.guard.why != nil {
		return
	}
	if !inPipeline() {
		j.term.lend(j.child.PID)
	}
	j.child.Signal(unix.SIGCONT)
}

// finish takes leave of a child that has ended. If it had to, whatever is left
// of its group ends too.
func (j *job) finish() jobResult {
	if j.guard.why != nil {
		j.child.Signal(unix.SIGKILL)
	}
	had := j.term.takeBack(j.child.PID)
	r := jobResult{status: j.child.Reap(), foreground: had, lost: j.guard.why}
	if r.lost != nil || !r.status.Signaled() || r.status.Signal() != unix.SIGKILL {
		return r
	}
	if r.lost = j.held.whyKilled(); r.lost != nil {
		j.say("%v; the command was killed (exit code %d)", r.lost, problem.ExitLost)
	}
	return r
}

// jobResult is how a job has ended.
type jobResult struct {
	status     unix.WaitStatus
	foreground bool  // the child had the terminal
	lost       error // why it had to end, if it had
}

// end makes the status of exec of it. Ctrl-C reaches only the child if that has
// the terminal. If the child has ended of it, exec does too, and passes it on to
// its own group: so a script stops, as if berth were not between.
func (r jobResult) end() error {
	if r.foreground && r.lost == nil && r.status.Signaled() && r.status.Signal() == unix.SIGINT {
		interruptGroup()
	}
	return status(r.code())
}

// interruptGroup sends SIGINT to the process group of exec, and does not return unless exec was started
// with that signal ignored or blocked. The thread that gets the signal may be another one, and handle it
// after this one has ended exec with an exit code: the pause is the time that it has.
func interruptGroup() {
	const pause = time.Second
	ignored := signal.Ignored(unix.SIGINT)
	signal.Reset(unix.SIGINT)
	_ = unix.Kill(0, unix.SIGINT)
	if !ignored {
		<-time.After(pause)
	}
}

// code returns the exit code of exec.
func (r jobResult) code() int {
	if r.lost != nil {
		return problem.ExitLost
	}
	return proc.ExitCode(r.status)
}

// execRequest reads what the flags of exec ask for. What can't be read is a
// usage error, what can't be asked for a problem.
func execRequest(c *cli.Context, wait time.Duration) (pool.Request, error) {
	r := pool.Request{
		ID:       c.String("id"),
		Priority: c.Int("priority"),
		Wait:     wait,
		Holder:   pool.Holder{Run: c.String("run"), Step: c.String("step")},
	}
	if !c.Args().Present() {
		return r, usagef("the command is missing: berth exec --pool POOL=SLOTS -- COMMAND")
	}
	var err error
	if len(c.StringSlice("pool")) == 0 {
		return r, usagef("--pool is missing: give POOL=SLOTS, or POOL for one slot")
	}
	if r.Slots, err = parseSlots(c.StringSlice("pool")); err != nil {
		return r, err
	}
	if r.Holder.Labels, err = parsePairs("label", c.StringSlice("label")); err != nil {
		return r, err
	}
	if c.IsSet("wait") {
		if r.Wait, err = time.ParseDuration(c.String("wait")); err != nil {
			return r, usagef("--wait can't be %q: it is a duration such as 30s, 10m or 1h30m, or 0", c.String("wait"))
		}
	}
	if err := instance.ValidateWait(r.Wait); err != nil {
		return r, err
	}
	if !c.IsSet("id") {
		r.ID = ulid.Make().String()
	}
	return r, r.Validate()
}

// parseSlots reads POOL=SLOTS, or POOL for one slot, each.
func parseSlots(texts []string) (map[string]int, error) {
	slots := map[string]int{}
	for _, asked := range texts {
		name, number, given := strings.Cut(asked, "=")
		n := 1
		if given {
			var err error
			if n, err = strconv.Atoi(number); err != nil || !text.IsDecimal(number) {
				return nil, usagef("--pool must be POOL or POOL=SLOTS, such as db=2, not %q", asked)
			}
		}
		if _, twice := slots[name]; twice {
			return nil, usagef("--pool names %q twice: give the sum of the slots", name)
		}
		slots[name] = n
	}
	return slots, nil
}
