package step

import (
	"fmt"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
)

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
	told bool
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
		l.t.told = true // with the first of them
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
