// Command berth allots slots of named pools to jobs on many hosts, and queues runs.
//
// Each file holds the commands of one noun. Shared by all are app.go (the runner of
// commands and their connections), line.go (order of the words of a command line, and
// help), completion.go, output.go (what is printed, and exit codes), service.go (processes
// that serve) and child.go (processes that berth starts, and their terminal). Package
// manifest reads the files that users write.
//
// # How a command ends
//
// A command writes its result to stdout and everything else to stderr. If it fails, it
// writes one line, "berth: what happened; what to do", and exits with the code of the table
// in package problem: 1 in general, 75 if the time to wait is over, 76 if a claim was lost,
// 77 if the request was refused. 2 is an invalid command line or invalid settings. exec
// exits with the code of its child.
//
// # exec
//
// exec runs a child while a claim is valid: see [guard]. A [directHolder] keeps the claim
// in etcd, with an instance that lives as long as the command, and a [sidecarHolder] at a
// sidecar. In both cases exec measures the validity by its own clock, and stops the child
// before it ends, also if the sidecar or etcd is unavailable. If exec itself is stopped
// while its child runs, or if the child leaves its process group, only the fencing token
// separates the old holder from the next one.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/audit"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/instance"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/proc"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/pool/registry"
	"github.com/berthhq/berth/sidecar/source"
)

// Categories of the commands in the help.
const (
	serving   = "Run berth"
	claiming  = "Claim slots"
	running   = "Queue runs"
	operating = "Operate"
	helping   = "Other"
)

// newApp returns the command tree.
func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:  "berth",
		Usage: "grants slots of shared pools to jobs on many hosts, and queues runs",
		Description: `Settings come from the file of --config, from BERTH_… variables, and from flags. Flags
override variables, and variables override the file. Options can be given anywhere before
a --.`,
		Writer:    stdout,
		ErrWriter: stderr,
		Flags:     append(config.Flags(config.Common, config.Etcd), outputFlag, headersFlag),
		Commands: []*cli.Command{
			devCommand(), serverCommand(), sidecarCommand(), coordinatorCommand(), workerCommand(),
			execCommand(),
			submitCommand(), queueCommand(), runsCommand(), stepsCommand(), limitsCommand(), sourceCommand(),
			poolsCommand(), claimsCommand(), hostsCommand(), readyCommand(), actionsCommand(), authCommand(), tokenCommand(),
			applyCommand(), exportCommand(), verifyCommand(), benchCommand(), upgradeCommand(), clusterCommand(), certsCommand(),
			versionCommand(), completionCommand(), manCommand(), superviseCommand(),
		},
		Action:                    group,
		OnUsageError:              onUsageError,
		HideVersion:               true,
		HideHelp:                  true,
		DisableSliceFlagSeparator: true, // labels may hold commas
		ExitErrHandler:            func(*cli.Context, error) {},
	}
	app.Setup()
	for _, c := range app.Commands {
		prepare(c, app.Name)
	}
	return app
}

// prepare gives a command and those below it what all have in common.
func prepare(c *cli.Command, above string) {
	c.HelpName = above + " " + c.Name
	c.HideHelp, c.OnUsageError = true, onUsageError
	action := c.Action
	if action == nil {
		action = group
	}
	c.Action = func(ctx *cli.Context) error {
		if !c.Hidden && c.Category != helping {
			warnOfVariables(ctx)
		}
		return ofCommand(action(ctx), c.HelpName)
	}
	for _, sub := range c.Subcommands {
		prepare(sub, c.HelpName)
	}
}

// warnOfVariables warns of variables that look like settings and are not.
func warnOfVariables(c *cli.Context) {
	var known []string // without the prefix, which is the same
	for _, name := range config.Variables() {
		known = append(known, strings.TrimPrefix(name, config.VariablePrefix))
	}
	for _, name := range config.Unknown(os.Environ()) {
		hint := "it is ignored"
		if near := text.Nearest(strings.TrimPrefix(strings.ToUpper(name), config.VariablePrefix), known); near != "" {
			hint = "did you mean " + config.VariablePrefix + near + "?"
		}
		say(c, "warning: the variable %s is not a setting of berth: %s", name, hint)
	}
}

