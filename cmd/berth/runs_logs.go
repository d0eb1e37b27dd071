package main

import (
	"fmt"
	"os"
	"slices"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
)

func runsLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show what the steps of a run have written",
		ArgsUsage: "RUN [STEP|STEP[INDEX]]",
		Description: fmt.Sprintf(`Of each step instance the end of what its last attempt has written is kept, up to
%d KiB, and for run_retention. It is shown in the order of the steps, each instance under a
line that tells how it stands, what is left out and where all of it is. Quote a name with
an index, since brackets mean something to shells: 'extract[3]'.

What an attempt that runs has written so far is asked of its worker, of %d at a time. With
--follow it is shown as it comes, until all that is asked for has ended; JSON then is one
object a line, and YAML one a document.`, step.MaxOutput>>10, step.MaxLooks),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "go on until it has ended"},
		},
		Action: runsLogs,
	}
}

func runsLogs(c *cli.Context) error {
	given := c.Args().Slice()
	if len(given) != 2 {
		var err error
		if given, err = args(c, "the id of a run"); err != nil {
			return err
		}
	}
	if err := run.ValidateID(given[0]); err != nil {
		return err
	}
	want := step.Which{Index: step.Every}
	if len(given) == 2 {
		var err error
		if want, err = parseWhich(given[1]); err != nil {
			return err
		}
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error {
		l, err := newLogReader(c.Context, s, given[0], want)
		for err == nil && c.Bool("follow") && l.overview.Run.Status == run.Storing {
			if err = pause(c.Context, logsLook); err == nil {
				l, err = newLogReader(c.Context, s, given[0], want)
			}
		}
		switch {
		case err != nil:
			return err
		case c.Bool("follow"):
			return followLogs(c, l, p)
		}
		return showLogs(c, l, p)
	})
}

// loggedInstance is an instance with what is kept of its output, in JSON.
type loggedInstance struct {
	sidecar.StepInstance
	// OutputAttempt is the attempt that has written it, and OutputRunning that it runs still.
	OutputAttempt int  `json:"output_attempt"`
	OutputRunning bool `json:"output_running,omitempty"`
	// LeftOut is how many bytes that attempt has written before it.
	LeftOut int64 `json:"left_out"`
	// File has all of it, on host FileHost.
	FileHost string `json:"file_host,omitempty"`
	File     string `json:"file,omitempty"`
	Output   string `json:"output"`
}

func loggedInstanceOf(l *logged) loggedInstance {
	return loggedInstance{
		StepInstance:  sidecar.StepInstanceOf(l.Instance),
		OutputAttempt: l.log.Attempt, OutputRunning: l.standing() == step.SoFar, LeftOut: l.log.Before,
		FileHost: l.log.Host, File: l.log.File, Output: string(l.log.Text),
	}
}

// showLogs shows what there is.
func showLogs(c *cli.Context, l *logReader, p *printer) error {
	asked, err := askWorkers(c, l)
	if err != nil {
		return err
	}
	list := sidecar.List[loggedInstance]{Items: []loggedInstance{}}
	w := &logWriter{out: c.App.Writer, now: p.now, clean: isatty.IsTerminal(os.Stdout.Fd())}
	found := 0
	var bad []error
	_, err = l.each(c.Context, func(one *logged) error {
		switch {
		case one.bad != nil:
			bad = append(bad, one.bad)
			return nil
		case one.silent():
			return nil
		}
		found++
		if one.standing() == step.SoFar {
			asked = slices.DeleteFunc(asked, func(id store.StepID) bool { return id == one.StepID })
		}
		if p.format != "table" {
			list.Items = append(list.Items, loggedInstanceOf(one))
			return nil
		}
		return w.write(one)
	})
	if err != nil {
		return err
	}
	if p.format != "table" {
		if err := p.print(list, nil); err != nil {
			return err
		}
	}
	unheard, err := sayUnheard(c, l, asked)
	if err == nil && found+unheard+len(bad) == 0 && p.format == "table" {
		err = sayWhyNone(c, l)
	}
	if err != nil {
		return err
	}
	return unreadableLogs(bad)
}

// askWorkers asks workers for what they run and that is asked for, waits for what they
// show, and returns whom it has asked.
func askWorkers(c *cli.Context, l *logReader) ([]store.StepID, error) {
	all, err := l.running(c.Context)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	asked := all[:min(len(all), step.MaxLooks)]
	if len(all) > len(asked) {
		say(c, "of %d instances that run the first %d are asked what they have written so far: name a step or an instance to see another", len(all), len(asked))
	}
	revision, err := l.steps.Look(c.Context, true, asked...)
	if err != nil {
		say(c, "only what is kept is shown: %v", err)
		return nil, nil
	}
	if err := l.awaitShown(c.Context, revision, asked); err != nil {
		return nil, err
	}
	return asked, nil
}

// sayUnheard tells of which instances that run nothing was shown, and returns of how many.
func sayUnheard(c *cli.Context, l *logReader, asked []store.StepID) (unheard int, err error) {
	for _, id := range asked {
		i, err := l.steps.Get(c.Context, id)
		if err != nil {
			return unheard, err
		}
		if i.Status == step.Running {
			unheard++
			say(c, "no output of %s yet: its worker on host '%s' has not told what it has written within %s", id.Text(), i.Executor.Host, step.ShowWithin)
		}
	}
	return unheard, nil
}
