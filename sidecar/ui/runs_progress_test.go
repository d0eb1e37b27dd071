package ui

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/inspect"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// stepsRig is runs with steps on a stand-in for etcd, whose requests are counted.
type stepsRig struct {
	t     *testing.T
	b     *storetest.Backend
	runs  run.Store
	steps step.Store
	reads int
}

func onSteps(t *testing.T, f func(*testing.T, *stepsRig)) {
	synctest.Test(t, func(t *testing.T) {
		b := storetest.NewBackend(storetest.New(storetest.Options{}))
		t.Cleanup(b.Close)
		r := &stepsRig{
			t: t, b: b, runs: run.Store{Backend: b, Keys: cacheKeys}, steps: step.Store{Backend: b, Keys: cacheKeys},
		}
		b.Inject(func(storetest.Call) storetest.Fault {
			r.reads++
			return storetest.Fault{}
		})
		f(t, r)
	})
}

// put stores a run of one step.
func (r *stepsRig) put(id string, status run.Status, instances int) *listed {
	r.t.Helper()
	g, err := step.NewGraph([]step.Spec{{Name: "x", External: true, Items: &step.Items{Range: &step.Range{From: 1, To: int64(instances), By: 1}}}})
	if err != nil {
		r.t.Fatal(err)
	}
	value := record(status, func(rec *run.Record) { rec.Steps = instances })
	r.commit(store.Put(cacheKeys.Run(id), value, 0), store.Put(cacheKeys.Graph(id), g.Encode(), 0))
	found, err := r.runs.Get(r.t.Context(), id)
	if err != nil {
		r.t.Fatal(err)
	}
	return listedOf(found)
}

func (r *stepsRig) commit(ops ...*pb.RequestOp) {
	r.t.Helper()
	if _, err := store.Commit(r.t.Context(), r.b, nil, ops...); err != nil {
		r.t.Fatal(err)
	}
}

// asked tells how many requests something costs.
func (r *stepsRig) asked(what func()) int {
	before := r.reads
	what()
	return r.reads - before
}

func TestTheStepsOfARunAreReadOnce(t *testing.T) {
	onSteps(t, func(t *testing.T, r *stepsRig) {
		var runs []*listed
		for i := range chipReads + 3 {
			runs = append(runs, r.put(fmt.Sprint("r", i), run.Queued, i+1))
		}
		plain := listedOf(&run.Run{ID: "plain"})
		var c chipNotes
		look := func(runs ...*listed) (found map[submitted]stepChips) {
			t.Helper()
			found, err := c.read(t.Context(), r.runs, runs)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		if n := r.asked(func() { look(append(runs, plain)...) }); n != 2 {
			t.Errorf("the first look cost %d requests, want 2 of %d runs each at most", n, chipReads)
		}
		var found map[submitted]stepChips
		if n := r.asked(func() { found = look(append(runs, plain)...) }); n != 0 {
			t.Errorf("the second look cost %d requests", n)
		}
		if got := found[submittedOf(runs[4].Run)]; len(found) != len(runs) || len(got.Steps) != 1 || got.Steps[0] != (stepChip{"x", 5}) {
			t.Errorf("%d runs, %+v", len(found), got)
		}

		// Another run of the same id has its own.
		r.commit(store.Delete(cacheKeys.Run("r0")))
		again := r.put("r0", run.Queued, 9)
		if got := look(again)[submittedOf(again.Run)]; got.Steps[0].Count != 9 {
			t.Errorf("%+v", got)
		}
		r.commit(store.Delete(cacheKeys.Graph("r1")), store.Put(cacheKeys.Graph("r2"), []byte("?"), 0))
		c.forget()
		found = look(runs[1:3]...)
		if a, b := found[submittedOf(runs[1].Run)], found[submittedOf(runs[2].Run)]; a.Wrong != "they are gone" || b.Wrong == "" {
			t.Errorf("%+v, %+v", a, b)
		}
		c.forget()
		r.b.Down()
		if _, err := c.read(t.Context(), r.runs, runs); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Error(err)
		}
	})
}

