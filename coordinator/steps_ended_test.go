package coordinator

import (
	"fmt"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/berthhq/berth/coordinator/run"
	"github.com/berthhq/berth/coordinator/step"
	"github.com/berthhq/berth/internal/problem"
	"github.com/berthhq/berth/internal/store"
	"github.com/berthhq/berth/internal/store/storetest"
)

// nothingLeft checks that nothing is left under a prefix.
func (fl *fleet) nothingLeft(prefix string) {
	fl.t.Helper()
	fl.root.Do(func(e *storetest.Etcd) {
		for kv := range e.All(prefix) {
			fl.t.Errorf("%s is left", kv.Key)
		}
	})
}

// Its instance has ended then, and it can be tried again.
func TestAnInstanceOfAnEndedRunWhoseWorkerDies(t *testing.T) {
	for name, dies := range map[string]func(cancel, revoke func()){
		"after":  func(cancel, revoke func()) { cancel(); revoke() },
		"before": func(cancel, revoke func()) { revoke(); cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				fl.candidate("one")
				fl.submitSteps("r", []step.Spec{fan("m", 3, 2, tries(3))})
				fl.proceed()
				h := fl.hand("x")
				h.take(1)
				fl.proceed()
				dies(func() {
					if _, err := fl.Cancel(t.Context(), "r", "", false); err != nil {
						t.Fatal(err)
					}
				}, func() {
					if err := fl.root.Revoke(t.Context(), h.lease); err != nil {
						t.Fatal(err)
					}
				})
				fl.is(map[string]string{"r": "canceled"})
				fl.proceed()
				for index, want := range []step.Status{step.Canceled, step.Canceled, step.Requested} {
					fl.stepIs(fmt.Sprintf("r/m/%06d", index), want)
				}
				if _, err := fl.instances().Retry(t.Context(), fl.Store, "r", ""); err != nil {
					t.Fatal(err)
				}
				fl.proceed()
				if got := fl.ready(); got != "m[0] m[1]" {
					t.Errorf("ready is %q", got)
				}
			})
		})
	}
}

// An instance that ends while it is being canceled has no mark any more, whatever its
// end: the next attempt would be stopped by it.
func TestAMarkGoesWithItsAttempt(t *testing.T) {
	for name, tc := range map[string]struct {
		retries int
		end     func(fl *fleet, h *hand)
		want    step.Status
	}{
		"it succeeded":                   {0, func(_ *fleet, h *hand) { h.finish(step.Succeeded) }, step.Succeeded},
		"it failed":                      {0, func(_ *fleet, h *hand) { h.finish(step.Failed) }, step.Failed},
		"it is not tried again":          {3, func(_ *fleet, h *hand) { h.finish(step.Failed) }, step.Canceled},
		"its worker died":                {0, (*fleet).revoke, step.Failed},
		"lost, it is not tried again":    {3, (*fleet).revoke, step.Canceled},
		"handed back, it does not start": {3, (*fleet).handBack, step.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			inFleet(t, func(t *testing.T, fl *fleet) {
				fl.candidate("one")
				fl.submitSteps("r", []step.Spec{fan("m", 1, 0, tries(tc.retries), goOn), fan("n", 1, 0)})
				fl.proceed()
				h := fl.hand("x")
				h.take(1)
				if _, err := fl.instances().Cancel(t.Context(), fl.Store, store.StepID{Run: "r", Step: "m"}); err != nil {
					t.Fatal(err)
				}
				tc.end(fl, h)
				fl.proceed()
				fl.stepIs("r/m/000000", tc.want)
				fl.nothingLeft(fl.keys.CanceledAll())
			})
		})
	}
}

func (fl *fleet) revoke(h *hand) {
	if err := fl.root.Revoke(fl.t.Context(), h.lease); err != nil {
		fl.t.Fatal(err)
	}
}

func (fl *fleet) handBack(h *hand) {
	if _, err := fl.instances().HandBack(fl.t.Context(), h.has[0], nil); err != nil {
		fl.t.Fatal(err)
	}
}

// A mark of a life before, which nothing has deleted.
func TestARunThatIsTriedAgainHasNoMarks(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.candidate("one")
		fl.submitSteps("r", []step.Spec{fan("m", 1, 0)})
		fl.proceed()
		h := fl.hand("x")
		h.take(1)
		h.finish(step.Failed)
		fl.put(fl.keys.CanceledStep(store.StepID{Run: "r", Step: "m"}), string(run.CanceledValue))
		fl.is(map[string]string{"r": "failed"})
		if _, err := fl.instances().Retry(t.Context(), fl.Store, "r", ""); err != nil {
			t.Fatal(err)
		}
		fl.nothingLeft(fl.keys.CanceledAll())
	})
}

