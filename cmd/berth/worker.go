package main

import (
	"context"
	"errors"
	"os"
	"os/user"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/access"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/lease"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar/worker"
)

const (
	// maxConcurrency bounds the instances that one worker has at a time.
	maxConcurrency = 10_000
	// workerDrain is the default of --drain-timeout.
	workerDrain = 10 * time.Minute
	// workerKeep is the default of --keep-output.
	workerKeep = "1GiB"
)

func workerCommand() *cli.Command {
	return &cli.Command{
		Name:     "worker",
		Category: serving,
		Usage:    "run the steps of queued runs on this host",
		Description: `Takes step instances from queues together with the slots that they need, up to --concurrency
at a time, and runs their commands. A command gets its input as JSON on stdin and in
BERTH_INPUT, and BERTH_RUN_ID, BERTH_STEP, BERTH_INDEX, BERTH_ATTEMPT and BERTH_FENCE in its
environment. It does not get the settings of the worker.

Commands run as the user of the worker, which says so at its start. With --commands-from it
runs only commands of runs that these identities submitted, such as user:alice, token:ci or
etcd:*; the steps of other runs fail at once, without retries.

A worker that was killed finds its commands and their results again if it is restarted with
the same --name within the leases. Later, the commands are stopped before the leases end, and
the steps are retried.

On TERM it takes no more steps, waits for those that run (--drain-timeout), then stops them.
On a second TERM, or INT, it stops them at once: TERM, and KILL after --stop-grace. On HUP it
stops and leaves its commands to the next worker of its name.`,
		Flags: append(append(config.Flags(config.Instance, config.State, config.Claims, config.Work), healthFlags()...),
			&cli.StringSliceFlag{Name: "queue", Aliases: []string{"q"}, Value: cli.NewStringSlice(step.DefaultQueue), Usage: "take steps from `QUEUE`; several separated by commas, or repeated"},
			&cli.IntFlag{Name: "concurrency", Aliases: []string{"c"}, Value: runtime.NumCPU(), Usage: "run at most `N` step instances at a time", DefaultText: "number of CPUs"},
			&cli.StringFlag{Name: "name", Value: worker.Role, Usage: "`NAME` of this worker, unique on this host"},
			&cli.StringFlag{Name: "work-dir", Usage: "run commands in `DIR`", DefaultText: "the current directory"},
			&cli.DurationFlag{Name: "stop-grace", Value: lease.StopGrace(time.Minute), Usage: "`TIME` between TERM and KILL for a command, at most 10s"},
			&cli.DurationFlag{Name: "drain-timeout", Value: workerDrain, Usage: "longest `TIME` to wait for step instances before stopping; 0 does not wait"},
			&cli.StringFlag{Name: "keep-output", Value: workerKeep, Usage: "keep up to `SIZE` of the output of steps in files below --state-dir for a day; 0 for none"}),
		Action:      work,
		Subcommands: append([]*cli.Command{workerListCommand()}, workerControlCommands()...),
	}
}

func work(c *cli.Context) error {
	if c.Args().Present() {
		return group(c) // it has commands, too
	}
	return handle(runWorker)(c)
}

func runWorker(r *request) error {
	sv, err := newService(r, config.State, config.Lead, config.Claims, config.Work)
	if err != nil {
		return err
	}
	flags, err := workerOf(r.Context)
	if err != nil {
		return err
	}
	o, err := options(sv.Settings, sv.log)
	if err != nil {
		return err
	}
	o.Instance, o.StateDir, o.Role = flags.name, sv.StateDir, worker.Role
	o.Capacity, o.Queues = flags.concurrency, flags.queues
	o.Rights = worker.Rights(flags.queues)
	o.Registerer = registererOf(sv.metrics)
	tracer, endTracing, err := startTracing(r.ctx(), sv.Settings, worker.Role, sv.log, registererOf(sv.metrics))
	if err != nil {
		return err
	}
	defer endTracing()
	client, err := instance.Open(r.ctx(), o)
	if err != nil {
		return err
	}
	w := worker.New(worker.Config{
		Client: client, Queues: flags.queues, Concurrency: flags.concurrency, CommandsFrom: sv.CommandsFrom,
		Runner: &flags.commands, Dir: worker.Folder(sv.StateDir, flags.name),
		OutputDir: worker.OutputFolder(sv.StateDir, flags.name), KeepOutput: flags.keep,
		Retention: sv.RunRetention, MaxRunEvents: sv.MaxRunEvents,
		Tracer: tracer, Logger: sv.log, Registerer: registererOf(sv.metrics),
	})
	health, err := serveHealth(r.ctx(), sv.Settings, sv.log, sv.metrics, func() error { return unready(client) })
	if err != nil {
		return errors.Join(err, client.Leave())
	}
	log := sv.log.Named(worker.Role)
	at := worksRecord{
		PID: os.Getpid(), Host: client.Host(), Name: flags.name, Queues: flags.queues, Concurrency: flags.concurrency,
		User: userName(), UID: os.Geteuid(), CommandsFrom: sv.CommandsFrom, HTTP: health.url(),
	}
	log.Info("started", "host", at.Host, "name", at.Name, "queues", at.Queues, "concurrency", at.Concurrency,
		"user", at.User, "uid", at.UID, "commands_from", at.CommandsFrom)
	if at.UID == 0 {
		log.Warn("commands run as root: who may submit commands to the queues may do everything on this host; use a user of its own, or name the submitters in commands_from")
	}
	if err := r.print(at, func(out *page) { out.line("%s", at) }); err != nil {
		return errors.Join(err, health.close(), client.Leave())
	}
	err = workUntilSignal(r.ctx(), w, client, flags.drain, flags.commands.StopGrace, log)
	log.Info("stopped", "left", w.Active())
	return errors.Join(err, health.close())
}

