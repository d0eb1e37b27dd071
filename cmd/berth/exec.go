package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
)

func execCommand() *cli.Command {
	return &cli.Command{
		Name:      "exec",
		Category:  claiming,
		Usage:     "run a command while holding slots",
		ArgsUsage: verbatim,
		Description: `Waits until all slots are free, takes them, runs the command, and releases them.

The command runs in a process group of its own, with BERTH_CLAIM_ID, BERTH_FENCE and
BERTH_POOLS in its environment, and without passwords and tokens of berth. Signals are
passed on to the group. If the claim is no longer valid, or is revoked, the group gets TERM,
and KILL before any other claim can get the slots. That needs exec to run: if exec is
killed, the command is killed with it, but not the processes that the command has started,
and none that left the group.

Exit codes: that of the command; 128+n if signal n ended it; 75 if the slots were not free
in time; 76 if the claim was lost and the command was stopped; 77 if the claim was refused;
126 or 127 if the command can't be run or does not exist, before anything is claimed.`,
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "pool", Usage: "claim slots of a pool: `POOL=SLOTS`, or POOL for one slot; may be repeated"},
			&cli.StringFlag{Name: "wait", Usage: "longest `TIME` to wait for the slots, and for etcd if it is unavailable; 0 for not at all", DefaultText: "10m, or BERTH_CLAIM_TIMEOUT"},
			&cli.IntFlag{Name: "priority", Usage: "`N` from -1000 to 1000; higher priorities are first"},
			&cli.StringFlag{Name: "run", Usage: "`NAME` of the run that the claim is for"},
			&cli.StringFlag{Name: "step", Usage: "`NAME` of the step that the claim is for"},
			&cli.StringSliceFlag{Name: "label", Usage: "attach `KEY=VALUE` to the claim; may be repeated"},
			&cli.StringFlag{Name: "id", Usage: "`ID` of the claim", DefaultText: "generated"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "report why it waits, even if stderr is not a terminal"},
		}, config.Flags(config.Access)...),
		Action: execAction,
	}
}

func execAction(c *cli.Context) error {
	src := config.FromCLI(c)
	s, err := config.Load(src, config.Common, config.Access, config.Claims)
	if err == nil && s.Sidecar == "" {
		s, err = config.Load(src, config.Common, config.Etcd, config.Claims)
	}
	if err != nil {
		return err
	}
	r, err := execRequest(c, s.ClaimTimeout)
	if err != nil {
		return err
	}
	cmd, err := findCommand(c.Args().Slice())
	if err != nil {
		return err
	}
	log := newLogger(c.App.ErrWriter, s, hclog.Warn)
	report := func(format string, args ...any) { say(c, format, args...) }
	run := &session{
		request: r,
		say:     report,
		open:    func(ctx context.Context) (holder, error) { return openHolder(ctx, s, log) },
		waits:   waitReporter(c),
		log:     log,
	}
	return refusedPool(run.exec(cmd))
}

// openHolder goes through the sidecar if the settings name one.
func openHolder(ctx context.Context, s config.Settings, log hclog.Logger) (holder, error) {
	if s.Sidecar != "" {
		return openSidecar(ctx, s, log)
	}
	o, err := options(s, log)
	if err != nil {
		return nil, err
	}
	return openDirect(ctx, o)
}

// giveBackTimeout bounds how long exec stays to give slots back. Without it they
// are free when the lease ends.
const giveBackTimeout = 5 * time.Second

// session is one run of exec: from the wait for the slots to giving them back.
type session struct {
	request pool.Request
	open    func(context.Context) (holder, error)
	say     func(string, ...any)
	waits   func(pool.Reason) // tells why it waits; nil for nobody
	log     hclog.Logger

	holder holder
	held   held
}

// endings are the signals that end a command which does not handle them.
var endings = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// exec takes the slots, runs the command, and gives the slots back. Its error is
// the status to exit with.
func (s *session) exec(cmd command) error {
	signals := make(chan os.Signal, 32)
	catch(signals, endings...)
	defer signal.Stop(signals)
	err := untilSignal(signals, s.take)
	if err != nil {
		s.giveBack(signals)
		return err
	}
	j := &job{held: s.held, clock: lease.BootClock(), signals: signals, say: s.say}
	result, err := j.run(cmd, s.environment())
	s.giveBack(signals)
	if err != nil {
		return err
	}
	return result.end()
}

// take opens the holder and takes the slots. What it got before an error is
// given back by the caller.
func (s *session) take(ctx context.Context) (err error) {
	wait := s.request.Wait
	if err := s.reach(ctx); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		if s.waits != nil {
			watchWait(watching, s.holder, s.request.ID, s.waits)
		}
	}()
	s.held, err = s.claim(ctx, wait)
	stop()
	<-watched
	return err
}