// A run of many steps is forgotten in many writes, the graph last; the next leader
// continues.
func TestARunWithManyStepsIsForgottenBitByBit(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		const count = 12_000
		short := func(c *Config) { c.Retention = 10 * time.Minute }
		one := fl.candidate("one", short)
		fl.submitSteps("r", []step.Spec{fan("m", count, 1)})
		fl.is(map[string]string{"r": "running"})
		if _, err := fl.Cancel(t.Context(), "r", "", false); err != nil {
			t.Fatal(err)
		}
		fl.proceed()
		most, deleted := 0, 0
		fl.root.Do(func(e *storetest.Etcd) {
			e.OnCommit(func(_ int64, events []*mvccpb.Event, _ *pb.TxnRequest) {
				n := 0
				for _, ev := range events {
					if ev.Type == mvccpb.Event_DELETE {
						n++
					}
				}
				most, deleted = max(most, n), deleted+n
			})
		})
		left := 0
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op == storetest.OpTxn && deletes(call.Txn, fl.keys.Works("r")) {
				if left++; left > 1 {
					return storetest.Fault{Drop: true, Err: store.ErrUnavailable}
				}
			}
			return storetest.Fault{}
		})
		time.Sleep(15 * time.Minute)
		if _, err := fl.Get(t.Context(), "r"); problem.CodeOf(err) != problem.RunNotFound {
			t.Errorf("it is not forgotten: %v", err)
		}
		if deleted < deleteKeys || deleted >= count {
			t.Errorf("%d keys are gone, and the others could not be deleted", deleted)
		}
		one.stop()
		fl.candidate("two", short)
		time.Sleep(5 * time.Minute)
		for _, prefix := range []string{fl.keys.Graph("r"), fl.keys.Works("r"), fl.keys.CanceledAll(), fl.keys.Runs()} {
			fl.nothingLeft(prefix)
		}
		if most > deleteKeys {
			t.Errorf("%d keys were deleted at once", most)
		}
	})
}

// deletes reports whether a transaction deletes keys with a prefix.
func deletes(t *pb.TxnRequest, prefix string) bool {
	for _, op := range t.Success {
		if d := op.GetRequestDeleteRange(); d != nil && string(d.Key) == prefix {
			return true
		}
	}
	return false
}

// The steps of a run that was submitted again under its old id are not deleted.
func TestWhatIsSubmittedAgainIsNotForgotten(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.submitSteps("r", []step.Spec{fan("m", 3, 0)})
		f := newStepDeleter(Config{Backend: fl.root, Keys: fl.keys})
		if err := f.delete(t.Context(), "r"); err != nil {
			t.Fatal(err)
		}
		if _, err := fl.instances().Work(t.Context(), store.StepID{Run: "r", Step: "m", Index: 2}); err != nil {
			t.Error(err)
		}
	})
}

// A run whose steps are unknown does not stay as it is for ever.
func TestARunWhoseStepsNobodyKnowsFails(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.submitSteps("gone", []step.Spec{fan("m", 3, 0)})
		fl.submitSteps("bad", []step.Spec{fan("m", 3, 0)})
		fl.submitSteps("good", []step.Spec{fan("m", 3, 0)})
		fl.txn(store.Delete(fl.keys.Graph("gone")), store.Put(fl.keys.Graph("bad"), []byte("{"), 0))
		fl.candidate("one")
		fl.is(map[string]string{"gone": "not_started", "bad": "failed", "good": "running"})
		time.Sleep(graphWait)
		fl.is(map[string]string{"gone": "failed", "good": "running"})
		for _, id := range []string{"gone", "bad"} {
			if r, err := fl.Get(t.Context(), id); err != nil || r.Error == "" {
				t.Errorf("%s: no reason: %v", id, err)
			}
		}
	})
}

// Trouble with slots for runs keeps no steps from going.
func TestStepsGoThoughNoRunGetsItsSlots(t *testing.T) {
	inFleet(t, func(t *testing.T, fl *fleet) {
		fl.pool("db", 3)
		one := fl.candidate("one")
		one.by.Inject(func(call storetest.Call) storetest.Fault {
			if call.Op == storetest.OpTxn && puts(call.Txn, fl.keys.Slots("db")) {
				return storetest.Fault{Drop: true, Err: store.ErrDenied}
			}
			return storetest.Fault{}
		})
		fl.submit("slots", needs("db", 1))
		fl.proceed()
		fl.submitSteps("steps", []step.Spec{fan("m", 3, 0)})
		time.Sleep(30 * time.Second)
		if got := fl.ready(); got != "m[0] m[1] m[2]" {
			t.Errorf("ready is %q", got)
		}
	})
}

