package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"

	"github.com/hashicorp/go-hclog"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/config"
	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func runsCommand() *cli.Command {
	return &cli.Command{
		Name:     "runs",
		Category: running,
		Usage:    "see the runs and what they write, wait for them, and cancel them",
		Subcommands: []*cli.Command{
			runsListCommand(), runsInfoCommand(), runsLogsCommand(), runsEventsCommand(), runsWaitCommand(), runsCancelCommand(), runsRetryCommand(),
		},
	}
}

func runsListCommand() *cli.Command {
	return &cli.Command{
		Name:        "list",
		Usage:       "list the runs, in the order in which they were submitted",
		Description: "Those that have ended are listed for as long as they are kept (run_retention).",
		Flags: []cli.Flag{
			&cli.StringSliceFlag{Name: "status", Usage: "only those that are `STATUS`: " + statusNames() + "; may be repeated"},
			&cli.StringSliceFlag{Name: "tag", Usage: "only those with the tag `KEY=VALUE`; of several they need all"},
		},
		Action: runsList,
	}
}

func statusNames() string {
	all := make([]string, len(run.Statuses))
	for i, s := range run.Statuses {
		all[i] = string(s)
	}
	return strings.Join(all, ", ")
}

func runsList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	var statuses []run.Status
	for _, text := range c.StringSlice("status") {
		s, err := run.ParseStatus(text)
		if err != nil {
			return usagef("--status can't be %q: it is one of %s", text, statusNames())
		}
		statuses = append(statuses, s)
	}
	tags, err := parsePairs("tag", c.StringSlice("tag"))
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		all, err := s.All(c.Context)
		if err != nil {
			return err
		}
		runs := keep(all.With(statuses...), func(r *run.Run) bool { return hasTags(r, tags) })
		slices.SortFunc(runs, func(a, b *run.Run) int { return cmp.Compare(a.Created, b.Created) })
		list := sidecar.RunList{Items: inspect.ListOf(runs, inspect.RunOf).Items, Unreadable: inspect.UnreadableOf(all.Bad)}
		if err := inspect.NewSnapshot(s).Explain(c.Context, list.Items); err != nil {
			return err
		}
		if err := p.print(list, func(out *page) { runsTable(out, list.Items) }); err != nil {
			return err
		}
		return unreadable(all.Bad)
	})
}

func hasTags(r *run.Run, tags map[string]string) bool {
	for key, value := range tags {
		if got, ok := r.Tags[key]; !ok || got != value {
			return false
		}
	}
	return true
}

func runsTable(out *page, runs []sidecar.Run) {
	var rows [][]string
	for _, r := range runs {
		rows = append(rows, []string{
			r.ID, r.Name, r.Status, strconv.Itoa(r.Priority), text.Ago(out.now, r.QueuedAt), hostOf(r), r.Reason(),
		})
	}
	out.table("there are no runs", []string{"RUN", "NAME", "STATUS", "PRI", "QUEUED", "HOST", "REASON"}, rows)
}

// hostOf is where a run runs, or ran last.
func hostOf(r sidecar.Run) string {
	if r.Executor == nil {
		return ""
	}
	return r.Executor.Host
}

// parsePairs reads KEY=VALUE of each flag of a name.
func parsePairs(name string, texts []string) (map[string]string, error) {
	if len(texts) == 0 {
		return nil, nil
	}
	pairs := map[string]string{}
	for _, text := range texts {
		key, value, ok := strings.Cut(text, "=")
		if !ok || key == "" {
			return nil, usagef("--%s can't be %q: it is KEY=VALUE", name, text)
		}
		if _, twice := pairs[key]; twice {
			return nil, usagef("--%s names %q twice", name, key)
		}
		pairs[key] = value
	}
	return pairs, nil
}

// pairsText writes tags or labels: a=1, b=2.
func pairsText(pairs map[string]string) string {
	all := make([]string, 0, len(pairs))
	for _, key := range sortedNames(pairs) {
		all = append(all, key+"="+pairs[key])
	}
	return strings.Join(all, ", ")
}

// withValues leaves out the rows without a value.
func withValues(rows [][]string) [][]string {
	return keep(rows, func(row []string) bool { return row[1] != "" })
}

var reasonFlag = &cli.StringFlag{Name: "reason", Usage: "`TEXT` that is kept with the run", DefaultText: "who canceled it"}

