package main

import (
	"context"
	"errors"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/sidecar"
)

// executedShown is how many instances people are shown of each worker.
const executedShown = 20

func workerStatusCommand() *cli.Command {
	return &cli.Command{
		Name:      "status",
		Usage:     "tell what the workers have now, and of which runs",
		ArgsUsage: "[HOST[/NAME]]",
		Description: "All of them, those of a host, or one. ACTIVE is how many step instances it has of those\n" +
			"that it can have at a time. One that is gone is listed while its instances are its own\n" +
			"still: a worker of the same host and name that starts by then finds them again.",
		Action: workerStatus,
	}
}

// workingHost is a worker with what it has.
type workingHost struct {
	sidecar.Host
	Instances []sidecar.StepInstance `json:"instances"`
}

func workerStatus(c *cli.Context) error {
	which := ""
	if c.Args().Present() {
		given, err := args(c, "a worker")
		if err != nil {
			return err
		}
		which = given[0]
	}
	host, name, one := strings.Cut(which, "/")
	if which != "" && host == "" || one && name == "" || strings.Contains(name, "/") {
		return usagef("%q is no worker: it is HOST or HOST/NAME, as 'berth hosts list' has them", which)
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		workers, err := readWorkers(c.Context, s, host, name)
		if err != nil && len(workers) == 0 {
			return err
		}
		if which != "" && len(workers) == 0 {
			return problem.New(problem.NotFound, "no worker %s is seen, and none that is gone has anything still", which)
		}
		if printErr := p.print(sidecar.List[workingHost]{Items: workers}, func(out *page) { workersText(out, workers) }); printErr != nil {
			return printErr
		}
		return err
	})
}

// readWorkers reads the workers with what they have: all, those of a host, or the one of a
// name. What can't be read of hosts is left out, and is the error.
func readWorkers(ctx context.Context, s run.Store, host, name string) ([]workingHost, error) {
	hosts, bad := readHosts(ctx, s)
	if bad != nil && len(hosts) == 0 {
		return nil, bad
	}
	executed, err := stepsOf(s).Executed(ctx, host)
	if err != nil {
		return nil, errors.Join(err, bad)
	}
	has := map[[2]string][]*step.Instance{}
	for _, i := range executed {
		by := [2]string{i.Executor.Host, i.Executor.Instance}
		has[by] = append(has[by], i)
	}
	workers := []workingHost{}
	for _, h := range hosts {
		worker := h.Capacity > 0 || h.Gone && h.ActiveSteps > 0
		if !worker || host != "" && h.Host != host || name != "" && h.Instance != name {
			continue
		}
		w := workingHost{Host: h, Instances: listOf(has[[2]string{h.Host, h.Instance}], sidecar.StepInstanceOf).Items}
		w.ActiveSteps = len(w.Instances) // read later than the hosts
		workers = append(workers, w)
	}
	return workers, bad
}

func workersText(out *page, workers []workingHost) {
	var rows, executed [][]string
	for _, w := range workers {
		active := strconv.Itoa(w.ActiveSteps)
		if w.Capacity > 0 {
			active += " of " + strconv.Itoa(w.Capacity)
		}
		id := w.Host.Host + "/" + w.Instance
		rows = append(rows, []string{id, active, strings.Join(w.Queues, ","), w.Version, ago(out.now, w.Since), seenText(w.Host)})
		for _, i := range w.Instances[:min(len(w.Instances), executedShown)] {
			executed = append(executed, []string{id, i.RunID, instanceName(i), strconv.Itoa(i.Attempt), human(max(0, out.now.Sub(i.StartedAt)))})
		}
		if more := len(w.Instances) - executedShown; more > 0 {
			executed = append(executed, []string{id, "… and " + strconv.Itoa(more) + " more", "", "", ""})
		}
	}
	out.table("no worker is seen: start 'berth worker'", []string{"WORKER", "ACTIVE", "QUEUES", "VERSION", "SINCE", "LAST SEEN"}, rows)
	if len(executed) > 0 {
		out.gap()
		out.table("", []string{"WORKER", "RUN", "STEP", "ATTEMPT", "TIME"}, executed)
	}
}

// instanceName names an instance in its run.
func instanceName(i sidecar.StepInstance) string { return i.Step + "[" + strconv.Itoa(i.Index) + "]" }
