package main

import (
	"context"
	"strconv"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/pool"
	"github.com/berthhq/berth/sidecar"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:        "queue",
		Category:    running,
		Usage:       "see the runs that wait, why they do, and take them out",
		Subcommands: []*cli.Command{queueListCommand(), queueWhyCommand(), queueCancelCommand()},
	}
}

func queueListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the runs in the queue, in its order",
		Description: `Higher priorities come first, and in one priority who was submitted first. A run
that is held up by the limit of a tag is passed by those behind it. Runs whose time has
not come ('berth submit --not-before') come last, in the order of their times, and have
no position until then.`,
		Action: queueList,
	}
}

func queueList(c *cli.Context) error {
	if _, err := args(c); err != nil {
		return err
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		all, err := s.All(c.Context)
		if err != nil {
			return err
		}
		list := sidecar.List[queuedRun]{Items: []queuedRun{}}
		for i, r := range all.Queue() {
			position := i + 1
			if r.Deferred() { // they come last
				position = 0
			}
			list.Items = append(list.Items, queuedRun{sidecar.RunOf(r), position})
		}
		if err := p.print(list, func(out *page) { queueTable(out, list.Items) }); err != nil {
			return err
		}
		if len(list.Items) > 0 {
			if err := warnOfNobody(c, s); err != nil {
				return err
			}
		}
		return unreadable(all.Bad)
	})
}

func queueTable(out *page, queue []queuedRun) {
	var rows [][]string
	for _, r := range queue {
		rows = append(rows, []string{
			positionText(r.Position), r.ID, r.Name, strconv.Itoa(r.Priority), text.Ago(out.now, r.QueuedAt), reasonOf(r.Run),
		})
	}
	out.table("the queue is empty", []string{"POS", "RUN", "NAME", "PRI", "QUEUED", "REASON"}, rows)
}

// positionText is a place in the queue; empty of a run whose time has not come.
func positionText(position int) string {
	if position == 0 {
		return ""
	}
	return strconv.Itoa(position)
}

func queueWhyCommand() *cli.Command {
	return &cli.Command{
		Name:      "why",
		Usage:     "tell what a run waits for, and who is in its way",
		ArgsUsage: "RUN",
		Action:    func(c *cli.Context) error { return onRun(c, queueWhy(c)) },
	}
}

func queueWhy(c *cli.Context) func(run.Store, *printer, string) error {
	return func(s run.Store, p *printer, id string) error {
		w, err := whyOf(c.Context, s, id)
		if err != nil {
			return err
		}
		holds, err := holdsOf(c.Context, s, w.Run)
		if err != nil {
			return err
		}
		record := runWhyRecord(w, holds)
		if err := p.print(record, func(out *page) { runWhyText(out, record) }); err != nil || w.Position == 0 {
			return err
		}
		return warnOfNobody(c, s)
	}
}

// whyOf tells what a run waits for.
func whyOf(ctx context.Context, s run.Store, id string) (*run.Why, error) {
	if _, err := s.Get(ctx, id); err != nil {
		return nil, err // that it can't be read, too
	}
	limits, _, err := s.Limits(ctx)
	if err != nil {
		return nil, err
	}
	all, err := s.All(ctx)
	if err != nil {
		return nil, err
	}
	pools, err := pool.Read(ctx, s.Backend, s.Keys)
	if err != nil {
		return nil, store.Problem("the pools could not be read", err)
	}
	if w := all.Why(id, limits, pools.Space(), time.Now()); w != nil {
		return w, nil
	}
	_, err = s.Get(ctx, id) // it is gone, since
	return nil, err
}

func runWhyText(out *page, w sidecar.RunWhy) {
	r := w.Run
	rows := [][]string{{"run", r.ID}, {"name", r.Name}, {"status", r.Status}, {"reason", w.Reason}}
	if w.Position > 0 {
		rows = append(rows, []string{"position", strconv.Itoa(w.Position) + " of " + strconv.Itoa(w.Line)})
	}
	rows = append(rows,
		[]string{"priority", strconv.Itoa(r.Priority)}, []string{"tags", pairsText(r.Tags)}, []string{"queued", text.Ago(out.now, r.QueuedAt)})
	if w.Estimate > 0 {
		rows = append(rows, []string{"estimate", "in about " + text.About(time.Duration(w.Estimate)) + ", by how long runs took lately"})
	}
	out.columns(withValues(rows))
	if len(w.InTheWay) > 0 {
		out.gap()
		runsInTheWay(out, w.InTheWay)
	}
}

func runsInTheWay(out *page, runs []sidecar.Run) {
	var rows [][]string
	for _, r := range runs {
		rows = append(rows, []string{r.ID, r.Name, r.Status, hostOf(r), pairsText(r.Tags), text.Ago(out.now, r.AdmittedAt)})
	}
	out.table("", []string{"IN THE WAY", "NAME", "STATUS", "HOST", "TAGS", "ADMITTED"}, rows)
}

func queueCancelCommand() *cli.Command {
	return &cli.Command{
		Name:        "cancel",
		Usage:       "take a run out of the queue",
		ArgsUsage:   "RUN",
		Description: "Fails with 1 if the run has left the queue: 'berth runs cancel' stops that, too.",
		Flags:       []cli.Flag{reasonFlag},
		Action:      func(c *cli.Context) error { return onRun(c, cancelRun(c, true)) },
	}
}
