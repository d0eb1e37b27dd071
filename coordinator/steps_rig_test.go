package coordinator

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// spec of a step that does nothing, with so many items.
func fan(name string, items, window int, change ...func(*step.Spec)) step.Spec {
	s := step.Spec{Name: name, Command: []string{"true"}, Concurrency: window}
	if items > 0 {
		s.Items = &step.Items{Range: &step.Range{From: 0, To: int64(items - 1), By: 1}}
	}
	for _, f := range change {
		f(&s)
	}
	return s
}

func after(names ...string) func(*step.Spec) { return func(s *step.Spec) { s.Needs = names } }
func tries(n int) func(*step.Spec)           { return func(s *step.Spec) { s.Retries = n } }
func goOn(s *step.Spec)                      { s.OnFailure = step.Finish }
func caps(steps, tick int) func(*run.Spec) {
	return func(s *run.Spec) { s.MaxConcurrentSteps, s.MaxStepsPerTick = steps, tick }
}

// instances is the store of steps.
func (fl *fleet) instances() step.Store {
	return step.Store{Backend: fl.root, Keys: fl.keys, Journal: fl.Journal, Group: &store.Group{}}
}

func (fl *fleet) submitSteps(id string, steps []step.Spec, change ...func(*run.Spec)) {
	fl.t.Helper()
	g, err := step.NewGraph(steps)
	if err != nil {
		fl.t.Fatal(err)
	}
	var s run.Spec
	for _, f := range change {
		f(&s)
	}
	if _, _, err := fl.instances().Submit(fl.t.Context(), fl.Store, id, s, g); err != nil {
		fl.t.Fatal(err)
	}
}

// hand is a worker that takes and finishes instances when the test says so.
type hand struct {
	fl    *fleet
	name  string
	lease store.LeaseID
	has   []*step.Taken
	sure  bool // that nothing fails any more
}

func (fl *fleet) hand(name string) *hand { return &hand{fl: fl, name: name, lease: fl.executor()} }

// published are the instances that can be taken, in order.
func (fl *fleet) published() []*step.Published {
	fl.t.Helper()
	var all []*step.Published
	fl.root.Do(func(e *storetest.Etcd) {
		for kv := range e.All(fl.keys.ReadyAll()) {
			p, err := step.DecodeReady(fl.keys, kv)
			if err != nil {
				fl.t.Error(err)
				continue
			}
			all = append(all, p)
		}
	})
	slices.SortFunc(all, func(a, b *step.Published) int { return strings.Compare(a.Order, b.Order) })
	return all
}

// ready is what can be taken, as STEP[INDEX].
func (fl *fleet) ready() string {
	var all []string
	for _, p := range fl.published() {
		all = append(all, p.ID().Text())
	}
	return strings.Join(all, " ")
}

// take takes the first so many.
func (h *hand) take(most int) {
	h.fl.t.Helper()
	for _, p := range h.fl.published() {
		if most == 0 {
			return
		}
		t, err := h.fl.instances().Take(h.fl.t.Context(), p, run.Executor{Host: h.name, Instance: "worker"}, h.lease)
		if err != nil {
			h.fl.t.Fatal(err)
		}
		h.has = append(h.has, t)
		most--
	}
}

// finish ends the first that it has.
func (h *hand) finish(as step.Status) {
	h.fl.t.Helper()
	t := h.has[0]
	h.has = h.has[1:]
	if _, err := h.fl.instances().Finish(h.fl.t.Context(), t, step.Outcome{Status: as, Error: "as requested"}, nil); err != nil {
		h.fl.t.Fatal(err)
	}
}

// is checks a status.
func (fl *fleet) stepIs(text string, want step.Status) {
	fl.t.Helper()
	id, err := store.ParseStepID(text)
	if err != nil {
		fl.t.Fatal(err)
	}
	i, err := fl.instances().Get(fl.t.Context(), id)
	if err != nil || i.Status != want {
		fl.t.Errorf("%s is %v, want %s (%v)", text, i, want, err)
	}
}

// stepReferee checks, at every revision, the windows, the caps, and the order of
// statuses; and that no run has failed of which nothing has.
type stepReferee struct {
	fl     *fleet
	status map[store.StepID]step.Status
	runs   map[store.StepID]int // successes
	window map[string]int       // by RUN/STEP
	most   map[string]int       // by run
	byHand bool                 // an operator cancels instances, and has them tried again
}