// group is the action of a command that only has others below it: without a name of one
// of them it prints its help.
func group(c *cli.Context) error {
	name, of := c.Args().First(), c.Command
	if of.Name == c.App.Name {
		of = rootOf(c.App)
	}
	if !c.Args().Present() {
		writeHelp(c.App.Writer, of)
		return nil
	}
	all := names(of.Subcommands)
	path := strings.TrimPrefix(of.HelpName+" ", "berth ")
	if near := text.Nearest(name, all); near != "" {
		return ofCommand(usagef("unknown command %q: did you mean %q?", path+name, path+near), of.HelpName)
	}
	return ofCommand(usagef("unknown command %q: the commands are %s", path+name, strings.Join(all, ", ")), of.HelpName)
}

// names of the commands that are shown.
func names(commands []*cli.Command) []string {
	var all []string
	for _, c := range commands {
		if !c.Hidden {
			all = append(all, c.Name)
		}
	}
	return all
}

// argument is a positional argument of a command.
type argument struct {
	name     string // in messages
	check    func(string) error
	optional bool
	many     bool // it is the last one, and may be repeated
}

var (
	poolArgument   = argument{name: "the name of a pool", check: pool.ValidateName}
	claimArgument  = argument{name: "the id of a claim", check: pool.ValidateClaim}
	runArgument    = argument{name: "the id of a run", check: run.ValidateID}
	stepArgument   = argument{name: "a step instance: STEP or STEP[INDEX]"}
	sourceArgument = argument{name: "the name of a source", check: source.ValidateName}
)

// request is one call of a command: its flags, its arguments and its output.
type request struct {
	*cli.Context
	args []string
	*printer
	// operator is nil until [request.connect] sets it.
	*operator
	// changes is set if the command changes something, until it has said where.
	changes bool
}

// handle returns the action of a command with these arguments. It checks the arguments
// and the output format before it calls do.
func handle(do func(*request) error, arguments ...argument) cli.ActionFunc {
	return func(c *cli.Context) error {
		r := &request{Context: c, args: c.Args().Slice()}
		err := r.check(arguments)
		if err == nil {
			r.printer, err = printerOf(c)
		}
		if err == nil {
			err = do(r)
		}
		return err
	}
}

// onEtcd is [handle] for commands that work on etcd: it connects before it calls do.
func onEtcd(do func(*request) error, arguments ...argument) cli.ActionFunc {
	return handle(func(r *request) error {
		return r.connect(func() error { return do(r) })
	}, arguments...)
}

// check checks the arguments.
func (r *request) check(arguments []argument) error {
	for i, a := range arguments {
		switch {
		case i < len(r.args) && r.args[i] == "":
			return usagef("%s is empty", a.name)
		case i < len(r.args) && a.check != nil:
			if err := a.check(r.args[i]); err != nil {
				return ofLine(err)
			}
		case i >= len(r.args) && !a.optional:
			return usagef("%s is missing", a.name)
		}
	}
	if n := len(arguments); n > 0 && arguments[n-1].many {
		return nil
	}
	if len(r.args) > len(arguments) {
		return usagef("unexpected argument %q", r.args[len(arguments)])
	}
	return nil
}

// waitFlag is --wait: a duration for every command that has it. Without a default the
// command does not wait.
func waitFlag(usage string, most time.Duration) cli.Flag {
	f := &cli.DurationFlag{Name: "wait", Value: most, Usage: usage}
	if most == 0 {
		f.DefaultText = "does not wait"
	}
	return f
}

// wait returns --wait.
func (r *request) wait() (time.Duration, error) {
	d := r.Duration("wait")
	if d < 0 {
		return 0, usagef("--wait can't be %s: it is a duration of 0 or more", d)
	}
	return d, nil
}

// within calls do with a context that ends after a time. If that is why do fails, the
// error is late, with the exit code of a timeout.
func (r *request) within(d time.Duration, late func() error, do func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(r.ctx(), d, errLate)
	defer cancel()
	err := do(ctx)
	if err != nil && errors.Is(context.Cause(ctx), errLate) {
		return &statusError{problem.ExitTimeout, late()}
	}
	return err
}

