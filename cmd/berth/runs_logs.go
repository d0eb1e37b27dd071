package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/mattn/go-isatty"
	"github.com/urfave/cli/v2"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/sidecar"
)

func runsLogsCommand() *cli.Command {
	return &cli.Command{
		Name:      "logs",
		Usage:     "show what the steps of a run have written",
		ArgsUsage: "RUN [STEP|STEP[INDEX]]",
		Description: fmt.Sprintf(`Of each step instance the end of what its last attempt has written is kept, up to
%d KB, from the end of the attempt on and for run_retention. It is shown in the order of
the steps, each instance under a line that tells how it stands. Quote a name with an
index, since brackets mean something to shells: 'extract[3]'.`, step.MaxOutput>>10),
		Action: runsLogs,
	}
}

// logsPage is how many outputs are read at a time: a page stays below a megabyte.
const logsPage = 50

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
	want := whose{index: -1}
	if len(given) == 2 {
		var err error
		if want, err = parseWhose(given[1]); err != nil {
			return err
		}
	}
	p, err := printerOf(c)
	if err != nil {
		return err
	}
	return connectRuns(c, func(s run.Store) error { return showLogs(c, s, p, given[0], want) })
}

// whose is whose output is asked for: of all steps if there is no name, of all of a
// step's instances if the index is -1.
type whose struct {
	step  string
	index int
}

// parseWhose reads STEP or STEP[INDEX].
func parseWhose(text string) (whose, error) {
	w, err := parseWhich(text)
	return whose{w.Step, w.Index}, err
}

// loggedInstance is an instance with what is kept of its output.
type loggedInstance struct {
	sidecar.StepInstance
	Output string `json:"output"`
}

func showLogs(c *cli.Context, s run.Store, p *printer, id string, want whose) error {
	o, err := stepsOf(s).Overview(c.Context, id)
	if err != nil {
		return err
	}
	steps, err := want.of(o)
	if err != nil {
		return err
	}
	list := sidecar.List[loggedInstance]{Items: []loggedInstance{}}
	w := &logWriter{out: c.App.Writer, now: p.now, clean: isatty.IsTerminal(os.Stdout.Fd())}
	found := 0
	for _, sum := range steps {
		err := eachLog(c.Context, s, o, sum, want.index, func(i *step.Instance, output []byte) error {
			found++
			if p.format != "table" {
				list.Items = append(list.Items, loggedInstance{sidecar.StepInstanceOf(i), string(output)})
				return nil
			}
			return w.write(i, output)
		})
		if err != nil {
			return err
		}
	}
	if p.format != "table" {
		return p.print(list, nil)
	}
	if found > 0 {
		return nil
	}
	why, err := whyNoLog(c.Context, s, o, want)
	if err != nil {
		return err
	}
	say(c, "%s", why)
	return nil
}

// of returns the steps that are asked for.
func (w whose) of(o *step.Overview) ([]step.Summary, error) {
	if w.step == "" {
		return o.Steps, nil
	}
	var names []string
	for i, s := range o.Steps {
		names = append(names, s.Shape.Name)
		switch {
		case s.Shape.Name != w.step:
		case w.index >= s.Shape.Count:
			return nil, problem.New(problem.StepNotFound, "step %q of run %q has no instance %d: its instances are 0 to %d", w.step, o.Run.ID, w.index, s.Shape.Count-1)
		default:
			return o.Steps[i : i+1], nil
		}
	}
	text := "it has no steps"
	if len(names) > 0 {
		text = "its steps are " + strings.Join(few(names, 20), ", ")
	}
	return nil, problem.New(problem.StepNotFound, "run %q has no step %q: %s", o.Run.ID, w.step, text)
}

// eachLog hands on what is kept of a step's output, lowest index first: of all
// instances, or of one if its index is not -1.
func eachLog(ctx context.Context, s run.Store, o *step.Overview, sum step.Summary, index int, take func(*step.Instance, []byte) error) error {
	first, end := store.StepID{Run: o.Run.ID, Step: sum.Shape.Name}, sum.Shape.Count
	if index >= 0 {
		first.Index, end = index, index+1
	}
	last := first
	last.Index = end
	from := []byte(s.Keys.Log(first))
	for {
		resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: from, RangeEnd: []byte(s.Keys.Log(last)), Limit: logsPage})
		if err != nil {
			return store.Problem("the output could not be read", err)
		}
		if len(resp.Kvs) == 0 {
			return nil
		}
		instances, err := instancesOf(ctx, s, o, resp, sum.Shape.Name)
		if err != nil {
			return err
		}
		for n, kv := range resp.Kvs {
			if err := take(instances[n], kv.Value); err != nil {
				return err
			}
		}
		if !resp.More {
			return nil
		}
		from = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
	}
}

