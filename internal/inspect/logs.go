package inspect

import (
	"context"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/text"
)

// logsPage is how many outputs are read at a time: a page stays below a megabyte.
const logsPage = 50

// Logs reads the output of step instances of a run.
type Logs struct {
	*Reader
	Run  string
	Want step.Which // all steps if it names none
	// Overview is the run when the reader was made. Its steps do not change.
	Overview *step.Overview
	// Wanted are the steps that Want names.
	Wanted []step.Summary
}

// Logs returns the reader of the output of a run: of all its steps if want names none. A
// run that is still being stored has no steps yet.
func (r *Reader) Logs(ctx context.Context, id string, want step.Which) (*Logs, error) {
	l := &Logs{Reader: r, Run: id, Want: want}
	var err error
	if l.Overview, err = r.Steps.Overview(ctx, id); err != nil {
		return nil, err
	}
	if l.Overview.Run.Status == run.Storing {
		return l, nil
	}
	l.Wanted, err = StepsNamed(l.Overview, want)
	return l, err
}

// StepsNamed returns the steps of a run that want names. An unknown step is a StepNotFound
// problem.
func StepsNamed(o *step.Overview, want step.Which) ([]step.Summary, error) {
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
	has := "it has no steps"
	if len(names) > 0 {
		has = "its steps are " + strings.Join(text.Few(names, 20), ", ")
	}
	return nil, problem.New(problem.StepNotFound, "run %q has no step %q: %s", o.Run.ID, want.Step, has)
}

// Prefix returns the prefix of the keys of the output. Keys of other instances may have it,
// too: see [Logs.Place].
func (l *Logs) Prefix() string {
	switch {
	case l.Want.Step == "":
		return l.Runs.Keys.Logs(l.Run)
	case l.Want.Index == step.Every:
		return l.Runs.Keys.Logs(l.Run) + l.Want.Step + "/"
	}
	return l.Runs.Keys.Log(l.One())
}

// One returns the only wanted instance, or the first instance of a step.
func (l *Logs) One() store.StepID {
	return store.StepID{Run: l.Run, Step: l.Want.Step, Index: max(0, l.Want.Index)}
}

// Place returns the place of the step of an instance; -1 if the instance is not wanted.
func (l *Logs) Place(id store.StepID) int {
	if id.Run != l.Run || l.Want.Index != step.Every && id.Index != l.Want.Index {
		return -1
	}
	return slices.IndexFunc(l.Wanted, func(s step.Summary) bool { return s.Shape.Name == id.Step && id.Index < s.Shape.Count })
}

// Running returns the wanted instances that workers run now, in the order of the steps.
func (l *Logs) Running(ctx context.Context) ([]store.StepID, error) {
	seen, err := store.ReadKeys(ctx, l.Runs.Backend, l.Runs.Keys.ActiveAll())
	if err != nil {
		return nil, store.Problem("the running instances could not be read", err)
	}
	var all []store.StepID
	for _, kv := range seen.KVs {
		_, id, err := l.Runs.Keys.ParseActive(string(kv.Key))
		if err != nil || id.Step == "" {
			continue
		}
		if at := l.Place(id); at >= 0 && !l.Wanted[at].Shape.External {
			all = append(all, id)
		}
	}
	slices.SortFunc(all, func(a, b store.StepID) int {
		if d := l.Place(a) - l.Place(b); d != 0 {
			return d
		}
		return a.Index - b.Index
	})
	return slices.Compact(all), nil
}

// AwaitShown waits until workers have sent the output of instances, at most
// [step.ShowWithin].
func (l *Logs) AwaitShown(ctx context.Context, revision int64, asked []store.StepID) error {
	within, cancel := context.WithTimeout(ctx, step.ShowWithin)
	defer cancel()
	if err := l.Steps.AwaitShown(within, revision, asked...); err != nil && within.Err() == nil {
		return err
	}
	return context.Cause(ctx)
}

// Logged is an instance with its output, or why that can't be read.
type Logged struct {
	*step.Instance
	Log *step.Log
	Bad error
}

// Standing returns the relation of the output to the instance.
func (l *Logged) Standing() step.Standing { return l.Log.Standing(l.Instance) }

// Silent reports whether nothing was written.
func (l *Logged) Silent() bool { return len(l.Log.Text) == 0 && l.Standing() != step.SoFar }

// Each calls take with the output of each wanted instance, in the order of the steps and of
// their indices. It returns the revision of the first read.
func (l *Logs) Each(ctx context.Context, take func(*Logged) error) (revision int64, err error) {
	for _, sum := range l.Wanted {
		first, end := store.StepID{Run: l.Run, Step: sum.Shape.Name}, sum.Shape.Count
		if l.Want.Index != step.Every {
			first.Index, end = l.Want.Index, l.Want.Index+1
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

// eachOf is Each for the instances of a step from a first one on and before an index.
func (l *Logs) eachOf(ctx context.Context, first store.StepID, end int, take func(*Logged) error) (revision int64, err error) {
	keys, last := l.Runs.Keys, first
	last.Index = end
	from := []byte(keys.Log(first))
	for {
		resp, err := l.Runs.Backend.Range(ctx, &pb.RangeRequest{Key: from, RangeEnd: []byte(keys.Log(last)), Limit: logsPage})
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
			one := &Logged{Instance: instances[n]}
			if one.Log, one.Bad = step.DecodeLog(kv); one.Bad == nil {
				one.Log.DropLostFile(one.Instance)
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

// IDOf returns the instance of a key of output.
func (l *Logs) IDOf(key []byte) (store.StepID, error) {
	id, err := store.ParseStepID(l.Run + "/" + strings.TrimPrefix(string(key), l.Runs.Keys.Logs(l.Run)))
	if err != nil {
		return id, problem.New(problem.CorruptValue, "%w", &store.CorruptError{Key: string(key), Reason: err})
	}
	return id, nil
}

// instancesOf reads the instances of a step whose output is on a page. One whose state
// can't be read has none.
func (l *Logs) instancesOf(ctx context.Context, page []*mvccpb.KeyValue) ([]*step.Instance, error) {
	all := make([]*step.Instance, len(page))
	for n, kv := range page {
		id, err := l.IDOf(kv.Key)
		if err != nil {
			return nil, err
		}
		all[n] = &step.Instance{StepID: id}
	}
	first, last := all[0].Index, all[len(all)-1].Index
	found, err := l.Steps.Instances(ctx, l.Run, all[0].Step, step.Page{From: first, Limit: last - first + 1})
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

// HasLogs reports whether any output is kept of a run.
func (r *Reader) HasLogs(ctx context.Context, id string) (bool, error) {
	prefix := r.Runs.Keys.Logs(id)
	resp, err := r.Runs.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(prefix), RangeEnd: store.RangeEnd(prefix), Limit: 1, KeysOnly: true})
	if err != nil {
		return false, store.Problem("the output could not be read", err)
	}
	return len(resp.Kvs) > 0, nil
}