// What waits in the queue takes no memory for its instances, nor what has succeeded.
func TestOnlyRunsInProgressHaveCells(t *testing.T) {
	keys := store.NewKeys("/b/")
	g, err := step.NewGraph([]step.Spec{fan("m", 2, 0)})
	if err != nil {
		t.Fatal(err)
	}
	s := newState(keys)
	id := store.StepID{Run: "r", Step: "m"}
	at := func(status step.Status, index int, rev int64) *mvccpb.KeyValue {
		id.Index = index
		rec := step.Record{Status: status, Attempt: 1, Executor: &run.Executor{Host: "x"}}
		return &mvccpb.KeyValue{Key: []byte(keys.Step(id)), Value: rec.Encode(), ModRevision: rev}
	}
	is := func(status run.Status, rev int64) {
		s.put(&run.Run{ID: "r", Created: 1, Revision: rev, Record: run.Record{Status: status, Spec: run.Spec{Steps: 2}}})
	}
	is(run.Queued, 2)
	s.steps.message(store.FeedMessage{Revision: 2, Snapshot: &store.Snapshot{Revision: 2, KVs: []*mvccpb.KeyValue{
		{Key: []byte(keys.Graph("r")), Value: g.Encode(), ModRevision: 1},
	}}}, planNow)
	all, blind := s.steps.fanned(s, planNow)
	if len(all)+len(blind)+len(s.steps.stopping(s.ended))+len(s.steps.fans) > 0 {
		t.Errorf("queued, it has %v", s.steps.fans)
	}
	is(run.Running, 3)
	if all, _ := s.steps.fanned(s, planNow); len(all) != 1 {
		t.Errorf("in progress are %v", all)
	}
	event := func(kv *mvccpb.KeyValue) {
		s.steps.message(store.FeedMessage{Revision: kv.ModRevision, Events: []*mvccpb.Event{{Kv: kv}}}, planNow)
	}
	event(at(step.Running, 0, 4))
	is(run.Canceled, 5)
	for range 2 {
		if all := s.steps.stopping(s.ended); len(all) != 1 {
			t.Errorf("one runs still of %v", all)
		}
	}
	event(at(step.Canceled, 0, 6))
	if len(s.steps.stopping(s.ended))+len(s.steps.ending) > 0 || s.steps.fans["r"] == nil {
		t.Error("nothing runs any more, and it may be tried again")
	}
	is(run.Running, 7)
	event(at(step.Succeeded, 0, 8))
	event(at(step.Succeeded, 1, 9))
	is(run.Succeeded, 10)
	if s.steps.stopping(s.ended); s.steps.fans["r"] != nil {
		t.Error("it has succeeded, and has cells")
	}
}

// What was published of ended runs is withdrawn in portions.
func TestAPlanWithdrawsInPortions(t *testing.T) {
	g, err := step.NewGraph([]step.Spec{fan("a", 6, 0), fan("b", 6, 0)})
	if err != nil {
		t.Fatal(err)
	}
	f := newFanout("r", g)
	rev := int64(0)
	put := func(name string, index int, status step.Status) {
		rev++
		f.take(&step.Instance{
			StepID: store.StepID{Run: "r", Step: name, Index: index}, Revision: rev,
			Record: step.Record{Status: status, Attempt: 1, Executor: &run.Executor{Host: "x"}},
		}, planNow)
	}
	for index := range 6 {
		put("a", index, step.Scheduled)
		put("b", index, []step.Status{step.Succeeded, step.Running, step.Scheduled}[index%3])
	}
	s := &StepSnapshot{
		Now: planNow, Most: 5, Ended: []Fanned{{&run.Run{ID: "r"}, f}},
		Alive: func(id store.StepID, _ step.Record, _ int64) bool { return id.Index == 1 },
	}
	var got []string
	for more := true; more; {
		p := s.Plan()
		if len(p.Withdraw) > s.Most || len(p.Publish)+len(p.Lost)+len(p.End) > 0 {
			t.Fatalf("%+v", p)
		}
		for _, d := range append(p.Withdraw, p.Stopped...) {
			got = append(got, d.ID().Text())
			put(d.ID().Step, d.Index, step.Canceled)
		}
		more = p.More
	}
	if want := "[a[0] a[1] a[2] a[3] a[4] b[4] a[5] b[2] b[5]]"; fmt.Sprint(got) != want {
		t.Errorf("%v, want %s", got, want)
	}
}
