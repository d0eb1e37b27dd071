package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"time"
	"unicode"

	"github.com/urfave/cli/v2"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
)

// logWriter writes outputs for people.
type logWriter struct {
	out   io.Writer
	now   time.Time
	clean bool // it is a terminal
	begun bool
}

// write writes the output of an instance under its head.
func (w *logWriter) write(l *logged) error {
	var b bytes.Buffer
	if w.begun {
		b.WriteByte('\n')
	}
	w.begun = true
	fmt.Fprintf(&b, "==> %s: %s <==\n", l.Text(), clean(firstLine(logHead(l, w.now))))
	if left := l.log.LeftOut(); left != "" {
		fmt.Fprintf(&b, "==> %s <==\n", clean(left))
	}
	output := l.log.Text
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

// logHead tells how an instance stands, and which attempt its output is of if that is not
// the last that has ended.
func logHead(l *logged, now time.Time) string {
	if l.Status == "" {
		return "its state can't be read"
	}
	text := instanceText(l.Instance, now)
	switch l.standing() {
	case step.SoFar:
		return text + " (so far)"
	case step.OfEarlier:
		return text + " (this is of an earlier attempt)"
	case step.OfLost:
		return text + " (this is of an attempt that was lost)"
	}
	if !l.Status.Ended() {
		return text + " (it is tried again)"
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

const lateOrNever = "it has written nothing, or that was longer ago than output is kept (run_retention)"

// sayWhyNone says why no output is there of what is asked for.
func sayWhyNone(c *cli.Context, l *logReader) error {
	who := "run " + l.id
	switch {
	case l.want.Index != step.Every:
		who = fmt.Sprintf("%s of run %s", l.want, l.id)
	case l.want.Step != "":
		who = fmt.Sprintf("step %s of run %s", l.want.Step, l.id)
	}
	why, err := whyNone(c, l)
	if err == nil {
		say(c, "no output of %s: %s", who, why)
	}
	return err
}

func whyNone(c *cli.Context, l *logReader) (string, error) {
	if l.want.Index != step.Every {
		d, err := l.steps.Detail(c.Context, l.one())
		if err != nil {
			return "", err
		}
		if d.Status == step.Scheduled || d.Status == step.Requested {
			wait, err := instanceWait(c.Context, l.runs, l.overview, &d.Instance)
			if err != nil || wait != "" {
				return fmt.Sprintf("it is %s: %s", d.Status, wait), err
			}
		}
		return whyNoOutput(d), nil
	}
	r := l.overview.Run
	counts, _ := total(l.asked)
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
	return lateOrNever, nil
}

// whyNoOutput says why there is none of one instance that does not wait.
func whyNoOutput(d *step.Detail) string {
	switch {
	case d.Status == step.Running && d.Shape.External:
		return fmt.Sprintf("it is %s, and its executor hands it in at its end", instanceText(&d.Instance, time.Now()))
	case d.Status == step.Running:
		return fmt.Sprintf("it is %s, and its worker has told nothing of it", instanceText(&d.Instance, time.Now()))
	case d.Status == step.Canceled && d.StartedAt.IsZero():
		return "it was canceled before it was begun"
	case d.Shape.External:
		return "its executor has handed in none, or that was longer ago than output is kept (run_retention)"
	}
	return lateOrNever
}
