package main

import (
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
)

func actionsCommand() *cli.Command {
	return &cli.Command{
		Name:     "actions",
		Category: operating,
		Usage:    "see what operators asked for",
		Subcommands: []*cli.Command{{
			Name:   "list",
			Usage:  "list the actions of operators, the newest first",
			Action: onEtcd(actionsList),
			Description: "An action is a change that an operator asked for with a berth command, over HTTP, on\n" +
				"a page or through the Go API: of a pool, a claim, a run, a step instance, a worker or\n" +
				"the limits. BEFORE and AFTER are the state of the object. OUTCOME is done, failed, asked\n" +
				"while the action is under way, or unknown if the process that carried it out ended\n" +
				"first. Actions are kept as long as the events of runs (--run-retention).",
			Flags: []cli.Flag{
				&cli.IntFlag{Name: "limit", Value: 50, Usage: "list at most `N` actions, 1 to 1000"},
				&cli.StringFlag{Name: "cursor", Usage: "continue with the `ID` that the last page ended with"},
			},
		}},
	}
}

func actionsList(r *request) error {
	limit := r.Int("limit")
	if limit < 1 || limit > 1000 {
		return usagef("--limit can't be %d: allowed are 1 to 1000", limit)
	}
	l, err := r.Actions(r.ctx(), r.String("cursor"), limit)
	if problem.CodeOf(err) == problem.Invalid {
		return usagef("--cursor can't be %q: give the id that the last page ended with", r.String("cursor"))
	} else if err != nil {
		return err
	}
	if err := r.print(l, func(out *page) { actionsTable(out, l) }); err != nil {
		return err
	}
	if n := len(l.Unreadable); n > 0 {
		first := l.Unreadable[0]
		return problem.New(problem.CorruptValue, "%s can't be read; the first is %s: %s", text.Count(n, "action"), first.Key, first.Reason)
	}
	return nil
}

func actionsTable(out *page, l inspect.ActionList) {
	var rows [][]string
	for _, a := range l.Items {
		outcome := string(a.Outcome)
		if a.Unknown(out.now) {
			outcome = "unknown"
		}
		rows = append(rows, []string{
			text.Ago(out.now, a.At), a.Who, a.From, a.Action.Action, a.Object, a.Detail, a.Before, a.After, outcome, a.Result,
		})
	}
	out.table("no actions are kept", []string{"WHEN", "WHO", "FROM", "ACTION", "OBJECT", "DETAIL", "BEFORE", "AFTER", "OUTCOME", "RESULT"}, rows)
	if l.Next != "" {
		out.line("more: berth actions list --cursor %s", l.Next)
	}
}