// unreadyTimeout bounds the wait for what a worker has read of etcd.
const unreadyTimeout = time.Second

// unready returns why a worker is not ready.
func unready(client *instance.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), unreadyTimeout)
	defer cancel()
	return client.Unready(ctx)
}

// workUntilSignal runs a worker until a signal ends it, as that says.
func workUntilSignal(ctx context.Context, w *worker.Worker, client *instance.Client, drain, grace time.Duration, log hclog.Logger) error {
	defer proc.ReturnMemory()()
	running, end := context.WithCancel(ctx)
	defer end()
	left := make(chan struct{}, 1)
	terms := 0
	defer stopOnSignals(true, func(sig unix.Signal) bool {
		switch {
		case sig == unix.SIGHUP:
			left <- struct{}{}
			end()
			return true
		case sig == unix.SIGINT || terms > 0:
			go func() { <-stopped(running, w, grace, log); end() }()
			return true
		}
		terms++
		log.Info("draining", "active", w.Active(), "within", drain, "sooner", "another TERM, or ^C")
		go func() {
			select {
			case <-w.Drain(running):
			case <-time.After(drain):
				<-stopped(running, w, grace, log)
			case <-running.Done():
			}
			end()
		}()
		return false
	})()
	notifyReady(log)
	err := w.Run(running)
	switch {
	case len(left) > 0:
		return client.Leave()
	case running.Err() == nil:
		return errors.Join(err, client.Leave())
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Millisecond)
	defer cancel()
	return client.Close(closing)
}

// stopped stops all step instances of a worker. The channel is closed when it has none.
func stopped(ctx context.Context, w *worker.Worker, grace time.Duration, log hclog.Logger) <-chan struct{} {
	log.Info("stopping", "active", w.Active(), "grace", grace)
	ended := w.Drain(ctx)
	w.Stop(ctx)
	return ended
}

// workerFlags is what the flags of a worker say.
type workerFlags struct {
	name        string
	queues      []string
	concurrency int
	drain       time.Duration
	keep        int64 // bytes of output
	commands    worker.Commands
}

func workerOf(c *cli.Context) (a workerFlags, err error) {
	a.name, a.concurrency, a.drain = c.String("name"), c.Int("concurrency"), c.Duration("drain-timeout")
	for _, text := range c.StringSlice("queue") {
		for _, name := range strings.Split(text, ",") {
			if pool.ValidateName(name) != nil {
				return a, usagef("--queue can't be %q: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", name)
			}
			if slices.Contains(a.queues, name) {
				return a, usagef("--queue names %q twice", name)
			}
			a.queues = append(a.queues, name)
		}
	}
	keep, sized := text.ParseSize(c.String("keep-output"))
	a.keep = keep
	grace := c.Duration("stop-grace")
	switch most := lease.StopGrace(time.Minute); {
	case pool.ValidateName(a.name) != nil:
		return a, usagef("--name can't be %q: use 1 to 63 of a-z, 0-9, '.', '_' and '-', the first a letter or digit", a.name)
	case a.concurrency < 1 || a.concurrency > maxConcurrency:
		return a, usagef("--concurrency can't be %d: use 1 to %d", a.concurrency, maxConcurrency)
	case a.drain < 0:
		return a, usagef("--drain-timeout can't be %s: it must be 0s or more", a.drain)
	case !sized:
		return a, usagef("--keep-output can't be %q: it must be 0, or a size such as 500MiB or 1GiB", c.String("keep-output"))
	case grace < 0 || grace > most:
		return a, usagef("--stop-grace can't be %s: use 0s to %s, so that a command ends before its lease", grace, most)
	}
	self, err := os.Executable()
	if err != nil {
		return a, err
	}
	a.commands = worker.Commands{Self: self, Env: config.WithoutSettings(os.Environ()), WorkDir: c.String("work-dir"), StopGrace: grace}
	if dir := a.commands.WorkDir; dir != "" {
		if info, err := os.Stat(dir); err != nil || !info.IsDir() {
			return a, usagef("--work-dir can't be %q: there is no such directory", dir)
		}
	}
	return a, nil
}

