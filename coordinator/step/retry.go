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

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

const (
	// MaxWhich bounds what one retry can name: its event tells of all of it.
	MaxWhich = 100
	// retryPuts is how many instances one write requests again. Each takes a compare and
	// two operations, of which etcd takes 128.
	retryPuts = 50
	// retryTimeout bounds one read or write of a retry.
	retryTimeout = 2 * time.Second
)

// Retried is what has become of a run of which something was to be tried again.
type Retried struct {
	Run *run.Run
	// Queued tells that the run was put into the queue once more.
	Queued bool
	// Requested is how many instances that were named are requested again.
	Requested int
}

// Retry has instances of a run that have failed or were canceled tried again, with as
// many retries as at first, and why is told with it. Without a name that is all that has
// not succeeded, of a run that has ended; such a run is put into the queue once more. A
// run that has not ended is returned as it is, since that may be an answer that was lost.
//
// With names it is those instances. What else has failed stays so. A run that has ended
// is queued once more, and with those go all that have not ended by themselves: that
// were never begun, or were stopped because the run had ended. A run that has not ended
// goes on meanwhile. Instances that have not ended are left as they are.
//
// Refused are a run or instances that have succeeded (RunEnded, StepEnded), a run of
// which something is being stopped still (RunNotEnded), and names that would come to
// nothing: because of something else that has failed the run would fail at once, or they
// would wait for it for ever (StepEnded).
func (s Store) Retry(ctx context.Context, runs run.Store, id, why string, which ...Which) (*Retried, error) {
	switch {
	case len(which) > MaxWhich:
		return nil, problem.Field("steps", "%d are too many: allowed are %d", len(which), MaxWhich)
	case len(why) > run.MaxWhy:
		return nil, problem.Field("reason", "it is %d bytes long: allowed are %d", len(why), run.MaxWhy)
	}
	t := newRetrial(why, which)
	return store.Change(ctx, "not all was requested again: try again", func(context.Context) (*Retried, error) {
		// To look at a large run and to change it takes longer than one try may: every
		// read and write of it has a bound of its own.
		done, err := s.retry(ctx, runs, id, t)
		if p := (*problem.Error)(nil); errors.As(err, &p) && p.Code != problem.EtcdUnavailable {
			err = store.Stop(err)
		}
		return done, err
	})
}

// retry looks at a run, and does what there is to do about it.
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
		r, err := runs.Retry(ctx, id, t.why, v.run.Revision)
		if err != nil {
			return nil, store.Stop(err)
		}
		v.run = r
	}
	return &Retried{Run: v.run, Queued: t.ended != 0, Requested: len(t.seen)}, nil
}

// withState reads the instances of a run that have a state.
func (s Store) withState(ctx context.Context, v *view) ([]*Instance, error) {
	if v.graph == nil {
		return nil, nil
	}
	read, err := store.ReadAll(ctx, s.Backend, s.Keys.Steps(v.run.ID))
	if err != nil {
		return nil, store.Problem(unread, err)
	}
	all := make([]*Instance, len(read.KVs))
	for n, kv := range read.KVs {
		if all[n], err = Decode(s.Keys, kv); err != nil {
			return nil, store.Problem(unread, err)
		}
	}
	return all, nil
}