func (fl *fleet) watchSteps() *stepReferee {
	f := &stepReferee{fl: fl, status: map[store.StepID]step.Status{}, runs: map[store.StepID]int{}, window: map[string]int{}, most: map[string]int{}}
	fl.root.Do(func(e *storetest.Etcd) {
		e.OnCommit(func(rev int64, events []*mvccpb.Event, txn *pb.TxnRequest) {
			fl.referee.committed(rev, events, txn)
			f.committed(rev, events)
		})
	})
	return f
}

func (f *stepReferee) committed(rev int64, events []*mvccpb.Event) {
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if ev.Type == mvccpb.Event_DELETE || !strings.HasPrefix(key, f.fl.keys.StepsAll()) {
			continue // runs are checked below, when all of the revision is known
		}
		id, err := store.ParseStepID(strings.TrimPrefix(key, f.fl.keys.StepsAll()))
		if err != nil {
			var g struct {
				Steps []step.Shape `json:"steps"`
			}
			if json.Unmarshal(ev.Kv.Value, &g) == nil {
				for _, sh := range g.Steps {
					f.window[strings.TrimPrefix(key, f.fl.keys.StepsAll())+"/"+sh.Name] = sh.Concurrency
				}
			}
			continue
		}
		i, err := step.Decode(f.fl.keys, ev.Kv)
		if err != nil {
			f.fl.t.Error(err)
			continue
		}
		f.step(rev, id, i)
	}
	for _, ev := range events {
		if ev.Type == mvccpb.Event_PUT && strings.HasPrefix(string(ev.Kv.Key), f.fl.keys.Runs()) {
			f.run(rev, ev.Kv)
		}
	}
}

func (f *stepReferee) run(rev int64, kv *mvccpb.KeyValue) {
	r, err := run.Decode(f.fl.keys, kv)
	if err != nil || r.Status != run.Failed || r.Steps == 0 {
		return
	}
	for id, s := range f.status {
		if id.Run == r.ID && (s == step.Failed || s == step.Canceled) {
			return
		}
	}
	f.fl.t.Errorf("revision %d: run %s has failed (%s), and nothing of it has", rev, r.ID, r.Error)
}

func (f *stepReferee) step(rev int64, id store.StepID, i *step.Instance) {
	old := f.status[id]
	if old == "" {
		old = step.Requested
	}
	legal := map[step.Status][]step.Status{
		step.Requested: {step.Scheduled},
		step.Scheduled: {step.Running, step.Canceled},
		step.Running:   {step.Succeeded, step.Failed, step.Canceled, step.Requested, step.Scheduled},
	}
	if f.byHand {
		legal[step.Failed] = []step.Status{step.Requested}
		legal[step.Canceled] = []step.Status{step.Requested}
		legal[step.Requested] = append(legal[step.Requested], step.Canceled)
	}
	if !slices.Contains(legal[old], i.Status) {
		f.fl.t.Errorf("revision %d: %s went from %s to %s", rev, id, old, i.Status)
	}
	f.status[id] = i.Status
	if i.Status == step.Succeeded {
		f.runs[id]++
	}
	if i.Status != step.Scheduled || old != step.Requested {
		return
	}
	inStep, inRun := 0, 0
	for o, s := range f.status {
		if s.InFlight() && o.Run == id.Run {
			inRun++
			if o.Step == id.Step {
				inStep++
			}
		}
	}
	if w := f.window[id.Run+"/"+id.Step]; w > 0 && inStep > w {
		f.fl.t.Errorf("revision %d: %d of step %s are in flight, its window is %d", rev, inStep, id.Step, w)
	}
	if m := f.most[id.Run]; m > 0 && inRun > m {
		f.fl.t.Errorf("revision %d: %d of run %s are in flight, allowed are %d", rev, inRun, id.Run, m)
	}
}

// work does something that a worker does, or dies.
func (h *hand) work(rnd *draws) {
	ctx, s := context.Background(), h.fl.instances()
	switch rnd.draw(8) {
	case 0:
		if rnd.calmed() {
			return
		}
		_ = h.fl.root.Revoke(ctx, h.lease)
		h.lease, h.has = h.fl.executor(), nil
	case 1, 2, 3:
		for _, p := range h.fl.published() {
			if t, err := s.Take(ctx, p, run.Executor{Host: h.name, Instance: "worker"}, h.lease); err == nil {
				h.has = append(h.has, t)
				return
			}
		}
	default:
		if len(h.has) == 0 {
			return
		}
		t := h.has[0]
		h.has = h.has[1:]
		as := step.Succeeded
		if !h.sure && rnd.draw(4) == 0 {
			as = step.Failed
		}
		if _, err := s.Finish(ctx, t, step.Outcome{Status: as}, nil); err != nil && problem.CodeOf(err) != problem.StepLost {
			h.fl.t.Error(err)
		}
	}
}
