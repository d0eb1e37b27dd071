package main

import (
	"strconv"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/text"
)

func queueCommand() *cli.Command {
	return &cli.Command{
		Name:        "queue",
		Category:    running,
		Usage:       "list, explain and cancel queued runs",
		Subcommands: []*cli.Command{queueListCommand(), runsWhyCommand(), queueCancelCommand()},
	}
}

func queueListCommand() *cli.Command {
	return &cli.Command{
		Name:  "list",
		Usage: "list the queued runs in their order",
		Description: `Higher priorities are first, and within a priority the run that was submitted first. Later
runs pass a run that the limit of a tag blocks. Runs whose time has not come ('berth submit
--not-before') are last, in the order of their times, and have no position.`,
		Action: onEtcd(queueList),
	}
}

func queueList(r *request) error {
	all, err := r.Runs.All(r.ctx())
	if err != nil {
		return err
	}
	list := inspect.List[queuedRun]{Items: []queuedRun{}}
	for i, one := range all.Queue() {
		position := i + 1
		if one.Deferred() { // they come last
			position = 0
		}
		list.Items = append(list.Items, queuedRun{inspect.RunOf(one), position})
	}
	if err := r.print(list, func(out *page) { queueTable(out, list.Items) }); err != nil {
		return err
	}
	if len(list.Items) > 0 {
		if err := warnOfNobody(r); err != nil {
			return err
		}
	}
	return unreadable(all.Bad)
}

// queuedRun is a run with its place in the queue; 0 is none.
type queuedRun struct {
	inspect.Run
	Position int `json:"position"`
}

func queueTable(out *page, queue []queuedRun) {
	var rows [][]string
	for _, r := range queue {
		rows = append(rows, []string{
			positionText(r.Position), r.ID, r.Name, strconv.Itoa(r.Priority), text.Ago(out.now, r.QueuedAt), r.Reason(),
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

func queueCancelCommand() *cli.Command {
	return &cli.Command{
		Name:        "cancel",
		Usage:       "cancel a run that is queued",
		ArgsUsage:   "RUN",
		Description: "Exits with 1 if the run has left the queue. 'berth runs cancel' cancels it then, too.",
		Flags:       []cli.Flag{reasonFlag},
		Action:      onEtcd(func(r *request) error { return cancelRun(r, true) }, runArgument),
	}
}