// waitsForExecutor is why a published instance of an external step waits.
const waitsForExecutor = "no executor has taken it from queue 'default' over HTTP yet"

func TestProgressIsCountedWhereItIsCheap(t *testing.T) {
	onSteps(t, func(t *testing.T, r *stepsRig) {
		done := r.put("done", run.Succeeded, 3)
		failed := r.put("failed", run.Failed, 3)
		huge := r.put("huge", run.Running, progressSteps+1)
		some := r.put("some", run.Running, 4)
		plain := listedOf(&run.Run{ID: "plain"})
		state := func(index int, status step.Status) {
			r.commit(store.Put(cacheKeys.Step(store.StepID{Run: "some", Step: "x", Index: index}), step.Record{Status: status}.Encode(), 0))
		}
		state(0, step.Succeeded)
		state(1, step.Failed)
		state(2, step.Scheduled)
		// A run costs three requests, and what the waits depend on eight, once.
		const perRun, around = 3, 8
		var n doneNotes
		look := func(runs ...*listed) map[submitted]stepsDone {
			t.Helper()
			found, err := n.read(t.Context(), inspect.NewSnapshot(run.Store{Backend: r.steps.Backend, Keys: cacheKeys}), runs)
			if err != nil {
				t.Fatal(err)
			}
			return found
		}
		var got map[submitted]stepsDone
		first := r.asked(func() { got = look(done, failed, huge, some, plain) })
		want := map[submitted]stepsDone{
			submittedOf(done.Run): {Done: 3, Of: 3, Known: true}, submittedOf(failed.Run): {Of: 3}, submittedOf(huge.Run): {Of: progressSteps + 1},
			submittedOf(some.Run): {Done: 2, Failed: 1, Of: 4, Known: true, Waits: "x: " + waitsForExecutor},
		}
		if d := cmp.Diff(want, got, cmp.AllowUnexported(submitted{})); d != "" || first != perRun+around {
			t.Errorf("%d requests: %s", first, d)
		}

		state(3, step.Canceled)
		time.Sleep(progressAge - time.Second)
		if n := r.asked(func() { got = look(some) }); n != 0 || got[submittedOf(some.Run)].Done != 2 {
			t.Errorf("%d requests: %+v", n, got)
		}
		time.Sleep(time.Second)
		if got = look(some); got[submittedOf(some.Run)].Done != 3 {
			t.Errorf("%+v", got)
		}

		var many []*listed
		for i := range progressRuns + 5 {
			many = append(many, r.put(fmt.Sprint("r", i), run.Running, 2))
		}
		if n := r.asked(func() { got = look(many...) }); n != progressRuns*perRun+around || got[submittedOf(many[progressRuns].Run)].Known {
			t.Errorf("%d requests", n)
		}
	})
}

func TestProgressThatCantBeCountedIsNotGuessed(t *testing.T) {
	onSteps(t, func(t *testing.T, r *stepsRig) {
		gone, odd := r.put("gone", run.Running, 4), r.put("odd", run.Running, 4)
		r.commit(store.Delete(cacheKeys.Run("gone")), store.Put(cacheKeys.Graph("odd"), []byte("?"), 0))
		var n doneNotes
		found, err := n.read(t.Context(), inspect.NewSnapshot(run.Store{Backend: r.steps.Backend, Keys: cacheKeys}), []*listed{gone, odd})
		if err != nil || found[submittedOf(gone.Run)] != (stepsDone{Of: 4}) || found[submittedOf(odd.Run)] != (stepsDone{Of: 4}) {
			t.Errorf("%+v, %v", found, err)
		}
		n.forget()
		r.b.Down()
		if _, err := n.read(t.Context(), inspect.NewSnapshot(run.Store{Backend: r.steps.Backend, Keys: cacheKeys}), []*listed{odd}); problem.CodeOf(err) != problem.EtcdUnavailable {
			t.Error(err)
		}
	})
}
