package step

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool"
)

// Overview is the state of the steps of a run at one revision.
type Overview struct {
	Run *run.Run
	// Steps are in the order of the graph. A run that is still being stored has none.
	Steps    []Summary
	Revision int64
	// Bad are the records that cannot be read, and do not count: each names its key.
	Bad []error
}

// Summary is the state of one step.
type Summary struct {
	Shape Shape
	// Needs are the names of the steps that must have succeeded before.
	Needs []string
	// Counts has the number of instances by status. One without a record is requested. Once
	// the run has ended, those that have not count as canceled.
	Counts map[Status]int
	// StartedAt is when the first of them was started; zero if none was.
	StartedAt time.Time
	// EndedAt is when the last of them has ended; zero before.
	EndedAt time.Time
}

// view is a run with its graph at one revision. The graph may be nil.
type view struct {
	run      *run.Run
	graph    *Graph
	revision int64
}

const unread = "the steps of the run could not be read"

// view reads a run and its graph. An unknown run is a RunNotFound problem.
func (s Store) view(ctx context.Context, id string) (v view, err error) {
	if err := run.ValidateID(id); err != nil {
		return view{}, err
	}
	resp, err := s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(s.Keys.Run(id))})
	switch {
	case err != nil:
		return view{}, store.Problem(unread, err)
	case len(resp.Kvs) == 0:
		return view{}, problem.New(problem.RunNotFound, "there is no run %q", id)
	}
	v.revision = resp.Header.Revision
	if v.run, err = run.Decode(s.Keys, resp.Kvs[0]); err != nil {
		return view{}, store.Problem(unread, err)
	}
	if v.run.Steps == 0 || v.run.Status == run.Storing {
		return v, nil
	}
	key := s.Keys.Graph(id)
	resp, err = s.Backend.Range(ctx, &pb.RangeRequest{Key: []byte(key), Revision: v.revision})
	switch {
	case err != nil:
	case len(resp.Kvs) == 0:
		err = &store.CorruptError{Key: key, Reason: errors.New("the graph of the steps is missing")}
	default:
		v.graph, err = DecodeGraph(key, resp.Kvs[0].Value)
	}
	if err != nil {
		return view{}, store.Problem(unread, err)
	}
	return v, nil
}

// step returns the number of a step, or a StepNotFound problem.
func (v *view) step(name string) (int, error) {
	if v.graph != nil && pool.ValidateName(name) == nil {
		if n := v.graph.Number(name); n >= 0 {
			return n, nil
		}
	}
	return -1, NoStep(v.run.ID, name)
}

// NoStep returns the problem that a run has no such step.
func NoStep(run, name string) error {
	return problem.New(problem.StepNotFound, "run %q has no step %q", run, problem.Clip(name))
}

// shown returns an instance as it is shown: once its run has ended, one that has not is
// canceled.
func (v *view) shown(i *Instance) *Instance {
	if v.run.Status.Ended() && !i.Status.Ended() {
		i.Status, i.EndedAt, i.Pause = Canceled, v.run.EndedAt, 0
	}
	return i
}

// statePage is how many records one request reads at most.
const statePage = 1000

// states calls take for the values under a prefix from a key on, in order and at one
// revision, until it returns false.
func (s Store) states(ctx context.Context, prefix, from string, revision int64, take func(*mvccpb.KeyValue) bool) error {
	pages := store.Pages{Prefix: prefix, From: from, Revision: revision, Most: statePage}
	_, err := pages.Each(ctx, s.Backend, func(page store.Page) bool {
		for _, kv := range page.KVs {
			if !take(kv) {
				return false
			}
		}
		return true
	})
	if err != nil {
		return store.Problem(unread, err)
	}
	return nil
}

