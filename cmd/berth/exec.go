package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
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
	"github.com/berthhq/berth/internal/trace"
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

The command runs in its own process group, with BERTH_CLAIM_ID, BERTH_FENCE and BERTH_POOLS
in its environment, and without passwords and tokens of berth. Signals are passed on to the
group. If the claim is no longer valid, or is revoked, the group gets TERM, and then KILL
before any other claim can get the slots. This works only while exec runs: if exec is killed,
the command is killed with it, but not the processes that the command has started. Processes
that have left the group are never stopped.

Exit codes: the code of the command; 128+n if signal n ended it; 75 if the slots were not free
in time; 76 if the claim was lost and the command was stopped; 77 if the claim was refused;
126 or 127 if the command can't be run or does not exist: before anything is claimed, unless
only its start shows it.`,
		Flags: append([]cli.Flag{
			&cli.StringSliceFlag{Name: "pool", Usage: "claim slots of a pool: `POOL=SLOTS`, or POOL for one slot; may be repeated"},
			&cli.StringFlag{Name: "wait", Usage: "longest `TIME` to wait for the slots, and for etcd if it is unavailable; 0 does not wait", DefaultText: "10m, or BERTH_CLAIM_TIMEOUT"},
			&cli.IntFlag{Name: "priority", Usage: "`N` from -1000 to 1000; higher priorities are first"},
			&cli.StringFlag{Name: "run", Usage: "`NAME` of the run that the claim is for"},
			&cli.StringFlag{Name: "step", Usage: "`NAME` of the step that the claim is for"},
			&cli.StringSliceFlag{Name: "label", Usage: "attach `KEY=VALUE` to the claim; may be repeated"},
			&cli.StringFlag{Name: "id", Usage: "`ID` of the claim", DefaultText: "generated"},
			&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "report why exec waits, even if stderr is not a terminal"},
		}, config.Flags(config.Access)...),
		Action: execAction,
	}
}

func execAction(c *cli.Context) error {
	if os.Getenv("GOMAXPROCS") == "" {
		// It waits nearly all the time, for slots and for the command: with one processor, that takes a third
		// less CPU time, since Go wakes no others to look for work.
		runtime.GOMAXPROCS(1)
	}
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
		return ofLine(err)
	}
	cmd, err := findCommand(c.Args().Slice())
	if err != nil {
		return err
	}
	c.App.ErrWriter = newUnhurried(c.App.ErrWriter)
	// Without a handler, a message to a pipe that nobody reads ends the process, and leaves the command.
	catch(make(chan os.Signal, 1), unix.SIGPIPE)
	log := newLogger(c.App.ErrWriter, s, hclog.Warn)
	report := func(format string, args ...any) { say(c, format, args...) }
	tracer, endTracing, err := startTracing(c.Context, s, "exec", log, nil)
	if err != nil { // the variables may be meant for the command
		log.Warn("no traces are sent", "error", err)
	}
	_, span := tracer.Start(trace.FromEnvironment().With(c.Context), "berth.exec", trace.Internal)
	span.Set(trace.String("berth.claim.id", r.ID), trace.String("berth.command", filepath.Base(cmd.path)))
	run := &session{
		request: r,
		say:     report,
		waits:   waitReporter(c),
		log:     log,
		span:    span, endTracing: endTracing,
	}
	run.open = func(ctx context.Context) (holder, error) { return openHolder(ctx, s, log, run.waitsForEtcd) }
	return refusedPool(run.exec(cmd))
}

// openHolder connects to the sidecar if the settings name one, and otherwise to etcd: then waits is called with
// what it waits for.
func openHolder(ctx context.Context, s config.Settings, log hclog.Logger, waits func(why error)) (holder, error) {
	if s.Sidecar != "" {
		return openSidecar(ctx, s, log)
	}
	o, err := options(s, log)
	if err != nil {
		return nil, err
	}
	o.OnWait = waits
	return openDirect(ctx, o)
}

// giveBackTimeout is the longest time for the release at the end of exec. If the release fails, the
// slots are free when the lease ends.
const giveBackTimeout = 5 * time.Second

// session is one run of exec: from the wait for the slots to their release.
type session struct {
	request pool.Request
	open    func(context.Context) (holder, error)
	say     func(string, ...any)
	waits   func(pool.Reason) // reports why the claim waits; nil does not report
	log     hclog.Logger
	// span is the span of exec; endTracing sends the remaining spans.
	span       trace.Span
	endTracing func()

	holder holder
	held   held
	// etcd is what exec waits for before it can claim, if that is etcd.
	etcd atomic.Pointer[error]
}

// waitsForEtcd records what exec waits for at etcd.
func (s *session) waitsForEtcd(why error) { s.etcd.Store(&why) }

// endings are the signals that end a command unless it handles them.
var endings = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2}

// exec takes the slots, runs the command, and releases the slots. Its error is the exit status.
func (s *session) exec(cmd command) error {
	signals := make(chan os.Signal, 32)
	catch(signals, endings...)
	defer signal.Stop(signals)
	err := untilSignal(signals, s.take)
	if err != nil {
		s.giveBack(signals)
		s.span.End(err)
		s.endTracing()
		return err
	}
	j := &job{held: s.held, clock: lease.BootClock(), signals: signals, say: s.say}
	result, err := j.run(cmd, s.environment())
	s.giveBack(signals)
	if err == nil {
		s.span.Set(trace.Int("berth.exit_code", result.code()))
	}
	s.span.End(cmp.Or(err, result.lost))
	s.endTracing()
	if err != nil {
		return err
	}
	return result.end()
}

// take opens the holder and takes the slots. If it returns an error, the caller still has to
// release slots that were granted before.
func (s *session) take(ctx context.Context) (err error) {
	ctx = s.span.With(ctx)
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

// firstEtcdReport is how long a command waits for etcd before it says so, unless etcd is found to be unavailable
// sooner.
const firstEtcdReport = 800 * time.Millisecond

// reach opens the holder and checks the leases of the pools. It waits for an unavailable etcd as
// for slots; that time is deducted from the wait for slots.
func (s *session) reach(ctx context.Context) error {
	wait, begun, reported := s.request.Wait, time.Now(), false
	var once sync.Once
	report := func(why error) {
		once.Do(func() { s.say("waiting for etcd, up to %s: %s", text.Duration(wait), clean(why.Error())) })
	}
	slow := time.AfterFunc(firstEtcdReport, func() {
		if why := s.etcd.Load(); why != nil {
			report(*why)
		}
	})
	defer slow.Stop()
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
		}
		report(err)
		reported = true
		select {
		case <-time.After(min(awayPause, restOf(wait, begun))):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// claim waits for the slots, and repeats the request while etcd or the sidecar is unavailable. The
// parameter wait is the whole wait of exec; the request has the part of it that is left for slots.
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

// awayPause is the pause before the next request to an etcd or a sidecar that is unavailable.
const awayPause = 200 * time.Millisecond

// restOf returns the rest of a wait that began at begun, in whole milliseconds, since it is
// printed. It is 0 only if the wait is over.
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
	return errors.Is(err, context.DeadlineExceeded) // of one try
}

// tryReach tries once to open the holder, for at most that long.
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

// giveBack releases the slots and closes the holder. A signal interrupts it.
func (s *session) giveBack(signals <-chan os.Signal) {
	err := untilSignal(signals, func(ctx context.Context) error {
		if s.held == nil {
			return nil
		}
		ctx, cancel := context.WithTimeout(s.span.With(ctx), giveBackTimeout)
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

// environment returns the environment of the command: that of this process without secrets of
// berth, and with the claim. The command belongs to the trace of exec if that is recorded, and
// otherwise to the trace in which exec was started.
func (s *session) environment() []string {
	env := config.WithoutSecrets(os.Environ())
	if s.span.Recorded() {
		env = trace.Of(s.span.With(context.Background())).Environment(env)
	}
	return append(env,
		"BERTH_CLAIM_ID="+s.request.ID,
		fmt.Sprintf("BERTH_FENCE=%d", s.held.fence()),
		"BERTH_POOLS="+run.PoolList(s.request.Slots),
	)
}

// catch delivers signals to a channel, except those that this process was started to ignore: under
// nohup, HUP stays ignored, here and in the child.
func catch(to chan<- os.Signal, signals ...os.Signal) {
	for _, s := range signals {
		if !signal.Ignored(s) {
			signal.Notify(to, s)
		}
	}
}

// untilSignal calls do with a context that the first of the [endings] cancels, and waits until do
// returns. After a signal, it returns the exit status of a process that the signal has ended.
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

// lost returns a problem with the exit code of a lost claim, for any error that ended a claim.
func lost(err error) error {
	if problem.CodeOf(err).Exit() == problem.ExitLost {
		return err
	}
	return problem.New(problem.ClaimLost, "the claim is lost: %w", err)
}

const (
	// firstWaitReport is how long a wait lasts before it is reported: most waits end sooner.
	firstWaitReport = 300 * time.Millisecond
	// waitPoll is how often the reason is read after that.
	waitPoll = time.Second
)

// waitReporter returns a function that reports why exec waits, or nil if stderr is not a terminal
// and --verbose is not set.
func waitReporter(c *cli.Context) func(pool.Reason) {
	if !c.Bool("verbose") && !isatty.IsTerminal(os.Stderr.Fd()) {
		return nil
	}
	return func(r pool.Reason) { say(c, "%s", waitText(r)) }
}

// waitText returns the text that says why a claim waits.
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

// watchWait reports why a claim waits whenever the reason changes, until ctx ends.
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