// reach opens the holder and sees whether it suits. An etcd that is unavailable is waited
// for as slots are; what that takes is no part of the wait for slots any more.
func (s *session) reach(ctx context.Context) error {
	wait, begun, reported := s.request.Wait, time.Now(), false
	for {
		left := restOf(wait, begun)
		err := s.tryReach(ctx, max(left, sidecarTimeout))
		away := problem.CodeOf(err) == problem.EtcdUnavailable || reported && err != nil && isAway(err)
		if reported {
			s.request.Wait = restOf(wait, begun)
		}
		switch {
		case !away, wait == 0, ctx.Err() != nil:
			return err
		case restOf(wait, begun) == 0:
			return problem.New(problem.ClaimTimeout, "etcd did not answer within %s: %s", text.Duration(wait), explain(err))
		case !reported:
			s.say("waiting for etcd, up to %s: %s", text.Duration(wait), clean(err.Error()))
			reported = true
		}
		select {
		case <-time.After(min(awayPause, restOf(wait, begun))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claim waits for the slots, and asks again for the same while etcd or the sidecar is away.
// Wait is all that exec may wait, and the request says what is left of it for slots.
func (s *session) claim(ctx context.Context, wait time.Duration) (held, error) {
	r, begun := s.request, time.Now()
	for {
		c, err := s.holder.claim(ctx, r)
		r.Wait = restOf(s.request.Wait, begun)
		switch {
		case err == nil:
			return c, nil
		case !isAway(err), wait == 0, ctx.Err() != nil:
			return nil, err
		case r.Wait == 0:
			return nil, problem.New(problem.ClaimTimeout, "timed out after %s: %s", text.Duration(wait), explain(err))
		}
		select {
		case <-time.After(min(awayPause, r.Wait)):
			r.Wait = restOf(s.request.Wait, begun)
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// awayPause is the pause before an etcd or a sidecar that is away is asked again.
const awayPause = 200 * time.Millisecond

// restOf is what is left of a wait that was begun then, in whole milliseconds: it
// is printed. Only one that is over is 0.
func restOf(wait time.Duration, begun time.Time) time.Duration {
	const unit = time.Millisecond
	left := max(0, wait-time.Since(begun))
	return min(wait, (left + unit - 1).Truncate(unit))
}

// isAway reports whether an error says that etcd or a sidecar is unavailable.
func isAway(err error) bool {
	switch problem.CodeOf(err) {
	case problem.Unavailable, problem.Stopping, problem.EtcdUnavailable:
		return true
	}
	return errors.Is(err, context.DeadlineExceeded) // that of a try
}

// tryReach is one try, which lasts that long at most.
func (s *session) tryReach(ctx context.Context, most time.Duration) (err error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	if s.holder == nil {
		if s.holder, err = s.open(ctx); err != nil {
			return err
		}
	}
	return checkLeases(ctx, s.holder, s.request.Slots)
}

// giveBack releases the slots and closes the holder. A signal cuts it short.
func (s *session) giveBack(signals <-chan os.Signal) {
	err := untilSignal(signals, func(ctx context.Context) error {
		if s.held == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, giveBackTimeout)
		defer cancel()
		return s.held.release(ctx)
	})
	if s.holder != nil {
		if closeErr := s.holder.close(); err == nil {
			err = closeErr
		}
	}
	if err != nil && s.held != nil {
		s.log.Warn("the slots could not be released; they are free when the lease ends", "claim", s.request.ID, "error", err)
	}
}

// environment is that of this process without secrets of berth, with the claim.
func (s *session) environment() []string {
	return append(config.WithoutSecrets(os.Environ()),
		"BERTH_CLAIM_ID="+s.request.ID,
		fmt.Sprintf("BERTH_FENCE=%d", s.held.fence()),
		"BERTH_POOLS="+run.PoolList(s.request.Slots),
	)
}

// catch has signals delivered, except those that this process was started to
// ignore: under nohup, a hang-up stays ignored, here and in the child.
func catch(to chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}

// untilSignal calls do with a context that the first of the [endings] ends, and
// waits for it. The error after a signal is the status of a process that the signal has
// ended.
func untilSignal(signals <-chan os.Signal, do func(context.Context) error) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- do(ctx) }()
	for {
		select {
		case err := <-done:
			return err
		case s := <-signals:
			if !slices.Contains(endings, s) {
				continue // it was for the child
			}
			cancel()
			<-done
			return status(proc.ExitSignal + int(s.(unix.Signal)))
		}
	}
}

// lost makes a problem with the exit code of a lost claim of whatever has ended
// one.
func lost(err error) error {
	if problem.CodeOf(err).Exit() == problem.ExitLost {
		return err
	}
	return problem.New(problem.ClaimLost, "the claim is lost: %w", err)
}

const (
	// firstWaitReport is when a wait is reported first: most end sooner.
	firstWaitReport = 300 * time.Millisecond
	// waitPoll is how often the reason is read then.
	waitPoll = time.Second
)

// waitReporter returns a function that reports why exec waits; nil if stderr is not a
// terminal, unless --verbose is given.
func waitReporter(c *cli.Context) func(pool.Reason) {
	if !c.Bool("verbose") && !isatty.IsTerminal(os.Stderr.Fd()) {
		return nil
	}
	return func(r pool.Reason) { say(c, "%s", waitText(r)) }
}

// waitText says why a claim waits.
func waitText(r pool.Reason) string {
	text := r.Text
	switch {
	case strings.Contains(text, " full"): // pool 'db' full (3/3 slots)
		text = "waiting for " + text
	case len(r.Pools) > 0: // pool 'db' is paused
		text = "waiting: " + text
	}
	if r.Position > 0 {
		text += fmt.Sprintf(", position %d of %d", r.Position, r.Waiting)
	}
	return text
}

// watchWait reports why a claim waits, whenever that changes, until ctx ends.
func watchWait(ctx context.Context, h holder, id string, report func(pool.Reason)) {
	timer := time.NewTimer(firstWaitReport)
	defer timer.Stop()
	last := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(waitPoll)
		r, err := h.why(ctx, id)
		if err != nil || r.Text == "" {
			continue // it does not wait yet, or no longer
		}
		if text := waitText(r); text != last && ctx.Err() == nil {
			last = text
			report(r)
		}
	}
}