// Overview returns the state of the steps of a run. An unknown run is a RunNotFound
// problem.
func (s Store) Overview(ctx context.Context, id string) (*Overview, error) {
	v, err := s.view(ctx, id)
	if err != nil {
		return nil, err
	}
	o := &Overview{Run: v.run, Revision: v.revision}
	if v.graph == nil {
		return o, nil
	}
	t := newTally(&v)
	prefix := s.Keys.Steps(id)
	err = s.states(ctx, prefix, prefix, v.revision, func(kv *mvccpb.KeyValue) bool {
		i, err := Decode(s.Keys, kv)
		if err == nil {
			err = t.add(string(kv.Key), v.shown(i))
		} else {
			t.lose(s.Keys, kv)
		}
		if err != nil {
			o.Bad = append(o.Bad, err)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	o.Steps = t.summaries()
	return o, nil
}

// Active is what a berth instance executes.
type Active struct {
	Host, Instance string
	// Steps are step instances, and Runs are runs without steps.
	Steps, Runs int
	// Leases are the leases of all of them.
	Leases []store.LeaseID
}

// ActiveByName returns a map by host and instance.
func ActiveByName(active []Active) map[[2]string]Active {
	counts := make(map[[2]string]Active, len(active))
	for _, a := range active {
		counts[[2]string{a.Host, a.Instance}] = a
	}
	return counts
}

// activeReads is how many records are read at once; etcd takes 128 operations.
const activeReads = 100

// Active counts what is executed, by host and instance: what has a living executor according
// to its key and its record. Records that cannot be read do not count.
func (s Store) Active(ctx context.Context) ([]Active, error) {
	counts := map[[2]string]*Active{}
	err := s.eachExecuted(ctx, s.Keys.ActiveAll(), func(seen executing, kv *mvccpb.KeyValue) { s.count(counts, seen, kv) })
	if err != nil {
		return nil, err
	}
	all := make([]Active, 0, len(counts))
	for _, a := range counts {
		slices.Sort(a.Leases)
		a.Leases = slices.Compact(a.Leases)
		all = append(all, *a)
	}
	slices.SortFunc(all, func(a, b Active) int {
		return cmp.Or(cmp.Compare(a.Host, b.Host), cmp.Compare(a.Instance, b.Instance))
	})
	return all, nil
}

// Executed returns the executed step instances of a host, or of all hosts if it is empty,
// ordered by executor and start: see [Store.Active].
func (s Store) Executed(ctx context.Context, host string) ([]*Instance, error) {
	prefix := s.Keys.ActiveAll()
	if host != "" {
		prefix = s.Keys.Active(host)
	}
	var all []*Instance
	err := s.eachExecuted(ctx, prefix, func(seen executing, kv *mvccpb.KeyValue) {
		i, err := Decode(s.Keys, kv)
		if err == nil && i.Status == Running && i.Executor.Host == seen.host {
			all = append(all, i)
		}
	})
	slices.SortFunc(all, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.Executor.Host, b.Executor.Host), cmp.Compare(a.Executor.Instance, b.Executor.Instance),
			a.StartedAt.Compare(b.StartedAt), cmp.Compare(a.String(), b.String()))
	})
	return all, err
}

// eachExecuted calls a function with the records of what living executors have, under a
// prefix of their keys.
func (s Store) eachExecuted(ctx context.Context, prefix string, take func(executing, *mvccpb.KeyValue)) error {
	const what = "it could not be read who executes what"
	found, err := store.ReadAll(ctx, s.Backend, prefix)
	if err != nil {
		return store.Problem(what, err)
	}
	for some := range slices.Chunk(found.KVs, activeReads) {
		var reads []*pb.RequestOp
		var seen []executing
		for _, kv := range some {
			if host, key, ok := s.executed(kv); ok {
				reads, seen = append(reads, store.Get(key)), append(seen, executing{host, store.LeaseID(kv.Lease)})
			}
		}
		if len(reads) == 0 {
			continue
		}
		resp, err := s.Backend.Txn(ctx, &pb.TxnRequest{Success: reads})
		if err != nil {
			return store.Problem(what, err)
		}
		for n, r := range resp.Responses {
			for _, kv := range r.GetResponseRange().Kvs {
				take(seen[n], kv)
			}
		}
	}
	return nil
}

// executing is the host and the lease of an executor.
type executing struct {
	host  string
	lease store.LeaseID
}

