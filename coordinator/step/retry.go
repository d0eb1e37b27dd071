package step

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/pool/registry"
)

const (
	// MaxWhich bounds what one retry can name: its event contains all of it.
	MaxWhich = 100
	// retryPuts is how many instances one write requests again. Each needs a compare and two
	// operations, of which etcd takes 128.
	retryPuts = 50
	// retryTimeout bounds one read or write of a retry.
	retryTimeout = 2 * time.Second
)

// Retried is the result of a retry.
type Retried struct {
	Run *run.Run
	// Queued states that the run was put into the queue again.
	Queued bool
	// Requested is how many named instances are requested again.
	Requested int
}

// Retry requests instances of a run that have failed or were canceled again, with all their
// retries. Its event has the reason why. Without names, it applies to all instances that have
// not succeeded, of a run that has ended, which is queued again. A run that has not ended is
// returned as it is: the response of an earlier retry may have been lost.
//
// With names, it applies to those instances; others that have failed stay so. A run that has
// ended is queued again, with the instances that were never started, or were stopped at the
// end of the run. A run that has not ended continues. Instances that have not ended are left
// as they are.
//
// It is a problem if the run or an instance has succeeded (RunEnded, StepEnded), if an
// instance is still being stopped (RunNotEnded), or if a named instance could not run,
// because the run would fail at once, or never get to it, for another failure (StepEnded).
func (s Store) Retry(ctx context.Context, runs run.Store, id, why string, which ...Which) (*Retried, error) {
	switch {
	case len(which) > MaxWhich:
		return nil, problem.Field("steps", "%d are too many: use at most %d", len(which), MaxWhich)
	case len(why) > run.MaxWhy:
		return nil, problem.Field("reason", "it is %d bytes long: use at most %d", len(why), run.MaxWhy)
	}
	t := newRetrial(why, which)
	return store.Change(ctx, "not all was requested again: try again", func(context.Context) (*Retried, error) {
		// A large run takes longer than one attempt may: each read and write has its own
		// timeout.
		done, err := s.retry(ctx, runs, id, t)
		if p := (*problem.Error)(nil); errors.As(err, &p) && p.Code != problem.EtcdUnavailable {
			err = store.Stop(err)
		}
		return done, err
	})
}

// retry assesses a run, and makes the changes.
func (s Store) retry(ctx context.Context, runs run.Store, id string, t *retrial) (*Retried, error) {
	try, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	v, err := s.view(try, id)
	if err != nil {
		return nil, err
	}
	all, err := s.withState(ctx, &v)
	if err != nil {
		return nil, err
	}
	next, err := t.decide(&v, all)
	if err != nil {
		return nil, err
	}
	for some := range slices.Chunk(next.instances, retryPuts) {
		if err := s.request(ctx, v.run, some, t); err != nil {
			return nil, err
		}
	}
	if next.queue {
		r, err := runs.Retry(ctx, id, t.why, v.run.Revision, func(ctx context.Context) (store.Extra, error) {
			if v.graph == nil {
				return store.Extra{}, nil
			}
			return v.graph.declare(ctx, registry.Registry{Backend: s.Backend, Keys: s.Keys}, true)
		})
		if err != nil {
			return nil, store.Stop(err)
		}
		v.run = r
	}
	return &Retried{Run: v.run, Queued: t.ended != 0, Requested: len(t.seen)}, nil
}

// withState returns the instances of a run that have a record.
func (s Store) withState(ctx context.Context, v *view) ([]*Instance, error) {
	if v.graph == nil {
		return nil, nil
	}
	var all []*Instance
	var wrong error
	prefix := s.Keys.Steps(v.run.ID)
	err := s.states(ctx, prefix, prefix, 0, func(kv *mvccpb.KeyValue) bool {
		var i *Instance
		if i, wrong = Decode(s.Keys, kv); wrong != nil {
			return false
		}
		all = append(all, i)
		return true
	})
	switch {
	case err != nil:
		return nil, err
	case wrong != nil:
		return nil, store.Problem(unread, wrong)
	}
	return all, nil
}

