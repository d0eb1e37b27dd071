package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
	"github.com/berthhq/berth/sidecar"
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
func readRun(ctx context.Context, s run.Store, id string, most int) (*runView, error) {
	r, err := s.Get(ctx, id)
	if err != nil || r.Steps == 0 {
		if err != nil {
			return nil, err
		}
		return &runView{run: r}, nil
	}
	v := &runView{run: r}
	o, err := stepsOf(s).Overview(ctx, id)
	if err != nil {
		return v, err
	}
	v.run, v.overview = o.Run, o
	if v.failed, err = failures(ctx, s, o, most); err != nil {
		return v, err
	}
	if v.waits, err = readWaits(ctx, s, o); err != nil {
		return v, err
	}
	if v.logged, err = hasLogs(ctx, s, id); err != nil {
		return v, err
	}
	return v, unreadableStates(o.Bad)
}

// hasLogs tells whether any output is kept of a run.
func hasLogs(ctx context.Context, s run.Store, id string) (bool, error) {
	prefix := s.Keys.Logs(id)
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: 1, KeysOnly: true})
	if err != nil {
		return false, store.Problem("the output could not be read", err)
	}
	return len(resp.Kvs) > 0, nil
}

// failures reads the instances that have failed, in the order of their steps.
func failures(ctx context.Context, s run.Store, o *step.Overview, most int) ([]*step.Instance, error) {
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
			found, err := stepsOf(s).Instances(ctx, o.Run.ID, sum.Shape.Name, p)
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
	runText(out, sidecar.RunOf(v.run))
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
	sidecar.Run
	// ByStep is how each step stands, every one behind those that it needs.
	ByStep []sidecar.Step `json:"by_step"`
	// FailedInstances are all that have failed for good.
	FailedInstances []sidecar.StepInstance `json:"failed_instances"`
	// Unreadable are states of instances that are in no count.
	Unreadable []sidecar.Unreadable `json:"unreadable,omitempty"`
}

func (v *runView) record() any {
	r := sidecar.RunOf(v.run)
	if v.overview == nil {
		return r
	}
	list := sidecar.StepsWaiting(v.overview, v.waits)
	return runDetail{
		Run: r, ByStep: list.Items, Unreadable: list.Unreadable,
		FailedInstances: listOf(v.failed, sidecar.StepInstanceOf).Items,
	}
}

// progressLine says in one line how a run with steps goes.
func (v *runView) progressLine(fine bool) string {
	if v.overview == nil || v.run.Status != run.Running {
		return standText(v.run)
	}
	return stepsProgress(v.overview.Steps, fine) + v.holdText(fine)
}

// stepsLine reads how the steps of a run go, and says it in one line.
func stepsLine(ctx context.Context, s run.Store, id string, fine bool) (string, error) {
	o, err := stepsOf(s).Overview(ctx, id)
	if err != nil {
		return "", err
	}
	v := &runView{run: o.Run, overview: o}
	v.waits, err = readWaits(ctx, s, o)
	return v.progressLine(fine), err
}