// errLate is why the context of [request.within] ends.
var errLate = errors.New("the time to wait is over")

// ctx returns the context of the command.
func (r *request) ctx() context.Context { return r.Context.Context }

// say writes a message to stderr.
func (r *request) say(format string, args ...any) { say(r.Context, format, args...) }

// say writes a message to stderr.
func say(c *cli.Context, format string, args ...any) {
	fmt.Fprintf(c.App.ErrWriter, "berth: "+format+"\n", args...)
}

// adoptsOrphans is set in process 1 of a container: then the main thread only reaps orphans.
var adoptsOrphans = proc.AdoptsOrphans()

func init() {
	if adoptsOrphans {
		runtime.LockOSThread() // only now this is known to be the main thread
	}
}

func main() {
	act := func() { os.Exit(perform(context.Background(), os.Args, os.Stdout, os.Stderr)) }
	if adoptsOrphans {
		go act()
		proc.ReapOrphans()
	}
	act()
}

// perform carries out a command line and returns the exit code.
func perform(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	app := newApp(stdout, stderr)
	if len(args) > 1 && args[1] == completeVerb {
		return printCandidates(stdout, app, args[2:])
	}
	line := arrange(app, args)
	if err, ok := app.Metadata[metaNumber].(error); ok {
		return report(stderr, err)
	}
	if c, ok := app.Metadata[metaHelp].(*cli.Command); ok {
		writeHelp(stdout, c)
		return 0
	}
	return report(stderr, app.RunContext(ctx, line))
}

// operator is the connection of an operator's command: what reads and changes the state
// of berth.
type operator struct {
	inspect.Operator
	etcd inspect.Snapshot
}

// probeTimeout bounds how long a command waits for etcd at its start.
const probeTimeout = 30 * time.Second

// connect connects to etcd, checks its data, sets the operator, and calls do.
func (r *request) connect(do func() error) error {
	return r.dial(func(s config.Settings, backend *store.Client) error {
		keys := store.NewKeys(s.Prefix)
		if err := (registry.Layout{Backend: backend, Keys: keys}).Check(r.ctx()); err != nil {
			return err
		}
		runs := run.Store{Backend: backend, Keys: keys, Journal: run.NewJournal(backend, keys, operatorName(s), s.RunRetention).Bound(s.MaxRunEvents)}
		r.operator = &operator{
			inspect.NewOperator(inspect.NewSnapshot(runs), audit.OnEtcd(backend, hostName(s))),
			inspect.Snapshot{Backend: backend, Keys: keys},
		}
		way{r: r}.say("etcd at " + s.EtcdAt())
		return pool.Suggest(do(), func() []string {
			all, _ := r.Pools(r.ctx()) // without them there is no suggestion
			return pool.Names(all)
		})
	})
}

// dial connects to etcd, and calls do.
func (r *request) dial(do func(config.Settings, *store.Client) error) error {
	s, err := config.Load(config.FromCLI(r.Context), config.Common, config.Etcd, config.Lead)
	if err != nil {
		return err
	}
	var why atomic.Pointer[error]
	backend, err := newBackend(s, newLogger(r.App.ErrWriter, s, hclog.Warn), nil, func(err error) { why.Store(&err) })
	if err != nil {
		return err
	}
	defer backend.Close()
	ctx, cancel := context.WithTimeout(r.ctx(), probeTimeout)
	defer cancel()
	slow := time.AfterFunc(firstEtcdReport, func() {
		if err := why.Load(); err != nil {
			r.say("waiting for etcd: %s", clean((*err).Error()))
		}
	})
	err = backend.Probe(ctx, store.NewKeys(s.Prefix).Pools())
	slow.Stop()
	if err != nil {
		return etcdProblem(err)
	}
	return do(s, backend)
}