// executed returns the key of the record of what a living executor has.
func (s Store) executed(kv *mvccpb.KeyValue) (host, key string, ok bool) {
	host, id, err := s.Keys.ParseActive(string(kv.Key))
	switch {
	case err != nil:
		return "", "", false
	case id.Step == "":
		return host, s.Keys.Run(id.Run), true
	}
	return host, s.Keys.Step(id), true
}

// count counts a record if it is running on the host of the executor: it may have changed
// meanwhile.
func (s Store) count(counts map[[2]string]*Active, seen executing, kv *mvccpb.KeyValue) {
	var by *run.Executor
	steps, runs := 0, 0
	if i, err := Decode(s.Keys, kv); err == nil {
		if i.Status == Running {
			by, steps = i.Executor, 1
		}
	} else if r, err := run.Decode(s.Keys, kv); err == nil && r.Status == run.Running {
		by, runs = r.Executor, 1
	}
	if by == nil || by.Host != seen.host {
		return
	}
	name := [2]string{by.Host, by.Instance}
	if counts[name] == nil {
		counts[name] = &Active{Host: by.Host, Instance: by.Instance}
	}
	a := counts[name]
	a.Steps, a.Runs = a.Steps+steps, a.Runs+runs
	if seen.lease != 0 {
		a.Leases = append(a.Leases, seen.lease)
	}
}

// tally counts the instances of a run by status.
type tally struct {
	view   *view
	steps  []Summary
	number map[string]int // by name
	ended  []time.Time    // the last end of each step
	bad    []int          // states of each step that can't be read
}

func newTally(v *view) *tally {
	shapes := v.graph.Shapes()
	t := &tally{
		view: v, steps: make([]Summary, len(shapes)), number: make(map[string]int, len(shapes)),
		ended: make([]time.Time, len(shapes)), bad: make([]int, len(shapes)),
	}
	for n, sh := range shapes {
		t.number[sh.Name] = n
		needs := make([]string, len(sh.Needs))
		for i, before := range sh.Needs {
			needs[i] = shapes[before].Name
		}
		t.steps[n] = Summary{Shape: sh, Needs: needs, Counts: map[Status]int{}}
	}
	return t
}

var errNoInstance = errors.New("the graph of its run has no such instance")

// add counts an instance with a record.
func (t *tally) add(key string, i *Instance) error {
	n, ok := t.number[i.Step]
	if !ok || i.Index >= t.steps[n].Shape.Count {
		return &store.CorruptError{Key: key, Reason: errNoInstance}
	}
	s := &t.steps[n]
	s.Counts[i.Status]++
	if at := i.StartedAt; !at.IsZero() && (s.StartedAt.IsZero() || at.Before(s.StartedAt)) {
		s.StartedAt = at
	}
	if i.EndedAt.After(t.ended[n]) {
		t.ended[n] = i.EndedAt
	}
	return nil
}

// lose leaves out a record that cannot be read: its instance is not requested, but its
// status is unknown.
func (t *tally) lose(keys store.Keys, kv *mvccpb.KeyValue) {
	id, err := store.ParseStepID(strings.TrimPrefix(string(kv.Key), keys.StepsAll()))
	if n, ok := t.number[id.Step]; err == nil && ok && id.Index < t.steps[n].Shape.Count {
		t.bad[n]++
	}
}

// summaries returns the steps after all records were counted.
func (t *tally) summaries() []Summary {
	for n := range t.steps {
		s := &t.steps[n]
		rest := s.Shape.Count - t.bad[n]
		for _, count := range s.Counts {
			rest -= count
		}
		if rest > 0 { // they have no state
			none := t.view.shown(&Instance{Record: Record{Status: Requested}})
			s.Counts[none.Status] += rest
			if none.EndedAt.After(t.ended[n]) {
				t.ended[n] = none.EndedAt
			}
		}
		if s.Counts[Succeeded]+s.Counts[Failed]+s.Counts[Canceled] == s.Shape.Count {
			s.EndedAt = t.ended[n]
		}
	}
	return t.steps
}
