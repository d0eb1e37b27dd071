package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/mattn/go-isatty"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"golang.org/x/sys/unix"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

const (
	// failuresShown is how many instances that have failed people are shown.
	failuresShown = 5
	// failuresPage is how many are read at a time.
	failuresPage = 1000
)

// runView is a run with its steps as it is shown.
type runView struct {
	run      *run.Run
	overview *step.Overview // nil of a run without steps
	failed   []*step.Instance
	waits    []*step.Wait // what each step waits for; nil for one that does not
	logged   bool         // there is output of it
}

// readRun reads a run with its steps, and the first of its instances that have failed:
// so many, or all of them if it is 0. If steps can't be read, what can is returned
// with the error.
func readRun(ctx context.Context, in *inspect.Reader, id string, most int) (*runView, error) {
	r, err := in.Runs.Get(ctx, id)
	if err != nil || r.Steps == 0 {
		if err != nil {
			return nil, err
		}
		return &runView{run: r}, nil
	}
	v := &runView{run: r}
	o, err := in.Steps.Overview(ctx, id)
	if err != nil {
		return v, err
	}
	v.run, v.overview = o.Run, o
	if v.failed, err = failures(ctx, in, o, most); err != nil {
		return v, err
	}
	if v.waits, err = in.Waits(ctx, o); err != nil {
		return v, err
	}
	if v.logged, err = hasLogs(ctx, in, id); err != nil {
		return v, err
	}
	return v, unreadableStates(o.Bad)
}

// hasLogs tells whether any output is kept of a run.
func hasLogs(ctx context.Context, in *inspect.Reader, id string) (bool, error) {
	prefix := in.Runs.Keys.Logs(id)
	resp, err := in.Runs.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: 1, KeysOnly: true})
	if err != nil {
		return false, store.Problem("the output could not be read", err)
	}
	return len(resp.Kvs) > 0, nil
}

// failures reads the instances that have failed, in the order of their steps.
func failures(ctx context.Context, in *inspect.Reader, o *step.Overview, most int) ([]*step.Instance, error) {
	var all []*step.Instance
	for _, sum := range o.Steps {
		if sum.Counts[step.Failed] == 0 {
			continue
		}
		p := step.Page{Statuses: []step.Status{step.Failed}}
		for more := true; more && (most == 0 || len(all) < most); {
			if p.Limit = failuresPage; most > 0 {
				p.Limit = most - len(all)
			}
			found, err := in.Steps.Instances(ctx, o.Run.ID, sum.Shape.Name, p)
			if err != nil {
				return all, err
			}
			all = append(all, found.Items...)
			p.From, more = found.Next, found.Next > 0
		}
	}
	return all, nil
}

// unreadableStates is the error about states of instances that can't be read, after
// the others were shown.
func unreadableStates(bad []error) error {
	if len(bad) == 0 {
		return nil
	}
	return problem.New(problem.CorruptValue, "%s can't be read, and in no count: the first is %w", text.Count(len(bad), "step instance"), bad[0])
}

// detailText shows a run to people.
func detailText(out *page, v *runView) {
	runText(out, inspect.RunOf(v.run))
	o := v.overview
	if o == nil || len(o.Steps) == 0 {
		return
	}
	out.gap()
	treeTable(out, o)
	if holds := o.Holds(v.waits); len(holds) > 0 {
		out.gap()
		holdsTable(out, holds)
	}
	if len(v.failed) > 0 {
		out.gap()
		failuresTable(out, v.failed)
		counts, _ := total(o.Steps)
		if more := counts[step.Failed] - len(v.failed); more > 0 {
			out.line("… and %d more; 'berth runs info %s -o json' has all", more, o.Run.ID)
		}
	}
	if o.Run.Status == run.Failed {
		out.gap()
		where := ""
		if v.logged {
			where = fmt.Sprintf("'berth runs logs %s' has the output, ", o.Run.ID)
		}
		out.line("%s'berth runs retry %s' runs again what has not succeeded", where, o.Run.ID)
	}
}

func failuresTable(out *page, failed []*step.Instance) {
	var rows [][]string
	for _, i := range failed {
		host, code := "", strconv.Itoa(i.ExitCode)
		if i.StartedAt.IsZero() {
			code = "" // nothing was started
		}
		if i.Executor != nil {
			host = i.Executor.Host
		}
		rows = append(rows, []string{
			i.Text(), code, strconv.Itoa(i.Attempt), host, tookText(i, out.now), text.Ago(out.now, i.EndedAt), firstLine(i.Error),
		})
	}
	out.table("nothing has failed", []string{"FAILED", "EXIT", "ATTEMPT", "HOST", "TOOK", "ENDED", "ERROR"}, rows)
}

// firstLine keeps a table readable, whatever an error consists of.
func firstLine(s string) string {
	const most = 200
	first, rest, _ := strings.Cut(strings.TrimSpace(s), "\n")
	if rest != "" && len(first) <= most {
		return first + " …"
	}
	return text.Cut(first, most)
}