// request has some instances that have ended requested again, if they and their run are
// as they were. The record of a run that goes on is put once more: an end of it that was
// decided on while they had failed must not come after.
func (s Store) request(ctx context.Context, r *run.Run, some []*Instance, t *retrial) error {
	ctx, cancel := context.WithTimeout(ctx, retryTimeout)
	defer cancel()
	cmps := []*pb.Compare{store.ModEquals(s.Keys.Run(r.ID), r.Revision)}
	var ops []*pb.RequestOp
	for _, i := range some {
		cmps = append(cmps, store.ModEquals(s.Keys.Step(i.StepID), i.Revision))
		ops = append(ops,
			store.Put(s.Keys.Step(i.StepID), i.request().Encode(), 0),
			store.Delete(s.Keys.CanceledStep(i.StepID))) // of an attempt before
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

// event tells who has asked for what to be tried again, and why.
func (t *retrial) event(now time.Time) run.Event {
	names := make([]string, len(t.which))
	for n, w := range t.which {
		names[n] = w.String()
	}
	return run.Event{Type: run.StepRetried, At: now, Reason: t.why, Metadata: map[string]string{
		"step": strings.Join(names, ", "), "instances": strconv.Itoa(len(t.seen)),
	}}
}

// retrial is what was asked for to be tried again, with what is known of it from one look
// at the run to the next. It decides, and reads and writes nothing.
//
// Nothing but a retry leads on from the end of an instance, or of a run. So one that has
// another revision than when it was first seen to have ended was requested again since,
// by this retry, of which the answer was lost, or by somebody else: it is done.
type retrial struct {
	why   string
	which []Which // none is all

	looked bool
	// seen are the named instances that were seen to have ended and not succeeded, with
	// their revisions.
	seen map[store.StepID]int64
	// ended is the revision of the end after which the run is to be queued; 0 if none.
	ended int64
	// told is that the event is written.
	written bool
}

func newRetrial(why string, which []Which) *retrial {
	return &retrial{why: why, which: which, seen: map[store.StepID]int64{}}
}

// retryPlan is what a retry has to do.
type retryPlan struct {
	// instances are requested again; then the run is queued, if it is to be.
	instances []*Instance
	queue     bool
}

// choice are the indexes that are named of a step, [Every] among them if all are.
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

// text tells of them, as a sentence goes on.
func (l *left) text(step string) string {
	switch {
	case l.count > 1:
		return fmt.Sprintf("%d other instances of step '%s' have failed or were canceled", l.count, step)
	case l.first.Status == Canceled:
		return l.first.Text() + " was canceled"
	}
	return l.first.Text() + " has failed"
}

// decide looks at a run and at those of its instances that have a state, and says what
// there is to do.
func (t *retrial) decide(v *view, all []*Instance) (retryPlan, error) {
	r, again := v.run, t.looked
	switch {
	case r.Status == run.Storing:
		return retryPlan{}, problem.New(problem.RunNotEnded, "run %q is being stored still: nothing of it has begun", r.ID)
	case r.Status == run.Succeeded && !again:
		return retryPlan{}, r.Retriable()
	case r.Status == run.Succeeded, len(t.which) == 0 && !r.Status.Ended():
		t.looked = true
		return retryPlan{}, nil
	}
	named, err := t.named(v)
	if err != nil {
		return retryPlan{}, err
	}
	l := newLook(t, v, named)
	for _, i := range all {
		if err := l.take(i); err != nil {
			return retryPlan{}, err
		}
	}
	if again && l.asked == 0 && (!r.Status.Ended() || r.Revision != t.ended) {
		return retryPlan{}, nil // it is done; and if the run has ended, then once more since
	}
	if err := l.comesToSomething(); err != nil {
		return retryPlan{}, err
	}
	t.looked = true
	if r.Status.Ended() {
		t.ended, l.plan.queue = r.Revision, true
	}
	return l.plan, nil
}

// named are the choices of each step, by number. Unknown names are refused.
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

// look is one look at a run.
type look struct {
	t     *retrial
	v     *view
	named map[int]choice // by the numbers of steps

	plan  retryPlan
	asked int            // of the plan's instances, those that were named
	stops *Instance      // one that is being stopped, of a run that has ended
	steps map[string]int // names to numbers
	// By the numbers of steps.
	succeeded []int
	left      []left
}

func newLook(t *retrial, v *view, named map[int]choice) *look {
	l := &look{t: t, v: v, named: named, steps: map[string]int{}}
	if v.graph == nil {
		return l
	}
	for n, sh := range v.graph.shapes {
		l.steps[sh.Name] = n
	}
	l.succeeded, l.left = make([]int, len(l.steps)), make([]left, len(l.steps))
	return l
}

// take takes an instance.
func (l *look) take(i *Instance) error {
	r := l.v.run
	n, known := l.steps[i.Step]
	if !known || i.Index >= l.v.graph.shapes[n].Count {
		return nil // nobody knows what it is to do
	}
	asked := len(l.t.which) == 0 || l.named[n].has(i.Index)
	seen := l.t.seen[i.StepID]
	switch {
	case i.Status.InFlight() && r.Status.Ended():
		l.stops = i
	case i.Status == Succeeded:
		l.succeeded[n]++
		if l.named[n][i.Index] && !l.t.looked {
			return problem.New(problem.StepEnded, "step instance %s of run %q has succeeded: only what has failed or was canceled is tried again", i.Text(), r.ID)
		}
	case asked && seen != 0 && seen != i.Revision:
		l.t.written = true // with the first of them
	case i.Status != Failed && i.Status != Canceled:
	case asked:
		l.t.seen[i.StepID] = i.Revision
		l.plan.instances = append(l.plan.instances, i)
		l.asked++
	case r.Status.Ended() && i.Status == Canceled && i.Revision > r.Revision:
		l.plan.instances = append(l.plan.instances, i) // it was stopped because its run had ended
	default:
		l.left[n].add(i)
	}
	return nil
}

// comesToSomething refuses what can't be done now, and names of which nothing can be tried
// again, or would go.
func (l *look) comesToSomething() error {
	switch i := l.stops; {
	case i != nil:
		return problem.New(problem.RunNotEnded, "step instance %s of run %q is being stopped still: try again in a moment", i.Text(), i.Run)
	case len(l.t.which) == 0:
		return nil
	}
	id, shapes, advice := l.v.run.ID, l.v.graph.shapes, "name that as well"
	if l.v.run.Status.Ended() {
		advice += ", or retry the whole run"
	}
	// blocker is a step that a step waits for, and that never comes to be done; -1 is none.
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
		case l.named[n][Every] && l.succeeded[n] == sh.Count && !l.t.looked:
			return problem.New(problem.StepEnded, "step '%s' of run %q has succeeded: only what has failed or was canceled is tried again", sh.Name, id)
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