// request requests ended instances again, if they and their run are unchanged. The record of
// a run in progress is put again, so that an end that was decided before cannot be written
// after.
func (s Store) request(ctx context.Context, r *run.Run, some []*Instance, t *retrial) error {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	cmps := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	var ops []*pb.RequestOp
	for _, i := range some {
		cmps = append(cmps, store.ModEquals(s.Keys.Step(i.StepID), i.Revision))
		ops = append(ops,
			store.Put(s.Keys.Step(i.StepID), i.request().Encode(), 0),
			store.Delete(s.Keys.CanceledStep(i.StepID))) // of an earlier attempt
	}
	goesOn := !r.Status.Ended()
	if goesOn {
		ops = append(ops, store.Put(s.Keys.Run(r.ID), r.Encode(), 0))
	}
	tells := !t.written && len(t.which) > 0
	if tells {
		op, err := s.Journal.Op(ctx, r.ID, t.event(time.Now()))
		if err != nil {
			return err
		}
		ops = append(ops, op)
	}
	rev, err := store.Commit(ctx, s.Backend, cmps, ops...)
	if err != nil {
		s.suspect(err)
		return err
	}
	t.written = t.written || tells
	if goesOn {
		r.Revision = rev
	}
	return nil
}

// event returns the event of the retry.
func (t *retrial) event(now time.Time) run.Event {
	names := make([]string, len(t.which))
	for n, w := range t.which {
		names[n] = w.String()
	}
	return run.Event{Type: run.StepRetried, At: now, Reason: t.why, Metadata: map[string]string{
		"step": strings.Join(names, ", "), "instances": strconv.Itoa(len(t.seen)),
	}}
}

// retrial is a requested retry, with what is known from earlier attempts. It decides, and
// reads and writes nothing.
//
// Only a retry continues after the end of an instance, or of a run. So one whose revision has
// changed since it was first known to have ended was requested again: by this retry, whose
// response was lost, or by another one. It is done.
type retrial struct {
	why   string
	which []Which // none is all

	assessed bool
	// seen are the named instances that had ended without success, with their revisions.
	seen map[store.StepID]int64
	// ended is the revision of the end after which the run is to be queued; 0 if none.
	ended int64
	// written states that the event is written.
	written bool
}

func newRetrial(why string, which []Which) *retrial {
	return &retrial{why: why, which: which, seen: map[store.StepID]int64{}}
}

// retryPlan is the decision of a retry.
type retryPlan struct {
	// instances are requested again, before the run is queued.
	instances []*Instance
	queue     bool
}

// choice has the named indexes of a step, or [Every].
type choice map[int]bool

func (c choice) has(index int) bool { return c[Every] || c[index] }

// left are the instances of a step that have failed or were canceled, and stay so.
type left struct {
	count int
	first *Instance
}

func (l *left) add(i *Instance) {
	if l.count++; l.first == nil {
		l.first = i
	}
}

// text describes them within a sentence.
func (l *left) text(step string) string {
	switch {
	case l.count > 1:
		return fmt.Sprintf("%d other instances of step '%s' have failed or were canceled", l.count, step)
	case l.first.Status == Canceled:
		return l.first.Text() + " was canceled"
	}
	return l.first.Text() + " has failed"
}

// decide assesses a run and its instances that have a record, and returns what to do.
func (t *retrial) decide(v *view, all []*Instance) (retryPlan, error) {
	r, again := v.run, t.assessed
	switch {
	case r.Status == run.Storing:
		return retryPlan{}, problem.New(problem.RunNotEnded, "run %q is still being stored: nothing of it has started", r.ID)
	case r.Status == run.Succeeded && !again:
		return retryPlan{}, r.Retriable()
	case r.Status == run.Succeeded, len(t.which) == 0 && !r.Status.Ended():
		t.assessed = true
		return retryPlan{}, nil
	}
	named, err := t.named(v)
	if err != nil {
		return retryPlan{}, err
	}
	l := newAssessment(t, v, named)
	for _, i := range all {
		if err := l.take(i); err != nil {
			return retryPlan{}, err
		}
	}
	if again && l.asked == 0 && (!r.Status.Ended() || r.Revision != t.ended) {
		return retryPlan{}, nil // it is done, even if the run has ended again since
	}
	if err := l.check(); err != nil {
		return retryPlan{}, err
	}
	t.assessed = true
	if r.Status.Ended() {
		t.ended, l.plan.queue = r.Revision, true
	}
	return l.plan, nil
}