// worksRecord is a worker of this process in JSON.
type worksRecord struct {
	PID         int      `json:"pid"`
	Host        string   `json:"host"`
	Name        string   `json:"name"`
	Queues      []string `json:"queues"`
	Concurrency int      `json:"concurrency"`
	// User and UID are those that commands run as, and CommandsFrom whose commands they are.
	User         string   `json:"user"`
	UID          int      `json:"uid"`
	CommandsFrom []string `json:"commands_from"`
	// HTTP is the address of health and metrics.
	HTTP string `json:"http,omitempty"`
}

// String describes the worker.
func (r worksRecord) String() string {
	return "berth worker " + r.Name + " of host " + r.Host + " runs up to " + strconv.Itoa(r.Concurrency) + " at a time from " +
		strings.Join(r.Queues, ", ") + " as user " + r.User + " (uid " + strconv.Itoa(r.UID) + "), submitted by " + r.submitters() + healthText(r.HTTP)
}

// submitters describes whose commands the worker runs.
func (r worksRecord) submitters() string {
	if slices.Contains(r.CommandsFrom, access.Everything) {
		return "anyone"
	}
	return strings.Join(r.CommandsFrom, ", ")
}

// userName returns the name of the user that this process runs as; its number if it has none.
func userName() string {
	uid := strconv.Itoa(os.Geteuid())
	if u, err := user.LookupId(uid); err == nil {
		return u.Username
	}
	return uid
}

// workerControlCommands are drain, stop and resume.
func workerControlCommands() []*cli.Command {
	const stays = " The worker stays in that state,\nalso after a restart, until 'berth worker resume'. The command works from any host, and is\n" +
		"recorded: see 'berth actions list'."
	reason := &cli.StringFlag{Name: "reason", Usage: "keep `TEXT` with the worker as the reason"}
	command := func(verb, usage, description string) *cli.Command {
		return &cli.Command{
			Name: verb, Usage: usage, ArgsUsage: "HOST/INSTANCE", Description: description,
			Flags:  wayFlags(reason),
			Action: handle(func(r *request) error { return workerControl(r, verb) }, argument{name: "a worker"}),
		}
	}
	return []*cli.Command{
		command("drain", "have a worker take no new steps", "Its step instances keep running."+stays),
		command("stop", "have a worker take no new steps, and stop those that it runs",
			"Its commands get TERM, and KILL after --stop-grace. Other workers retry the step\ninstances that have retries left; the others are canceled. The process keeps running\nand takes no steps."+stays),
		command("resume", "have a worker take steps again", "Undoes drain and stop, also of a worker that is gone."),
	}
}

func workerControl(r *request, verb string) error {
	id, err := step.ParseWorkerID(r.args[0])
	if err != nil {
		return usagef("%s", problem.New(problem.Invalid, "%w", err))
	}
	if err := inspect.CheckWorkerReason(r.String("reason")); err != nil {
		return ofLine(err)
	}
	return way{r: r}.change(
		func(w way) error { return w.controlWorker(verb, id) },
		func() error {
			w, changed, err := r.SetWorkerMode(r.ctx(), verb+"-worker", id, r.String("reason"))
			if err != nil {
				return err
			}
			return printWorker(r.printer, id, w, changed)
		},
	)
}

// printWorker prints a worker whose mode was set, and whether that changed it.
func printWorker(p *printer, id step.WorkerID, w inspect.Worker, changed bool) error {
	return p.print(w, func(out *page) {
		line := "worker " + id.String() + " is " + w.Status
		if !changed {
			line += " already"
		}
		if w.Active > 0 && w.Status != string(step.Working) {
			line += ", with " + text.Count(w.Active, "step instance")
		}
		if w.Gone {
			line += "; it is gone"
		}
		out.line("%s", line)
	})
}