// instancesOf reads the instances whose output is on a page. One whose state can't be
// read has none.
func instancesOf(ctx context.Context, s run.Store, o *step.Overview, page *pb.RangeResponse, name string) ([]*step.Instance, error) {
	all := make([]*step.Instance, len(page.Kvs))
	prefix := s.Keys.Logs(o.Run.ID)
	for n, kv := range page.Kvs {
		id, err := store.ParseStepID(o.Run.ID + "/" + strings.TrimPrefix(string(kv.Key), prefix))
		if err != nil {
			return nil, problem.New(problem.CorruptValue, "%w", &store.CorruptError{Key: string(kv.Key), Reason: err})
		}
		all[n] = &step.Instance{StepID: id}
	}
	first, last := all[0].Index, all[len(all)-1].Index
	found, err := stepsOf(s).Instances(ctx, o.Run.ID, name, step.Page{From: first, Limit: last - first + 1})
	if err != nil {
		return nil, err
	}
	byIndex := make(map[int]*step.Instance, len(found.Items))
	for _, i := range found.Items {
		byIndex[i.Index] = i
	}
	for n, i := range all {
		if there := byIndex[i.Index]; there != nil {
			all[n] = there
		}
	}
	return all, nil
}

// logWriter writes outputs for people.
type logWriter struct {
	out   io.Writer
	now   time.Time
	clean bool // it is a terminal
	begun bool
}

// write writes the output of an instance under its head.
func (w *logWriter) write(i *step.Instance, output []byte) error {
	var b bytes.Buffer
	if w.begun {
		b.WriteByte('\n')
	}
	w.begun = true
	fmt.Fprintf(&b, "==> %s: %s <==\n", i.Text(), clean(firstLine(logHead(i, w.now))))
	if w.clean {
		output = []byte(cleanLines(string(output)))
	}
	b.Write(output)
	if !bytes.HasSuffix(output, []byte("\n")) {
		b.WriteByte('\n')
	}
	_, err := w.out.Write(b.Bytes())
	return err
}

// logHead tells how an instance stands whose output is kept, which is that of the last
// attempt that has ended.
func logHead(i *step.Instance, now time.Time) string {
	switch {
	case i.Status == "":
		return "its state can't be read"
	case i.Status.Ended():
		return instanceText(i, now)
	case i.Status == step.Running:
		return instanceText(i, now) + " (this is the attempt before)"
	}
	return instanceText(i, now) + " (it is tried again)"
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

// whyNoLog says why no output is there of what is asked for.
func whyNoLog(ctx context.Context, s run.Store, o *step.Overview, want whose) (string, error) {
	r := o.Run
	who := "run " + r.ID
	if want.step != "" {
		who = fmt.Sprintf("step %s of run %s", want.step, r.ID)
	}
	if want.index >= 0 {
		id := store.StepID{Run: r.ID, Step: want.step, Index: want.index}
		d, err := stepsOf(s).Detail(ctx, id)
		if err != nil {
			return "", err
		}
		return fmt.Sprintf("no output of %s of run %s: %s", id.Text(), r.ID, whyNoOutput(d)), nil
	}
	counts, _ := total(o.Steps)
	if want.step != "" {
		sums, err := want.of(o)
		if err != nil {
			return "", err
		}
		counts = sums[0].Counts
	}
	why := lateOrNever
	switch {
	case r.Steps == 0:
		why = "it has no steps, and what its executor writes is not berth's"
	case r.Status == run.Storing, r.Status == run.Queued, r.Status == run.NotStarted:
		why = "nothing of it has begun; it is " + string(r.Status)
	case counts[step.Running] > 0 && counts[step.Succeeded]+counts[step.Failed] == 0:
		why = fmt.Sprintf("nothing of it has ended yet (%s), and output is kept at the end of an attempt", countsText(counts))
	case counts[step.Succeeded]+counts[step.Failed] == 0:
		why = fmt.Sprintf("nothing of it has run (%s)", countsText(counts))
	}
	return "no output of " + who + ": " + why, nil
}

// whyNoOutput says why there is none of one instance.
func whyNoOutput(d *step.Detail) string {
	switch {
	case d.Status == step.Running:
		return fmt.Sprintf("it is %s, and output is kept at the end of an attempt", instanceText(&d.Instance, time.Now()))
	case d.Status == step.Scheduled && d.Attempt == 0:
		return fmt.Sprintf("it waits for a worker of queue %q", d.Shape.Queue)
	case d.Status == step.Requested && d.Attempt == 0:
		return "it has not been begun: it waits for what it needs, or for its window"
	case d.Status == step.Canceled && d.StartedAt.IsZero():
		return "it was canceled before it was begun"
	case d.Shape.External:
		return "its executor has handed in none, or that was longer ago than output is kept (run_retention)"
	}
	return lateOrNever
}
