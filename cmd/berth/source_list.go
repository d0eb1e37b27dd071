package main

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
	"github.com/berthhq/berth/sidecar/source"
)

func sourceListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the sources, who runs them, and what their last look came to",
		Description: "LISTED is how many items there were, NEW how many of them became runs, and REFUSED how\n" +
			"many can't. KNOWN is how many ids are remembered. A look that changes nothing is told\n" +
			"of every 10 seconds.",
		Action: sourceList,
	}
}

func sourceList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		all, err := sourcesOf(s).All(c.Context)
		if err != nil {
			return err
		}
		list := sidecar.List[sidecar.Source]{Items: []sidecar.Source{}}
		var bad []error
		for _, o := range all {
			list.Items = append(list.Items, sidecar.SourceOf(o))
			bad = append(bad, o.Bad...)
		}
		if err := p.print(list, func(out *page) { sourceTable(out, list.Items) }); err != nil || len(bad) == 0 {
			return err
		}
		return problem.New(problem.CorruptValue, "what is known of sources can't all be read: %w", errors.Join(bad...))
	})
}

// sourcesOf is the store of sources, on the same connection.
func sourcesOf(s run.Store) source.Store { return source.Store{Backend: s.Backend, Keys: s.Keys} }

func sourceTable(out *page, all []sidecar.Source) {
	var rows [][]string
	for _, r := range all {
		row := []string{r.Name, "nobody", "0", "", "", "", "", strconv.Itoa(r.Known), "it was never looked at"}
		if len(r.Candidates) > 0 {
			row[1], row[2] = r.Candidates[0].Host, strconv.Itoa(len(r.Candidates)-1)
		}
		if l := r.LastLook; l != nil {
			row[3], row[4] = text.Ago(out.now, l.At), strconv.Itoa(l.Listed)
			row[5], row[6], row[8] = strconv.Itoa(l.Submitted), strconv.Itoa(l.Refused), lookText(l)
		}
		if r.Problem != "" {
			row[8] = "what is known of it can't all be read"
		}
		rows = append(rows, row)
	}
	out.table("there are no sources; 'berth source run -f FILE' runs one",
		[]string{"SOURCE", "RUN BY", "STANDBY", "LAST LOOK", "LISTED", "NEW", "REFUSED", "KNOWN", "STATUS"}, rows)
}

// lookText says what came of a look.
func lookText(l *sidecar.SourceLook) string {
	switch {
	case l.Failures > 1:
		return fmt.Sprintf("failed %d times: %s", l.Failures, l.Error)
	case l.Error != "":
		return "failed: " + l.Error
	case l.Refused > 0:
		return "the first refused: " + l.Refusal
	}
	return "ok"
}

func sourceWakeCommand() *cli.Command {
	return &cli.Command{
		Name:      "wake",
		Usage:     "have a source look at once",
		ArgsUsage: "NAME",
		Description: "If a look is under way, another one follows it. With --wait it tells what the look\n" +
			"came to, and exits with 1 if it has failed.",
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "wait", Usage: "wait until it has looked"}},
		Action: sourceWake,
	}
}

func sourceWake(c *cli.Context) error {
	given, err := args(c, "the name of a source")
	if err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	name := given[0]
	return connectRuns(c, func(s run.Store) error {
		wish, err := sourcesOf(s).Wake(c.Context, name)
		if err != nil || !c.Bool("wait") {
			return err
		}
		look, err := sourcesOf(s).Await(c.Context, name, wish)
		if err != nil {
			return err
		}
		record := sidecar.SourceLookOf(look)
		if err := p.print(record, func(out *page) {
			if look.Error != "" {
				out.line("%s", lookText(&record))
				return
			}
			out.line("%d listed, %d new, %d refused; %s", look.Listed, look.Submitted, look.Refused, lookText(&record))
		}); err != nil {
			return err
		}
		if look.Error != "" {
			return status(problem.ExitFailure)
		}
		return nil
	})
}

func sourceDeleteCommand() *cli.Command {
	return &cli.Command{
		Name:      "delete",
		Usage:     "forget a source that nobody runs, and all that it has seen",
		ArgsUsage: "NAME",
		Description: "Its runs stay. If it is run again, what is listed then is submitted; an item whose run\n" +
			"is still there gets no other.",
		Action: func(c *cli.Context) error {
			given, err := args(c, "the name of a source")
			if err != nil {
				return err
			}
			return connectRuns(c, func(s run.Store) error { return sourcesOf(s).Delete(c.Context, given[0]) })
		},
	}
}
