package run

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

func TestARunGoesItsWay(t *testing.T) {
	r := newRig(t)
	spec := Spec{Name: "nightly", Tags: map[string]string{"env": "prod"}, Priority: 3}
	a := r.submit("a", spec)
	if again, created, err := r.Submit(t.Context(), "a", spec); err != nil || created || again.Revision != a.Revision {
		t.Errorf("submitted again: %+v, %v, %v", again, created, err)
	}
	_, _, err := r.Submit(t.Context(), "a", Spec{Name: "another"})
	r.wants(problem.IDInUse, err)

	x := r.lease()
	_, err = r.start("a", "me", x)
	r.wants(problem.RunNotAdmitted, err)
	r.admit("a")
	run, err := r.start("a", "me", x)
	if err != nil || run.Status != Running || run.Attempt != 1 || run.Revision <= a.Revision || run.Created != a.Created {
		t.Fatalf("started: %+v, %v", run, err)
	}
	if again, err := r.start("a", "me", x); err != nil || again.Revision != run.Revision {
		t.Errorf("started again: %+v, %v", again, err)
	}
	_, err = r.start("a", "", x)
	r.wants(problem.RunTaken, err)
	_, err = r.Cancel(t.Context(), "a", "", true)
	r.wants(problem.RunNotQueued, err)

	_, err = r.Finish(t.Context(), "a", run.Fence()-1, Succeeded, "", nil)
	r.wants(problem.RunLost, err)
	_, err = r.Finish(t.Context(), "a", run.Fence(), Canceled, "", nil)
	r.wants(problem.Invalid, err)
	for range 2 { // the answer may be lost
		if done, err := r.Finish(t.Context(), "a", run.Fence(), Failed, "disk full", nil); err != nil || done.Status != Failed || done.Error != "disk full" {
			t.Errorf("finished: %+v, %v", done, err)
		}
	}
	_, err = r.Finish(t.Context(), "a", run.Fence(), Succeeded, "", nil)
	r.wants(problem.RunEnded, err)
	_, err = r.Cancel(t.Context(), "a", "", false)
	r.wants(problem.RunEnded, err)
	_, err = r.start("a", "me", x)
	r.wants(problem.RunEnded, err)

	events, err := r.Events(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var types []EventType
	for _, e := range events {
		types = append(types, e.Type)
		if e.By != "one/test" || e.At.IsZero() || e.Run != "a" {
			t.Errorf("%+v", e)
		}
	}
	if want := []EventType{RunQueued, RunStarted, RunFailed}; !slices.Equal(types, want) {
		t.Errorf("events %v, want %v", types, want)
	}
	if events[0].Metadata["priority"] != "3" {
		t.Errorf("queued: %+v", events[0])
	}
}

// An executor whose lease was not renewed in time can't end the run, even before the
// coordinator has noticed.
func TestAnExecutorThatIsGoneCanNotFinish(t *testing.T) {
	r := newRig(t)
	r.submit("a", Spec{Retries: 1})
	r.admit("a")
	x := r.lease()
	run, err := r.start("a", "me", x)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.b.Revoke(t.Context(), x); err != nil {
		t.Fatal(err)
	}
	_, err = r.Finish(t.Context(), "a", run.Fence(), Succeeded, "", nil)
	r.wants(problem.RunLost, err)
	r.lose("a")
	if again := r.get("a"); again.Status != Queued || again.Created != run.Created || again.Lost != 1 || again.Executor != nil {
		t.Errorf("lost once: %+v", again)
	}
	_, err = r.Finish(t.Context(), "a", run.Fence(), Succeeded, "", nil)
	r.wants(problem.RunLost, err)
	r.admit("a")
	other, err := r.start("a", "other", r.lease())
	if err != nil || other.Attempt != 2 {
		t.Fatal(other, err)
	}
	_, err = r.Finish(t.Context(), "a", run.Fence(), Succeeded, "", nil)
	r.wants(problem.RunLost, err)
	r.lose("a")
	if end := r.get("a"); end.Status != Failed || end.Error == "" {
		t.Errorf("lost twice: %+v", end)
	}
}

func TestCancel(t *testing.T) {
	r := newRig(t)
	r.submit("a", Spec{})
	for range 2 {
		run, err := r.Cancel(t.Context(), "a", "by hand", true)
		if err != nil || run.Status != Canceled || run.Error != "by hand" {
			t.Errorf("canceled: %+v, %v", run, err)
		}
	}
	r.submit("b", Spec{})
	r.admit("b")
	x := r.lease()
	run, err := r.start("b", "me", x)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Cancel(t.Context(), "b", "", false); err != nil {
		t.Fatal(err)
	}
	_, err = r.Finish(t.Context(), "b", run.Fence(), Succeeded, "", nil)
	r.wants(problem.RunEnded, err)
	r.b.Do(func(e *storetest.Etcd) {
		for kv := range e.All(r.Keys.ActiveAll()) {
			t.Errorf("%s is left", kv.Key)
		}
	})
	_, err = r.Cancel(t.Context(), "c", "", false)
	r.wants(problem.RunNotFound, err)
}

// A lost answer is asked for again, and comes to the same.
func TestLostAnswersDoNoHarm(t *testing.T) {
	r := newRig(t)
	var lost atomic.Bool
	r.b.Inject(func(c storetest.Call) storetest.Fault {
		if c.Op == storetest.OpTxn && lost.CompareAndSwap(false, true) {
			return storetest.Fault{LoseAnswer: true, Err: store.ErrUnavailable}
		}
		lost.Store(false)
		return storetest.Fault{}
	})
	r.submit("a", Spec{})
	if _, err := r.Cancel(t.Context(), "a", "", false); err != nil {
		t.Fatal(err)
	}
	events, err := r.Events(t.Context(), "a")
	if err != nil || len(events) != 2 {
		t.Errorf("%+v, %v", events, err)
	}
}

func TestAnEtcdThatIsAway(t *testing.T) {
	r := newRig(t)
	r.b.Down()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, _, err := r.Submit(ctx, "a", Spec{})
	r.wants(problem.EtcdUnavailable, err)
	_, err = r.Get(ctx, "a")
	r.wants(problem.EtcdUnavailable, err)
	_, err = r.All(ctx)
	r.wants(problem.EtcdUnavailable, err)
}

func TestAllTellsOfWhatCanNotBeRead(t *testing.T) {
	r := newRig(t)
	r.submit("b", Spec{Priority: 1})
	r.submit("a", Spec{})
	r.submit("c", Spec{Priority: 2})
	r.admit("c")
	r.put(r.Keys.Run("d"), `{"v":7}`)
	all, err := r.All(t.Context())
	if err != nil || len(all.Runs) != 3 || len(all.Bad) != 1 {
		t.Fatalf("%+v, %v", all, err)
	}
	var queue []string
	for _, run := range all.Queue() {
		queue = append(queue, run.ID)
	}
	if !slices.Equal(queue, []string{"b", "a"}) {
		t.Errorf("the queue is %v", queue)
	}
	_, err = r.Get(t.Context(), "d")
	r.wants(problem.CorruptValue, err)
	_, err = r.Cancel(t.Context(), "d", "", false)
	r.wants(problem.CorruptValue, err)

	why := all.Why("a", nil, time.Now())
	if why.Position != 2 || why.Line != 2 || len(why.InTheWay) != 0 || why.Estimate.In != 0 {
		t.Errorf("why: %+v", why)
	}
	if all.Why("x", nil, time.Now()) != nil || all.Why("c", nil, time.Now()).Position != 0 {
		t.Error("of others")
	}
}