// runDetail is what programs get of a run with steps.
type runDetail struct {
	inspect.Run
	// ByStep is how each step stands, every one behind those that it needs.
	ByStep []inspect.Step `json:"by_step"`
	// FailedInstances are all that have failed for good.
	FailedInstances []inspect.StepInstance `json:"failed_instances"`
	// Unreadable are states of instances that are in no count.
	Unreadable []inspect.Unreadable `json:"unreadable,omitempty"`
}

func (v *runView) record() any {
	r := inspect.RunOf(v.run)
	if v.overview == nil {
		return r
	}
	list := inspect.StepsWaitingOf(v.overview, v.waits)
	return runDetail{
		Run: r, ByStep: list.Items, Unreadable: list.Unreadable,
		FailedInstances: inspect.ListOf(v.failed, inspect.StepInstanceOf).Items,
	}
}

// progressLine says in one line how a run with steps goes.
func (v *runView) progressLine(fine bool) string {
	if v.overview == nil || v.run.Status != run.Running {
		return statusLine(v.run)
	}
	return stepsProgress(v.overview.Steps, fine) + v.holdText(fine)
}

// stepsLine reads how the steps of a run go, and says it in one line.
func stepsLine(ctx context.Context, in *inspect.Reader, id string, fine bool) (string, error) {
	o, err := in.Steps.Overview(ctx, id)
	if err != nil {
		return "", err
	}
	v := &runView{run: o.Run, overview: o}
	v.waits, err = in.Waits(ctx, o)
	return v.progressLine(fine), err
}

const (
	// watchLook is how often a run is looked at that is watched: more rarely if that
	// takes long, as with many instances.
	watchLook  = time.Second
	watchShare = 20
)

// watchRun shows a run again and again until it has ended: in place on a terminal, in
// a line each time elsewhere, and as a whole at its end.
func watchRun(r *request, id string) error {
	lines := progress{out: r.App.Writer}
	sc := newScreen(r.App.Writer)
	for {
		begun := time.Now()
		v, err := readRun(r.ctx(), r.Reader, id, failuresShown)
		away := problem.CodeOf(err) == problem.EtcdUnavailable
		switch {
		case err != nil && !away:
			return err
		case sc != nil && away:
			sc.add("etcd does not answer, waiting for it")
		case sc != nil:
			r.now = time.Now()
			var b bytes.Buffer
			detailText(&page{out: &b, now: r.now}, v)
			sc.draw(b.String(), v.run.Status.Ended())
		case away:
			lines.tell("etcd does not answer, waiting for it")
		case v.run.Status.Ended():
			r.now = time.Now()
			return r.print(v.record(), func(out *page) { detailText(out, v) })
		default:
			lines.tell(v.progressLine(false))
		}
		if !away && v.run.Status.Ended() {
			return nil
		}
		if err := pause(r.ctx(), max(watchLook, watchShare*time.Since(begun))); err != nil {
			return err
		}
	}
}

// pause waits, unless ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// screen shows a text on a terminal, in the place of the one before.
type screen struct {
	out   io.Writer
	size  func() (width, height int)
	text  string
	drawn int // lines
}

// newScreen returns the screen of stdout, nil if it is no terminal.
func newScreen(out io.Writer) *screen {
	if !isatty.IsTerminal(os.Stdout.Fd()) || os.Getenv("TERM") == "dumb" {
		return nil
	}
	return &screen{out: out, size: func() (int, int) {
		size, err := unix.IoctlGetWinsize(int(os.Stdout.Fd()), unix.TIOCGWINSZ)
		if err != nil {
			return 0, 0
		}
		return int(size.Col), int(size.Row)
	}}
}

// draw shows a text. The last one is shown whole, and stays.
func (s *screen) draw(text string, last bool) {
	s.text = text
	if !last {
		text = fit(text, s.size)
	}
	s.replace(text)
}

// add shows a line below the text.
func (s *screen) add(line string) { s.replace(fit(s.text+line+"\n", s.size)) }

func (s *screen) replace(text string) {
	up := ""
	if s.drawn > 0 {
		up = fmt.Sprintf("\r\x1b[%dA\x1b[J", s.drawn)
	}
	s.drawn = strings.Count(text, "\n")
	fmt.Fprint(s.out, up+text)
}

// fit cuts a text so that it can be written over: no line may wrap, and none may leave
// the screen at its top.
func fit(s string, size func() (width, height int)) string {
	width, height := size()
	lines := strings.SplitAfter(s, "\n")
	if lines[len(lines)-1] == "" {
		lines = lines[:len(lines)-1]
	}
	if most := height - 1; most > 1 && len(lines) > most {
		more := len(lines) - most + 1
		lines = append(lines[:most-1], fmt.Sprintf("… %s more: the window is too low\n", text.Count(more, "line")))
	}
	for i, line := range lines {
		line = strings.TrimSuffix(line, "\n")
		if most := width - 1; most > 1 && utf8.RuneCountInString(line) > most {
			line = string([]rune(line)[:most-1]) + "…"
		}
		lines[i] = line + "\n"
	}
	return strings.Join(lines, "")
}
