package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

func runsLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show the output of the steps of a run",
		ArgsUsage: "RUN [STEP|STEP[INDEX]]",
		Description: fmt.Sprintf(`The end of the output of each step instance is kept for run_retention: up to %d KiB of its
last attempt. It is shown in the order of the steps, each instance below a line with its
status, how much is missing, and where the complete output is. Quote a name with an index,
since brackets have a meaning in shells: 'extract[3]'.

The output of running attempts is read from their workers, of %d at a time. With --follow it
is shown as it comes, until everything has ended. JSON is then one object a line, and YAML
one object a document.`, step.MaxOutput>>10, step.MaxFollowed),
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "follow", Aliases: []string{"f"}, Usage: "continue until all of it has ended"},
		},
		Action: handle(runsLogs, runArgument, argument{name: "a step", optional: true}),
	}
}

func runsLogs(r *request) error {
	want := step.Which{Index: step.Every}
	if len(r.args) == 2 {
		var err error
		if want, err = parseWhich(r.args[1]); err != nil {
			return err
		}
	}
	return r.connect(func() error {
		l, err := r.Logs(r.ctx(), r.args[0], want)
		for err == nil && r.Bool("follow") && l.Overview.Run.Status == run.Storing {
			if err = pause(r.ctx(), logsInterval); err == nil {
				l, err = r.Logs(r.ctx(), r.args[0], want)
			}
		}
		switch {
		case err != nil:
			return err
		case r.Bool("follow"):
			return followLogs(r.Context, l, r.printer)
		}
		return showLogs(r.Context, l, r.printer)
	})
}