// executedShown is how many instances people are shown of each worker.
const executedShown = 20

func workerListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list the workers with their states and step instances",
		ArgsUsage: "[HOST[/INSTANCE]]",
		Description: `With HOST or HOST/INSTANCE it lists only those workers, and the step instances that they run.

STATUS is working; draining or drained (the worker takes no new steps); stopping or stopped
(its step instances are stopped, too). ACTIVE is how many step instances it runs, and how many
it can run at a time. A worker that is gone is listed while it still holds step instances,
which it keeps if it restarts in time, or while it is drained or stopped.`,
		Action: handle(workerList, argument{name: "a worker", optional: true}),
	}
}

// listedWorker is a worker, with what it has if that was asked for.
type listedWorker struct {
	inspect.Worker
	Instances []inspect.StepInstance `json:"instances,omitempty"`
}

func workerList(r *request) error {
	which := ""
	if len(r.args) > 0 {
		which = r.args[0]
	}
	host, instance, one := strings.Cut(which, "/")
	if which != "" && host == "" || one && instance == "" || strings.Contains(instance, "/") {
		return usagef("%q is not a worker: expected HOST or HOST/INSTANCE, as 'berth worker list' prints", which)
	}
	return r.connect(func() error {
		f, err := r.Fleet(r.ctx())
		if err != nil {
			return err
		}
		workers := []listedWorker{}
		for _, w := range f.Workers {
			if (host == "" || w.Host == host) && (instance == "" || w.Instance == instance) {
				workers = append(workers, listedWorker{Worker: w})
			}
		}
		if which != "" {
			if len(workers) == 0 && len(f.Bad) == 0 {
				return problem.New(problem.NotFound, "there is no worker %q: 'berth worker list' lists the workers", problem.Clip(which))
			}
			if err := addExecuted(r, host, workers); err != nil {
				return err
			}
		}
		if err := r.print(inspect.List[listedWorker]{Items: workers}, func(out *page) { workersText(out, workers) }); err != nil {
			return err
		}
		return unreadableFleet(f)
	})
}

// addExecuted adds what the workers of a host have now.
func addExecuted(r *request, host string, workers []listedWorker) error {
	executed, err := r.Steps.Executed(r.ctx(), host)
	if err != nil {
		return err
	}
	has := map[step.WorkerID][]*step.Instance{}
	for _, i := range executed {
		by := step.WorkerID{i.Executor.Host, i.Executor.Instance}
		has[by] = append(has[by], i)
	}
	for i := range workers {
		w := &workers[i]
		w.Instances = inspect.ListOf(has[step.WorkerID{w.Host, w.Worker.Instance}], inspect.StepInstanceOf).Items
	}
	return nil
}

func workersText(out *page, workers []listedWorker) {
	var rows, executed [][]string
	for _, w := range workers {
		active := strconv.Itoa(w.Active)
		if w.Concurrency > 0 {
			active += " of " + strconv.Itoa(w.Concurrency)
		}
		state := w.Status
		switch {
		case w.Gone && state == string(step.Working):
			state = "gone"
		case w.Gone:
			state += ", gone"
		}
		by := w.ChangedBy
		if by != "" {
			by += " " + text.Ago(out.now, w.ChangedAt)
		}
		id := w.Host + "/" + w.Instance
		rows = append(rows, []string{
			id, state, active, strings.Join(w.Queues, ","), w.Version, text.Ago(out.now, w.Since), w.SeenText(out.now), by, w.Reason,
		})
		for _, i := range w.Instances[:min(len(w.Instances), executedShown)] {
			executed = append(executed, []string{id, i.RunID, instanceName(i), strconv.Itoa(i.Attempt), text.Duration(max(0, out.now.Sub(i.StartedAt)))})
		}
		if more := len(w.Instances) - executedShown; more > 0 {
			executed = append(executed, []string{id, "… and " + strconv.Itoa(more) + " more", "", "", ""})
		}
	}
	out.table("no worker is running: start 'berth worker'", []string{"WORKER", "STATUS", "ACTIVE", "QUEUES", "VERSION", "SINCE", "LAST SEEN", "CHANGED BY", "REASON"}, rows)
	if len(executed) > 0 {
		out.gap()
		out.table("", []string{"WORKER", "RUN", "STEP", "ATTEMPT", "TIME"}, executed)
	}
}

// instanceName names an instance in its run.
func instanceName(i inspect.StepInstance) string { return i.Step + "[" + strconv.Itoa(i.Index) + "]" }