func runsCancelCommand() *cli.Command {
	return &cli.Command{
		Name:      "cancel",
		Usage:     "cancel a run, whether it is queued or running, or one of its step instances",
		ArgsUsage: "RUN",
		Description: "The executor of a running one is told with its next heartbeat; its room is free at\n" +
			"once. What workers have of it they stop. To cancel one that is canceled already is no\n" +
			"error. A step instance that is canceled counts as one that has failed.",
		Flags: []cli.Flag{reasonFlag, &cli.StringFlag{Name: "step", Usage: "`STEP[INDEX]` to cancel, and not the run; STEP for one without items"}},
		Action: func(c *cli.Context) error {
			if c.IsSet("step") {
				return onRun(c, cancelStep(c))
			}
			return onRun(c, cancelRun(c, false))
		},
	}
}

func cancelRun(c *cli.Context, onlyQueued bool) func(run.Store, *printer, string) error {
	return func(s run.Store, p *printer, id string) error {
		why, err := reasonOrBy(c, "canceled")
		if err != nil {
			return err
		}
		r, err := s.Cancel(c.Context, id, why, onlyQueued)
		if err != nil {
			return err
		}
		return p.print(inspect.RunOf(r), func(out *page) {
			told := ""
			if r.Executor != nil && !r.StartedAt.IsZero() {
				told = fmt.Sprintf("; its executor on host '%s' is told with its next heartbeat", r.Executor.Host)
			}
			out.line("run %s is canceled: %s%s", r.ID, r.Error, told)
		})
	}
}

// maxReason bounds why a run was canceled or retried, in bytes, as the HTTP API does.
const maxReason = 4096

// reasonOrBy is why something was done: the reason that was given, or else by whom.
func reasonOrBy(c *cli.Context, done string) (string, error) {
	why := c.String(reasonFlag.Name)
	if !c.IsSet(reasonFlag.Name) {
		who := "an operator"
		if u, err := user.Current(); err == nil {
			who = u.Username
		}
		return done + " by " + who, nil
	}
	if why == "" || len(why) > maxReason || !pool.IsLine(why) {
		return "", usagef("--reason must be one line of 1 to %d bytes, without characters that change its direction", maxReason)
	}
	return why, nil
}

// newBackend makes the connections to etcd, without waiting for it.
func newBackend(s config.Settings, log hclog.Logger) (*store.Client, error) {
	tls, err := s.ClientTLS()
	if err != nil {
		return nil, err
	}
	backend, err := store.NewClient(store.Config{
		Endpoints: s.Endpoints, TLS: tls, Username: s.User, Password: s.Password.Reveal(), Logger: log,
	})
	if err != nil {
		return nil, problem.Field("endpoints", "%w", err)
	}
	return backend, nil
}

// etcdProblem makes a problem of what etcd says to the first request.
func etcdProblem(err error) error {
	code := problem.EtcdUnavailable
	if errors.Is(err, store.ErrDenied) {
		code = problem.EtcdDenied
	}
	return problem.New(code, "%w", err)
}

// operatorName is who an event is by that a command has caused. A command is no
// instance, so nobody else has the name.
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
	return strings.ToLower(name)
}

// onRun runs a command whose one argument is a run.
func onRun(c *cli.Context, do func(s run.Store, p *printer, id string) error) error {
	given, err := args(c, "the id of a run")
	if err != nil {
		return err
	}
	if err := run.ValidateID(given[0]); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error { return do(s, p, given[0]) })
}

// unreadable is the error about records that can't be read, after those that can
// were shown; nil if there are none.
func unreadable(bad []error) error {
	const most = 5
	if len(bad) == 0 {
		return nil
	}
	texts := make([]string, 0, most)
	for _, err := range bad[:min(len(bad), most)] {
		texts = append(texts, err.Error())
	}
	if len(bad) > most {
		texts = append(texts, fmt.Sprintf("and %d more", len(bad)-most))
	}
	return problem.New(problem.CorruptValue, "%s can't be read: %s", text.Count(len(bad), "run"), strings.Join(texts, "; "))
}

// warnOfNobody tells if nobody will ever admit what is queued.
func warnOfNobody(c *cli.Context, s run.Store) error {
	all, err := s.Candidates(c.Context)
	if err == nil && len(all) == 0 {
		say(c, "warning: %s", inspect.NoLeader)
	}
	return err
}