// loggedInstance is an instance with what is kept of its output, in JSON.
type loggedInstance struct {
	inspect.StepInstance
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

func loggedInstanceOf(l *inspect.Logged) loggedInstance {
	return loggedInstance{
		StepInstance:  inspect.StepInstanceOf(l.Instance),
		OutputAttempt: l.Log.Attempt, OutputRunning: l.Standing() == step.SoFar, LeftOut: l.Log.Before,
		FileHost: l.Log.Host, File: l.Log.File, Output: string(l.Log.Text),
	}
}

// showLogs shows what there is.
func showLogs(c *cli.Context, l *inspect.Logs, p *printer) error {
	asked, err := askWorkers(c, l)
	if err != nil {
		return err
	}
	list := inspect.List[loggedInstance]{Items: []loggedInstance{}}
	w := &logWriter{out: c.App.Writer, now: p.now, clean: isatty.IsTerminal(os.Stdout.Fd())}
	found := 0
	var bad []error
	_, err = l.Each(c.Context, func(one *inspect.Logged) error {
		switch {
		case one.Bad != nil:
			bad = append(bad, one.Bad)
			return nil
		case one.Silent():
			return nil
		}
		found++
		if one.Standing() == step.SoFar {
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
	unheard, err := saySilent(c, l, asked)
	if err == nil && found+unheard+len(bad) == 0 && p.format == "table" {
		err = sayWhyNone(c, l)
	}
	if err != nil {
		return err
	}
	return unreadableLogs(bad)
}

// askWorkers asks workers for what they run and that is asked for, waits for what they
// show, and returns the workers that it has asked.
func askWorkers(c *cli.Context, l *inspect.Logs) ([]store.StepID, error) {
	all, err := l.Running(c.Context)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	asked := all[:min(len(all), step.MaxFollowed)]
	if len(all) > len(asked) {
		say(c, "of %d instances that run the first %d are asked what they have written so far: name a step or an instance to see another", len(all), len(asked))
	}
	revision, err := l.Steps.Follow(c.Context, true, asked...)
	if err != nil {
		say(c, "only what is kept is shown: %v", err)
		return nil, nil
	}
	if err := l.AwaitShown(c.Context, revision, asked); err != nil {
		return nil, err
	}
	return asked, nil
}

// saySilent reports which running instances sent no output, and returns how many.
func saySilent(c *cli.Context, l *inspect.Logs, asked []store.StepID) (unheard int, err error) {
	for _, id := range asked {
		i, err := l.Steps.Get(c.Context, id)
		if err != nil {
			return unheard, err
		}
		if i.Status == step.Running {
			unheard++
			say(c, "no output of %s yet: its worker on host '%s' has not reported it within %s", id.Text(), i.Executor.Host, step.ShowWithin)
		}
	}
	return unheard, nil
}

// logWriter writes outputs for people.
type logWriter struct {
	out   io.Writer
	now   time.Time
	clean bool // it is a terminal
	begun bool
}

// write writes the output of an instance under its head.
func (w *logWriter) write(l *inspect.Logged) error {
	var b bytes.Buffer
	if w.begun {
		b.WriteByte('\n')
	}
	w.begun = true
	fmt.Fprintf(&b, "==> %s: %s <==\n", l.Text(), clean(firstLine(logHead(l, w.now))))
	if left := l.Log.LeftOut(); left != "" {
		fmt.Fprintf(&b, "==> %s <==\n", clean(left))
	}
	output := l.Log.Text
	if w.clean {
		output = []byte(cleanLines(string(output)))
	}
	b.Write(output)
	if len(output) > 0 && !bytes.HasSuffix(output, []byte("\n")) {
		b.WriteByte('\n')
	}
	_, err := w.out.Write(b.Bytes())
	return err
}

// logHead describes an instance, and which attempt its output is of if that is not
// the last that has ended.
func logHead(l *inspect.Logged, now time.Time) string {
	if l.Status == "" {
		return "its state can't be read"
	}
	text := instanceText(l.Instance, now)
	if note := inspect.OutputNote(l.Instance, l.Standing()); note != "" {
		text += " (" + note + ")"
	}
	return text
}

// cleanLines is [clean] for a text of several lines: a terminal is shown them as they
// are, and nothing that would do something to it.
func cleanLines(s string) string {
	s = strings.ReplaceAll(s, "\r\n", "\n")
	return strings.Map(func(r rune) rune {
		if r != '\n' && r != '\t' && !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// sayWhyNone says why no output is there of what is asked for.
func sayWhyNone(c *cli.Context, l *inspect.Logs) error {
	who := "run " + l.Run
	switch {
	case l.Want.Index != step.Every:
		who = fmt.Sprintf("%s of run %s", l.Want, l.Run)
	case l.Want.Step != "":
		who = fmt.Sprintf("step %s of run %s", l.Want.Step, l.Run)
	}
	why, err := whyNone(c, l)
	if err == nil {
		say(c, "no output of %s: %s", who, why)
	}
	return err
}

func whyNone(c *cli.Context, l *inspect.Logs) (string, error) {
	if l.Want.Index != step.Every {
		d, err := l.Steps.Detail(c.Context, l.One())
		if err != nil {
			return "", err
		}
		if d.Status == step.Scheduled || d.Status == step.Requested {
			wait, err := instanceWait(c.Context, l.Reader, l.Overview, &d.Instance)
			if err != nil {
				return "", err
			}
			if wait != nil {
				return fmt.Sprintf("it is %s: %s", d.Status, wait.Text), nil
			}
		}
		return inspect.NoOutputText(d), nil
	}
	r := l.Overview.Run
	counts, _ := total(l.Wanted)
	switch {
	case r.Steps == 0:
		return "it has no steps, and what its executor writes is not berth's", nil
	case r.Status == run.Storing, r.Status == run.Queued, r.Status == run.NotStarted:
		return "nothing of it has begun; it is " + string(r.Status), nil
	case counts[step.Running] > 0 && counts[step.Succeeded]+counts[step.Failed] == 0:
		return fmt.Sprintf("nothing of it has ended yet (%s)", countsText(counts)), nil
	case counts[step.Succeeded]+counts[step.Failed] == 0:
		return fmt.Sprintf("nothing of it has run (%s)", countsText(counts)), nil
	}
	return inspect.NoOutputKept, nil
}

// unreadableLogs is the error about output that can't be read, after the rest was shown;
// nil if there is none.
func unreadableLogs(bad []error) error {
	if len(bad) == 0 {
		return nil
	}
	var texts []string
	for _, err := range bad {
		texts = append(texts, err.Error())
	}
	return problem.New(problem.CorruptValue, "%s can't be read: %w", text.Count(len(bad), "output"), errors.New(strings.Join(text.Few(texts, 5), "; ")))
}