// options returns the settings as options of the Go API: the address of etcd, the name of
// this host, and how claims wait.
func options(s config.Settings, log hclog.Logger) (instance.Options, error) {
	tls, err := s.ClientTLS(log)
	return instance.Options{
		Endpoints: s.Endpoints, Dial: s.Dial(), TLS: tls, Username: s.User, Password: s.Password.Reveal(), Prefix: s.Prefix,
		Host: s.Host, Version: version(),
		ClaimTimeout: none(s.ClaimTimeout),
		PollInterval: none(s.ClaimPollInterval), PollJitter: none(s.ClaimPollJitter),
		Logger: log,
	}, err
}

// newBackend makes the connections to etcd, without waiting for it. Waits, if not nil, is called with what a probe waits
// for.
func newBackend(s config.Settings, log hclog.Logger, cluster *store.Cluster, waits func(error)) (*store.Client, error) {
	tls, err := s.ClientTLS(log)
	if err != nil {
		return nil, err
	}
	backend, err := store.NewClient(store.Config{
		Endpoints: s.Endpoints, Dial: s.Dial(), TLS: tls, Username: s.User, Password: s.Password.Reveal(), Logger: log, Cluster: cluster,
		OnWait: waits,
	})
	if err != nil {
		return nil, problem.Field("endpoints", "%w", err)
	}
	return backend, nil
}

// etcdProblem makes a problem of what etcd says to the first request.
func etcdProblem(err error) error {
	code := problem.EtcdUnavailable
	if errors.Is(err, store.ErrDenied) || errors.Is(err, store.ErrInsecure) {
		code = problem.EtcdDenied
	}
	return problem.New(code, "%w", err)
}

// operatorName is who an event is by that a command has caused. A command is no
// instance, so the name is unique.
func operatorName(s config.Settings) string { return hostName(s) + "/operator" }

// hostName is the name of this machine where none has to be set.
func hostName(s config.Settings) string {
	if s.Host != "" {
		return s.Host
	}
	name, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return text.Host(name)
}

// newLogger logs to stderr at the level of the settings, or at quiet if that is higher and
// the level is the default. Lines for the journal have no time, since it has one.
func newLogger(w io.Writer, s config.Settings, quiet hclog.Level) hclog.Logger {
	level := hclog.LevelFromString(s.LogLevel)
	if level == hclog.Info {
		level = max(level, quiet)
	}
	file, ok := w.(*os.File)
	return hclog.New(&hclog.LoggerOptions{
		Name: "berth", Level: level, Output: w, JSONFormat: s.LogFormat == "json", DisableTime: ok && proc.IsJournal(file),
	})
}

// none returns a duration of the settings for the Go API, where 0 is the default and a
// negative duration is none.
func none(d time.Duration) time.Duration {
	if d == 0 {
		return -1
	}
	return d
}

// release is set by make build, to what git says of the checkout: -ldflags "-X main.release=v1.2.3".
var release string

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:     "version",
		Category: helping,
		Usage:    "print the version",
		Action: handle(func(r *request) error {
			v := versionRecord{Version: version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			return r.print(v, func(out *page) { out.line("berth %s (%s, %s)", v.Version, v.Go, v.Platform) })
		}),
	}
}

type versionRecord struct {
	Version  string `json:"version"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// version is that of this build.
func version() string {
	info, _ := debug.ReadBuildInfo()
	return versionOf(release, info)
}

// unknownVersion is what Go calls the version of a build that it knows nothing of.
const unknownVersion = "(devel)"

// versionOf is the release; or the version of the module, which Go derives from the
// revision in a checkout; or the revision, if it has not.
func versionOf(release string, info *debug.BuildInfo) string {
	if release != "" || info == nil {
		return cmp.Or(release, unknownVersion)
	}
	if v := info.Main.Version; v != "" && v != unknownVersion {
		return v
	}
	revision, suffix := "", ""
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value[:min(len(s.Value), revisionLen)]
		case s.Key == "vcs.modified" && s.Value == "true":
			suffix = "+dirty"
		}
	}
	if revision == "" {
		return unknownVersion
	}
	return revision + suffix
}

// revisionLen is how much of a revision Go's own versions have.
const revisionLen = 12
