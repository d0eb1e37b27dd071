package main

import (
	"context"
	"errors"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// logsPage is how many outputs are read at a time: a page stays below a megabyte.
const logsPage = 50

// logReader reads the output of some instances of a run.
type logReader struct {
	in    *inspect.Reader
	runs  run.Store
	steps step.Store
	id    string
	want  step.Which
	// overview is how the run stood at first. Its steps do not change.
	overview *step.Overview
	// asked are the steps that are asked for.
	asked []step.Summary
}

// newLogReader reads what there is of a run: all of it if no step is named.
func newLogReader(ctx context.Context, in *inspect.Reader, id string, want step.Which) (*logReader, error) {
	l := &logReader{in: in, runs: in.Runs, steps: in.Steps, id: id, want: want}
	var err error
	if l.overview, err = l.steps.Overview(ctx, id); err != nil {
		return nil, err
	}
	if l.overview.Run.Status == run.Storing {
		return l, nil // nobody knows its steps yet
	}
	l.asked, err = stepsNamed(l.overview, want)
	return l, err
}

// stepsNamed returns the steps that are asked for.
func stepsNamed(o *step.Overview, want step.Which) ([]step.Summary, error) {
	if want.Step == "" {
		return o.Steps, nil
	}
	var names []string
	for i, s := range o.Steps {
		names = append(names, s.Shape.Name)
		switch {
		case s.Shape.Name != want.Step:
		case want.Index >= s.Shape.Count:
			return nil, problem.New(problem.StepNotFound, "step %q of run %q has no instance %d: its instances are 0 to %d", want.Step, o.Run.ID, want.Index, s.Shape.Count-1)
		default:
			return o.Steps[i : i+1], nil
		}
	}
	text := "it has no steps"
	if len(names) > 0 {
		text = "its steps are " + strings.Join(few(names, 20), ", ")
	}
	return nil, problem.New(problem.StepNotFound, "run %q has no step %q: %s", o.Run.ID, want.Step, text)
}

// prefix is that of the keys of the output, of others as well perhaps.
func (l *logReader) prefix() string {
	switch {
	case l.want.Step == "":
		return l.runs.Keys.Logs(l.id)
	case l.want.Index == step.Every:
		return l.runs.Keys.Logs(l.id) + l.want.Step + "/"
	}
	return l.runs.Keys.Log(l.one())
}

// one is the instance that is asked for.
func (l *logReader) one() store.StepID {
	return store.StepID{Run: l.id, Step: l.want.Step, Index: max(0, l.want.Index)}
}

// place is the place of an instance in the order of the steps; -1 if it is not asked for.
func (l *logReader) place(id store.StepID) int {
	if id.Run != l.id || l.want.Index != step.Every && id.Index != l.want.Index {
		return -1
	}
	return slices.IndexFunc(l.asked, func(s step.Summary) bool { return s.Shape.Name == id.Step && id.Index < s.Shape.Count })
}

// running are those that are asked for and that workers run now, in the order of the
// steps.
func (l *logReader) running(ctx context.Context) ([]store.StepID, error) {
	seen, err := store.ReadAll(ctx, l.runs.Backend, l.runs.Keys.ActiveAll())
	if err != nil {
		return nil, store.Problem("it could not be read what runs", err)
	}
	var all []store.StepID
	for _, kv := range seen.KVs {
		_, id, err := l.runs.Keys.ParseActive(string(kv.Key))
		if err != nil || id.Step == "" {
			continue
		}
		if at := l.place(id); at >= 0 && !l.asked[at].Shape.External {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b store.StepID) int {
		if d := l.place(a) - l.place(b); d != 0 {
			return d
		}
		return a.Index - b.Index
	})
	return slices.Compact(all), nil
}

// awaitShown waits until workers have shown what was asked of them, or had the time for it.
func (l *logReader) awaitShown(ctx context.Context, revision int64, asked []store.StepID) error {
	within, cancel := context.WithTimeout(ctx, step.ShowWithin)
	defer cancel()
	if err := l.steps.AwaitShown(within, revision, asked...); err != nil && within.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// logged is an instance with what is kept of its output, or why that can't be read.
type logged struct {
	*step.Instance
	log *step.Log
	bad error
}

// standing is the relation of the log to the instance.
func (l *logged) standing() step.Standing { return l.log.Standing(l.Instance) }

// silent reports whether nothing was written.
func (l *logged) silent() bool { return len(l.log.Text) == 0 && l.standing() != step.SoFar }

// each hands on what is kept, in the order of the steps and lowest index first. It returns
// the revision of the first that it has read.
func (l *logReader) each(ctx context.Context, take func(*logged) error) (revision int64, err error) {
	for _, sum := range l.asked {
		first, end := store.StepID{Run: l.id, Step: sum.Shape.Name}, sum.Shape.Count
		if l.want.Index != step.Every {
			first.Index, end = l.want.Index, l.want.Index+1
		}
		rev, err := l.eachOf(ctx, first, end, take)
		if err != nil {
			return 0, err
		}
		if revision == 0 {
			revision = rev
		}
	}
	return revision, nil
}

// eachOf is each for the instances of a step from a first one on and before an index.
func (l *logReader) eachOf(ctx context.Context, first store.StepID, end int, take func(*logged) error) (revision int64, err error) {
	keys, last := l.runs.Keys, first
	last.Index = end
	from := []byte(keys.Log(first))
	for {
		resp, err := l.runs.Backend.Range(ctx, &pb.RangeRequest{Key: from, RangeEnd: []byte(keys.Log(last)), Limit: logsPage})
		if err != nil {
			return 0, store.Problem("the output could not be read", err)
		}
		if revision == 0 {
			revision = resp.Header.Revision
		}
		if len(resp.Kvs) == 0 {
			return revision, nil
		}
		instances, err := l.instancesOf(ctx, resp.Kvs)
		if err != nil {
			return 0, err
		}
		for n, kv := range resp.Kvs {
			one := &logged{Instance: instances[n]}
			if one.log, one.bad = step.DecodeLog(kv); one.bad == nil {
				one.log.DropLostFile(one.Instance)
			}
			if err := take(one); err != nil {
				return 0, err
			}
		}
		if !resp.More {
			return revision, nil
		}
		from = append(resp.Kvs[len(resp.Kvs)-1].Key, 0)
	}
}

// idOf reads whose output a key has.
func (l *logReader) idOf(key []byte) (store.StepID, error) {
	id, err := store.ParseStepID(l.id + "/" + strings.TrimPrefix(string(key), l.runs.Keys.Logs(l.id)))
	if err != nil {
		return id, problem.New(problem.CorruptValue, "%w", &store.CorruptError{Key: string(key), Reason: err})
	}
	return id, nil
}

// instancesOf reads the instances of a step whose output is on a page. One whose state
// can't be read has none.
func (l *logReader) instancesOf(ctx context.Context, page []*mvccpb.KeyValue) ([]*step.Instance, error) {
	all := make([]*step.Instance, len(page))
	for n, kv := range page {
		id, err := l.idOf(kv.Key)
		if err != nil {
			return nil, err
		}
		all[n] = &step.Instance{StepID: id}
	}
	first, last := all[0].Index, all[len(all)-1].Index
	found, err := l.steps.Instances(ctx, l.id, all[0].Step, step.Page{From: first, Limit: last - first + 1})
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
	return problem.New(problem.CorruptValue, "%s can't be read: %w", text.Count(len(bad), "output"), errors.New(strings.Join(few(texts, 5), "; ")))
}