// named returns the choices by step number. An unknown name is a problem.
func (t *retrial) named(v *view) (map[int]choice, error) {
	named := map[int]choice{}
	for _, w := range t.which {
		n, err := v.step(w.Step)
		if err != nil {
			return nil, err
		}
		if sh := &v.graph.shapes[n]; w.Index != Every && (w.Index < 0 || w.Index >= sh.Count) {
			return nil, noInstance(v.run.ID, sh, w.Index)
		}
		if named[n] == nil {
			named[n] = choice{}
		}
		named[n][w.Index] = true
	}
	return named, nil
}

// assessment assesses a run and its instances once.
type assessment struct {
	t     *retrial
	v     *view
	named map[int]choice // by the numbers of steps

	plan  retryPlan
	asked int            // of the plan's instances, those that were named
	stops *Instance      // one that is still being stopped after the end of the run
	steps map[string]int // names to numbers
	// By the numbers of steps.
	succeeded []int
	left      []left
}

func newAssessment(t *retrial, v *view, named map[int]choice) *assessment {
	l := &assessment{t: t, v: v, named: named, steps: map[string]int{}}
	if v.graph == nil {
		return l
	}
	for n, sh := range v.graph.shapes {
		l.steps[sh.Name] = n
	}
	l.succeeded, l.left = make([]int, len(l.steps)), make([]left, len(l.steps))
	return l
}

// take adds an instance.
func (l *assessment) take(i *Instance) error {
	r := l.v.run
	n, known := l.steps[i.Step]
	if !known || i.Index >= l.v.graph.shapes[n].Count {
		return nil // its step is unknown
	}
	asked := len(l.t.which) == 0 || l.named[n].has(i.Index)
	seen := l.t.seen[i.StepID]
	switch {
	case i.Status.InFlight() && r.Status.Ended():
		l.stops = i
	case i.Status == Succeeded:
		l.succeeded[n]++
		if l.named[n][i.Index] && !l.t.assessed {
			return problem.New(problem.StepEnded, "step instance %s of run %q has succeeded: only instances that have failed or were canceled can be retried", i.Text(), r.ID)
		}
	case asked && seen != 0 && seen != i.Revision:
		l.t.written = true // with the first instances
	case i.Status != Failed && i.Status != Canceled:
	case asked:
		l.t.seen[i.StepID] = i.Revision
		l.plan.instances = append(l.plan.instances, i)
		l.asked++
	case r.Status.Ended() && i.Status == Canceled && i.Revision > r.Revision:
		l.plan.instances = append(l.plan.instances, i) // it was stopped at the end of the run
	default:
		l.left[n].add(i)
	}
	return nil
}

// check returns a problem if the retry is not possible now, or would have no effect.
func (l *assessment) check() error {
	switch i := l.stops; {
	case i != nil:
		return problem.New(problem.RunNotEnded, "step instance %s of run %q is still being stopped: try again in a moment", i.Text(), i.Run)
	case len(l.t.which) == 0:
		return nil
	}
	id, shapes, advice := l.v.run.ID, l.v.graph.shapes, "name that as well"
	if l.v.run.Status.Ended() {
		advice += ", or retry the whole run"
	}
	// blocker is a needed step that can never succeed; -1 is none.
	blocker := make([]int, len(shapes))
	for n := range shapes {
		sh, left := &shapes[n], &l.left[n]
		blocker[n] = -1
		for _, need := range sh.Needs {
			if at := blocker[need]; at >= 0 {
				blocker[n] = at
			}
			if l.left[need].count > 0 {
				blocker[n] = need
			}
		}
		switch {
		case l.named[n][Every] && l.succeeded[n] == sh.Count && !l.t.assessed:
			return problem.New(problem.StepEnded, "step '%s' of run %q has succeeded: only instances that have failed or were canceled can be retried", sh.Name, id)
		case left.count > 0 && sh.OnFailure == Fail:
			return problem.New(problem.StepEnded, "run %q would fail at once all the same: %s, and on_failure of step '%s' is fail: %s",
				id, left.text(sh.Name), sh.Name, advice)
		case l.named[n] != nil && blocker[n] >= 0:
			at := blocker[n]
			return problem.New(problem.StepEnded, "step '%s' of run %q would not go: it waits for step '%s', and %s: %s",
				sh.Name, id, shapes[at].Name, l.left[at].text(shapes[at].Name), advice)
		}
	}
	return nil
}
