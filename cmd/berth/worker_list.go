package main

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
)

// executedShown is how many instances people are shown of each worker.
const executedShown = 20

func workerListCommand() *cli.Command {
	return &cli.Command{
		Name:      "list",
		Usage:     "list the workers: whether they work, and what they have",
		ArgsUsage: "[HOST[/INSTANCE]]",
		Description: `All of them, or those of a host, or one: then also with the step instances that they have
now, and of which runs.

STATE is working; draining or drained of one that takes nothing new; stopping or stopped
of one of which everything was stopped besides. ACTIVE is how many step instances it has of
those that it can have at a time. One that is gone is listed while something is its own
still, since a worker of the same host and name that starts by then finds it again; or while
it is not to work when it comes back.`,
		Action: workerList,
	}
}

// listedWorker is a worker, with what it has if that was asked for.
type listedWorker struct {
	sidecar.Worker
	Instances []sidecar.StepInstance `json:"instances,omitempty"`
}

func workerList(c *cli.Context) error {
	which := ""
	if c.Args().Present() {
		given, err := args(c, "a worker")
		if err != nil {
			return err
		}
		which = given[0]
	}
	host, instance, one := strings.Cut(which, "/")
	if which != "" && host == "" || one && instance == "" || strings.Contains(instance, "/") {
		return usagef("%q is no worker: it is HOST or HOST/INSTANCE, as 'berth worker list' has them", which)
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		hosts, bad := readHosts(c.Context, s)
		if bad != nil && len(hosts) == 0 {
			return bad
		}
		states, unread, err := stepsOf(s).WorkerStates(c.Context)
		if err != nil {
			return err
		}
		workers := []listedWorker{}
		for _, w := range sidecar.Workers(hosts, states) {
			if (host == "" || w.Host == host) && (instance == "" || w.Instance == instance) {
				workers = append(workers, listedWorker{Worker: w})
			}
		}
		if which != "" {
			if len(workers) == 0 && len(unread) == 0 && bad == nil {
				return problem.New(problem.NotFound, "there is no worker %s: 'berth worker list' shows those that are seen", which)
			}
			if err := addExecuted(c.Context, s, host, workers); err != nil {
				return err
			}
		}
		if err := p.print(sidecar.List[listedWorker]{Items: workers}, func(out *page) { workersText(out, workers) }); err != nil {
			return err
		}
		if len(unread) > 0 {
			return problem.New(problem.CorruptValue, "the modes of %s can't be read, and they take nothing: the first is %w", text.Count(len(unread), "worker"), unread[0])
		}
		return bad
	})
}

// addExecuted adds what the workers of a host have now.
func addExecuted(ctx context.Context, s run.Store, host string, workers []listedWorker) error {
	executed, err := stepsOf(s).Executed(ctx, host)
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
		w.Instances = listOf(has[step.WorkerID{w.Host, w.Worker.Instance}], sidecar.StepInstanceOf).Items
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
		state := w.State
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
			id, state, active, strings.Join(w.Queues, ","), w.Version, text.Ago(out.now, w.Since), seenText(w.Gone, w.WorkLeft), by, w.Reason,
		})
		for _, i := range w.Instances[:min(len(w.Instances), executedShown)] {
			executed = append(executed, []string{id, i.RunID, instanceName(i), strconv.Itoa(i.Attempt), text.Duration(max(0, out.now.Sub(i.StartedAt)))})
		}
		if more := len(w.Instances) - executedShown; more > 0 {
			executed = append(executed, []string{id, "… and " + strconv.Itoa(more) + " more", "", "", ""})
		}
	}
	out.table("no worker is seen: start 'berth worker'", []string{"WORKER", "STATE", "ACTIVE", "QUEUES", "VERSION", "SINCE", "LAST SEEN", "CHANGED BY", "REASON"}, rows)
	if len(executed) > 0 {
		out.gap()
		out.table("", []string{"WORKER", "RUN", "STEP", "ATTEMPT", "TIME"}, executed)
	}
}

// seenText says when an instance was last seen, or what becomes of what one has that is gone.
func seenText(gone bool, left sidecar.Duration) string {
	switch {
	case !gone:
		return "now"
	case left == 0:
		return "gone"
	}
	return "gone; what it has is its own for " + text.About(time.Duration(left))
}

// instanceName names an instance in its run.
func instanceName(i sidecar.StepInstance) string { return i.Step + "[" + strconv.Itoa(i.Index) + "]" }
